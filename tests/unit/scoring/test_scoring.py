"""Files of scores, whole or absent, part by part; folders that may get them, names, and columns
that are kept.
"""

import gc
import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.config import Config
from distributed import Client, LocalCluster
from distributed.core import Status
from tests.conftest import NO_PAGES
from tests.waiting import wait_until

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets import address, registry, table_features
from tipcast.datasets.base import Dataset, RawColumn
from tipcast.datasets.made import Blobs
from tipcast.datasets.parts import FilePart
from tipcast.datasets.scan import Listing, ScanRequest
from tipcast.datasets.table import Table
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import scan_file
from tipcast.scoring import worker
from tipcast.scoring.plan import Item, Scoring, output_names, plan_files
from tipcast.scoring.worker import Work, read_passthrough, score_file, with_predictions
from tipcast.scoring.writing import (
    FOOTER,
    MANIFEST,
    UNFINISHED,
    Entry,
    Scores,
    alone,
    file_stamp,
    look,
    written,
)
from tipcast.tasks.base import Task
from tipcast.tasks.kinds import BINARY, CLUSTERING, REGRESSION

SCORED = Entry(rows=2, recipe="r", input_sha256="5" * 64, unscored={"bad": 1})
OURS = b'{"kind": "tipcast scores", "version": 1, "rows": 0, "recipe": "r", "files": {}}'
ABOUT = {"kind": "tipcast scores", "version": 1, "rows": 0, "recipe": "r"}
OF_OTHERS = (
    b"",
    b"{",
    b"[]",
    OURS.replace(b"1", b"2"),
    OURS.replace(b"{}", b'{"a": {"b": 1}}'),
    b'{"kind": "other"}',
)
WANTED = ScanRequest(("pickup",))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with trips, scores, and files of others."""
    files = {
        "trips/a.parquet": b"trips",
        "trips/2019/b.parquet": b"",
        "mine/letter.txt": b"dear",
        "file": b"x",
        f"scored/{MANIFEST}": OURS,
        "home/files/letter.txt": b"dear",
    }
    files |= {f"other/{at}/{MANIFEST}": content for at, content in enumerate(OF_OTHERS)}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_folders_that_may_get_scores_and_those_that_must_not(here: Path) -> None:
    before = everything(here)
    for output in ("scored", "empty", "new/deep"):
        for given in (output, f"{output}/", str(here / output), f"file://{here / output}"):
            assert look(given, {}) == Scores(
                str(here / output), {}, ABOUT if output == "scored" else {}
            )
    assert everything(here) == before
    (here / "scored" / f"{UNFINISHED}x").touch()
    table = pa.table({"prediction": [1.0, 2.0]}).replace_schema_metadata(
        {FOOTER: json.dumps(SCORED.footer)}
    )
    pq.write_table(table, here / "scored" / "a.parquet")
    assert look("scored", {}) == Scores(str(here / "scored"), {"a.parquet": SCORED}), (
        "of a job that was killed"
    )
    (here / "scored" / "deep").mkdir()
    (here / "scored" / "deep" / "mine.parquet").write_text("mine")
    before = everything(here)
    outputs = [
        "/",
        "~",
        ".",
        "..",
        "scored/../..",
        "scored",
        "file",
        "mine",
        "~/files",
        "trips",
        "/proc",
    ]
    outputs += [f"other/{at}" for at in range(len(OF_OTHERS))]
    for output in [*outputs, "s3://bucket", "s3://bucket/", "https://example.org/scored"]:
        with pytest.raises(TipcastError, match=rf"C011.*{output.rstrip('/')}") as caught:
            look(output, {})
        assert caught.value.exit_code == 2
        assert (
            output != "scored"
            or "holds deep/mine.parquet, which is none of tipcast's scores" in str(caught.value)
        )
    with pytest.raises(TipcastError, match="C004"):
        look(" ", {})
    assert everything(here) == before


def test_names_of_scores_are_those_of_their_trips(here: Path) -> None:
    for name in ("2019/c.csv", "2020/b.parquet", "2020/_x.parquet"):
        (here / "trips" / name).parent.mkdir(exist_ok=True)
        (here / "trips" / name).touch()
    for given, names in (
        ("trips", ["2019/b.parquet", "2019/c.csv.parquet", "2020/b.parquet", "a.parquet"]),
        ("trips/20*/*.parquet", ["2019/b.parquet", "2020/_x.parquet", "2020/b.parquet"]),
        (["trips/2019", "trips/a.parquet"], ["a.parquet", "b.parquet", "c.csv.parquet"]),
        ("https://host/trips/a.parquet?signature=x/y", ["a.parquet"]),
    ):
        files = output_names(given, WANTED, str(here / "scored"))
        assert list(files) == names
        assert all(
            uri.partition("?")[0].endswith((name, name.removesuffix(".parquet")))
            for name, uri in files.items()
        )
    with pytest.raises(TipcastError, match=r"C003.*would both be b\.parquet"):
        output_names(["trips/2019/b.parquet", "trips/2020/b.parquet"], WANTED, str(here / "scored"))


def put(key: str) -> None:
    """Put an object under a key of the bucket as it is: s3fs would tidy it as a path."""
    client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}))
    client.put_object(Bucket="trips", Key=key, Body=b"rows")


@pytest.mark.parametrize("given", ["s3://trips/in/", "s3://trips/in/**/*.parquet"])
def test_no_scores_leave_their_folder_by_the_dots_of_a_key(
    bucket: Any, tmp_path: Path, given: str
) -> None:
    """Keys of an object store are no paths: such a one is passed over, as a hidden file is."""
    put("in/../../b.parquet")
    put("in/a.parquet")
    assert list(output_names(given, WANTED, str(tmp_path / "scored"))) == ["a.parquet"]


def test_scores_of_a_key_that_would_leave_their_folder_are_refused(
    bucket: Any, tmp_path: Path
) -> None:
    """The name below the folder begins with a slash."""
    put("in//b.parquet")
    says = "C003. input: scores of s3://trips/in//b.parquet would leave their folder. Fix: rename"
    with pytest.raises(TipcastError, match=says):
        output_names("s3://trips/in/", WANTED, str(tmp_path / "scored"))


def test_one_job_scores_into_a_folder_at_a_time_and_the_stamp_of_a_link_is_its_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    stamp = file_stamp(str(tmp_path / "link"), {})
    assert stamp == file_stamp(str(tmp_path / "a"), {})
    wait_until(
        lambda: (
            (tmp_path / "a").write_bytes(b"2") and file_stamp(str(tmp_path / "link"), {}) != stamp
        )
    )
    with pytest.raises(TipcastError, match="D001"):
        file_stamp(str(tmp_path / "none"), {})
    output = tmp_path / "scored"
    for name in ("2019/a", f"2019/{UNFINISHED}killed"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).touch()
    with alone(str(output)), pytest.raises(TipcastError, match="S011"), alone(str(output)):
        pass
    assert [path.name for path in output.rglob("*") if path.is_file()] == ["a"], (
        "what a killed job left is gone"
    )
    (output / "2019" / "a").unlink()
    with pytest.raises(RuntimeError), alone(str(output)):
        raise RuntimeError
    assert (output / "2019").is_dir(), "it was there before"
    (output / "2020").mkdir()
    (output / "2020" / f"{UNFINISHED}killed").touch()
    with alone(str(output)):
        pass
    assert not (output / "2020").exists(), "a killed job had made it"
    new = tmp_path / "new"
    with pytest.raises(RuntimeError), alone(str(new)):
        raise RuntimeError
    assert not new.exists(), "it got no scores"


@pytest.mark.parametrize("link", ["a.parquet", "_manifest.json", "2019"])
def test_scores_are_not_written_through_a_link(tmp_path: Path, link: str) -> None:
    output = tmp_path / "scored"
    foreign = tmp_path / "foreign"
    output.mkdir()
    foreign.mkdir()
    (output / link).symlink_to(foreign)
    with pytest.raises(TipcastError, match=f"C011.*{link}, a link"):
        look(str(output), {})


def test_a_file_is_synced_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a full disk tests/faults tell."""
    steps: list[object] = []
    sync = os.fsync
    rename = Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("sync"), sync(descriptor))[1])
    monkeypatch.setattr(
        Path, "replace", lambda path, to: (steps.append(to.name), rename(path, to))[1]
    )
    with written(str(tmp_path / "a"), {}) as file:
        file.write(b"1")
        assert [path.name[0] for path in tmp_path.iterdir()] == ["_"], (
            "readers of the folder do not see it"
        )
    assert steps == ["sync", "a"]
    assert (file.size, file.digest.hexdigest()) == (1, hashlib.sha256(b"1").hexdigest())
    with pytest.raises(BlockingIOError), written(str(tmp_path / "a"), {}) as file:
        raise BlockingIOError  # of something else
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"1")]


