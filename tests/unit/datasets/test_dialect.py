"""Text files of other habits: separators, decimal commas, encodings; each beside plain CSV."""

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.unit.datasets.conftest import FORM, open_table

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets import csv_bytes
from tipcast.datasets import delimited as csv
from tipcast.datasets.csv_rows import likely_separators
from tipcast.datasets.dialect import Dialect
from tipcast.datasets.listing import ScanRequest
from tipcast.datasets.table.dataset import Table

ROWS = 300
NOTE = "fields are separated by ';'"


def houses() -> pd.DataFrame:
    """Numbers with decimals, texts with every separator and a line break, a date with slashes."""
    draw = np.random.default_rng(0)
    hours = pd.to_timedelta(np.arange(ROWS), unit="h")
    frame = pd.DataFrame(
        {
            "größe": draw.normal(size=ROWS).round(4),
            "rooms": draw.integers(0, 100, ROWS),
            "town": draw.choice(["Köln", "Bonn, am Rhein", 'say "hi"; x', "a\tb|c\nd"], ROWS),
            "sold": draw.random(ROWS) > 0.5,
            "at": (pd.Timestamp("2020-01-01") + hours).strftime("%d/%m/%Y %H:%M"),
            "price": draw.normal(size=ROWS).round(3),
        }
    )
    frame.loc[3, "größe"] = np.nan
    frame.loc[4, "town"] = None
    return frame


HABITS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "semicolons": ("t.csv", {"sep": ";"}, {}),
    "tabs": ("t.tsv", {"sep": "\t"}, {}),
    "bars": ("t.csv", {"sep": "|"}, {}),
    "decimal commas": ("t.csv", {"sep": ";", "decimal": ","}, {"decimal": ","}),
    "quoted decimal commas": ("t.csv", {"decimal": ","}, {"decimal": ","}),
    "cp1252": ("t.csv", {"encoding": "cp1252"}, {"encoding": "cp1252"}),
    "latin-1": ("t.csv.gz", {"encoding": "latin-1", "sep": ";"}, {"encoding": "latin-1"}),
    "utf-16": ("t.csv", {"encoding": "utf-16", "sep": "\t"}, {"encoding": "utf-16"}),
    "utf-8 with a mark": ("t.csv", {"encoding": "utf-8-sig"}, {"encoding": "cp1252"}),
    "said to have a mark": ("t.csv", {"sep": ";"}, {"encoding": "utf-8-sig"}),
    "all": (
        "t.csv",
        {"sep": ";", "decimal": ",", "encoding": "cp1252", "lineterminator": "\r\n"},
        {"decimal": ",", "encoding": "cp1252"},
    ),
}
"""Name -> name of the file, how pandas writes it, and what a user says of it."""


def values(table: Table, parts: Any) -> dict[str, Any]:
    """Return the values of all columns, part after part."""
    names = [*table.features, *([table.time] if table.time else [])]
    read = [table.read(part, CpuFrames(), names) for part in parts]
    return {name: np.concatenate([part[name] for part in read]) for name in names}


def assert_alike(table: Table, parts: Any, plain: Table, plain_parts: Any) -> None:
    assert table.columns == plain.columns
    expected = values(plain, plain_parts)
    for name, column in values(table, parts).items():
        np.testing.assert_array_equal(column, expected[name], err_msg=name)


@pytest.fixture
def plain(tmp_path: Path) -> Table:
    """The table of plain CSV."""
    houses().to_csv(tmp_path / "plain.csv", index=False)
    return open_table(tmp_path / "plain.csv", time="at")


@pytest.mark.parametrize(("name", "written", "said"), HABITS.values(), ids=HABITS)
def test_a_file_is_read_as_plain_csv(
    tmp_path: Path, plain: Table, name: str, written: Any, said: Any
) -> None:
    houses().to_csv(tmp_path / name, index=False, **written)
    table = open_table(tmp_path / name, **said)
    untimed = open_table(tmp_path / "plain.csv")  # otherwise parts of both sides are cut elsewhere
    parts = table.scan("train", table.features).parts
    assert_alike(table, parts, untimed, untimed.scan("train", untimed.features).parts)


@pytest.mark.parametrize(("name", "written", "said"), HABITS.values(), ids=HABITS)
def test_a_model_s_table_reads_a_file_to_score_as_its_training_files(
    tmp_path: Path, plain: Table, name: str, written: Any, said: Any
) -> None:
    houses().to_csv(tmp_path / name, index=False, **written)
    trained = open_table(tmp_path / name, time="at", **said)
    table = Table.of_model(trained.to_manifest())
    request = ScanRequest(table.features, block_bytes=1024)
    parts = table.scan_file(str(tmp_path / name), request).parts
    plain_parts = plain.scan_file(str(tmp_path / "plain.csv"), request).parts
    assert_alike(table, parts, plain, plain_parts)


