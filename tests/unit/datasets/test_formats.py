"""Compressed text files, Feather and JSON lines: each beside the plain file of the same rows."""

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest
from tests.unit.datasets.conftest import FORM, open_table

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets import delimited, feather, json_lines
from tipcast.datasets.find_files import expand
from tipcast.datasets.listing import ScanRequest
from tipcast.datasets.table.dataset import Table

ROWS = 300
Write = Callable[[pd.DataFrame, Path], Any]


def frame() -> pd.DataFrame:
    """A table with a column of each type, some of whose values are missing."""
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "size": draw.normal(size=ROWS).round(4),
            "count": draw.integers(0, 100, ROWS),
            "word": draw.choice(["pear", "Äpfel", "fig"], ROWS),
            "flag": draw.random(ROWS) > 0.5,
            "at": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(ROWS), unit="h"),
        }
    )
    rows.loc[3, "word"] = None
    rows.loc[4, "size"] = np.nan
    return rows


def zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content, asbytes=True))


def zipped(path: Path, *names: str, content: bytes = b"a,b\n1,2\n") -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, content)


def csv_of(rows: pd.DataFrame) -> bytes:
    return rows.to_csv(index=False).encode()


def lines_of(rows: pd.DataFrame) -> bytes:
    times = rows.assign(at=rows["at"].astype(str))
    return times.to_json(orient="records", lines=True, force_ascii=False).encode()


def write_stream(rows: pd.DataFrame, path: Path) -> None:
    table = pa.Table.from_pandas(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def write_compressed_feather(rows: pd.DataFrame, path: Path) -> None:
    table = pa.Table.from_pandas(rows)
    table = table.set_column(2, "word", table["word"].dictionary_encode())
    pyarrow.feather.write_feather(table, str(path), compression="zstd", chunksize=70)


WAYS: dict[str, Write] = {
    "t.csv.zst": lambda rows, path: path.write_bytes(zstd(csv_of(rows))),
    "t.csv.gz": lambda rows, path: path.write_bytes(gzip.compress(csv_of(rows))),
    "t.csv.zip": lambda rows, path: zipped(path, "in/t.csv", content=csv_of(rows)),
    "mac.csv.zip": lambda rows, path: zipped(
        path, "t.csv", "__MACOSX/._t.csv", content=csv_of(rows)
    ),
    "t.tsv.zst": lambda rows, path: path.write_bytes(
        zstd(rows.to_csv(sep="\t", index=False).encode())
    ),
    "t.feather": lambda rows, path: rows.to_feather(path),
    "packed.feather": write_compressed_feather,
    "t.arrow": write_stream,
    "t.jsonl": lambda rows, path: path.write_bytes(lines_of(rows)),
    "t.ndjson.gz": lambda rows, path: path.write_bytes(gzip.compress(lines_of(rows))),
    "t.jsonl.zst": lambda rows, path: path.write_bytes(zstd(lines_of(rows))),
}
"""Name of a file -> how it is written."""
TYPED = ("t.feather", "packed.feather", "t.arrow", "t.jsonl", "t.ndjson.gz", "t.jsonl.zst")


def values(table: Table, parts: Any) -> dict[str, Any]:
    """Return the values of all columns, part after part."""
    read = [table.read(part, CpuFrames(), table.known_columns) for part in parts]
    return {name: np.concatenate([part[name] for part in read]) for name in table.known_columns}


def scanned(table: Table, path: Path) -> Any:
    """Return the parts of a file to be scored."""
    request = ScanRequest(table.known_columns, any_columns=True)
    return table.scan_file(str(path), request).parts


@pytest.mark.parametrize("name", WAYS)
def test_a_file_is_read_as_the_plain_one(tmp_path: Path, name: str) -> None:
    WAYS[name](frame(), tmp_path / name)
    plain_path = tmp_path / ("plain.parquet" if name in TYPED else "plain.csv")
    frame().to_parquet(plain_path) if name in TYPED else frame().to_csv(plain_path, index=False)

    table = open_table(tmp_path / name, time="at")
    plain = open_table(plain_path, time="at")
    assert table.columns == plain.columns
    expected = values(plain, scanned(plain, plain_path))
    for column, read in values(table, scanned(table, tmp_path / name)).items():
        np.testing.assert_array_equal(read, expected[column], err_msg=column)


@pytest.mark.parametrize("name", TYPED)
def test_a_typed_file_keeps_its_columns_beside_scores(tmp_path: Path, name: str) -> None:
    WAYS[name](frame(), tmp_path / name)
    table = open_table(tmp_path / name)
    read = [part.read_as_stored(list, table.csv_types) for part in scanned(table, tmp_path / name)]
    kept = pa.concat_tables(read).to_pandas()
    pd.testing.assert_frame_equal(kept, frame(), check_dtype=False, check_categorical=False)


def test_columns_are_kept_by_their_names(tmp_path: Path) -> None:
    frame().to_feather(tmp_path / "t.feather")
    table = open_table(tmp_path / "t.feather")
    (part,) = scanned(table, tmp_path / "t.feather")
    assert part.read_as_stored(lambda names: ["flag"], table.csv_types).column_names == ["flag"]
    assert part.read_as_stored(lambda names: [], table.csv_types).column_names == []


def test_batches_of_feather_are_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feather, "MERGED_ROWS", 150)
    frame().to_feather(tmp_path / "t.feather", chunksize=70)
    parts = feather.scan_feather(str(tmp_path / "t.feather"), ScanRequest(())).parts
    assert [(part.batches, part.rows) for part in parts] == [
        ((0, 1), 140),
        ((2, 3), 140),
        ((4,), 20),
    ]


