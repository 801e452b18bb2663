"""What columns of other people's tables are taken for, and that every way in takes their values
alike.
"""

import unicodedata
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import python
from tests.unit.datasets.conftest import open_table

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TaskSpec
from tipcast.datasets import csv_cells
from tipcast.datasets.listing import ScanRequest
from tipcast.datasets.table import features as table_features
from tipcast.datasets.table.column_stats import COLUMNS_AT_ONCE
from tipcast.datasets.table.dataset import Table
from tipcast.datasets.table.profile import NO_NAMES
from tipcast.tasks.kinds import BINARY
from tipcast.tasks.make import make_task

ROWS = 200


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Table]:
    """Write columns of texts as CSV and open them as a table."""

    def write(columns: dict[str, list[Any]], **settings: Any) -> Table:
        pd.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False, lineterminator="\r\n")
        return open_table(**{"train": tmp_path / "t.csv"} | settings)

    return write


def cycle(*texts: str) -> list[str]:
    return [texts[at % len(texts)] for at in range(ROWS)]


def read(table: Table, name: str) -> np.ndarray[Any, Any]:
    """Return a column of all parts."""
    parts = table.scan("train", (name,)).parts
    return np.concatenate([table.read(part, CpuFrames(), (name,))[name] for part in parts])


def new_rows(table: Table, file: Path) -> list[Any]:
    """Read the features of a file that a model is to score."""
    (part,) = table.scan_file(str(file), ScanRequest(table.features)).parts
    return list(table.read(part, CpuFrames()).values())


def test_texts_of_csv(opened: Callable[..., Table]) -> None:
    texts: dict[str, tuple[list[str], list[float]]] = {
        "number": (["1", "2.5", "-3e2", ""], [1, 2.5, -300, np.nan]),
        "number (True is 1)": (["True", "False", "NA"], [1, 0, np.nan]),
        "number (True is 1) ": (["TRUE", "FALSE"], [1, 0]),
        "number ": ([*["1.5"] * 19, "?"], [*[1.5] * 19, np.nan]),
        "number  ": ([*["7"] * 19, " "], [*[7] * 19, np.nan]),
        "category": (["01234", "1234", "777"], [0, 1, 2]),
        "category ": (["12345678901234567890", "1"], [1, 0]),
        "category  ": (["A1", "101", "102"], [2, 0, 1]),
        "category   ": (["$1,330.00", "$20.00"], [0, 1]),
        "category    ": (["pear", "#N/A", "fig"], [1, np.nan, 0]),
    }
    names = {f"c{at}": kind for at, kind in enumerate(texts)}
    table = opened({name: cycle(*texts[kind][0]) for name, kind in names.items()})
    assert {row["column"]: row["taken as"] for row in table.report} == {
        name: names[name].strip() for name in names
    }
    for name, kind in names.items():
        np.testing.assert_array_equal(read(table, name), np.resize(texts[kind][1], ROWS), kind)


def test_what_may_surprise_is_said(opened: Callable[..., Table]) -> None:
    surprises = [
        ((*["1.5"] * 19, "?"), ": numbers, but for '?' (10 rows): these become missing values"),
        (("€ 20", "€ 1.000"), ": texts that look like numbers with a sign"),
        (("NA", "EU", "AS"), ": 'NA' (67 rows): read as missing values; data.types={c2: text}"),
        (("1", "2", "3", "A"), ": 150 of its 200 texts are numbers, but for 'A' (50 rows)"),
        (("", ""), " is no feature: it has no value"),
        (("NA", "None"), " is no feature: it has no value but 'N"),
        ((*["2011-01-01"] * 19, "n/a?"), ": 190 of its 200 texts are dates"),
        (
            ("2011-01-01", "2012-05-06"),
            " is no feature: it holds times, by which data.time= can split the rows",
        ),
    ]
    notes = opened(
        {f"c{at}": cycle(*texts) for at, (texts, _) in enumerate(surprises)}
        | {"b": cycle("x", "y")}
    ).notes
    for at, (_, said) in enumerate(surprises):
        assert [note for note in notes if note.startswith(f"column c{at}{said}")], (said, notes)


