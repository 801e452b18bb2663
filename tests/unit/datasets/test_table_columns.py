"""What columns of other people's tables are taken for, and that every way in takes their values alike."""

from __future__ import annotations

import csv
import subprocess
import sys
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TableData, TaskSpec
from tipcast.datasets import delimited, table_features
from tipcast.datasets.base import ScanRequest
from tipcast.datasets.table import NO_NAMES, Table
from tipcast.tasks.base import make_task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow's, of its own classes, at import
    from tipcast.tracking.model_code.model import _numbers

ROWS = 200


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Table]:
    """Write columns of texts as CSV and open them as a table."""

    def write(columns: dict[str, list[Any]], **settings: Any) -> Table:
        with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        spec = {"test": None, "test_share": 0.2, "block_bytes": 1024} | settings
        return Table.open(TableData("table", str(tmp_path / "t.csv"), **spec))

    return write


def cycle(*texts: str) -> list[str]:
    return [texts[at % len(texts)] for at in range(ROWS)]


def read(table: Table, name: str) -> np.ndarray[Any, Any]:
    """Return a column of all parts."""
    parts = table.scan("train", (name,)).fragments
    return np.concatenate([table.read(part, CpuFrames(), (name,))[name] for part in parts])


@pytest.mark.parametrize(
    ("texts", "taken", "values"),
    [
        (("1", "2.5", "-3e2", ""), "number", [1, 2.5, -300, np.nan]),
        (("True", "False", "NA"), "number", [1, 0, np.nan]),
        (("TRUE", "FALSE"), "number", [1, 0]),
        (("01234", "1234", "777"), "category", [0, 1, 2]),
        (("12345678901234567890", "1"), "category", [1, 0]),
        (("A1", "101", "102"), "category", [2, 0, 1]),
        ((*["1.5"] * 19, "?"), "number", [*[1.5] * 19, np.nan]),
        ((*["7"] * 19, " "), "number", [*[7] * 19, np.nan]),
        (("$1,330.00", "$20.00"), "category", [0, 1]),
        (("pear", "#N/A", "fig"), "category", [1, np.nan, 0]),
    ],
)
def test_texts_of_csv(opened: Callable[..., Table], texts: tuple[str, ...], taken: str, values: list[float]) -> None:
    table = opened({"a": cycle(*texts), "b": cycle("x", "y")})
    assert {row["column"]: row["taken as"].split()[0] for row in table.report} == {"a": taken, "b": "category"}
    np.testing.assert_array_equal(read(table, "a"), np.resize(values, ROWS))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ((*["1.5"] * 19, "?"), "column a: numbers, but for '?' (10 rows): these are missing values"),
        (("€ 20", "€ 1.000"), "column a: texts that look like numbers with a sign"),
        (("NA", "EU", "AS"), "column a: 'NA' (67 rows): taken for missing values; data.types={a: text}"),
        (("1", "2", "3", "A"), "column a: 150 of its 200 texts are numbers, but for 'A' (50 rows)"),
        (("", ""), "column a is no feature: it has no value"),
        (("NA", "None"), "column a is no feature: it has no value but 'N"),
        ((*["2011-01-01"] * 19, "n/a?"), "column a: 190 of its 200 texts are dates"),
        (("2011-01-01", "2012-05-06"), "column a is no feature: a time is split by with data.time="),
    ],
)
def test_what_may_surprise_is_said(opened: Callable[..., Table], texts: tuple[str, ...], said: str) -> None:
    assert any(note.startswith(said) for note in opened({"a": cycle(*texts), "b": cycle("x", "y")}).notes)


def test_the_last_rows_decide_too(opened: Callable[..., Table]) -> None:
    table = opened({"a": [*["12"] * (ROWS - 30), *["A12"] * 30], "b": cycle("x", "y")})
    assert len(table.scan("train", ("a",)).fragments) > 1
    np.testing.assert_array_equal(read(table, "a"), [0] * (ROWS - 30) + [1] * 30)


