"""Scoring that is killed, stopped, or finds a disk or a store that refuses: the scores are the old ones or the new."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from tests import warm
from tests.faults.conftest import PATIENCE_S, STOP_S, is_worker

Start = Callable[..., Any]
LONG = pytest.mark.long
FILES, ROWS = 12, 30_000


@pytest.fixture
def model(registered: Path, tmp_path: Path) -> str:
    """A store with the registered model `tipcast`."""
    return f"sqlite:///{shutil.copy(registered, tmp_path / 'store.db')}"


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve months of 30,000 trips, each row numbered."""
    folder = tmp_path_factory.mktemp("trips")
    words = ["prepare", f"data.rows={ROWS}", "data.months=2019-04", f"out={folder / 'made'}", "row_group_rows=5000"]
    assert warm.start([*words, "cluster.processes=false"], folder, warm.environment()).wait(PATIENCE_S) == 0
    (made,) = (folder / "made").glob("*.parquet")
    table = pq.read_table(made)
    (folder / "trips").mkdir()
    for at in range(FILES):
        numbers = pa.array(range(at * table.num_rows, (at + 1) * table.num_rows))
        numbered = table.append_column("id", numbers)
        pq.write_table(numbered, folder / "trips" / f"{at:02}_2019-04.parquet", row_group_size=5_000)
    shutil.rmtree(folder / "made")
    return folder / "trips"


def words(model: str, trips: Path | str, out: Path | str, *more: str) -> list[str]:
    """Return the command that scores."""
    first = ["score", "model_uri=models:/tipcast/1", f"input={trips}", f"output={out}", f"tracking.uri={model}"]
    return [*first, "tracking.system_metrics=false", "cluster.n_workers=1", *more]


def hidden(out: Path) -> list[Path]:
    """Return what unfinished jobs have beside the scores."""
    return [path for path in out.parent.iterdir() if path.name.startswith(f".{out.name}.tipcast-")]


def whole(out: Path, trips: Path) -> dict[str, Any]:
    """Check that a folder is what its manifest says, row by row, and return the manifest."""
    found = dict(json.loads((out / "_manifest.json").read_text()))
    assert set(found["files"]) == {path.name for path in trips.iterdir()}
    assert {path.name for path in out.iterdir()} == {*found["files"], "_manifest.json"}
    for name, entry in found["files"].items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == entry["sha256"], name
        ids = pq.read_table(out / name, columns=["id"])["id"]
        assert ids.equals(pq.read_table(trips / name, columns=["id"])["id"]), name
    return found


def strike(last: int) -> None:
    """Let this process be killed before so many changes to the scores in a store; 0: never."""
    changes = itertools.count(1)

    def struck(name: str) -> None:
        call = getattr(s3fs.S3FileSystem, name)

        async def counted(self: Any, *paths: Any, **more: Any) -> Any:
            if "_tipcast-" not in paths[name == "_cp_file"] and next(changes) == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return await call(self, *paths, **more)

        setattr(s3fs.S3FileSystem, name, counted)

    for name in ("_cp_file", "_rm_file", "_pipe_file"):
        struck(name)


def gone(processes: list[psutil.Process], limit_s: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=limit_s)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=LONG)])
def test_killed_in_mid_score(tipcast: Start, model: str, trips: Path, tmp_path: Path, kills: int) -> None:
    """Kills at random moments from the first hidden folder to the end: never a torn folder, and nothing is left."""
    out, keeps, names = tmp_path / "scored", ("keep=[id]", "keep=[id,PULocationID]"), map(str, itertools.count())

    def begin(keep: str) -> Any:
        return tipcast(*words(model, trips, out, keep, "cluster.processes=false"), name=next(names))

    for keep in keeps:  # the first scoring takes longer than later ones
        job = begin(keep)
        job.wait_for(lambda: hidden(out))
        start = time.monotonic()
        assert job.end() == 0, job.err
        took = time.monotonic() - start
    draw, killed, replaced = random.Random(0), 0, 0
    for _ in range(5 * kills):
        before = whole(out, trips)
        job = begin(keeps[len(before["configuration"]["keep"]) % 2])
        job.wait_for(lambda: hidden(out))
        time.sleep(draw.uniform(0, took))
        job.process.send_signal(signal.SIGKILL)
        if job.end() != -signal.SIGKILL:  # it was over before the blow
            continue
        killed += 1
        replaced += whole(out, trips)["recipe"] != before["recipe"]
        if killed == kills:
            break
    assert killed == kills
    assert replaced < kills, "some were hit before the exchange"
    job = begin("keep=[id,DOLocationID]")
    assert job.end() == 0, job.err
    assert hidden(out) == []
    assert whole(out, trips)["configuration"]["keep"] == ["id", "DOLocationID"]


