"""What a cell in a column of numbers means is the same by every way, as the page on data tells."""

import datetime
import io
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.exceptions import MlflowException
from mlflow.types.schema import AnyType, ColSpec, Schema
from tests.unit.datasets.conftest import open_table

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets import csv_cells
from tipcast.datasets.listing import ScanRequest
from tipcast.datasets.table.dataset import Table
from tipcast.datasets.taxi.dataset import Taxi

PAGE = Path(__file__).resolve().parents[3] / "docs" / "data.md"
BEGIN = "<!-- cells: tests/unit/datasets/test_cells.py -->\n\n"
END = "\n\n<!-- end of cells -->"
CELLS = {
    "empty": "",
    "one blank": " ",
    "two blanks": "  ",
    "a tab": "\t",
    "a no-break space": "\u00a0",
    "`NA`": "NA",
    "`null`": "null",
    "`nan`": "nan",
    "`NAN`": "NAN",
    "`-`": "-",
    "`?`": "?",
    "`.`": ".",
    "`007`": "007",
    "`+5`": "+5",
    "`1e5`": "1e5",
    "` 12 `": " 12 ",
    "` NA `": " NA ",
    "`true`": "true",
    "`1,5`": "1,5",
    "`1_000`": "1_000",
    "`0x10`": "0x10",
    "`\u0661`": "\u0661",
    "`inf`": "inf",
    "`-inf`": "-inf",
    "`1e400`": "1e400",
    "`künftig`, ü as two signs": "ku\u0308nftig",
}
UTC = datetime.UTC
CET, EST = (datetime.timezone(datetime.timedelta(hours=hours)) for hours in (1, -5))
ZONE_NAMES = {UTC: "UTC", CET: "+01:00", EST: "-05:00"}
NUMBERS = [f"{at % 9}.5" for at in range(39)]


def meaning(read: Callable[[], float]) -> str:
    """Return what became of a cell."""
    try:
        value = read()
    except (TipcastError, MlflowException):
        return "refused"
    if math.isnan(value):
        return "missing"
    return "no score" if math.isinf(value) else f"{value:g}"


