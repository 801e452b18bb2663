"""Prepared months: planned, written, and known by what their footers say."""

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tipcast.config.data_schema import SampleData
from tipcast.config.errors import TipcastError
from tipcast.datasets import months
from tipcast.datasets.months import Month
from tipcast.datasets.taxi.dataset import Taxi


def _planned(
    named: str, row_group_rows: int = 500, compression: str = "zstd", rows: int = 3000
) -> list[Month]:
    dataset = Taxi(
        SampleData("sample", None, None, named, rows=rows, seed=0, colour="yellow", block_rows=1000)
    )
    return months.plan(
        dataset, dataset.month_files(), row_group_rows=row_group_rows, compression=compression
    )


def test_a_recipe_tells_what_a_month_depends_on() -> None:
    settings = [{}, {"row_group_rows": 501}, {"compression": "snappy"}, {"rows": 3001}, {}]
    recipes = [_planned("2019-01", **setting)[0].recipe for setting in settings]
    assert len(set(recipes)) == 4
    assert recipes[0] == recipes[4]


def test_what_was_begun_is_removed_if_the_job_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), months.unfinished(str(tmp_path)) as token:
        for name in ("whole.parquet", f"half.parquet.{token}-1.tmp", "half.parquet.other-1.tmp"):
            (tmp_path / name).write_bytes(b"x")
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "half.parquet.other-1.tmp",
        "whole.parquet",
    ]


def test_a_month_that_has_changed_anywhere_is_not_current(tmp_path: Path) -> None:
    (month,) = _planned("2019-01")
    written = months.write_month(Taxi(), month, str(tmp_path), "job")
    assert months.current(str(tmp_path), month) == written
    path = tmp_path / month.name
    whole = path.read_bytes()
    footer = pq.read_metadata(path)
    assert footer.row_group(0).column(0).compression == "ZSTD"
    for at in (4, len(whole) // 2, len(whole) - footer.serialized_size, -1):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        assert months.current(str(tmp_path), month) is None
    pq.write_table(pq.read_table(io.BytesIO(whole)).replace_schema_metadata(), path)
    with pytest.raises(TipcastError, match="C011"):  # another writer's file
        months.current(str(tmp_path), month)
