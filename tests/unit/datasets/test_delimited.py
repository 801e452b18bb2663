"""Tests of CSV headers, blocks and faults."""

import gzip
import io
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets import csv_bytes, csv_cells
from tipcast.datasets import delimited as csv
from tipcast.datasets.csv_part import CsvPart
from tipcast.datasets.listing import ScanRequest


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n"])
@pytest.mark.parametrize("below", [b"", b"\r\n", b"\n \n"])
def test_head_understands_marks_blanks_and_blank_lines(before: bytes, below: bytes) -> None:
    # a value in it is a fault
    for row, fillers in ((b"1,2,3,,\r\n", ("_3", "_4")), (b"1,2,3,4\n", ())):
        raw = before + b"a, b, c \r\n" + below + row
        header = csv.read_header(raw, "f")
        assert (header.names, header.fields) == (("a", "b", "c"), ("a", "b", "c", *fillers))
        assert raw[header.start :] == row


def test_names_of_a_long_header_are_those_that_pandas_reads(tmp_path: Path) -> None:
    more = ",".join(f"column_{at}" for at in range(40_000))
    (tmp_path / "t.csv").write_text(f',5" pipe,"a ""b""\nc",d,,{more}\n{",1" * 40_004}\n')
    header = csv.scan_csv(str(tmp_path / "t.csv"), ScanRequest(()), None).header
    assert list(header.names) == [
        " ".join(name.split()) for name in pd.read_csv(tmp_path / "t.csv")
    ]


@pytest.mark.parametrize(
    ("raw", "code", "says"),
    [
        (b"\xef\xbb\xbf\r\n", "D003", "empty"),
        (b"\x1f\x8b\x08", "D004", "gzip"),
        (b"a,\0", "D004", "binary"),
        (b"\xca\xfe,x\n\x01\x02", "D016", "line 1"),
        (b"<!DOCTYPE html>\n<p>a,b,c", "D005", "web page"),
        (b"\xff\xfea\0,\0b\0", "D004", "UTF-8"),
        (b"a,b,caf\xe9\n", "D016", "line 1"),
        (b"a\rb,c\n1,2\n", "D005", "its header cannot be parsed"),
    ],
)
def test_heads_that_are_refused(raw: bytes, code: str, says: str) -> None:
    with pytest.raises(TipcastError, match=says) as caught:
        csv.read_header(raw, "f")
    assert caught.value.code == code


@pytest.mark.parametrize("block_bytes", [1, 7, 30, 1000])
def test_blocks_end_at_rows_and_cover_all(block_bytes: int) -> None:
    raw = b"header\n" + b"".join(b"row %d\n" % number for number in range(40)) + b"last"
    cut = csv_bytes.blocks(io.BytesIO(raw), 7, len(raw), block_bytes)
    assert b"".join(raw[start : start + length] for start, length in cut) == raw[7:]
    assert all(raw[start - 1 : start] == b"\n" for start, _ in cut)
    assert all(length < block_bytes + len(b"row 39\n") for _, length in cut)

    # amid a field a quote is a character
    fields = ['5" pipe', '"two\nlines"', '12" 5"', '"say ""so""\n"', '""', "plain"]
    rows = [f"{at},{fields[at % 6]},{fields[at * 5 % 6]}\n".encode() for at in range(300)]
    raw = b"".join(rows)
    ends = {sum(map(len, rows[: at + 1])) for at in range(300)}
    cut = csv_bytes.blocks(io.BytesIO(raw), 0, len(raw), block_bytes, quoted=True)
    assert {start + length for start, length in cut} <= ends
    assert sum(length for _, length in cut) == len(raw)