@pytest.mark.parametrize(
    ("asked", "values"),
    [("category", [0, 1, np.nan]), ("text", [0, 1, 2]), ("number", None), ("none", None), ("date", None)],
)
def test_a_user_says_otherwise(opened: Callable[..., Table], asked: str, values: list[float] | None) -> None:
    columns = {"a": [f"x{at}" if asked == "number" else text for at, text in enumerate(cycle("01", "1", "None"))]}
    if asked in ("number", "date"):
        with pytest.raises(TipcastError, match="C003.*data.types"):
            opened(columns | {"b": cycle("x", "y")}, types={"a": asked})
        return
    table = opened(columns | {"b": cycle("x", "y")}, types={"a": asked})
    if values is None:
        assert "a" not in table.features
    else:
        np.testing.assert_array_equal(read(table, "a"), np.resize(values, ROWS))
        assert table.report[0]["missing"] == np.isnan(np.resize(values, ROWS)).sum()


@pytest.mark.parametrize(
    ("dates", "name", "both"),
    [
        ({(1, 2, 2019)}, "month_first", True),
        ({(1, 13, 2019)}, "month_first", False),
        ({(13, 1, 2019)}, "day_first", False),
        ({(13, 1, 2019), (1, 13, 2019)}, "month_first", False),
    ],
)
def test_dates_that_fit_either_order_are_said_to(dates: set[tuple[int, ...]], name: str, *, both: bool) -> None:
    found, said = delimited.reading(dates, None)
    assert (found, "all fit either order" in said) == (name, both)


def test_a_line_break_in_quotes_ends_no_row(opened: Callable[..., Table]) -> None:
    texts = [f'quiet,\n"central" {at % 3}\n\n- no pets' for at in range(ROWS)]
    table = opened({"price\n(EUR)": [str(at) for at in range(ROWS)], "text": texts, "b": cycle("x", "y")})
    assert len(table.scan("train", ("text",)).fragments) > 3
    np.testing.assert_array_equal(read(table, "price (EUR)"), np.arange(ROWS))
    np.testing.assert_array_equal(read(table, "text"), np.arange(ROWS) % 3)
    assert table.columns[0].spellings[0] == "price\n(EUR)"


def test_days_split(opened: Callable[..., Table], tmp_path: Path) -> None:
    days = pd.date_range("2011-01-01", periods=ROWS)
    for texts in (days.strftime("%Y-%m-%d"), days.strftime("%m/%d/%Y")):
        table = opened({"day": list(texts), "b": cycle("1", "2", "4")}, time="day")
        np.testing.assert_array_equal(read(table, "day"), days.astype("datetime64[us]").astype(np.int64))
    pd.DataFrame({"day": days.date, "b": cycle("x", "y")}).to_parquet(tmp_path / "t.parquet", index=False)
    table = Table.open(
        TableData("table", str(tmp_path / "t.parquet"), time="day", test=None, test_share=0.2, block_bytes=1024)
    )
    first, second = (table.scan(which, ("b",)).period for which in ("train", "test"))
    assert first[1] == second[0]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([0.0, 1.0, None], ("0", "1")),
        ([20230101, 20230102], ("20230101", "20230102")),
        ([True, False], ("False", "True")),
        (["None", "NA", " >50K", ">50K."], (" >50K", ">50K.", "NA", "None")),
    ],
)
def test_classes_keep_their_names(tmp_path: Path, values: list[Any], classes: tuple[str, ...]) -> None:
    pd.DataFrame({"y": pd.Series(values * 50), "x": range(len(values) * 50)}).to_parquet(tmp_path / "t.parquet")
    table = Table.open(TableData("table", str(tmp_path / "t.parquet"), test=None, test_share=0.2, block_bytes=1024))
    assert table.target_column("y", None).classes == classes


def test_the_positive_class_is_chosen(opened: Callable[..., Table]) -> None:
    table = opened({"y": cycle("bad", "good"), "x": cycle("1", "2", "3")})
    task = make_task(TaskSpec(name="t", target="y", positive="bad"), table)
    assert task.classes == ("good", "bad")
    assert task.target({"y": np.array([0.0, 1.0, np.nan])}, np).tolist() == [1, 0, -1]
    with pytest.raises(TipcastError, match="C003.*task.positive: ugly is none of"):
        make_task(TaskSpec(name="t", target="y", positive="ugly"), table)


def test_texts_that_name_rows_are_no_feature(opened: Callable[..., Table]) -> None:
    columns = {"name": [f"row {at}" for at in range(ROWS)], "some": cycle("a", "b"), "y": [*range(ROWS)]}
    table = opened(columns)
    assert list(table.features) == ["some", "y"]
    assert [note for note in table.notes if "200 texts in 200 rows name rows: data.types={name: category}" in note]
    assert "name" in opened(columns, types={"name": "category"}).features