@pytest.mark.parametrize("size", [10, 12 << 20])
def test_an_object_whose_writing_fails_is_not_there(bucket: Any, size: int) -> None:
    """Nor is what was sent of it, where it is sent in pieces."""
    folder = "s3://trips/a_tipcast-b/scored"
    beside = "trips/a_tipcast-b/scored_other/letter"
    storage = address.storage(folder, {"default_block_size": 5 << 20})
    bucket.pipe_file(beside, b"")
    for problem in (
        TipcastError("D005", "trips", "damaged", "mend them"),
        MemoryError("of the GPU"),
    ):
        with pytest.raises(type(problem)), written(f"{folder}/a", storage) as file:
            file.write(bytes(size))
            raise problem
    gc.collect()  # a file that is closed as it goes would be written now
    bucket.invalidate_cache()
    assert bucket.find("trips") == [beside]
    assert bucket.list_multipart_uploads("trips") == []
    assert look(folder, {}) == Scores(folder)
    with written(f"{folder}/a", storage) as file:
        file.write(bytes(size))
    assert bucket.size(f"{folder}/a") == size
    with pytest.raises(TipcastError, match=r"C011.*holds a, which is none of tipcast's scores"):
        look(folder, {})


def test_files_that_are_passed_over_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"a": [1.0, 2.0], "region": ["n", "s"]})
    (tmp_path / "parts").mkdir()
    (tmp_path / "link").symlink_to("parts")
    frame.to_parquet("parts/a.parquet")
    frame[:0].to_parquet("parts/b.parquet")
    frame.to_parquet("hive", partition_cols=["region"])
    frame.to_parquet("mine.parquet")
    facts = Task("t", REGRESSION, ("a",)).facts()
    manifest = {
        "dataset": "table",
        "table": [asdict(RawColumn("a", ("a",)))],
        "task": facts,
        "features": ["a"],
    }
    model: Any = SimpleNamespace(uri="u", manifest=manifest, manifest_sha256="m")

    def plan(given: object, output: str = "scored", keep: list[str] | None = None) -> Scoring:
        config: Any = SimpleNamespace(
            input=given, keep=keep, columns={}, facts={}, storage_options={}, block_bytes=1 << 20
        )
        return plan_files(config, Scores(str(tmp_path / output)), model)

    parts = plan("parts")
    assert ([item.name for item in parts.due], parts.refused) == (["a.parquet"], {})
    assert "1 file without rows passed over" in caplog.text
    assert [item.name for item in plan(["link", "mine.parquet"], "parts").due] == [
        "mine.parquet"
    ], "no scores again"
    for given, output, keep, problem in (
        (
            "parts",
            "scored",
            ["a", "prediction"],
            "C003.*keep.*prediction is a column that scoring adds",
        ),
        ("hive", "scored", None, "D025.*column region"),
        ("link", "parts", None, "C011.*holds all files of the input"),
    ):
        with pytest.raises(TipcastError, match=problem):
            plan(given, output, keep)