@pytest.mark.parametrize(
    ("raw", "code", "says"),
    [
        ("a\tb\n1\t2\n".encode("utf-16"), "D004", "is UTF-16"),
        ("a,b\n1,2\n".encode("utf-16-be"), "D004", "is UTF-16"),
    ],
)
def test_files_of_excel_are_named(raw: bytes, code: str, says: str) -> None:
    with pytest.raises(TipcastError, match=says) as caught:
        csv.read_header(raw, "f")
    assert caught.value.code == code


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_line_at_fault_is_the_files_after_line_breaks_in_quotes_and_empty_lines(
    tmp_path: Path, ending: str
) -> None:
    text = 'note,a\r\n"one\r\ntwo, ""2""\n\nfour",1\r\n\r\nx,2\r\n"y\nz",oops\r\n'
    path = tmp_path / f"t.{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending == "csv.gz" else text.encode())
    for size in (1, 1 << 20):
        found = csv.scan_csv(str(path), ScanRequest((), block_bytes=size), None)
        parts = found.parts({"a": "a", "note": "note"}, None)
        with pytest.raises(
            TipcastError, match=r"D005.*line 8: column 'a': cannot read 'oops' as a number"
        ):
            [part.read_file_columns(["a"], {"a": pa.float64()}) for part in parts]


def remote_part(path: Path, offset: int, length: int) -> CsvPart:
    """A part of a file of whose beginning alone was read whether it has quotes."""
    (whole,) = csv.scan_csv(str(path), ScanRequest(()), None).parts(
        {"a": "a", "note": "note"}, None
    )
    return replace(whole, offset=offset, length=length, quoted=False)


def test_lines_that_break_within_quotes_where_a_scan_has_not_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'note,a\nplain,1\n"two\nlines",2\n')
    part = remote_part(path, 7, path.stat().st_size - 7)
    table = part.read_file_columns(["note", "a"], {"a": pa.float64(), "note": pa.string()})
    assert table.to_pydict() == {"note": ["plain", "two\nlines"], "a": [1.0, 2.0]}


def test_a_block_that_was_cut_within_quotes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'note,a\nplain,1\n"two\nlines",2\n')
    part = remote_part(path, 7, len(b'plain,1\n"two\n'))
    with pytest.raises(TipcastError, match="D005.*line 3 breaks inside quotes"):
        part.read_file_columns(["a"], {"a": pa.float64()})


def test_a_line_that_tells_excel_the_comma_is_passed_over() -> None:
    header = csv.read_header(b"\xef\xbb\xbfsep=,\r\na,b\r\n1,2\r\n", "f")
    assert (header.names, header.start) == (("a", "b"), 15)


@pytest.mark.parametrize(
    "form",
    [
        "2019-02-30 10:00",
        "29/02/2019",
        "2019-04-31",
        "2019/2/30",
        "2019-01-01 23:59:60",
        "28/02/19 10:00",
    ],
)
def test_a_time_that_does_not_exist_is_no_other(form: str) -> None:
    values, row = csv_cells.times(
        pa.chunked_array([["2019-01-31", "2020-02-29", form]]), "day_first"
    )
    assert (len(values), row) == (3, 2)


def test_odd_times_are_told_by_their_own_place() -> None:
    texts = ["2019-03-02 00:00:01", "", "2019-01-01 00:00", "31/04/2019 9:15", "30/02/2019"]
    values, row = csv_cells.times(pa.chunked_array([texts]), "day_first")

    assert row == 3
    assert str(values[0]) == "2019-03-02 00:00:01"
    assert values[1].as_py() is None


@pytest.mark.parametrize("zone", ["", "Z", "+00:00", " UTC", "+00"])
def test_a_time_of_utc_is_wall_clock_time(zone: str) -> None:
    values, row = csv_cells.times(pa.chunked_array([[f"2019-01-31 10:00:00{zone}"]]), "iso")
    assert (str(values[0]), row) == ("2019-01-31 10:00:00", None)
    assert csv_cells.times(pa.chunked_array([["2019-01-31 10:00:00+01:00"]]), "iso") == (None, 0)


@pytest.mark.parametrize(
    "text",
    ["id, at\n1, 28/02/2019\n", 'id;at\n1; "28/02/2019 10:00"\n', "at\tid\n  28/02/2019 \t1\n"],
)
def test_dates_with_slashes_are_seen_after_blanks(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    scan = csv.scan_csv(str(tmp_path / "t.csv"), ScanRequest(()), None)
    assert (scan.slashed, scan.dates) == ({(28, 2, 2019)}, "day_first")