@pytest.mark.parametrize("odd", ["1,5", " -12,25", "1,234"])
@pytest.mark.parametrize("numbers", [1, 19])
def test_decimal_commas_are_never_missing_values(
    opened: Callable[..., Table], odd: str, numbers: int
) -> None:
    columns = {"a": cycle(*["7"] * numbers, odd), "b": cycle("x", "y")}
    table = opened(columns)
    assert not np.isnan(read(table, "a")).any()
    (note,) = (note for note in table.notes if note.startswith("column a"))
    assert "set data.decimal=," in note
    with pytest.raises(TipcastError, match="C003.*data.types") as caught:
        opened(columns, types={"a": "number"})
    assert "set data.decimal=," in caught.value.fix


def test_the_last_rows_decide_too(opened: Callable[..., Table]) -> None:
    table = opened({"a": [*["12"] * (ROWS - 30), *["A12"] * 30], "b": cycle("x", "y")})
    assert len(table.scan("train", ("a",)).parts) > 1
    np.testing.assert_array_equal(read(table, "a"), [0] * (ROWS - 30) + [1] * 30)


def test_a_user_says_otherwise(opened: Callable[..., Table]) -> None:
    columns = {
        "a": cycle("01", "1", "None"),
        "b": cycle("x", "y"),
        "c": cycle(*(f"x{at}" for at in range(20))),
    }
    for asked, values in (("category", [0, 1, np.nan]), ("text", [0, 1, 2])):
        table = opened(columns, types={"a": asked})
        np.testing.assert_array_equal(read(table, "a"), np.resize(values, ROWS))
        assert table.report[0]["missing"] == np.isnan(np.resize(values, ROWS)).sum()
    assert "a" not in opened(columns, types={"a": "none"}).features
    for types in ({"c": "number"}, {"a": "date"}):
        with pytest.raises(TipcastError, match="C003.*data.types"):
            opened(columns, types=types)


def test_a_line_break_in_quotes_ends_no_row(opened: Callable[..., Table]) -> None:
    texts = [f'quiet,\n"central" {at % 3}\n\n- no pets' for at in range(ROWS)]
    table = opened(
        {"price\n(EUR)": [str(at) for at in range(ROWS)], "text": texts, "b": cycle("x", "y")}
    )
    assert len(table.scan("train", ("text",)).parts) > 3
    np.testing.assert_array_equal(read(table, "price (EUR)"), np.arange(ROWS))
    np.testing.assert_array_equal(read(table, "text"), np.arange(ROWS) % 3)
    assert table.columns[0].spellings[0] == "price\n(EUR)"


def test_days_split(opened: Callable[..., Table], tmp_path: Path) -> None:
    days = pd.date_range("2011-01-01", periods=ROWS)
    columns = {"day": list(days.strftime("%Y/%m/%d")), "b": cycle("1", "2", "4")}
    for form in ("%Y-%m-%d", "%m/%d/%Y", "%Y/%m/%d"):
        table = opened(columns | {"day": list(days.strftime(form))}, time="day")
        np.testing.assert_array_equal(
            read(table, "day"), days.astype("datetime64[us]").astype(np.int64)
        )
    table = parquet(tmp_path, {"day": days.date, "b": cycle("x", "y")}, time="day")
    first, second = (table.scan(which, ("b",)).period for which in ("train", "test"))
    assert first[1] == second[0]
    with pytest.raises(TipcastError, match="D008.*column 'day' is string, not a timestamp"):
        parquet(tmp_path, columns, time="day")
    with pytest.raises(
        TipcastError, match="D008.*column 'day' is string, but data.train has a time"
    ):
        table.scan_file(str(tmp_path / "0.parquet"), ScanRequest(("day",)))