class Drawn(Dataset):
    """A dataset of one's own, whose rows are in no files."""

    name = "drawn"
    code = table_features
    features = ("x0",)

    @classmethod
    def of_model(cls, manifest: Any) -> Dataset:
        return cls()

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        raise NotImplementedError


def test_a_model_of_rows_that_are_in_no_files_scores_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.NAMES, "drawn", Drawn)
    task = Task("t", CLUSTERING, ("x0",)).facts()
    manifest = {"dataset_columns": 1, "dataset": "drawn", "task": task, "features": ["x0"]}
    model: Any = SimpleNamespace(uri="u", manifest=manifest, manifest_sha256="m")
    pd.DataFrame({"x0": [1.0]}).to_parquet(tmp_path / "a.parquet")
    config: Any = SimpleNamespace(
        input=str(tmp_path),
        keep=None,
        columns={},
        facts={},
        storage_options={},
        block_bytes=1 << 20,
    )
    says = "M006. model_uri: is a model of drawn, whose rows are not read from files. Fix: use a"
    with pytest.raises(TipcastError, match=says):
        plan_files(config, Scores(str(tmp_path / "scored")), model)


# A worker's part

Score = Callable[..., Any]


def test_columns_of_a_clustering() -> None:
    """Those of other kinds are held against MLflow's predictions by the tests of the job."""
    task = Task("t", CLUSTERING, ("x0",))
    predicted = np.float32([[4, 0.5], [1, 2], [0, 8]])
    work = Work(CpuFrames(), Blobs(1), task, None, None, "m", "7", "", {})
    added = {
        "cluster": [4, None, 0],
        "distance": [0.5, None, 8.0],
        "model_name": ["m"] * 3,
        "model_version": ["7"] * 3,
    }
    for kept in ({"id": [1, 2, 3]}, {}):
        made = with_predictions(pa.table(kept), predicted, np.array([False, True, False]), work)
        assert made.to_pydict() == {**kept, **added}
        assert made.schema.field("cluster").type == pa.int32()


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
        work = Work(CpuFrames(), dataset, task, None, None, "m", "7", f"{tmp_path}/scored", {})
        first = dataset.scan_file(given, ScanRequest(("number",), any_columns=True)).fragments[0]
        parts = tuple(
            replace(first, row_groups=(at,), rows=table.num_rows) for at, table in enumerate(tables)
        )
        draft = Entry(input=given, input_stamp=stamp or file_stamp(given, {}), recipe="r")
        item = Item("a.parquet", given, {}, draft, parts)
        return score_file(item, Doubles(), work, replaces=False, threads=2)

    return run