def test_values_that_training_lacks_are_counted(opened: Callable[..., Table], tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("y,x\n" + "yes.,1\n" * 3 + "no.,2\n" + "no,3\n")
    table = opened({"y": cycle("yes", "no"), "x": cycle("1", "2")}, test=str(tmp_path / "test.csv"))
    (note,) = table.scan("test", ("y", "x")).notes
    assert note == "4 of 5 rows to test on have values of y that training lacks: 'yes.', 'no.'"


def test_other_types_of_parquet(tmp_path: Path) -> None:
    columns = {
        "view": pa.array(["b", "a"] * 50, pa.string_view()),
        "cents": pa.array([Decimal(1), Decimal(2)] * 50, pa.decimal128(10, 2)),
        "large": pa.array([2**60, 1] * 50, pa.uint64()),
        "coded": pa.array(["q", "p"] * 50).dictionary_encode(),
        "nested": pa.array([[1], [2]] * 50),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    table = Table.open(TableData("table", str(tmp_path / "t.parquet"), test=None, test_share=0.2, block_bytes=1024))
    assert table.features == ("view", "cents", "large", "coded")
    assert table.notes == ("column nested is no feature: it is list<element: int64>",)
    assert [read(table, name)[:2].tolist() for name in table.features] == [[1, 0], [1, 2], [2**60, 1], [1, 0]]


def test_a_file_of_another_type_gets_the_same_codes(opened: Callable[..., Table], tmp_path: Path) -> None:
    table = opened({"code": cycle("101", "A1", "7"), "flag": cycle("True", "False"), "x": cycle("1", "2.5")})
    frame = pd.DataFrame({"code": [7, 101, 5], "flag": [True, False, True], "x": ["1", " 2.5", ""]})
    frame.to_parquet(tmp_path / "other.parquet")
    (fragment,) = table.scan_file(str(tmp_path / "other.parquet"), ScanRequest(table.features)).fragments
    found = table.read(fragment, CpuFrames(), ("code", "flag", "x"))
    np.testing.assert_array_equal(found["code"], [1, 0, np.nan])
    np.testing.assert_array_equal(found["flag"], [1, 0, 1])
    np.testing.assert_array_equal(found["x"], [1, 2.5, np.nan])


def parquet(folder: Path, *columns: dict[str, Any], **settings: Any) -> Table:
    """Write a file for each set of columns, and open them as one table."""
    for at, each in enumerate(columns):
        pq.write_table(pa.table(each), folder / f"{at}.parquet")
    spec = {"test": None, "test_share": 0.2, "block_bytes": 1024} | settings
    return Table.open(TableData("table", str(folder / "*.parquet"), **spec))


def test_files_agree_on_what_a_column_is(tmp_path: Path) -> None:
    texts, numbers = {"a": ["x", "y"] * 20, "b": [1, 2] * 20}, {"a": [1, 2] * 20, "b": [3, 4] * 20}
    with pytest.raises(TipcastError, match=r"D008.*1.parquet: column 'a' is int64 where .*0.parquet has string"):
        parquet(tmp_path, texts, numbers)
    assert parquet(tmp_path, texts, numbers, types={"a": "none"}).features == ("b",)
    table = parquet(tmp_path, {"a": pa.nulls(40), "b": [1, 2] * 20}, texts | {"c": [1.0] * 40})
    assert table.features == ("a", "b")
    assert table.columns[0].categories == ("x", "y")
    assert "column c is no feature: only some of the files have it" in table.notes
    assert parquet(tmp_path, texts | {"c": [1.0] * 40}, texts).features == ("a", "b")
    with pytest.raises(TipcastError, match="D008.*column 'a' is int64 where .*0.parquet has bool"):
        parquet(tmp_path, {"a": [True, False] * 20, "b": [1, 2] * 20}, {"a": [0, 5] * 20, "b": [1, 2] * 20})
    large = parquet(tmp_path, {"a": [2**53 + 1, None] * 20, "b": [1, 2] * 20}, {"a": [1, None] * 20, "b": [1, 2] * 20})
    assert large.features == ("a", "b")
    pd.DataFrame(texts).to_csv(tmp_path / "2.csv", index=False)
    with pytest.raises(TipcastError, match=r"D008.*2.csv: is csv where .*0.parquet is parquet"):
        Table.open(TableData("table", str(tmp_path / "[02].*"), test=None, test_share=0.2, block_bytes=1024))


def test_footers_tell_what_is_missing(tmp_path: Path) -> None:
    table = parquet(tmp_path, {"a": [1.0, None] * 20, "b": [None, 5] * 20}, {"a": [1.0, 2.0] * 20, "b": [3, 4] * 20})
    assert [row["missing"] for row in table.report] == [20, 20]
    empty = parquet(tmp_path, {"a": [1.0, 2.0], "b": pa.nulls(2, pa.float64())}, {"a": [1.0], "b": pa.nulls(1)})
    assert empty.notes == ("column b is no feature: it has no value",)


def test_texts_of_parquet_that_look_like_something_else_are_noted(tmp_path: Path) -> None:
    columns = {
        "number": (str(at) for at in range(ROWS)),
        "mostly": ("?" if at == 0 else str(at) for at in range(ROWS)),
        "half": (str(at) if at % 3 else f"x{at}" for at in range(ROWS)),
        "price": (f"${at + 1000:,}" for at in range(ROWS)),
        "mixed": ("soon" if at == 0 else f"2019-01-{at % 28 + 1:02}" for at in range(ROWS)),
        "slash": (f"{at % 12 + 1:02}/{at % 12 + 1:02}/2019" for at in range(ROWS)),
        "class": (str(at % 2) for at in range(ROWS)),
        "text": (f"x{at % 3}" for at in range(ROWS)),
    }
    table = parquet(tmp_path, {name: list(values) for name, values in columns.items()})
    assert {column.type for column in table.columns} == {"category"}
    assert [row["note"] for row in table.report] == [
        "texts that are numbers: data.types={number: number} takes them so",
        "texts that are numbers, but for '?' (1 row): data.types={mostly: number} takes them so",
        "133 of its 200 texts are numbers, but for 'x0' (1 row), 'x3' (1 row), 'x6' (1 row)",
        "texts that look like numbers with a sign: write them as numbers to have quantities",
        "199 of its 200 texts are dates",
        "200 of its 200 texts are dates",
        "",
        "",
    ]
    assert read(parquet(tmp_path, {"a": ["?", "2"] + ["3"] * 38, "b": [1, 2] * 20}, types={"a": "number"}), "a")[1] == 2


def test_the_empty_text_is_no_category(tmp_path: Path) -> None:
    table = parquet(tmp_path, {"a": ["NA", "", " ", "x"] * 10, "b": [1, 2] * 20})
    assert table.columns[0].categories == (" ", "NA", "x")
    assert table.report[0]["missing"] == 10
    np.testing.assert_array_equal(read(table, "a")[:4], [1, np.nan, 0, 2])


def test_odd_texts_of_one_column_are_those_of_no_other(opened: Callable[..., Table], tmp_path: Path) -> None:
    table = opened({"a": cycle(*["1.5"] * 19, "?"), "b": cycle("1", "2"), "c": cycle("x", "y")})
    (tmp_path / "new.csv").write_text("a,b,c\n?, 2,x\n1,,y\n 3,\t,z\n")
    (part,) = table.scan_file(str(tmp_path / "new.csv"), ScanRequest(table.features)).fragments
    found = table.read(part, CpuFrames(), ("a", "b", "c"))
    np.testing.assert_array_equal([*found.values()], [[np.nan, 1, 3], [2, np.nan, np.nan], [0, 1, np.nan]])
    (tmp_path / "new.csv").write_text("a,b,c\n1,?,x\n")
    (part,) = table.scan_file(str(tmp_path / "new.csv"), ScanRequest(table.features)).fragments
    with pytest.raises(TipcastError, match=r"D005.*column 'b': cannot read '\?' as a number"):
        table.read(part, CpuFrames(), ("a", "b", "c"))


def test_all_files_decide_how_dates_are_written(tmp_path: Path) -> None:
    for month in (3, 4):
        days = [f"{day:02}/{month:02}/2019" for day in range(1, 13 if month == 3 else 29)]
        pd.DataFrame({"day": days, "x": range(len(days))}).to_csv(tmp_path / f"{month}.csv", index=False)
    spec = TableData("table", str(tmp_path / "*.csv"), time="day", test=None, test_share=0.2, block_bytes=1024)
    table = Table.open(spec)
    assert "dates with slashes read as day/month/year" in table.notes
    first = table.scan("train", ("x",)).period[0]
    assert np.datetime64(first, "us") == np.datetime64("2019-03-01")
    assert Table.of_model(table.facts()).dates == "day_first"


def test_periods_and_intervals_are_no_features(tmp_path: Path) -> None:
    columns = {"day": pd.period_range("2020", periods=60, freq="D"), "i": pd.interval_range(0, 60), "x": range(60)}
    pd.DataFrame(columns).to_parquet(tmp_path / "t.parquet", index=False)
    program = (
        "from tipcast.config.schema import TableData; from tipcast.datasets.table import Table;"
        f"print(Table.open(TableData('table', {str(tmp_path / 't.parquet')!r}, test=None, test_share=0.2)).features)"
    )
    command = [sys.executable, "-c", program]  # whose pandas has registered no types of Arrow's
    for found in (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout,
        str(Table.open(TableData("table", str(tmp_path / "t.parquet"), test=None, test_share=0.2)).features),
    ):
        assert found.strip() == "('x',)"


def test_dates_that_are_texts(opened: Callable[..., Table], tmp_path: Path) -> None:
    days = pd.date_range("2012-01-01", periods=ROWS)
    columns = {"day": list(days.strftime("%Y/%m/%d")), "x": cycle("1", "2")}
    table = opened(columns, time="day")
    np.testing.assert_array_equal(read(table, "day"), days.astype("datetime64[us]").astype(np.int64))
    with pytest.raises(TipcastError, match="D008.*column 'day' is string, not a timestamp"):
        parquet(tmp_path, columns, time="day")
    with pytest.raises(TipcastError, match="D008.*column 'day' is string, where data.train has a time"):
        table.scan_file(str(tmp_path / "0.parquet"), ScanRequest(("day",)))


def test_a_target_that_is_left_out_says_why(opened: Callable[..., Table]) -> None:
    table = opened({"a": cycle("", ""), "b": cycle("1", "2")})
    with pytest.raises(TipcastError, match="C003.*task.target: column 'a' is left out: it has no value"):
        table.target_column("a", None)
    with pytest.raises(TipcastError, match="D015.*same value .x.. Fix: 'NA' .100 rows.: .*data.types="):
        opened({"a": cycle("NA", "x"), "b": cycle("1", "2")}).target_column("a", None)


def test_the_rows_of_all_files_fill_what_is_missing(tmp_path: Path) -> None:
    table = parquet(tmp_path, {"a": [1.0] * 40, "b": [1, 2] * 20}, {"a": [9.0] * 60, "b": [1, 2] * 30})
    assert table.columns[0].fill == 9


def test_a_value_that_has_lost_its_text_is_refused() -> None:
    assert table_features.codes([np.float32(0.1), Decimal("1.50")], ["0.1", "1.5"]) == [0, 1]
    for values, categories in (([True], ["true", "1"]), ([16], ["0x10", "10"]), ([Decimal(1234)], ["01234"])):
        with pytest.raises(ValueError, match="may have been"):
            table_features.codes(values, categories)
    whole = ["123456789012345678", "123456789012345679"]
    assert table_features.codes([np.int64(whole[1])], whole) == [1]
    assert table_features.codes([pd.Timestamp("2019-01-01")], ["2019-01-01"]) == [0]
    with pytest.raises(ValueError, match="2019-01-02 00:00:00 may have been written in another way"):
        table_features.codes([pd.Timestamp("2019-01-02")], ["01/02/2019"])
    assert table_features.codes(["01234", "x", None], ["01234", "A"])[0] == 0
    assert table_features.codes([101, 101.0, True], ["101", "True"]) == [0, 0, 1]
    with pytest.raises(ValueError, match="1234 may have been '01234'"):
        table_features.codes([1234], ["01234", "A"])


def test_a_model_reads_numbers_as_training_does() -> None:
    column = {"fill": 0.5, "missing": ("?",), "booleans": True, "largest": 1e9}
    values = pd.Series(["1", " 2 ", "TRUE", "false", "?", "NA", ""])
    assert _numbers(values, "a", column, delimited.MISSING).tolist() == [1, 2, 1, 0, 0.5, 0.5, 0.5]
    assert _numbers(pd.Series([True, False]), "a", column, []).tolist() == [1, 0]


def test_a_first_line_that_may_be_a_row_is_noted(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("5.1,3.5,setosa\n4.9,3.0,setosa\n5.1,3.5,virginica\n" * 9)
    table = Table.open(TableData("table", str(tmp_path / "t.csv"), test=None, test_share=0.2, block_bytes=1024))
    assert table.notes == (f"column 5.1: {NO_NAMES}",)
