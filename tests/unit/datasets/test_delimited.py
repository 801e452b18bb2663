"""Tests of CSV headers, blocks and faults."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from pytest import MonkeyPatch

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets import delimited as csv
from tipcast.datasets.base import ScanRequest


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n"])
@pytest.mark.parametrize("below", [b"", b"\r\n", b"\n \n"])
def test_head_understands_marks_blanks_and_blank_lines(before: bytes, below: bytes) -> None:
    raw = before + b"a, b, c \r\n" + below + b"1,2,3,,\r\n"
    head = csv.read_head(raw, "f")
    assert head.names == ("a", "b", "c")
    assert head.header == ("a", "b", "c", "_3", "_4")
    assert raw[head.start :] == b"1,2,3,,\r\n"


def test_names_of_a_header_are_those_that_pandas_reads(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(',5" pipe,"a ""b""\nc",d,\n0,1,2,3,4\n')
    head = csv.look(str(tmp_path / "t.csv"), ScanRequest(()), None).head
    assert list(head.names) == [" ".join(name.split()) for name in pd.read_csv(tmp_path / "t.csv")]


def test_a_header_may_be_long(tmp_path: Path) -> None:
    names = [f"column_{at}" for at in range(40_000)]
    (tmp_path / "t.csv").write_text(f"{','.join(names)}\n{',1' * 40_000}\n"[:-1] + "\n")
    assert csv.look(str(tmp_path / "t.csv"), ScanRequest(()), None).head.names == tuple(names)


def test_quotes_amid_a_field_quote_nothing() -> None:
    fields = ['5" pipe', '"two\nlines"', '12" 5"', '"say ""so""\n"', '""', "plain"]
    rows = [f"{at},{fields[at % 6]},{fields[at * 5 % 6]}\n".encode() for at in range(300)]
    raw, ends = b"".join(rows), {sum(map(len, rows[: at + 1])) for at in range(300)}
    for block_bytes in (50, 333, 2000):
        cut = csv.blocks(io.BytesIO(raw), 0, len(raw), block_bytes, quoted=True)
        assert {start + length for start, length in cut} <= ends


def test_extra_fields_with_values_are_not_fillers() -> None:
    assert csv.read_head(b"a,b,c\n1,2,3,4\n", "f").header == ("a", "b", "c")


@pytest.mark.parametrize(
    ("raw", "code", "says"),
    [
        (b"", "D003", "empty"),
        (b"\xef\xbb\xbf\r\n", "D003", "empty"),
        (b"\x1f\x8b\x08", "D004", "gzip"),
        (b"a,\0", "D004", "binary"),
        (b"\xca\xfe,x\n\x01\x02", "D016", "line 1"),
        (b"<!DOCTYPE html>\n<p>a,b,c", "D005", "web page"),
        (b"a;b;c\n1;2;3\n", "D007", "';'"),
        (b"a\tb\n", "D007", r"'\\t'"),
        (b"\xff\xfea\0,\0b\0", "D004", "UTF-8"),
        (b"a,b,caf\xe9\n", "D016", "line 1"),
        (b"a\rb,c\n1,2\n", "D005", "its header does not parse"),
    ],
)
def test_heads_that_are_refused(raw: bytes, code: str, says: str) -> None:
    with pytest.raises(TipcastError, match=says) as caught:
        csv.read_head(raw, "f")
    assert caught.value.code == code


@pytest.mark.parametrize("block_bytes", [1, 7, 30, 1000])
def test_blocks_end_at_newlines_and_cover_all(block_bytes: int) -> None:
    raw = b"header\n" + b"".join(b"row %d\n" % number for number in range(40)) + b"last"

    cut = csv.blocks(io.BytesIO(raw), 7, len(raw), block_bytes)
    assert b"".join(raw[start : start + length] for start, length in cut) == raw[7:]
    assert all(raw[start - 1 : start] == b"\n" for start, _ in cut)
    assert all(length < block_bytes + len(b"row 39\n") for _, length in cut)


def _refused(tmp_path: Path, rows: list[bytes]) -> TipcastError:
    file = tmp_path / "t.csv"
    file.write_bytes(b"t,x,s\n\n" + b"".join(rows))
    whole = csv.look(str(file), ScanRequest(("t", "x")), None).fragment({"t": "t", "x": "x"}, ("t",), None)
    with pytest.raises(TipcastError) as caught:
        csv.read(whole, ("t", "x"), CpuFrames())
    return caught.value


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (b"2019-01-01 00:00:00,1\n", " has 2 fields, not 3"),
        (b"2019-01-01 00:00:00,1,N,4\n", " has 4 fields, not 3"),
        (b"31-31-2019 00:00:00,1,N\n", ": column 't': cannot read '31-31-2019 00:00:00'"),
        (b"2019-01-01 00:00:00,twelve,N\n", ": column 'x': cannot read 'twelve'"),
    ],
)
@pytest.mark.parametrize("at", [1, 13, 99])
def test_the_first_fault_is_found(tmp_path: Path, monkeypatch: MonkeyPatch, bad: bytes, what: str, at: int) -> None:
    monkeypatch.setattr(csv, "CSV_CHUNK", 500)
    rows = [b"2019-01-01 00:00:00,1.5,N\n"] * 100
    rows[at:at] = [b"\n", bad]
    problem = _refused(tmp_path, rows)
    assert (problem.code, problem.what) == ("D005", f"line {at + 4}{what}")


def test_bytes_that_are_not_utf8_are_told_apart(tmp_path: Path) -> None:
    problem = _refused(tmp_path, [b"2019-01-01,1,N\n2019-01-01,1\xe9,N\n"])
    assert (problem.code, problem.what) == ("D016", "line 4: column 'x' is not UTF-8")