def trained(folder: Path, cells: list[str]) -> Table:
    """Open a table whose column holds numbers and some cells."""
    texts = [*cells, *NUMBERS]
    pd.DataFrame({"a": texts, "b": ["x", "y"] * (len(texts) // 2)}).to_csv(
        folder / "t.csv", index=False
    )
    return open_table(folder / "t.csv", block_bytes=1 << 20)


def ways(table: Table, cell: str, folder: Path) -> dict[str, str]:
    """Return way to score -> what a cell means there to a model of a table."""
    from tipcast.tracking.model_code.model import _numbers, _read_csv

    rows = pd.DataFrame({"a": ["1", cell], "b": ["x", "x"]}, dtype=object)
    rows.to_csv(folder / "new.csv", index=False)
    rows.to_parquet(folder / "new.parquet")
    known = next(column for column in table.columns if column.name == "a")
    column = {"fill": None, "missing": known.missing, "booleans": known.booleans, "largest": None}
    sent = json.dumps({"columns": ["a", "b"], "data": rows.to_numpy().tolist()})

    def of_file(name: str) -> float:
        (part,) = table.scan_file(str(folder / name), ScanRequest(("a",))).parts
        return float(table.read(part, CpuFrames(), ("a",))["a"][1])

    def of_rows(frame: pd.DataFrame) -> float:
        return float(_numbers(frame["a"], "a", column, csv_cells.MISSING_TEXTS)[1])

    def of_csv() -> pd.DataFrame:
        schema = Schema([ColSpec(AnyType(), "a")])
        return _read_csv(None, io.StringIO(rows.to_csv(index=False)), schema)

    return {
        "`score`, CSV": meaning(lambda: of_file("new.csv")),
        "`score`, Parquet": meaning(lambda: of_file("new.parquet")),
        "DataFrame": meaning(lambda: of_rows(rows)),
        "server, JSON": meaning(lambda: of_rows(pd.DataFrame(**json.loads(sent)))),
        "server, CSV": meaning(lambda: of_rows(of_csv())),
    }


# MLflow's, of its own classes, at import
@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
def test_a_cell_means_the_same_by_every_way(tmp_path: Path) -> None:
    plain = trained(tmp_path, ["40.5"])
    lines = []
    for shown, cell in CELLS.items():
        table = trained(tmp_path, [cell])
        known = next(column for column in table.columns if column.name == "a")
        training = "category"
        if known.type == "number":
            (part,) = table.scan("train", ("a",)).parts
            training = meaning(
                lambda table=table, part=part: table.read(part, CpuFrames(), ("a",))["a"][0]
            )  # type: ignore[misc]
            assert set(ways(table, cell, tmp_path).values()) == {training}, (
                f"{cell!r}, which training has"
            )
        others = ways(plain, cell, tmp_path)
        assert len(set(others.values())) == 1, f"{cell!r}: {others}"
        lines.append([shown, training.replace("no score", "row left out"), *others.values()])
    names = ["cell", "training", *others]
    rows = [names, ["---"] * len(names), *lines]
    page = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    shown, end, after = rest.partition(END)
    if os.environ.get("TIPCAST_WRITE_CELLS"):
        PAGE.write_text(f"{before}{begin}{page}{end}{after}", encoding="utf-8")
        return
    assert shown == page, (
        "TIPCAST_WRITE_CELLS=1 make test TESTS=tests/unit/datasets/test_cells.py writes it"
    )


@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
@pytest.mark.parametrize(
    ("mark", "zone"),
    [
        ("", None),
        ("Z", UTC),
        ("+00:00", UTC),
        (" UTC", UTC),
        ("+00", UTC),
        ("-0000", UTC),
        ("+01:00", CET),
        ("-05", EST),
    ],
)
def test_a_zone_means_the_same_by_every_way(
    trip_files: Any, mark: str, zone: datetime.timezone | None
) -> None:
    """Training reads files as scoring does; a mark of UTC is wall-clock time, another zone is
    refused.
    """
    from tipcast.tracking.model_code.model import _times

    trips = trip_files.trips(20).assign(tpep_dropoff_datetime="2019-02-28 12:00:00")
    clock = trips["tpep_pickup_datetime"]
    texts = [f"{time:%Y-%m-%d %H:%M:%S}{mark}" for time in clock]
    trips.assign(tpep_pickup_datetime=texts).to_csv(trip_files.folder / "t.csv", index=False)
    stored = pa.array(clock.dt.tz_localize(zone), pa.timestamp("us", tz=zone and ZONE_NAMES[zone]))
    table = pa.Table.from_pandas(trips, preserve_index=False)
    pq.write_table(
        table.set_column(1, "tpep_pickup_datetime", stored), trip_files.folder / "t.parquet"
    )

    def of_file(name: str) -> list[Any]:
        (part,) = trip_files.listing(trip_files.folder / name).parts
        return list(Taxi().read(part, CpuFrames(), ("pickup",))["pickup"])

    def of_rows(values: Any) -> list[Any]:
        times = _times(values, "t", csv_cells.MISSING_TEXTS)
        return list(times.to_numpy().astype("datetime64[us]").astype(np.int64))

    aware = [time.to_pydatetime().replace(tzinfo=zone) for time in clock]
    ways: dict[str, Callable[[], list[Any]]] = {
        "CSV": lambda: of_file("t.csv"),
        "Parquet": lambda: of_file("t.parquet"),
        "texts": lambda: of_rows(pd.Series(texts)),
        "aware datetimes": lambda: of_rows(pd.Series(aware)),
        "aware objects": lambda: of_rows(pd.Series(aware, dtype=object)),
        "one of them": lambda: of_rows(pd.Series([*aware[:-1], texts[-1]], dtype=object)),
        "server, JSON": lambda: of_rows(
            pd.Series(json.loads(json.dumps([f" {texts[0]} ", *texts[1:]])))
        ),
    }
    for way, read in ways.items():
        if zone in (CET, EST):
            with pytest.raises(
                (TipcastError, MlflowException),
                match=r"Fix: write (wall-clock|local New York) time",
            ):
                read()
        else:
            assert read() == list(clock.to_numpy().astype(np.int64)), way


@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
def test_a_time_that_is_missing_in_files_is_so_in_rows() -> None:
    from tipcast.tracking.model_code.model import _times

    texts = ["2019-02-01 10:00", *csv_cells.MISSING_TEXTS, " ", "\t"]
    assert _times(pd.Series(texts), "t", csv_cells.MISSING_TEXTS).isna().tolist() == [
        False,
        *[True] * (len(texts) - 1),
    ]
    values, odd = csv_cells.times(pa.chunked_array([texts]), "iso")
    assert (values.null_count, odd) == (len(texts) - 1, None)


@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
def test_files_and_models_know_the_same_numbers_and_zones() -> None:
    from tipcast.tracking.model_code import model

    assert model.NUMBERS.pattern == csv_cells.NUMBER
    assert model.ZONE_OF_UTC == csv_cells.ZONE_OF_UTC
    assert model.OTHER_ZONE.pattern == csv_cells.OTHER_ZONE.pattern


@pytest.mark.parametrize("dates", csv_cells.DATES)
def test_dates_with_dots_begin_with_the_day(dates: str) -> None:
    values, odd = csv_cells.times(pa.chunked_array([["03.02.2020 14:30", "31.12.2019"]]), dates)
    assert odd is None
    assert [str(value) for value in values] == ["2020-02-03 14:30:00", "2019-12-31 00:00:00"]


@pytest.mark.parametrize("text", ["30.02.2020", "28.02.20"])
def test_a_date_with_dots_that_is_none_is_named(text: str) -> None:
    assert csv_cells.times(pa.chunked_array([["31.12.2019", text]]), "iso")[1] == 1
