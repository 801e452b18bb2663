"""Tests of reading, with all bad inputs from the name of the file to its counted rows."""

import gzip
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.unit.datasets.conftest import PICKUP

from tipcast.config.errors import TipcastError
from tipcast.datasets import csv_cells

Change = Callable[[Any], Any]


def _set(name: str, value: Any, rows: int | None = None) -> Change:
    """Change a column, or the first rows of it."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(
            **{name: value if rows is None else frame[name].mask(frame.index < rows, value)}
        )

    return change


BAD_PARQUET: dict[str, tuple[Change, str, str]] = {
    "B08": (lambda f: f.drop(columns="tip_amount"), "D007", "tip_amount"),
    "B09": (lambda f: f.drop(columns="passenger_count"), "D007", "passenger_count"),
    "B13": (_set("fare_amount", "much"), "D008", "fare_amount"),
    "B14": (_set(PICKUP, "2019-02-01 00:00:00"), "D008", PICKUP),
    "B15": (_set(PICKUP, 1_549_000_000), "D008", PICKUP),
    "B16": (_set(PICKUP, np.datetime64("30000-01-01", "us")), "D010", PICKUP),
    "B18": (_set(PICKUP, np.datetime64("NaT", "us")), "D010", PICKUP),
    "B19": (_set("tip_amount", 0.0), "D015", ""),
    "B20": (_set("tip_amount", 900.0), "D015", ""),
    "B21": (_set("fare_amount", -1.0), "D014", ""),
    "B22": (lambda f: f[:0], "D009", ""),
    "B23": (lambda f: f[:1], "D014", ""),
    "B24": (_set("fare_amount", np.nan), "D012", "fare_amount"),
    "B28": (_set("passenger_count", np.nan), "D012", "passenger_count"),
}


@pytest.mark.parametrize(("change", "code", "column"), BAD_PARQUET.values(), ids=BAD_PARQUET)
def test_bad_parquet(trip_files: Any, change: Change, code: str, column: str) -> None:
    # no period in the name: the message tells of the pickup times
    told = "" if code == "D010" else column
    for name, shown in (("yellow_2019-02.parquet", column), ("some.parquet", told)):
        path = trip_files.write(name, change)
        trip_files.refused(path, code, path, shown)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        (PICKUP, pd.NaT, "D010"),
        (PICKUP, pd.Timestamp("2090-05-05"), "D010"),
        ("fare_amount", np.nan, "D012"),
        ("fare_amount", np.inf, "D011"),
        ("passenger_count", np.inf, "D011"),
        ("tip_amount", np.nan, "D012"),
        ("PULocationID", np.nan, "D012"),
        ("PULocationID", 2.0**40, "D013"),
    ],
)
def test_a_hundredth_of_the_rows_may_be_bad(
    trip_files: Any, name: str, value: Any, code: str
) -> None:
    path = trip_files.write("t_2019-02.parquet", _set(name, value, 10))
    assert trip_files.checked(trip_files.listing(path))[str(path)].rows == 990
    error = trip_files.refused(
        trip_files.write("t_2019-02.parquet", _set(name, value, 11)), code, path, name
    )
    assert " 11 of 1000 rows. Fix: fix the file, or raise data.limits." in str(error)
    path = trip_files.write("t_2019-02.parquet", _set("fare_amount", -1.0, 400))
    assert trip_files.checked(trip_files.listing(path))[str(path)].rows == 600, (
        "trips that were not paid are usual"
    )


BAD_BYTES: dict[str, tuple[str, Change, str, str]] = {
    "B03": ("t.parquet", lambda b: b"", "D003", "empty"),
    "B06": ("t.parquet", lambda b: b"<!DOCTYPE html><html>403</html>", "D005", "not a Parquet"),
    "B07": ("t.parquet", lambda b: b"a,b\n1,2\n", "D005", "not a Parquet"),
    "cut off": ("t.parquet", lambda b: b[: len(b) // 2], "D005", "not a Parquet"),
    "a hole": (
        "t.parquet",
        lambda b: b[:100] + b[-8 - int.from_bytes(b[-8:-4], "little") :],
        "D005",
        "is shorter",
    ),
    "B32": ("t.csv", lambda b: b"", "D003", "empty"),
    "B33": ("t.csv", lambda b: b[: b.index(b"\n") + 1], "D009", "no rows"),
    "B34": ("t.csv", lambda b: _edit(b, 500, 4, b"1\xe9"), "D016", "line 500"),
    "B35": ("t.csv", lambda b: _edit(b, 700, 8, b"1.5,7"), "D005", "line 700 has 10 fields, not 9"),
    "B36": ("t.csv", lambda b: b[:-20], "D005", "line 1001 has"),
    "open quote": (
        "t.csv",
        lambda b: _edit(b, 300, 3, b'"1'),
        "D005",
        "line 300: an opening quote is never closed",
    ),
    "the same": (
        "t.csv.gz",
        lambda b: gzip.compress(_edit(b, 300, 3, b'"1')),
        "D005",
        "line 300: an opening quote",
    ),
    "B37": (
        "t.csv",
        lambda b: _edit(b, 300, 1, b"31/31/2019"),
        "D005",
        f"300: column '{PICKUP}': cannot read '31/31/",
    ),
    "B38": (
        "t.csv",
        lambda b: _edit(b, 900, 7, b"ten"),
        "D005",
        "line 900: column 'fare_amount': cannot read 'ten'",
    ),
    "B40": ("t.csv", gzip.compress, "D004", "gz"),
    "plain named .gz": ("t.csv.gz", lambda b: b, "D004", "without .gz"),
    "half a .gz": ("t.csv.gz", lambda b: gzip.compress(b)[:5000], "D005", "truncated"),
    "other ending": ("t.xlsx", lambda b: b, "D004", "without the ending of a supported format"),
}


def _edit(content: bytes, line: int, field: int, value: bytes) -> bytes:
    lines = content.split(b"\n")
    fields = lines[line - 1].split(b",")
    fields[field] = value
    lines[line - 1] = b",".join(fields)
    return b"\n".join(lines)


@pytest.mark.parametrize(("name", "change", "code", "says"), BAD_BYTES.values(), ids=BAD_BYTES)
def test_bad_bytes(trip_files: Any, name: str, change: Change, code: str, says: str) -> None:
    path = trip_files.text(name, change)
    assert says in str(trip_files.refused(path, code, path))


def test_cells_of_csv_that_do_harm_and_do_none(trip_files: Any) -> None:
    path = trip_files.write("yellow_2019-02.csv", _set("passenger_count", np.nan))
    trip_files.refused(path, "D012", path, "passenger_count")
    path = trip_files.text("t_2019-02.csv", lambda b: _edit(b, 500, 3, b"\xe9"))
    assert trip_files.checked(trip_files.listing(path))[str(path)].rows == 1000, (
        "that column is not read"
    )


@pytest.mark.parametrize("packed", [False, True])
def test_line_numbers_are_those_of_the_file(
    trip_files: Any, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_cells, "CSV_CHUNK", 5_000)
    for line, block_bytes in itertools.product((2, 400, 1001), (2_000, 1 << 20)):
        # a blank line below the header and one below a row
        def change(content: bytes, line: int = line) -> bytes:
            content = b"\xef\xbb\xbf" + _edit(content, line, 7, b"x").replace(b"\n", b"\r\n\r\n", 2)
            return gzip.compress(content) if packed else content

        path = trip_files.text("t.csv.gz" if packed else "t.csv", change)
        error = trip_files.refused(path, "D005", path, "fare_amount", block_bytes=block_bytes)
        assert f"line {line + 1 + (line > 2)}:" in error.what


@pytest.mark.parametrize("name", ["t_2019-02.parquet", "t_2019-02.csv"])
def test_a_listed_file_is_read_by_columns_till_it_changes(
    trip_files: Any, frames: Any, name: str
) -> None:
    path = trip_files.write(name)
    (part,) = trip_files.listing(path).parts
    assert list(part.read(frames, ("tip_amount", "pickup"))) == [
        "tip_amount",
        "pickup",
    ]
    trip_files.write(name, rows=50)
    with pytest.raises(TipcastError, match=f"D005.*{name}.*changed"):
        part.read(frames)
    path.unlink()
    with pytest.raises(TipcastError, match=f"D001.*{name}"):
        part.read(frames)
    assert part.read(frames, ()) == {}, "the file is not opened"


def test_both_formats_read_the_same_values(trip_files: Any, frames: Any) -> None:
    def holes(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[3, PICKUP] = pd.NaT
        frame.loc[4, ["passenger_count", "tip_amount"]] = np.nan
        return frame.assign(DOLocationID=frame.DOLocationID.astype("Int32").mask(frame.index == 5))

    expected = holes(trip_files.trips())
    good = np.arange(1000) != 3
    pickup = expected[PICKUP].astype("datetime64[us]").to_numpy().astype(np.int64)
    for name in ("t_2019-02.parquet", "t_2019-02.csv"):
        (part,) = trip_files.listing(trip_files.write(name, holes)).parts
        read = part.read(frames)
        assert read["pickup"][3] == np.iinfo(np.int64).min
        np.testing.assert_array_equal(read["pickup"][good], pickup[good])
        for column in (
            "passenger_count",
            "tip_amount",
            "fare_amount",
            "PULocationID",
            "DOLocationID",
        ):
            np.testing.assert_array_equal(
                read[column], expected[column].to_numpy(float, na_value=np.nan)
            )


def test_odd_spellings_of_csv_are_read_as_the_usual(trip_files: Any, frames: Any) -> None:
    usual = trip_files.listing(trip_files.text("t_2019-02.csv", bytes)).parts[0]
    expected = usual.read(frames)
    for old, new in (
        (b",N,", b',"N",'),
        (b"\n", b"\r\n"),
        (b",,", b",NULL,"),
        (b"-", b"/"),
        (b":00,", b","),
    ):
        path = trip_files.text(
            "t_2019-02.csv", lambda raw, old=old, new=new: raw.replace(old, new).rstrip(b"\n")
        )
        read = trip_files.listing(path).parts[0].read(frames)
        np.testing.assert_array_equal([*read.values()], [*expected.values()], str(new))


def test_timestamps_of_every_unit_and_of_utc(trip_files: Any, frames: Any) -> None:
    def zoned(zone: str) -> Change:
        return lambda frame: frame.assign(**{PICKUP: frame[PICKUP].dt.tz_localize(zone)})

    expected = trip_files.trips()[PICKUP].astype("datetime64[us]").to_numpy().astype(np.int64)
    units = [
        _set(PICKUP, trip_files.trips()[PICKUP].astype(f"datetime64[{unit}]"))
        for unit in ("s", "ms", "us", "ns")
    ]
    for change in (*units, zoned("UTC")):  # as Spark writes the TLC's values
        listing = trip_files.listing(trip_files.write("t_2019-02.parquet", change))
        np.testing.assert_array_equal(listing.parts[0].read(frames)["pickup"], expected)
    assert "wall-clock" in listing.notes[0]
    path = trip_files.write("u_2019-02.parquet", zoned("America/New_York"))
    trip_files.refused(path, "D008", path, PICKUP)