def test_a_scoring_may_say_that_a_file_has_other_habits(tmp_path: Path, plain: Table) -> None:
    _, written, said = HABITS["all"]
    houses().to_csv(tmp_path / "t.csv", index=False, **written)
    manifest = open_table(tmp_path / "t.csv", time="at", **said).to_manifest()
    table = Table.of_model(manifest).of_files({"decimal": ".", "encoding": "utf-8"})
    request = ScanRequest(table.features, block_bytes=1024)
    parts = table.scan_file(str(tmp_path / "plain.csv"), request).parts
    assert_alike(table, parts, plain, parts)


def test_a_model_of_plain_files_reads_any_separator(tmp_path: Path, plain: Table) -> None:
    houses().to_csv(tmp_path / "t.csv", index=False, sep=";")
    scan = plain.scan_file(str(tmp_path / "t.csv"), ScanRequest(plain.features))
    assert scan.notes == (NOTE,)


def test_the_separator_is_said_beside_the_order_of_dates(tmp_path: Path) -> None:
    houses().to_csv(tmp_path / "t.csv", index=False, sep=";")
    notes = open_table(tmp_path / "t.csv").scan("train", ()).notes
    assert NOTE in notes
    assert "dates with slashes read as day/month/year" in notes


@pytest.mark.parametrize(
    ("raw", "separator"),
    [
        (b"a,b\n1,2\n", ","),
        (b"a;b\n1,5;2,5\n", ";"),
        (b"a;b;c\n1,5;x;2,5\n", ";"),
        (b"a,b\n1;2,3\n", ","),
        (b'"a;x",b\n1,2\n', ","),
        (b'"a,x";b\n"1,5";2\n', ";"),
        (b"a|b\n1|2\n", "|"),
        (b"note\nx; y\n", ","),
        (b"a;b\n1;2;;\n", ";"),
        (b"a,b,c\n1,2\n", ","),
        (b"a\tb\n", "\t"),
    ],
)
def test_rows_tell_their_separator(raw: bytes, separator: str) -> None:
    assert likely_separators(raw, 0)[0] == separator


def test_a_decimal_comma_is_rather_no_separator() -> None:
    raw = b"price, EUR;rooms\n1,5;2\n"
    assert likely_separators(raw, 0, ",")[0] == ";"


@pytest.mark.parametrize(
    ("name", "text", "columns", "note"),
    [
        ("t.tsv", "a, b, c\tn\nx, y, z\t1\n", ["a, b, c", "n"], "tabs, although commas would"),
        ("t.tsv.gz", "a,b\tn\nx, y\t1\nx\t1\n", ["a,b", "n"], "tabs"),
        ("t.csv", "City, State\tn\nx, y\t1\n", ["City, State", "n"], "tabs, although commas would"),
        ("t.csv", "Preis, netto;n\n1,5;3\n", ["Preis, netto", "n"], "';', although commas would"),
        ("t.csv", "Preis,netto;n\n1,5;3\n", ["Preis,netto", "n"], "';', although commas would"),
        ("t.csv", "a,b,c;d\n1,2,3;4\n", ["a", "b", "c;d"], "commas, although ';' would fit too"),
    ],
)
def test_of_two_separators_that_fit_the_likelier_is_taken_aloud(
    tmp_path: Path, name: str, text: str, columns: list[str], note: str
) -> None:
    raw = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    scan = csv.scan_csv(str(tmp_path / name), ScanRequest(()), None)
    assert list(scan.header.names) == columns
    assert scan.notes[0].startswith(f"fields are separated by {note}")


@pytest.mark.parametrize("line", [b"sep=;\r\n", b'"sep=;"\n', b"\xef\xbb\xbfsep=;\n"])
def test_a_first_line_of_excel_names_the_separator(line: bytes) -> None:
    header = csv.read_header(line + b"a,b;c\r\n1;2\r\n", "f")
    assert (header.names, header.separator) == (("a,b", "c"), ";")


def test_empty_fields_at_the_end_of_rows_have_names_of_their_own() -> None:
    header = csv.read_header(b"a;b\n1;2;;\n", "f")
    assert header.fields == ("a", "b", "_2", "_3")


def test_a_first_row_of_empty_fields_between_tabs_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tb\n\t\n" + "1\t2\n" * 30)
    (part,) = csv.scan_csv(str(tmp_path / "t.tsv"), ScanRequest(()), None).parts({"a": "a"}, None)
    assert len(part.read(CpuFrames(), ("a",))["a"]) == 31