def test_nested_columns_are_left_out(tmp_path: Path) -> None:
    rows = "".join(f'{{"a": {at}, "b": {{"c": 1}}, "d": [1, 2]}}\n' for at in range(50))
    (tmp_path / "t.jsonl").write_text(rows)
    table = open_table(tmp_path / "t.jsonl")
    assert table.features == ("a",)
    assert any(note.startswith("column b is no feature: it is struct") for note in table.notes)


def test_an_index_of_pandas_is_left_out(tmp_path: Path) -> None:
    indexed = pa.Table.from_pandas(frame().set_index("count"))
    pyarrow.feather.write_feather(indexed, str(tmp_path / "t.feather"))
    assert "count" not in open_table(tmp_path / "t.feather").features


def test_numbers_that_are_texts_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("".join(f'{{"a": {at}}}\n' for at in range(50)))
    (tmp_path / "new.jsonl").write_text('{"a": "1"}\n\n{"a": "two"}\n')
    table = open_table(tmp_path / "train.jsonl")
    with pytest.raises(TipcastError, match="D005.*line 3: column 'a': cannot read 'two'"):
        values(table, scanned(table, tmp_path / "new.jsonl"))


@pytest.mark.parametrize(
    ("text", "longest"),
    [(b"", 0), (b"\n", 0), (b"abc\nd\n", 3), (b'{"a": 1}\n{"a": 10}', 9)],
)
def test_the_longest_line_of_a_text(text: bytes, longest: int) -> None:
    assert json_lines._longest_line(text) == longest


def test_a_key_that_no_line_has_is_a_column_that_the_file_lacks(tmp_path: Path) -> None:
    rows = "".join(f'{{"a": {at}, "b": {at % 7}}}\n' for at in range(50))
    (tmp_path / "train.jsonl").write_text(rows)
    (tmp_path / "new.jsonl").write_text('{"a": 1}\n')
    table = open_table(tmp_path / "train.jsonl")
    with pytest.raises(TipcastError, match="D007.*missing column 'b'"):
        table.scan_file(str(tmp_path / "new.jsonl"), ScanRequest(("a", "b")))
    (tmp_path / "new.jsonl").write_text('{"a": 1}\n{"a": 2, "b": null}\n')
    (part,) = table.scan_file(str(tmp_path / "new.jsonl"), ScanRequest(("a", "b"))).parts
    assert np.isnan(table.read(part, CpuFrames(), ("b",))["b"]).all()


BAD_LINES: dict[str, tuple[bytes, str, str]] = {
    "a word": (b'{"a": tru}', "D005", "line 3 cannot be parsed"),
    "a list": (b"[1, 2]", "D005", "line 3 is not an object"),
    "another type": (b'{"a": "x"}', "D005", "line 3: column 'a': a string after a number"),
    "cut off": (b'{"a": 1', "D005", "line 3 cannot be parsed"),
    "a name twice": (b'{"a": 1, "a": 2}', "D005", "specified twice"),
}


