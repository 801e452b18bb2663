"""Planning and writing prepared months."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tipcast.datasets.taxi import months
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.schema import COLUMNS

LAYOUT = months.Layout(500, "zstd")


def _sample(named: str, rows: int = 3000) -> Any:
    from tipcast.config.schema import SampleData

    spec = SampleData(
        source="sample", train=None, test=None, months=named, rows=rows, seed=0, colour="yellow", block_rows=1000
    )
    return Taxi(spec).scan("months", ("pickup", "fare_amount"), optional=COLUMNS)


def test_a_plan_has_one_file_a_month() -> None:
    planned = months.plan(_sample("2018-12..2019-02"), LAYOUT)
    assert [month.name for month in planned] == [
        "yellow_tripdata_2018-12.parquet",
        "yellow_tripdata_2019-01.parquet",
        "yellow_tripdata_2019-02.parquet",
    ]
    for before, after in zip(planned, planned[1:], strict=False):
        assert before.period[1] == after.period[0]
    assert all(month.fragments for month in planned)


def test_a_recipe_changes_with_what_the_file_depends_on() -> None:
    (month,) = months.plan(_sample("2019-01"), LAYOUT)
    assert months.plan(_sample("2019-01"), LAYOUT)[0].recipe == month.recipe
    others = [
        months.plan(_sample("2019-01"), months.Layout(501, "zstd"))[0],
        months.plan(_sample("2019-01"), months.Layout(500, "snappy"))[0],
        months.plan(_sample("2019-01", rows=3001), LAYOUT)[0],
    ]
    assert len({month.recipe, *(other.recipe for other in others)}) == 4


def test_what_was_begun_is_discarded(tmp_path: Path) -> None:
    (month,) = months.plan(_sample("2019-01"), LAYOUT)
    names = (month.name, f"{month.name}.job-1.tmp", f"{month.name}.other-1.tmp")
    whole, half, foreign = (tmp_path / name for name in names)
    for path in (whole, half, foreign):
        path.write_bytes(b"x")
    months.discard(str(tmp_path), [month], "job")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([whole.name, foreign.name])
