"""Parts put together as a Parquet file: the same rows, with checksums and statistics; what is no part is refused."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tipcast.scoring.writing import join_parts, write_part

Part = Callable[[pa.Table], BinaryIO]


def rows(count: int, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "number": pa.array(draw.normal(size=count), mask=draw.random(count) < 0.1),
            "whole": draw.integers(-(2**62), 2**62, count),
            "time": pa.array(draw.integers(0, 10**15, count).view("datetime64[us]")),
            "text": pa.array([f"value {i % 7}" if i % 5 else None for i in range(count)], pa.string()),
            "flag": draw.random(count) < 0.5,
            "many": pa.array([[i, i + 1] if i % 3 else [] for i in range(count)], pa.list_(pa.int32())),
        }
    )


@pytest.fixture
def part(tmp_path: Path) -> Callable[[pa.Table], BinaryIO]:
    def write(table: pa.Table) -> BinaryIO:
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        write_part(table, str(path), {}, threads=False)
        return path.open("rb")

    return write


@pytest.mark.parametrize("sizes", [(1000,), (1000, 1, 2500), (0, 700, 0)])
def test_the_same_rows_in_their_order(sizes: Sequence[int], part: Part) -> None:
    tables = [rows(size, seed) for seed, size in enumerate(sizes)]
    out = io.BytesIO()
    joined = join_parts([part(table) for table in tables], out, "zstd")
    content = out.getvalue()
    assert joined.rows == sum(sizes)
    assert joined.bytes == len(content)
    assert joined.sha256 == hashlib.sha256(content).hexdigest()
    file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
    assert file.read().equals(pa.concat_tables(tables))
    assert file.schema_arrow.equals(tables[0].schema)


def test_row_groups_are_read_one_by_one_and_by_their_statistics(part: Part) -> None:
    tables = [pa.table({"a": np.arange(start, start + 100)}) for start in (0, 100, 200)]
    out = io.BytesIO()
    join_parts([part(table) for table in tables], out, "zstd")
    file = pq.ParquetFile(out)
    for at, table in enumerate(tables):
        assert file.read_row_group(at).equals(table)
        assert file.metadata.row_group(at).column(0).statistics.min == 100 * at
    assert pq.read_table(out, filters=[("a", ">=", 250)]).num_rows == 50


def test_a_damaged_page_is_found(part: Part) -> None:
    out = io.BytesIO()
    join_parts([part(rows(5000, 0)), part(rows(5000, 1))], out, "zstd")
    content = bytearray(out.getvalue())
    content[pq.read_metadata(out).row_group(1).column(1).data_page_offset + 500] ^= 1
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True).read()


def test_other_schemas_and_other_files_are_refused(part: Part) -> None:
    with pytest.raises(ValueError, match="schema"):
        join_parts([part(pa.table({"a": [1]})), part(pa.table({"a": [1.0]}))], io.BytesIO(), "zstd")
    for content in (b"", b"PAR1", b"PAR1 and more, but no footer at all"):
        with pytest.raises(ValueError, match="schema message|metadata bytes"):
            join_parts([io.BytesIO(content)], io.BytesIO(), "zstd")
