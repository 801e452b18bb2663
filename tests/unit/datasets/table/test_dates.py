"""Dates of tables: their features are those of pandas by every way in, and what is refused."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.datasets.conftest import open_table

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets.dataframe import write_dataframe
from tipcast.datasets.listing import ScanRequest
from tipcast.datasets.table import features as table_features
from tipcast.datasets.table.dataset import Table

FEATURES = ("day_weekday", "day_month", "day_dayofyear", "day_days")
EPOCH = pd.Timestamp("1970-01-01")


def every_day() -> pd.Series:
    """Return every day from 1900 to 2100 at some time of it, each 50th of them missing."""
    days = pd.Series(pd.date_range("1900-01-01", "2100-12-31", unit="us"))
    times = days + pd.to_timedelta(np.arange(len(days)) * 6151 % 86_400, unit="s")
    times[::50] = pd.NaT
    return times


TIMES = every_day()


def expected(times: pd.Series) -> pd.DataFrame:
    """Return what pandas says of dates."""
    columns = (times.dt.weekday, times.dt.month, times.dt.dayofyear, (times - EPOCH).dt.days)
    return pd.DataFrame(dict(zip(FEATURES, columns, strict=True))).astype("float32")


def features_of(table: Table, parts: Any) -> pd.DataFrame:
    """Return the features that a table makes of parts of files."""
    matrices = []
    for part in parts:
        columns = table.read(part, CpuFrames(), ("day",))
        matrices.append(table.compute(columns, FEATURES, np))
    return pd.DataFrame(np.concatenate(matrices), columns=FEATURES)


def of_csv(texts: pd.Series) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        texts.to_frame("day").assign(x=1).to_csv(folder / "rows.csv", index=False)
        return folder / "rows.csv"

    return write


def of_parquet(values: Any, arrow_type: pa.DataType | None = None) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        column = pa.Array.from_pandas(values)
        column = column if arrow_type is None else column.cast(arrow_type, safe=False)
        pq.write_table(pa.table({"day": column}), folder / "rows.parquet", row_group_size=5000)
        return folder / "rows.parquet"

    return write


def of_frame(values: pd.Series) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        return Path(write_dataframe(pd.DataFrame({"day": values}), folder / "f.parquet", "train"))

    return write


FILES = {
    "csv, days": of_csv(TIMES.dt.strftime("%Y-%m-%d")),
    "csv, times": of_csv(TIMES),
    "csv, marked as utc": of_csv(TIMES.dt.strftime("%Y-%m-%dT%H:%M:%SZ")),
    "csv, day first": of_csv(TIMES.dt.strftime("%d/%m/%Y %H:%M")),
    "csv, month first": of_csv(TIMES.dt.strftime("%m/%d/%Y %I:%M:%S %p")),
    "csv, year first": of_csv(TIMES.dt.strftime("%Y/%m/%d")),
    "csv, dotted": of_csv(TIMES.dt.strftime("%d.%m.%Y")),
    "csv, dotted times": of_csv(TIMES.dt.strftime("%d.%m.%Y %H:%M:%S")),
    "parquet, date32": of_parquet(TIMES, pa.date32()),
    "parquet, date64": of_parquet(TIMES, pa.date64()),
    "parquet, s": of_parquet(TIMES, pa.timestamp("s")),
    "parquet, ms": of_parquet(TIMES, pa.timestamp("ms")),
    "parquet, us": of_parquet(TIMES, pa.timestamp("us")),
    "parquet, ns": of_parquet(TIMES, pa.timestamp("ns")),
    "parquet, utc": of_parquet(TIMES, pa.timestamp("us", "UTC")),
    "parquet, texts": of_parquet(TIMES.dt.strftime("%Y-%m-%d %H:%M")),
    "parquet, day first": of_parquet(TIMES.dt.strftime("%d/%m/%Y")),
    "parquet, dotted": of_parquet(TIMES.dt.strftime("%d.%m.%Y")),
    "parquet, encoded texts": of_parquet(TIMES.dt.strftime("%Y-%m-%d").astype("category")),
    "pandas, times": of_frame(TIMES),
    "pandas, dates": of_frame(TIMES.dt.date),
    "pandas, texts": of_frame(TIMES.dt.strftime("%m/%d/%Y")),
}


@pytest.mark.parametrize("way", FILES)
def test_features_are_those_of_pandas(tmp_path: Path, way: str) -> None:
    table = open_table(FILES[way](tmp_path), types={"day": "date"}, block_bytes=100_000)
    made = features_of(table, table.scan("train", ("day",)).parts)
    pd.testing.assert_frame_equal(made, expected(TIMES))


def test_days_are_exact_in_float32() -> None:
    days = np.arange(-30_000.0, 30_001.0)
    matrix = table_features.compute({"day": days}, ("day_days",))
    np.testing.assert_array_equal(matrix[:, 0].astype(np.float64), days)


def test_the_calendar_is_that_of_every_year() -> None:
    days = np.arange(np.datetime64("0001-01-01"), np.datetime64("9999-12-31"), 11)
    times = pd.Series(days.astype("datetime64[s]"))
    for part, said in (("month", times.dt.month), ("dayofyear", times.dt.dayofyear)):
        made = table_features.date_feature(days.astype(np.float64), part)
        np.testing.assert_array_equal(made, said)


def test_a_missing_date_gets_the_median_day_where_a_model_takes_no_gaps(tmp_path: Path) -> None:
    from tests.unit.datasets.table.test_dataset import task

    days = pd.Series(pd.to_datetime(["2020-01-01", "2020-02-29", None, "2021-05-05"] * 50))
    of_csv(days)(tmp_path)
    rows = pd.read_csv(tmp_path / "rows.csv").assign(x=range(200))
    rows.to_csv(tmp_path / "rows.csv", index=False)
    table = open_table(tmp_path / "rows.csv", types={"day": "date"})
    encoded, asked = table.encoded(task(table, "x"), takes_missing=False, one_hot=True)
    assert asked.features == (*FEATURES, "day is missing")
    (part, *_) = encoded.scan("train", ("day",)).parts
    matrix = encoded.compute(encoded.read(part, CpuFrames(), ("day",)), asked.features, np)
    assert matrix[1].tolist() == [5, 2, 60, 18321, 0]
    assert matrix[2].tolist() == [5, 2, 60, 18321, 1]
    (row,) = (row for row in encoded.report if row["column"] == "day")
    assert "2020-02-29, the median, where missing" in row["given to the model"]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("2021-02-30", "is a day that does not exist"),
        ("2021-13-01", "is a day that does not exist"),
        ("30.02.2021", "is a day that does not exist"),
        ("Rome", "is not a date"),
        ("2021-01-05 25:00", "is not a date"),
        ("20210105", "is not a date"),
        ("2021-01-05 10:00 11:00", "is not a date"),
        ("2021-01-05 10:00:00+01:00", "is a time in a zone other than UTC"),
    ],
)
def test_a_cell_that_is_no_date_is_named(tmp_path: Path, cell: str, reason: str) -> None:
    texts = ["2021-01-05"] * 100
    texts[70] = cell
    path = of_csv(pd.Series(texts))(tmp_path)
    with pytest.raises(TipcastError) as caught:
        open_table(path, types={"day": "date"}, block_bytes=1 << 20)
    assert caught.value.code == "D005"
    assert f"line 72: column 'day': {cell!r} {reason}" in str(caught.value)


def test_slashes_of_a_file_are_read_in_the_order_of_training(tmp_path: Path) -> None:
    table = open_table(
        of_parquet(pd.Series(["25/12/2020", "01/02/2021"] * 50))(tmp_path), types={"day": "date"}
    )
    assert [note for note in table.notes if "day/month/year" in note]
    path = of_csv(pd.Series(["03/04/2021"] * 5))(tmp_path)
    made = features_of(table, table.scan_file(str(path), ScanRequest(("day",))).parts)
    assert set(made["day_month"]) == {4}


def test_slashes_without_a_known_order_are_refused_in_parquet(tmp_path: Path) -> None:
    table = open_table(of_parquet(TIMES)(tmp_path), types={"day": "date"})
    path = of_parquet(pd.Series(["03/04/2021"] * 5))(tmp_path)
    with pytest.raises(TipcastError, match="D005.*may be day/month or month/day"):
        features_of(table, table.scan_file(str(path), ScanRequest(("day",))).parts)


def test_a_file_without_dates_is_refused(tmp_path: Path) -> None:
    table = open_table(of_csv(TIMES)(tmp_path), types={"day": "date"})
    path = of_parquet(pd.Series([1, 2, 3]))(tmp_path)
    with pytest.raises(TipcastError, match="D008.*int64, but data.train has a date"):
        table.scan_file(str(path), ScanRequest(("day",)))


def test_a_day_of_a_year_beyond_9999_is_refused(tmp_path: Path) -> None:
    path = of_parquet(pd.Series([1, 4_000_000], dtype="int32"), pa.date32())(tmp_path)
    with pytest.raises(TipcastError, match="D005.*is outside the years 1 to 9999"):
        open_table(path, types={"day": "date"})


@pytest.mark.parametrize(
    ("columns", "settings", "error"),
    [
        ({"day_month": "2020-01-01"}, {}, "C003.*makes the feature 'day_month', but a column has"),
        ({"other": 1}, {"time": "day"}, "C003.*splits the rows"),
        ({"day": "Rome"}, {}, "C003.*'day' is category .as 'Rome'., not date"),
        ({"day": 1}, {}, "C003.*'day' is number, not date"),
        (
            {"day": pd.Timestamp("2020-01-01", tz="Europe/Berlin")},
            {},
            "C003.*'day' is time, not date",
        ),
    ],
)
def test_columns_that_cannot_be_dates_are_refused(
    tmp_path: Path, columns: dict[str, Any], settings: dict[str, Any], error: str
) -> None:
    rows = pd.DataFrame({"day": [datetime.date(2020, 1, 1)] * 20, "x": 1}).assign(**columns)
    rows.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(TipcastError, match=error):
        open_table(tmp_path / "rows.parquet", types={"day": "date"}, **settings)


def test_a_date_is_no_target(tmp_path: Path) -> None:
    table = open_table(of_csv(TIMES)(tmp_path), types={"day": "date"})
    with pytest.raises(TipcastError, match="C003.*'day' is a date, which cannot be predicted"):
        table.target_column("day", None)


def test_weekdays_can_be_categories_as_opposed_to_days(tmp_path: Path) -> None:
    table = open_table(of_csv(TIMES)(tmp_path), types={"day": "date"})
    table.check_categories(("day_weekday", "day_month"))
    with pytest.raises(TipcastError, match="C003.*'day_days' counts days"):
        table.check_categories(("day_days",))


def test_columns_that_could_be_dates_are_named_in_one_line(tmp_path: Path) -> None:
    rows = pd.DataFrame({"a": TIMES, "b c": TIMES.dt.date, "t": TIMES.dt.strftime("%Y-%m-%d")})
    rows.assign(x=1).to_parquet(tmp_path / "rows.parquet")
    notes = open_table(tmp_path / "rows.parquet").notes
    assert notes[-1] == ("a, b c, t could be dates: data.types={a: date, b c: date, t: date}")
    only = open_table(tmp_path / "rows.parquet", types={"b c": "none", "t": "date"}).notes
    assert only[-1] == "a could be a date: data.types.a=date"


@pytest.mark.gpu
def test_a_gpu_makes_the_features_of_a_processor(tmp_path: Path) -> None:
    from tipcast.compute.base import to_host
    from tipcast.compute.frames import GpuFrames

    frames = GpuFrames()
    table = open_table(of_parquet(TIMES, pa.date32())(tmp_path), types={"day": "date"})
    (part, *_) = table.scan("train", ("day",)).parts
    on_gpu = table.compute(table.read(part, frames, ("day",)), FEATURES, frames.xp)
    on_host = table.compute(table.read(part, CpuFrames(), ("day",)), FEATURES, np)
    np.testing.assert_array_equal(to_host(on_gpu), on_host)
