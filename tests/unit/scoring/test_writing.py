"""Scored files: whole or absent, the parts' rows in their order, with checksums and what the file says of itself."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.scoring.writing import FOOTER, Footer, join_parts, write_part, written

Part = Callable[[pa.Table], BinaryIO]
SAID = Footer(0, "recipe", "5" * 64, {"non_finite": 2})


def rows(count: int, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "number": pa.array(draw.normal(size=count), mask=draw.random(count) < 0.1),
            "time": pa.array(draw.integers(0, 10**15, count).view("datetime64[us]")),
            "text": pa.array([f"value {i % 7}" if i % 5 else None for i in range(count)], pa.string()),
            "many": pa.array([[i, i + 1] if i % 3 else [] for i in range(count)], pa.list_(pa.int32())),
        }
    )


@pytest.fixture
def part(tmp_path: Path) -> Part:
    def write(table: pa.Table) -> BinaryIO:
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        write_part(table, str(path), {}, threads=False)
        return path.open("rb")

    return write


@pytest.mark.parametrize("sizes", [(1000, 1, 2500), (0, 700, 0)])
def test_parts_are_put_together(sizes: Sequence[int], part: Part) -> None:
    tables = [rows(size, seed) for seed, size in enumerate(sizes)]
    out = io.BytesIO()
    joined = join_parts([part(table) for table in tables], out, "zstd", SAID)
    content = out.getvalue()
    assert joined == (sum(sizes), len(content), hashlib.sha256(content).hexdigest())
    file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
    assert file.read().equals(pa.concat_tables(tables))
    assert file.schema_arrow.equals(tables[0].schema)
    assert {**json.loads(file.metadata.metadata[FOOTER]), "rows": 0} == vars(SAID)
    groups = [file.read_row_group(at) for at in range(file.num_row_groups)]
    assert [group.num_rows for group in groups] == [size for size in sizes if size], "read one by one"
    damaged = bytearray(content)
    damaged[file.metadata.row_group(0).column(1).data_page_offset + 100] ^= 1
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(io.BytesIO(damaged), page_checksum_verification=True).read()


def test_other_schemas_and_other_files_are_no_parts(part: Part) -> None:
    with pytest.raises(ValueError, match="schema"):
        join_parts([part(pa.table({"a": [1]})), part(pa.table({"a": [1.0]}))], io.BytesIO(), "zstd", SAID)
    for content in (b"", b"PAR1 and more, but no footer at all"):
        with pytest.raises(ValueError, match="schema message|metadata bytes"):
            join_parts([io.BytesIO(content)], io.BytesIO(), "zstd", SAID)


def test_a_file_is_synced_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    sync, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("sync"), sync(descriptor))[1])
    monkeypatch.setattr(Path, "replace", lambda path, to: (steps.append(to.name), rename(path, to))[1])
    with written(str(tmp_path / "a"), {}) as file:
        file.write(b"1")
        assert [path.name[0] for path in tmp_path.iterdir()] == ["_"], "readers of the folder do not see it"
    assert steps == ["sync", "a"]
    with pytest.raises(TipcastError) as caught, written(str(tmp_path / "a"), {}) as file:
        file.write(b"half")
        raise OSError(28, "No space left on device")
    assert caught.value.code == "T008"
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"1")]


@pytest.mark.parametrize("size", [10, 12 << 20])
def test_an_object_whose_writing_fails_is_not_there(bucket: Any, size: int) -> None:
    """Nor is what was sent of it, where it is sent in pieces."""
    uri = "s3://trips/a"
    storage = address.storage(uri, {"default_block_size": 5 << 20})
    refused = TipcastError("D005", "trips", "damaged", "mend them")
    with pytest.raises(TipcastError, match="D005"), written(uri, storage) as file:
        file.write(bytes(size))
        raise refused
    gc.collect()  # a file that is closed as it goes would be written now
    bucket.invalidate_cache()
    assert bucket.find("trips") == []
    assert bucket.list_multipart_uploads("trips") == []
    with written(uri, storage) as file:
        file.write(bytes(size))
    assert bucket.size("trips/a") == size