@pytest.mark.parametrize("block_bytes", [1, 30])
def test_blocks_end_at_rows_whatever_separates_fields(block_bytes: int) -> None:
    raw = b"".join(b'%d;"x\n;y";z,"q\n' % at for at in range(50))
    cut = csv_bytes.blocks(io.BytesIO(raw), 0, len(raw), block_bytes, quoted=True, separator=";")
    assert all(raw[start + length - 3 : start + length] == b'"q\n' for start, length in cut)
    assert sum(length for _, length in cut) == len(raw)


BAD: dict[str, tuple[bytes, dict[str, str], str, str]] = {
    "a row": (b"1;2;3\n", {}, "D005", "line 42 has 3 fields, not 2"),
    "an open quote": (b'1;"2\n', {}, "D005", "line 42: an opening quote is never closed"),
    "a letter": (b"1;\xe9\n", {}, "D016", "data.encoding=cp1252"),
    "another encoding": (b"1;\x81\n", {"encoding": "cp1252"}, "D016", "line 42 is not cp1252"),
    "said to be cp1252": ("1;é\n".encode(), {"encoding": "cp1252"}, "D016", "is UTF-8, not cp1252"),
    "UTF-16 without a mark": (b"1;2\n", {"encoding": "utf-16"}, "D016", "is not utf-16"),
}


@pytest.mark.parametrize(("row", "said", "code", "what"), BAD.values(), ids=BAD)
def test_a_fault_is_named_with_its_line(
    tmp_path: Path, row: bytes, said: Any, code: str, what: str
) -> None:
    (tmp_path / "t.csv").write_bytes(b"a;b\n" + b"1;2\n" * 40 + row + b"1;2\n" * 40)
    with pytest.raises(TipcastError, match=what) as caught:
        open_table(tmp_path / "t.csv", **said)
    assert caught.value.code == code
    assert FORM.match(str(caught.value))


@pytest.mark.parametrize("cell", ["1.5", "1.234,5", "1 234,5"])
def test_another_cell_than_a_decimal_comma_s_is_named(tmp_path: Path, cell: str) -> None:
    rows = "".join(f"{at},5;{at % 2}\n" for at in range(60))
    (tmp_path / "train.csv").write_text(f"a;b\n{rows}")
    (tmp_path / "new.csv").write_text(f"a;b\n{rows}{cell};1\n")
    table = open_table(tmp_path / "train.csv", decimal=",")
    parts = table.scan_file(str(tmp_path / "new.csv"), ScanRequest(("a",))).parts
    with pytest.raises(TipcastError, match=f"D005.*line 62: column 'a': cannot read '{cell}'"):
        values(table, parts)


def test_texts_of_a_typed_file_have_the_decimal_sign_of_training(tmp_path: Path) -> None:
    rows = "".join(f"{at},5;{at % 2}\n" for at in range(60))
    (tmp_path / "train.csv").write_text(f"a;b\n{rows}")
    pd.DataFrame({"a": ["1,5", "2"], "b": [0, 1]}).to_parquet(tmp_path / "new.parquet")
    table = open_table(tmp_path / "train.csv", decimal=",")
    parts = table.scan_file(str(tmp_path / "new.parquet"), ScanRequest(("a",))).parts
    assert values(table, parts)["a"].tolist() == [1.5, 2]


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ({"decimal": ";"}, "data.decimal"),
        ({"decimal": ""}, "data.decimal"),
        ({"encoding": "cp12521"}, "data.encoding"),
        ({"encoding": "base64"}, "data.encoding"),
        ({"encoding": ""}, "data.encoding"),
    ],
)
def test_unknown_habits_are_refused(tmp_path: Path, said: Any, key: str) -> None:
    houses().to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(TipcastError, match=f"C003.*{key}") as caught:
        open_table(tmp_path / "t.csv", **said)
    assert FORM.match(str(caught.value))


def test_a_key_of_a_scoring_is_named_as_it_is_typed() -> None:
    with pytest.raises(TipcastError, match=r"C003\] decimal: must be") as caught:
        Dialect().with_options({"decimal": "x"}, "")
    assert "write decimal=','" in caught.value.fix


def test_texts_of_two_bytes_are_cut_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_bytes, "PIECE", 7)
    text = "größe;ß\n1;é\n" * 20
    (tmp_path / "t.csv").write_bytes(text.encode("utf-16"))
    read = b"".join(csv_bytes.pieces(str(tmp_path / "t.csv"), {}, "utf-16"))
    assert read == text.encode()