def test_a_file_of_several_parts_has_checksums(score: Score, tmp_path: Path) -> None:
    """Also where parts are empty. Of digests, and of all that makes a file's parts, tests/jobs
    tell.
    """
    tables = [rows(size, seed) for seed, size in enumerate((0, 1000, 1, 0, 2500, 0))]
    entry, sums = score(tables)
    content = (tmp_path / "scored" / "a.parquet").read_bytes()
    assert (sums.scored, sums.rows) == (entry.rows, 0), "no row has an answer"
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
    own = SimpleNamespace(status=status, get_current_task=lambda: "key", state=tasks)
    monkeypatch.setattr(worker, "get_worker", lambda: own)
    with pytest.raises(problem, match="D005.*has changed" if stamp else None):
        score([rows(10, 0), rows(10, 1)], stamp)
    assert [*(tmp_path / "scored").iterdir()] == []


class Batches(CpuFrames):
    """Frames of the host that ask for batches, as a GPU's do."""

    batch_rows = 1000


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


def test_a_worker_with_a_gpu_has_no_more_than_eight_files_in_hand(tmp_path: Path) -> None:
    """Its only thread goes on to the next file while others are read and written."""
    folder = tmp_path / "scored"
    folder.mkdir()
    dataset = Table((RawColumn("number", ("number",)),))
    task = Task("t", REGRESSION, ("number",), columns=("answer",))
    work = Work(Batches(), dataset, task, None, None, "m", "7", str(folder), {})
    items = []
    for name in (f"{at}.parquet" for at in range(12)):
        given = str(tmp_path / name)
        pq.write_table(rows(10, 0), given)
        parts = dataset.scan_file(given, ScanRequest(("number",), any_columns=True)).fragments
        draft = Entry(input=given, input_stamp=file_stamp(given, {}), recipe="r")
        items.append(Item(name, given, {}, draft, parts))

    score_one = partial(score_file, scorer=InHand(folder), work=work, replaces=False, threads=1)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, **NO_PAGES) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.gather(client.map(score_one, items, pure=False))

    scored = pa.concat_tables(pq.read_table(folder / item.name) for item in items)
    assert max(scored["prediction"].to_pylist()) == 8