def in_store(bucket: Any, prefix: str) -> dict[str, Any]:
    """Check that all objects of a prefix are what its manifest says, and return the manifest."""
    bucket.invalidate_cache()
    found = dict(json.loads(bucket.cat_file(f"{prefix}/_manifest.json")))
    there = [path for path in bucket.find(prefix) if "/_tipcast-" not in path]  # stays for an hour
    assert set(there) == {f"{prefix}/{name}" for name in (*found["files"], "_manifest.json")}
    for name, entry in found["files"].items():
        assert hashlib.sha256(bucket.cat_file(f"{prefix}/{name}")).hexdigest() == entry["sha256"], name
        assert entry["stamp"]
    return found


@pytest.mark.parametrize(("first", "second"), [(2, 5), *(pytest.param(*at, marks=LONG) for at in [(3, 4), (4, 3)])])
def test_killed_between_changes_to_a_store(
    bucket: Any, tipcast: Start, model: str, trips: Path, first: int, second: int
) -> None:
    """A first scoring is killed, then one that replaces, adds and removes; the next finds its way out of both."""
    files, names = sorted(trips.iterdir())[:3], map(str, itertools.count())

    def score(last: int, given: list[Path], keep: str) -> Any:
        named = f"[{','.join(map(str, given))}]"
        given_words = words(model, named, "s3://trips/scored", f"keep=[{keep}]", "cluster.processes=false")
        job = tipcast(*given_words, name=next(names), before=functools.partial(strike, last))
        job.end()
        return job

    for last, given, keep in ((first, files[:2], "id"), (second, files[1:], "id,DOLocationID")):
        job = score(last, given, keep)
        assert job.process.poll() == -signal.SIGKILL, job.err
    job = score(0, files[1:], "id")
    assert job.process.poll() == 0, job.err
    assert set(in_store(bucket, "trips/scored")["files"]) == {path.name for path in files[1:]}


def test_terminated_in_mid_score(tipcast: Start, model: str, trips: Path, tmp_path: Path) -> None:
    out = tmp_path / "scored"
    assert tipcast(*words(model, trips, out, "keep=[id]", "cluster.processes=false"), name="first").end() == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    job = tipcast(*words(model, trips, out), name="stopped")
    job.wait_for(lambda: any(out.parent.glob(f".{out.name}.tipcast-*/parts/*/*")))
    tree = job.tree()
    assert len(tree) > 1, "worker processes"
    job.process.send_signal(signal.SIGTERM)
    assert job.end(STOP_S) == 143
    assert gone(tree, 2)
    assert hidden(out) == []
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert job.err.splitlines()[-1] == "terminated: a run that was open is closed as KILLED"
    with contextlib.closing(sqlite3.connect(model.removeprefix("sqlite:///"))) as database:
        states = [state for (state,) in database.execute("select status from runs order by start_time")]
    assert states[-1] == "KILLED"
    assert "RUNNING" not in states[-2:]


