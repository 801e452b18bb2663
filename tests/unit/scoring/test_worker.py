"""What a worker does with one file: parts with checksums, nothing of a task that ends early, and
the columns that are kept.
"""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed.core import Status
from tests.waiting import wait_until

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets.base import RawColumn
from tipcast.datasets.listing import ScanRequest
from tipcast.datasets.made import Blobs
from tipcast.datasets.parts import FilePart
from tipcast.datasets.table.dataset import Table
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import scan_file
from tipcast.scoring import wanted, worker
from tipcast.scoring.folder import ManifestEntry
from tipcast.scoring.passthrough import read_passthrough
from tipcast.scoring.plan import DueFile
from tipcast.scoring.predictions import (
    Predictions,
    ScoringContext,
    columns_of_model,
    columns_of_predictions,
)
from tipcast.scoring.worker import score_file
from tipcast.scoring.writing import UNFINISHED, file_stamp
from tipcast.tasks.base import Task
from tipcast.tasks.kinds import BINARY, CLUSTERING, REGRESSION

WANTED = ScanRequest(("pickup",))
Score = Callable[..., Any]


def test_columns_of_a_clustering() -> None:
    """Those of other kinds are held against MLflow's predictions by the tests of the job."""
    task = Task("t", CLUSTERING, ("x0",))
    predicted = np.float32([[4, 0.5], [1, 2], [0, 8]])
    context = ScoringContext(CpuFrames(), Blobs(1), task, None, None, "m", "7", "", {})
    added = {
        "cluster": [4, None, 0],
        "distance": [0.5, None, 8.0],
    }
    invalid = np.array([False, True, False])
    predictions = Predictions(predicted, invalid, {}, SimpleNamespace())
    table = columns_of_predictions(predictions, context)
    assert table.to_pydict() == added
    assert table.schema.field("cluster").type == pa.int32()
    assert columns_of_model(context) == {"model_name": "m", "model_version": "7"}


class Doubles:
    """A model that predicts twice its only feature, and 0 where that is missing."""

    def score(self, x: Any) -> Any:
        return 2 * x["number"].fillna(0).to_numpy()


def rows(count: int, seed: int) -> pa.Table:
    numbers = np.random.default_rng(seed).normal(size=count)
    return pa.table({"number": pa.array(numbers, mask=numbers > 1), "text": pa.repeat("x", count)})


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
        task = Task("t", REGRESSION, ("number",), columns=("answer",))
        context = ScoringContext(
            CpuFrames(), dataset, task, None, None, "m", "7", f"{tmp_path}/scored", {}
        )
        first = dataset.scan_file(given, ScanRequest(("number",), any_columns=True)).parts[0]
        parts = tuple(
            replace(first, row_groups=(at,), rows=table.num_rows) for at, table in enumerate(tables)
        )
        draft = ManifestEntry(input=given, input_stamp=stamp or file_stamp(given, {}), recipe="r")
        item = DueFile("a.parquet", given, {}, draft, parts)
        return score_file(item, Doubles(), context, replaces=False, threads=2)

    return run


def test_a_file_of_several_parts_has_checksums(score: Score, tmp_path: Path) -> None:
    """Also where parts are empty. Of digests, and of all that makes a file's parts, tests/jobs
    tell.
    """
    tables = [rows(size, seed) for seed, size in enumerate((0, 1000, 1, 0, 2500, 0))]
    scored = score(tables)
    content = (tmp_path / "scored" / "a.parquet").read_bytes()
    assert (scored.sums.scored, scored.sums.rows) == (scored.entry.rows, 0), "no row has a target"
    file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
    table = file.read()
    whole = pa.concat_tables(tables)
    assert table.select(whole.column_names).equals(whole)
    known = whole["number"].is_valid().to_numpy()
    assert np.allclose(table["prediction"].to_numpy()[known], 2 * whole["number"].to_numpy()[known])
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [
        1000,
        1,
        2500,
    ]
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
    score: Score,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: Status,
    state: str,
    stamp: str,
    problem: Any,
) -> None:
    tasks = SimpleNamespace(tasks={"key": SimpleNamespace(state=state)})
    this = SimpleNamespace(status=status, get_current_task=lambda: "key", state=tasks)
    monkeypatch.setattr(wanted, "get_worker", lambda: this)
    with pytest.raises(problem, match="D005.*has changed" if stamp else None):
        score([rows(10, 0), rows(10, 1)], stamp)
    assert [*(tmp_path / "scored").iterdir()] == []


class Batches(CpuFrames):
    """Frames of the host that ask for batches, as a GPU's do."""

    on_gpu = True
    batch_values = 1000 * 8


