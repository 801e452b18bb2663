"""A file's scores, part by part; the columns that scoring keeps, as the file has them, and those that it adds."""

import hashlib
import io
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed.core import Status

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Fragment, RawColumn, ScanRequest
from tipcast.datasets.made import Blobs
from tipcast.datasets.table import Table
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import scan_file
from tipcast.scoring import worker
from tipcast.scoring.plan import Item
from tipcast.scoring.worker import Work, ahead, read_passthrough, score_file, with_predictions
from tipcast.scoring.writing import FOOTER, Entry, file_stamp
from tipcast.tasks.base import Task

Score = Callable[..., Any]


def test_columns_of_a_clustering() -> None:
    """Those of other kinds are held against MLflow's predictions by the tests of the job."""
    task, predicted = Task("t", "clustering", ("x0",)), np.float32([[4, 0.5], [1, 2], [0, 8]])
    work = Work(CpuFrames(), Blobs(1), task, None, None, "m", "7", "", {})
    added = {"cluster": [4, None, 0], "distance": [0.5, None, 8.0], "model_name": ["m"] * 3, "model_version": ["7"] * 3}
    for kept in ({"id": [1, 2, 3]}, {}):
        made = with_predictions(pa.table(kept), predicted, np.array([False, True, False]), work)
        assert made.to_pydict() == {**kept, **added}
        assert made.schema.field("cluster").type == pa.int32()
    with pytest.raises(pa.ArrowInvalid, match="expected length 2 but got length 3"):
        with_predictions(pa.table({"id": [1, 2]}), predicted, None, work)


class Doubles:
    """A model that predicts twice its only feature."""

    def score(self, x: Any) -> Any:
        return 2 * x["number"].to_numpy()


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
def score(tmp_path: Path) -> Score:
    """Score a file of one row group for each table into `scored/a.parquet`."""
    (tmp_path / "scored").mkdir()
    given = str(tmp_path / "a.parquet")

    def run(tables: Sequence[pa.Table], stamp: str = "") -> Any:
        with pq.ParquetWriter(given, tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)
        dataset = Table((RawColumn("number", ("number",)),))
        task = Task("t", "regression", ("number",), columns=("answer",))
        work = Work(CpuFrames(), dataset, task, None, None, "m", "7", f"{tmp_path}/scored", {})
        first = dataset.scan_file(given, ScanRequest(("number",), any_columns=True)).fragments[0]
        parts = tuple(replace(first, part=(at,), rows=table.num_rows) for at, table in enumerate(tables))
        draft = Entry(input=given, input_stamp=stamp or file_stamp(given, {}), recipe="r")
        item = Item("a.parquet", given, {}, draft, parts)
        return score_file(item, Doubles(), work, replaces=False, threads=2)

    return run


@pytest.mark.parametrize("sizes", [(1000, 1, 2500, 7), (0, 700, 0)])
def test_a_file_of_several_parts(sizes: Sequence[int], score: Score, tmp_path: Path) -> None:
    tables = [rows(size, seed) for seed, size in enumerate(sizes)]
    entry, sums = score(tables)
    content = (tmp_path / "scored" / "a.parquet").read_bytes()
    assert (entry.rows, entry.bytes, entry.sha256) == (sum(sizes), len(content), hashlib.sha256(content).hexdigest())
    assert entry.input_sha256 == hashlib.sha256((tmp_path / "a.parquet").read_bytes()).hexdigest()
    assert (sums.scored, sums.rows) == (entry.rows, 0), "no row has an answer"
    file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
    table, whole = file.read(), pa.concat_tables(tables)
    assert table.select(whole.column_names).equals(whole)
    known = whole["number"].is_valid().to_numpy()
    assert np.allclose(table["prediction"].to_numpy()[known], 2 * whole["number"].to_numpy()[known])
    assert json.loads(file.metadata.metadata[FOOTER]) == entry.footer
    groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert groups == [size for size in sizes if size]
    damaged = bytearray(content)
    damaged[file.metadata.row_group(0).column(1).data_page_offset + 100] ^= 1
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(io.BytesIO(damaged), page_checksum_verification=True).read()