def test_a_worker_is_killed_in_mid_score(tipcast: Start, model: str, trips: Path, tmp_path: Path) -> None:
    """Its tasks are done again by another, and the rows are there once each."""
    out = tmp_path / "scored"
    job = tipcast(*words(model, trips, out, "cluster.n_workers=2", "cluster.threads_per_worker=1"))
    job.wait_for(lambda: any(out.parent.glob(f".{out.name}.tipcast-*/parts/*/*")))
    worker = next(filter(is_worker, job.tree()))
    worker.kill()
    assert job.end() == 0, job.err
    assert hidden(out) == []
    found = whole(out, trips)
    assert found["rows"] == sum(pq.read_metadata(path).num_rows for path in trips.iterdir())


def test_a_full_disk(tipcast: Start, model: str, trips: Path, tmp_path: Path) -> None:
    """No file may grow beyond a limit, as on a disk that is full: the old scores stay, and nothing else."""
    out, one = tmp_path / "scored", tmp_path / "one"
    one.mkdir()
    shutil.copy(sorted(trips.iterdir())[0], one)
    given = words(model, one, out, "cluster.processes=false")
    assert tipcast(*given, "keep=[id]", name="first").end() == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    size = Path(model.removeprefix("sqlite:///")).stat().st_size
    table = pq.read_table(one)
    (path,) = one.iterdir()
    pq.write_table(pa.concat_tables([table] * 12), path)  # scores beyond the limit, which the store is below
    limit = (size + 2_000_000, size + 2_000_000)
    full = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, limit)
    job = tipcast(*given, "compression=none", name="full", before=full)
    assert job.end() == 5, job.err
    last = job.err.splitlines()[-1]
    assert last.startswith("error[T008] ")
    assert str(out.parent) in last
    assert "bytes are free" in last
    assert "Traceback" not in job.err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert hidden(out) == []


class Refusing(http.server.BaseHTTPRequestHandler):
    """An object store that is busy, or lets nobody in."""

    status = 503
    asked: list[str] = []  # noqa: RUF012 - of the class on purpose

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        code = {503: "ServiceUnavailable", 403: "AccessDenied"}[self.status]
        content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        Refusing.asked.clear()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


SECRETS = {"AWS_ACCESS_KEY_ID": "canaryKEYx7Yq", "AWS_SECRET_ACCESS_KEY": "canarySECRETx7Yq"}


@pytest.mark.parametrize(
    ("side", "status"),
    [("output", 503), ("input", 403), ("output", None)]
    + [pytest.param(*each, marks=LONG) for each in [("input", 503), ("output", 403), ("input", None)]],
)
def test_an_object_store_that_refuses(
    tipcast: Start, model: str, trips: Path, refusing: str, tmp_path: Path, status: int | None, side: str
) -> None:
    """Three tries, then one line that names the bucket and no key; without an answer too."""
    Refusing.status = status or 503
    endpoint = refusing if status else "http://127.0.0.1:9"
    given = words(model, trips, tmp_path / "scored", "cluster.processes=false")
    given[{"input": 2, "output": 3}[side]] = f"{side}=s3://mybucket/some/prefix/"
    job = tipcast(*given, name="job", AWS_ENDPOINT_URL=endpoint, AWS_DEFAULT_REGION="us-east-1", **SECRETS)
    assert job.end() == 5, job.err
    last = job.err.splitlines()[-1]
    assert last.startswith("error[T009] ")
    assert "mybucket" in last
    for secret in SECRETS.values():
        assert secret not in job.err + (job.folder / "stdout").read_text()
    if status:
        most = 3 if status == 503 else 2
        assert 1 <= max(Refusing.asked.count(each) for each in Refusing.asked) <= most, Refusing.asked
    assert not (tmp_path / "scored").exists()


def test_twice_at_once(tipcast: Start, model: str, trips: Path, tmp_path: Path) -> None:
    """The second job sees the first and leaves the folder to it."""
    out = tmp_path / "scored"
    given = words(model, trips, out, "cluster.processes=false")
    first = tipcast(*given, name="first")
    first.wait_for(lambda: hidden(out))
    second = tipcast(*given, name="second")
    assert second.end() == 7
    assert second.err.splitlines()[-1].startswith("error[S011]")
    assert first.end() == 0, first.err
    whole(out, trips)