class InHand:
    """A model that predicts how many files are being written; the first one waits for eight."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def score(self, x: Any) -> Any:
        def writing() -> list[Path]:
            return list(self.folder.glob(f"{UNFINISHED}*"))

        if not list(self.folder.glob("*.parquet")):
            wait_until(lambda: len(writing()) >= 8)
        return np.full(len(x), float(len(writing())))


def test_a_worker_with_a_gpu_has_no_more_than_eight_files_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its only thread goes on to the next file while others are read and written."""
    folder = tmp_path / "scored"
    folder.mkdir()
    dataset = Table((RawColumn("number", ("number",)),))
    task = Task("t", REGRESSION, ("number",), columns=("answer",))
    context = ScoringContext(Batches(), dataset, task, None, None, "m", "7", str(folder), {})
    items = []
    for name in (f"{at}.parquet" for at in range(12)):
        given = str(tmp_path / name)
        # The host writes columns of bytes on every device.
        pq.write_table(rows(10, 0).append_column("raw", pa.repeat(b"x", 10)), given)
        parts = dataset.scan_file(given, ScanRequest(("number",), any_columns=True)).parts
        draft = ManifestEntry(input=given, input_stamp=file_stamp(given, {}), recipe="r")
        items.append(DueFile(name, given, {}, draft, parts))

    score_one = partial(
        score_file, scorer=InHand(folder), context=context, replaces=False, threads=1
    )
    # each in a thread, as tasks that have left their worker's own one
    monkeypatch.setattr(worker, "secede", lambda: None)
    with ThreadPoolExecutor(len(items)) as pool:
        list(pool.map(score_one, items))

    scored = pa.concat_tables(pq.read_table(folder / item.name) for item in items)
    assert max(scored["prediction"].to_pylist()) == 8


# Columns of the input that scored files keep


def read_as_stored(part: FilePart, keep: list[str] | None = None) -> pa.Table:
    task = Task("t", BINARY, ("x0",), classes=("no", "yes"))
    return read_passthrough(
        part, ScoringContext(CpuFrames(), Taxi(), task, 0.5, keep, "m", "7", "", {})
    )


@pytest.fixture
def trips() -> pd.DataFrame:
    """100 trips with a column of a user's own, whose name has dots."""
    fares = np.arange(100) / 4
    columns = {
        "VendorID": 1,
        "tpep_pickup_datetime": pd.date_range("2019-02-01 10:00", periods=100),
        "note.of.mine": [None, "a"] * 50,
        "fare_amount": fares,
        "PULocationID": np.arange(100) + 1,
    }
    return pd.DataFrame(columns)


@pytest.fixture
def table(trips: pd.DataFrame) -> pa.Table:
    """The trips with columns that pandas would change, and one that scoring adds."""
    table = pa.Table.from_pandas(trips).append_column("list", pa.array([[1, 2]] * 100))
    table = table.append_column("word", pa.array(["a", "b"] * 50).dictionary_encode())
    return table.append_column("probability", pa.array([0.5] * 100))


@pytest.fixture
def parquet_part(table: pa.Table, tmp_path: Path) -> FilePart:
    """All trips in a Parquet file of several row groups."""
    path = tmp_path / "a_2019-02.parquet"
    pq.write_table(table, path, row_group_size=30)
    (part,) = scan_file(str(path), WANTED).parts
    return part


def test_columns_of_parquet_are_kept_as_they_are(parquet_part: FilePart, table: pa.Table) -> None:
    """All but the one that scoring adds, and without what pandas says of them."""
    kept = read_as_stored(parquet_part)
    assert kept.equals(table.drop_columns(["probability"]))
    assert kept.schema.metadata is None


@pytest.mark.parametrize(
    ("keep", "names"),
    [(["PULocationID", "pickup"], ["tpep_pickup_datetime", "PULocationID"]), ([], [])],
)
def test_kept_columns_are_in_the_order_of_the_file(
    parquet_part: FilePart, keep: list[str], names: list[str]
) -> None:
    assert read_as_stored(parquet_part, keep).column_names == names


def test_column_to_keep_that_scoring_adds_is_refused(parquet_part: FilePart) -> None:
    mapped = replace(parquet_part, column_names={"earlier": "probability"})
    with pytest.raises(TipcastError, match="D007.*keep lists 'probability', which scoring adds"):
        read_as_stored(mapped, ["earlier"])


def test_column_to_keep_that_the_file_lacks_is_refused(parquet_part: FilePart) -> None:
    with pytest.raises(TipcastError, match="D007.*columns 'dropoff', 'nothing', which keep lists"):
        read_as_stored(parquet_part, ["dropoff", "nothing"])


def test_column_of_csv_whose_name_another_one_has_stays_text(
    trips: pd.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "a_2019-02.csv"
    trips.assign(cost=2.5, fare_amount="none").to_csv(path, index=False)
    request = replace(WANTED, names={"fare_amount": "cost"})
    (part,) = scan_file(str(path), request).parts

    kept = read_as_stored(part)
    assert kept.schema.field("cost").type == pa.float64()
    assert kept["fare_amount"].to_pylist() == ["none"] * 100


@pytest.fixture
def damaged_csv(trips: pd.DataFrame, tmp_path: Path) -> Sequence[FilePart]:
    """Parts of a CSV file with a text among the fares."""
    path = tmp_path / "a_2019-02.csv"
    lines = trips.to_csv(index=False).splitlines()
    lines[60] = lines[60].replace(f",{59 / 4},", ",much,")
    path.write_text("\n".join(lines))
    return scan_file(str(path), replace(WANTED, block_bytes=2000)).parts


def test_parts_of_csv_have_all_rows(damaged_csv: Sequence[FilePart]) -> None:
    assert sum(read_as_stored(part, ["VendorID"]).num_rows for part in damaged_csv) == 100


def test_cell_of_csv_that_does_not_parse_is_named(damaged_csv: Sequence[FilePart]) -> None:
    says = r"D005.*line 61: column 'fare_amount': cannot read 'much'"
    with pytest.raises(TipcastError, match=says):
        [read_as_stored(part) for part in damaged_csv]