@pytest.mark.parametrize(
    ("status", "state", "stamp", "problem"),
    [
        (Status.closing, "executing", "", CancelledError),
        (Status.running, "cancelled", "", CancelledError),
        (Status.running, "executing", "as it was", TipcastError),  # the input has changed meanwhile
    ],
)
def test_a_task_that_cannot_end_leaves_nothing(
    score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status, state: str, stamp: str, problem: Any
) -> None:
    tasks = SimpleNamespace(tasks={"key": SimpleNamespace(state=state)})
    own = SimpleNamespace(status=status, get_current_task=lambda: "key", state=tasks)
    monkeypatch.setattr(worker, "get_worker", lambda: own)
    with pytest.raises(problem, match="D005.*has changed" if stamp else None):
        score([rows(10, 0), rows(10, 1)], stamp)
    assert [*(tmp_path / "scored").iterdir()] == []


def test_few_parts_are_on_their_way() -> None:
    begun, let_go = [], threading.Event()

    def slow(item: int) -> int:
        begun.append(item)
        assert item == 0 or let_go.wait(60)
        return item

    with ThreadPoolExecutor(8) as pool:
        found = ahead(pool, slow, range(9), 2)
        assert next(found) == 0
        assert set(begun) <= {0, 1, 2}
        let_go.set()
        assert list(found) == [*range(1, 9)]


WANTED = ScanRequest(("pickup",), block_bytes=2000)


def trips() -> pd.DataFrame:
    times = pd.Timestamp("2019-02-01 10:00") + pd.to_timedelta(np.arange(100) * 60, unit="s")
    columns = {"VendorID": 1, "tpep_pickup_datetime": times}
    columns["note.of.mine"] = [None if at % 3 else f"at {at}" for at in range(100)]
    return pd.DataFrame({**columns, "fare_amount": np.arange(100) / 4, "PULocationID": np.arange(100) + 1})


def kept_of(fragment: Fragment, keep: list[str] | None = None) -> pa.Table:
    task = Task("t", "classification", ("x0",), classes=("no", "yes"))
    return read_passthrough(fragment, Work(CpuFrames(), Taxi(), task, 0.5, keep, "m", "7", "", {}))


def test_parquet_as_it_is(tmp_path: Path) -> None:
    table = pa.Table.from_pandas(trips()).append_column("list", pa.array([[1, 2]] * 100))
    table = table.append_column("word", pa.array(["a", "b"] * 50).dictionary_encode())
    table = table.append_column("probability", pa.array([0.5] * 100))
    pq.write_table(table, tmp_path / "a_2019-02.parquet", row_group_size=30)
    (fragment,) = scan_file(str(tmp_path / "a_2019-02.parquet"), WANTED).fragments
    kept = kept_of(fragment)
    assert kept.equals(table.drop_columns(["probability"]).replace_schema_metadata(None))
    assert kept.schema.metadata is None
    kept = kept_of(fragment, ["PULocationID", "pickup"])
    assert kept.column_names == ["tpep_pickup_datetime", "PULocationID"]
    assert kept_of(fragment, []).num_columns == 0
    with pytest.raises(TipcastError, match="D007.*columns 'dropoff', 'nothing'"):
        kept_of(fragment, ["dropoff", "nothing"])


def test_a_csv_column_whose_name_another_has_is_text(tmp_path: Path) -> None:
    trips().assign(cost=2.5, fare_amount="none").to_csv(tmp_path / "a_2019-02.csv", index=False)
    wanted = replace(WANTED, block_bytes=1 << 20, names={"fare_amount": "cost"})
    (fragment,) = scan_file(str(tmp_path / "a_2019-02.csv"), wanted).fragments
    kept = kept_of(fragment)
    assert kept.schema.field("cost").type == pa.float64()
    assert kept["fare_amount"].to_pylist() == ["none"] * 100


def test_a_cell_that_is_kept_must_be_readable(tmp_path: Path) -> None:
    lines = trips().to_csv(index=False).splitlines()
    lines[60] = lines[60].replace(f",{59 / 4},", ",much,")
    (tmp_path / "a_2019-02.csv").write_text("\n".join(lines))
    fragments = scan_file(str(tmp_path / "a_2019-02.csv"), WANTED).fragments
    assert len(fragments) > 1
    assert sum(kept_of(fragment, ["VendorID"]).num_rows for fragment in fragments) == 100
    with pytest.raises(TipcastError, match=r"D005.*line 61: column 'fare_amount': cannot read 'much'"):
        for fragment in fragments:
            kept_of(fragment)