def test_classes_keep_their_names(tmp_path: Path) -> None:
    for values, classes in [
        ([0.0, 1.0, None], ("0", "1")),
        ([20230101, 20230102], ("20230101", "20230102")),
        ([True, False], ("False", "True")),
        (["None", "NA", " >50K", ">50K."], (" >50K", ">50K.", "NA", "None")),
    ]:
        table = parquet(tmp_path, {"y": values * 50, "x": range(len(values) * 50)})
        assert table.target_column("y", None).classes == classes


def test_texts_that_name_rows_are_no_feature(opened: Callable[..., Table]) -> None:
    columns = {
        "name": [f"row {at}" for at in range(ROWS)],
        "some": cycle("a", "b"),
        "y": [*range(ROWS)],
    }
    table = opened(columns)
    assert table.features == ("some", "y")
    assert any(
        "200 texts in 200 rows look like names of rows: data.types={name: category}" in note
        for note in table.notes
    )
    assert "name" in opened(columns, types={"name": "category"}).features
    for positive, classes in (("a", ("b", "a")), ("b", ("a", "b"))):
        task = make_task(TaskSpec(name="t", target="some", positive=positive), table)
        assert task.classes == classes
        assert task.target({"some": np.array([0.0, 1.0, np.nan])}, np).tolist() == [
            *map(positive.__eq__, "ab"),
            -1,
        ]
    with pytest.raises(TipcastError, match="C003.*task.positive: ugly is not one of"):
        make_task(TaskSpec(name="t", target="some", positive="ugly"), table)