@pytest.mark.parametrize(("line", "code", "what"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_that_does_not_fit_is_named(
    tmp_path: Path, line: bytes, code: str, what: str
) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    with pytest.raises(TipcastError, match=what) as caught:
        json_lines.scan_json_lines(str(tmp_path / "t.jsonl"), ScanRequest(()))
    assert caught.value.code == code
    assert FORM.match(str(caught.value))


BAD_FILES: dict[str, tuple[str, bytes, str, str]] = {
    "plain named .zst": ("t.csv.zst", b"a,b\n1,2\n", "D004", "not compressed with zstd"),
    "plain named .zip": ("t.csv.zip", b"a,b\n1,2\n", "D004", "not compressed with zip"),
    "half a .zst": ("t.csv.zst", zstd(b"a,b\n" + bytes(range(256)) * 99)[:-9], "D005", "truncated"),
    "half a .zip": ("t.csv.zip", b"PK\x03\x04" + b"\0" * 99, "D005", "truncated or damaged"),
    "zstd named .csv": ("t.csv", zstd(b"a,b\n1,2\n" * 99), "D004", r"rename it to end in .csv.zst"),
    "zip named .csv": ("t.csv", b"PK\x03\x04\x14\0\0", "D004", r"rename it to end in .csv.zip"),
    "no Feather": ("t.feather", b"a,b\n1,2\n" * 9, "D005", "is not an Arrow file"),
    "half a Feather": ("t.feather", b"ARROW1\0\0" + b"\0" * 99, "D005", "is not an Arrow file"),
    "the first Feather": ("t.feather", b"FEA1" + b"\0" * 99, "D004", "Feather version 1"),
    "an empty Feather": ("t.feather", b"", "D003", "is empty"),
    "empty lines": ("t.jsonl", b"\n\n", "D003", "is empty"),
    "empty objects": ("t.jsonl", b"{}\n{}\n", "D009", "no rows"),
}


@pytest.mark.parametrize(("name", "content", "code", "what"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_not_what_its_name_says(
    tmp_path: Path, name: str, content: bytes, code: str, what: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TipcastError, match=what) as caught:
        open_table(tmp_path / name)
    assert caught.value.code == code
    assert FORM.match(str(caught.value))


def test_a_header_that_begins_as_the_name_of_a_key_is_no_zip(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("PKID,name\n1,2\n")
    header = delimited.scan_csv(str(tmp_path / "t.csv"), ScanRequest(()), None).header
    assert header.names == ("PKID", "name")


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_damaged_zip_is_named_however_it_is_compressed(tmp_path: Path, method: int) -> None:
    path = tmp_path / "t.csv.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("t.csv", csv_of(frame()))
    content = path.read_bytes()
    path.write_bytes(content[:60] + b"\xff" * 200 + content[260:])
    with pytest.raises(TipcastError, match="D005.*is a zip file that is truncated or damaged"):
        open_table(path)


def test_a_zip_of_several_files_is_refused(tmp_path: Path) -> None:
    zipped(tmp_path / "t.csv.zip", "a.csv", "b.csv")
    with pytest.raises(TipcastError, match=r"D004.*contains 2 files, but a .zip must contain"):
        open_table(tmp_path / "t.csv.zip")


def test_a_folder_stands_for_files_of_all_formats_of_a_table(tmp_path: Path) -> None:
    for name in (*WAYS, "t.txt", "t.zip"):
        (tmp_path / name).touch()
    found = expand(str(tmp_path), ScanRequest((), any_columns=True))
    assert set(found) == {*WAYS}


def test_a_folder_of_trips_stands_for_parquet_and_csv(tmp_path: Path) -> None:
    for name in WAYS:
        (tmp_path / name).touch()
    found = expand(str(tmp_path), ScanRequest(()))
    assert set(found) == {*WAYS} - {*TYPED}


def test_trips_of_another_format_are_refused(trip_files: Any) -> None:
    path = trip_files.folder / "yellow_2019-02.jsonl"
    path.write_text('{"a": 1}\n')
    trip_files.refused(path, "D004", path)