def test_columns_that_are_kept(tmp_path: Path) -> None:
    """Of Parquet files as they are, also where a column has the name of one that is added; of CSV
    files typed.
    """

    def kept_of(fragment: FilePart, keep: list[str] | None = None) -> pa.Table:
        task = Task("t", BINARY, ("x0",), classes=("no", "yes"))
        return read_passthrough(
            fragment, Work(CpuFrames(), Taxi(), task, 0.5, keep, "m", "7", "", {})
        )

    blocks = replace(WANTED, block_bytes=2000)
    at = np.arange(100)
    trips = pd.DataFrame(
        {"VendorID": 1, "tpep_pickup_datetime": pd.date_range("2019-02-01 10:00", periods=100)}
    )
    trips = trips.assign(
        **{"note.of.mine": [None, "a"] * 50}, fare_amount=at / 4, PULocationID=at + 1
    )
    table = pa.Table.from_pandas(trips).append_column("list", pa.array([[1, 2]] * 100))
    table = table.append_column("word", pa.array(["a", "b"] * 50).dictionary_encode())
    table = table.append_column("probability", pa.array([0.5] * 100))
    pq.write_table(table, tmp_path / "a_2019-02.parquet", row_group_size=30)
    (fragment,) = scan_file(str(tmp_path / "a_2019-02.parquet"), blocks).fragments
    kept = kept_of(fragment)
    assert kept.equals(table.drop_columns(["probability"]).replace_schema_metadata(None))
    assert kept.schema.metadata is None
    assert kept_of(fragment, ["PULocationID", "pickup"]).column_names == [
        "tpep_pickup_datetime",
        "PULocationID",
    ]
    assert kept_of(fragment, []).num_columns == 0
    with pytest.raises(TipcastError, match="D007.*columns 'dropoff', 'nothing'"):
        kept_of(fragment, ["dropoff", "nothing"])

    path = tmp_path / "a_2019-02.csv"
    trips.assign(cost=2.5, fare_amount="none").to_csv(path, index=False)
    kept = kept_of(
        scan_file(str(path), replace(WANTED, names={"fare_amount": "cost"})).fragments[0]
    )
    assert kept.schema.field("cost").type == pa.float64()
    assert kept["fare_amount"].to_pylist() == ["none"] * 100, (
        "text, where another column has its name"
    )
    lines = trips.to_csv(index=False).splitlines()
    lines[60] = lines[60].replace(f",{59 / 4},", ",much,")
    path.write_text("\n".join(lines))
    fragments = scan_file(str(path), blocks).fragments
    assert sum(kept_of(fragment, ["VendorID"]).num_rows for fragment in fragments) == 100
    with pytest.raises(
        TipcastError, match=r"D005.*line 61: column 'fare_amount': cannot read 'much'"
    ):
        list(map(kept_of, fragments))