@pytest.mark.parametrize(("in_file", "in_settings"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_either_unicode_form_names_the_positive_class(
    opened: Callable[..., Table], in_file: Any, in_settings: Any
) -> None:
    label, other = (unicodedata.normalize(form, "jä") for form in (in_file, in_settings))
    table = opened({"y": cycle(label, "nein"), "x": cycle("1", "2")})
    task = make_task(TaskSpec(name="t", target="y", positive=other), table)
    assert task.classes[1] == unicodedata.normalize("NFC", label)


def test_other_values_are_counted_and_other_columns_refused(
    opened: Callable[..., Table], tmp_path: Path
) -> None:
    columns = {"y": cycle("yes", "no"), "x": cycle("1", "2")}
    (tmp_path / "test.csv").write_text("y,x\n" + "yes.,1\n" * 3 + "no.,2\n" + "no,3\n")
    (note,) = opened(columns, test=str(tmp_path / "test.csv")).scan("test", ("y", "x")).notes
    assert note == "4 of 5 test rows have values of y that no training row has: 'yes.', 'no.'"
    for other, error in (
        ({"y": ["no"], "x": [pd.Timestamp("2020")]}, "D008.*'x'"),
        ({"y": ["no"]}, "D007.*'x'"),
    ):
        pd.DataFrame(other).to_parquet(tmp_path / "test.parquet")
        with pytest.raises(TipcastError, match=error):
            opened(columns, test=str(tmp_path / "test.parquet")).scan("test", ("y", "x"))


def test_other_types_of_parquet(tmp_path: Path) -> None:
    columns = {
        "view": pa.array(["b", "a"] * 50, pa.string_view()),
        "cents": pa.array([Decimal(1), Decimal(2)] * 50, pa.decimal128(10, 2)),
        "large": pa.array([2**60, 1] * 50, pa.uint64()),
        "coded": pa.array(["q", "p"] * 50).dictionary_encode(),
        "nested": pa.array([[1], [2]] * 50),
        "gaps": pa.array(["NA", "", " ", "x"] * 25),
    }
    table = parquet(tmp_path, columns)
    assert table.features == ("view", "cents", "large", "coded", "gaps")
    assert table.notes == ("column nested is no feature: it is list<element: int64>",)
    expected = [[1, 0] * 2, [1, 2] * 2, [2**60, 1] * 2, [1, 0] * 2, [1, np.nan, 0, 2]]
    np.testing.assert_array_equal([read(table, name)[:4] for name in table.features], expected)
    assert table.columns[-1].categories == (" ", "NA", "x"), "the empty text is none"
    assert table.report[-1]["missing"] == 25


def test_other_types_and_odd_texts_get_the_same_codes(
    opened: Callable[..., Table], tmp_path: Path
) -> None:
    table = opened(
        {
            "code": cycle("101", "A1", "7"),
            "flag": cycle("True", "False"),
            "x": cycle(*["2.5"] * 19, "?"),
        }
    )
    frame = pd.DataFrame({"code": [7, 101, 5], "flag": [True, False, True], "x": ["1", " 2.5", ""]})
    frame.to_parquet(tmp_path / "other.parquet")
    found = new_rows(table, tmp_path / "other.parquet")
    np.testing.assert_array_equal(found, [[1, 0, np.nan], [1, 0, 1], [1, 2.5, np.nan]])
    (tmp_path / "other.csv").write_text("code,flag,x\n7, true,?\n101,False,1\n5,,  3\n")
    found = new_rows(table, tmp_path / "other.csv")
    np.testing.assert_array_equal(found, [[1, 0, np.nan], [1, 0, np.nan], [np.nan, 1, 3]])
    table = opened({"a": cycle(*["1.5"] * 19, "?"), "b": cycle("1", "2")})
    (tmp_path / "other.csv").write_text("a,b\n?, 2\n1,?\n")
    with pytest.raises(
        TipcastError, match=r"D005.*line 3: column 'b': cannot read '\?' as a number"
    ):
        new_rows(table, tmp_path / "other.csv")


def parquet(folder: Path, *columns: dict[str, Any], **settings: Any) -> Table:
    """Write a file for each set of columns, and open them as one table."""
    for at, each in enumerate(columns):
        pq.write_table(pa.table(each), folder / f"{at}.parquet")
    return open_table(folder / "*.parquet", **settings)


def test_files_agree_on_what_a_column_is(tmp_path: Path) -> None:
    texts = {"a": ["x", "y"] * 20, "b": [1, 2] * 20}
    numbers = {"a": [1, 2] * 20, "b": [3, 4] * 20}
    assert parquet(tmp_path, texts, numbers, types={"a": "none"}).features == ("b",)
    table = parquet(tmp_path, {"a": pa.nulls(40), "b": [1, 2] * 20}, texts | {"c": [1.0] * 40})
    assert table.features == ("a", "b")
    assert table.columns[0].categories == ("x", "y")
    assert "column c is no feature: only some of the files have it" in table.notes
    assert parquet(tmp_path, texts | {"c": [1.0] * 40}, texts).features == ("a", "b")
    assert parquet(tmp_path, {"a": [2**53 + 1, None] * 20, "b": [1, 2] * 20}, numbers).features == (
        "a",
        "b",
    )
    for first, other in ((texts, "string"), (texts | {"a": [True, False] * 20}, "bool")):
        with pytest.raises(
            TipcastError,
            match=f"D008.*1.parquet: column 'a' is int64, but .*0.parquet has {other}",
        ):
            parquet(tmp_path, first, numbers)
    pd.DataFrame(texts).to_csv(tmp_path / "2.csv", index=False)
    with pytest.raises(TipcastError, match=r"D008.*2.csv: is csv, but .*0.parquet is parquet"):
        open_table(tmp_path / "[02].*")


def test_footers_tell_what_is_missing_and_rows_where_they_have_no_statistics(
    tmp_path: Path,
) -> None:
    table = parquet(
        tmp_path,
        {"a": [1.0, None] * 20, "b": [None, 5] * 20},
        {"a": [1.0, 9.0, 9.0], "b": [3, 4, 5]},
    )
    assert [row["missing"] for row in table.report] == [20, 20]
    empty = parquet(
        tmp_path, {"a": [1.0], "b": pa.nulls(1, pa.float64())}, {"a": [9.0] * 2, "b": pa.nulls(2)}
    )
    assert empty.notes == ("column b is no feature: it has no value",)
    assert empty.medians["a"] == 9, "the rows of all files fill what is missing"
    values = {
        "size": pa.array([None] * 4, pa.int32()),
        "price": [1.0, None, 3.0, 4.0],
        "": [1.0, 2.0, 3.0, 4.0],
    }
    pq.write_table(pa.table(values), tmp_path / "t.parquet", write_statistics=False)
    table = open_table(tmp_path / "t.parquet")
    assert {row["column"]: row["missing"] for row in table.report} == {"size": 4, "price": 1, "": 0}
    assert table.features == ("price",)
    assert "column '' is no feature: it has no name" in table.notes


@pytest.mark.parametrize("suffix", ["parquet", "csv", "feather"])
def test_a_wide_table_has_the_medians_of_all_its_columns(tmp_path: Path, suffix: str) -> None:
    """Of Parquet, a few columns are read at a time."""
    values = np.random.default_rng(0).random((ROWS, 2 * COLUMNS_AT_ONCE + 1))
    frame = pd.DataFrame(values, columns=[f"c{at}" for at in range(values.shape[1])])
    file = tmp_path / f"t.{suffix}"
    {"parquet": frame.to_parquet, "feather": frame.to_feather}.get(
        suffix, partial(frame.to_csv, index=False)
    )(file)
    medians = open_table(file, block_bytes=1 << 25).medians
    assert medians == pytest.approx(dict(frame.median()))


def test_texts_of_parquet_that_look_like_something_else_are_noted(tmp_path: Path) -> None:
    numbers = "texts that are numbers{}: data.types={{c{}: number}} reads them as numbers"
    noted = [
        ([*map(str, range(ROWS))], numbers.format("", 0)),
        (["?", *map(str, range(1, ROWS))], numbers.format(", but for '?' (1 row)", 1)),
        (
            [f"{at % 12 + 1:02}/{at % 12 + 1:02}/2019" for at in range(ROWS)],
            "200 of its 200 texts are dates; c2 could be a date: data.types.c2=date",
        ),
        (cycle("0", "1"), ""),
    ]
    table = parquet(tmp_path, {f"c{at}": texts for at, (texts, _) in enumerate(noted)})
    assert {column.type for column in table.columns} == {"category"}
    assert [row["note"] for row in table.report] == [note for _, note in noted]
    assert (
        read(
            parquet(
                tmp_path, {"a": ["?", "2"] + ["3"] * 38, "b": [1, 2] * 20}, types={"a": "number"}
            ),
            "a",
        )[1]
        == 2
    )


def test_all_files_decide_how_dates_are_written(
    opened: Callable[..., Table], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(
        "day,x\n" + "".join(f"{day:02}/03/2019,1\n" for day in range(1, 13))
    )
    days = [f"{at % 28 + 1:02}/04/2019" for at in range(ROWS)]
    table = opened({"day": days, "x": cycle("1", "2")}, time="day", train=str(tmp_path / "*.csv"))
    assert "dates with slashes read as day/month/year" in table.notes
    assert np.datetime64(table.scan("train", ("x",)).period[0], "us") == np.datetime64("2019-03-01")
    again = Table.of_model(table.to_manifest())
    assert (again.dates, again.time, again.columns) == ("day_first", "day", table.columns)


def test_periods_and_intervals_are_no_features(tmp_path: Path) -> None:
    columns = {
        "day": pd.period_range("2020", periods=60, freq="D"),
        "i": pd.interval_range(0, 60),
        "x": range(60),
    }
    pd.DataFrame(columns).to_parquet(tmp_path / "t.parquet", index=False)
    program = (
        "from tipcast.config.data_schema import TableData;"
        "from tipcast.datasets.table.dataset import Table;"
        f"print(Table.open(TableData('table', {str(tmp_path / 't.parquet')!r}, test=None, "
        "test_share=0.2)).features)"
    )
    assert python(tmp_path, "-c", program).stdout.strip() == "('x',)", (
        "whose pandas has registered no types of Arrow's"
    )
    assert open_table(tmp_path / "t.parquet").features == ("x",)


def test_a_target_without_two_values_says_why(opened: Callable[..., Table]) -> None:
    one = "D015.*all rows of column 'a' have the same value"
    for texts, error in [
        (("", ""), "C003.*task.target: column 'a' is left out: it has no value"),
        (("NA", "x"), rf"{one} \(x\)\. Fix: 'NA' .100 rows.: .*data.types="),
        (("1", "1"), rf"{one} \(1\)"),
        (("yes", "yes"), rf"{one} \(yes\)"),
    ]:
        table = opened({"a": cycle(*texts), "b": cycle("1", "2")})
        for kind in (None, BINARY):
            with pytest.raises(TipcastError, match=error):
                table.target_column("a", kind)


def test_a_value_that_has_lost_its_text_is_refused() -> None:
    whole = ["123456789012345678", "123456789012345679"]
    for values, categories, codes in [
        ([np.float32(0.1), Decimal("1.50")], ["0.1", "1.5"], [0, 1]),
        ([np.int64(whole[1])], whole, [1]),
        ([pd.Timestamp("2019-01-01")], ["2019-01-01"], [0]),
        (["01234", "x", None], ["01234", "A"], [0, np.nan, np.nan]),
        ([101, 101.0, True], ["101", "True"], [0, 0, 1]),
        ([True, 1, False, 0], ["0", "1", "false", "true"], [3, 1, 2, 0]),
        ([True, "1"], ["1", "True"], [1, 0]),
    ]:
        np.testing.assert_array_equal(table_features.codes(values, categories), codes)
    for value, categories in [
        (True, ["true", "1"]),
        (16, ["0x10", "10"]),
        (Decimal(1234), ["01234"]),
        (1234, ["01234", "A"]),
        (pd.Timestamp("2019-01-02"), ["01/02/2019"]),
    ]:
        with pytest.raises(ValueError, match=f"{value} may have been"):
            table_features.codes([value], categories)


# MLflow's, of its own classes, at import
@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
def test_a_model_reads_numbers_as_training_does() -> None:
    from tipcast.tracking.model_code.model import _numbers

    column = {"missing": ("?",), "booleans": True, "largest": 1e9}
    values = pd.Series(["1", " 2 ", "TRUE", "false", "?", "NA", ""])
    expected = [1, 2, 1, 0, np.nan, np.nan, np.nan]
    np.testing.assert_array_equal(_numbers(values, "a", column, csv_cells.MISSING_TEXTS), expected)
    assert _numbers(pd.Series([True, False]), "a", column, []).tolist() == [1, 0]


def test_a_first_line_that_may_be_a_row_is_noted(opened: Callable[..., Table]) -> None:
    table = opened(
        {
            "5.1": cycle("4.9", "5.1"),
            "3.5": cycle("3.0", "3.5"),
            "setosa": cycle("setosa", "virginica"),
        }
    )
    assert table.notes == (f"column 5.1: {NO_NAMES}",)


def test_a_cell_that_is_no_number_is_named_with_its_line_where_training_had_odd_texts(
    tmp_path: Path,
) -> None:
    texts = ["-", *(f"{at}.5" for at in range(39))]
    pd.DataFrame({"a": texts, "b": ["x", "y"] * 20}).to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "new.csv").write_text('b,a\n"x\ny",1\nx,-\nx,oops\n')
    table = open_table(tmp_path / "t.csv")
    (part,) = table.scan_file(str(tmp_path / "new.csv"), ScanRequest(("a",))).parts
    with pytest.raises(
        TipcastError, match="new.csv: line 5: column 'a': cannot read 'oops' as a number"
    ):
        table.read(part, CpuFrames(), ("a",))
