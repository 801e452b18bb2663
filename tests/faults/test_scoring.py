"""Scoring that is killed, stopped, or finds a disk or a store that refuses: the scores are the old ones or the new."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.faults.conftest import PATIENCE_S, environment

Start = Callable[..., Any]
KILLS = 20
FILES, ROWS = 12, 30_000
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
os.execv(sys.executable, [sys.executable, "-m", "tipcast", *sys.argv[2:]])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the registered model `tipcast`."""
    folder = tmp_path_factory.mktemp("model")
    store = f"sqlite:///{folder / 'mlflow.db'}"
    words = ["train", "data.rows=20000", "model.params.n_estimators=20", "tracking.register=tipcast"]
    words += ["cluster.processes=false", "tracking.system_metrics=false"]
    subprocess.run(
        [sys.executable, "-m", "tipcast", *words],
        cwd=folder, env=environment() | {"MLFLOW_TRACKING_URI": store}, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    return store


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve months of 30,000 trips, each row numbered."""
    folder = tmp_path_factory.mktemp("trips")
    words = ["prepare", f"data.rows={ROWS}", "data.months=2019-04", f"out={folder / 'made'}", "row_group_rows=5000"]
    subprocess.run(
        [sys.executable, "-m", "tipcast", *words, "cluster.processes=false"],
        cwd=folder, env=environment(), check=True, capture_output=True, timeout=120,
    )  # fmt: skip
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


LAUNCHER = """
import os, sys
import xgboost
import tipcast.jobs.score, tipcast.jobs.score_due
from tipcast import cli
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(cli.main(line.rstrip("\\n").split("\\t")))
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""Starts jobs one after another, without the seconds in which each loads its libraries."""


@dataclass
class Launcher:
    """A process that runs jobs, each in a child of its own."""

    process: subprocess.Popen[str]

    def begin(self, given: Sequence[str]) -> int:
        """Start a job and return its process id."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\t".join(given) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def status(self) -> int:
        """Wait for the end of the job; return its status as `os.waitpid` tells it."""
        assert self.process.stdout
        return int(self.process.stdout.readline())


STRUCK = """
import itertools, signal
import s3fs

changes, main = itertools.count(1), cli.main

def struck(name):
    call = getattr(s3fs.S3FileSystem, name)
    async def counted(self, *paths, **more):
        if "_tipcast-" not in paths[name == "_cp_file"] and next(changes) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return await call(self, *paths, **more)
    setattr(s3fs.S3FileSystem, name, counted)

def strike(words):
    global last
    last = int(words[0])
    return main(words[1:])

for name in ("_cp_file", "_rm_file", "_pipe_file"):
    struck(name)
cli.main = strike
"""
"""A job's first word becomes the number of the change to the scores in a store before which it is killed; 0: none."""


@pytest.fixture
def launcher(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launcher]:
    start, loop, rest = LAUNCHER.partition("for line")
    with (
        (tmp_path / "launcher.err").open("wb") as err,
        subprocess.Popen(
            [sys.executable, "-c", "".join((start, getattr(request, "param", ""), loop, rest))],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        ) as process,
    ):
        yield Launcher(process)
        process.kill()


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def gone(processes: list[psutil.Process], limit_s: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=limit_s)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_killed_twenty_times_in_mid_score(launcher: Launcher, model: str, trips: Path, tmp_path: Path) -> None:
    """Kills at random moments from the first hidden folder to the end: never a torn folder, and nothing is left."""
    out, keeps = tmp_path / "scored", ("keep=[id]", "keep=[id,PULocationID]")

    def given(keep: str) -> list[str]:
        return [*words(model, trips, out, keep, "cluster.processes=false")]

    for keep in keeps:  # the first job takes longer than those to come
        launcher.begin(given(keep))
        until(lambda: hidden(out))
        start = time.monotonic()
        assert launcher.status() == 0, (tmp_path / "launcher.err").read_text()
        took = time.monotonic() - start
    draw, killed, replaced = random.Random(0), 0, 0
    for _ in range(KILLS):
        before = whole(out, trips)
        job = launcher.begin(given(keeps[len(before["configuration"]["keep"]) % 2]))
        until(lambda: hidden(out))
        time.sleep(draw.uniform(0, took))
        with contextlib.suppress(ProcessLookupError):
            os.kill(job, signal.SIGKILL)
        killed += launcher.status() == signal.SIGKILL
        replaced += whole(out, trips)["recipe"] != before["recipe"]
    assert killed >= KILLS / 2, "most were hit before their end"
    assert replaced < KILLS, "some were hit before the exchange"
    launcher.begin(given("keep=[id,DOLocationID]"))
    assert launcher.status() == 0, (tmp_path / "launcher.err").read_text()
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


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [STRUCK], indirect=True, ids=["store"])
@pytest.mark.parametrize(("first", "second"), [(2, 5), (3, 4), (4, 3)])
def test_killed_between_changes_to_a_store(
    bucket: Any, launcher: Launcher, model: str, trips: Path, tmp_path: Path, first: int, second: int
) -> None:
    """A first scoring is killed, then one that replaces, adds and removes; the next finds its way out of both."""
    files = sorted(trips.iterdir())[:3]

    def score(last: int, given: list[Path], keep: str) -> int:
        named = f"[{','.join(map(str, given))}]"
        job = words(model, named, "s3://trips/scored", f"keep=[{keep}]", "cluster.processes=false")
        launcher.begin([str(last), *job])
        return launcher.status()

    assert score(first, files[:2], "id") == signal.SIGKILL, (tmp_path / "launcher.err").read_text()
    assert score(second, files[1:], "id,DOLocationID") == signal.SIGKILL, (tmp_path / "launcher.err").read_text()
    assert score(0, files[1:], "id") == 0, (tmp_path / "launcher.err").read_text()
    assert set(in_store(bucket, "trips/scored")["files"]) == {path.name for path in files[1:]}


@pytest.mark.slow
def test_terminated_in_mid_score(tipcast: Start, model: str, trips: Path, tmp_path: Path) -> None:
    out = tmp_path / "scored"
    code, _ = tipcast(*words(model, trips, out, "keep=[id]"), name="first").end(120)
    assert code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    job = tipcast(*words(model, trips, out), name="stopped")
    job.wait_for(lambda: any(out.parent.glob(f".{out.name}.tipcast-*/parts/**/*.0")))
    tree = job.tree()
    assert len(tree) > 1, "worker processes"
    job.process.send_signal(signal.SIGTERM)
    code, seconds = job.end(30)
    assert code == 143
    assert seconds < 10
    assert gone(tree, 2)
    assert hidden(out) == []
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert job.err.splitlines()[-1] == "terminated: a run that was open is closed as KILLED"
    import sqlite3

    with contextlib.closing(sqlite3.connect(model.removeprefix("sqlite:///"))) as database:
        states = [state for (state,) in database.execute("select status from runs order by start_time")]
    assert states[-1] == "KILLED"
    assert "RUNNING" not in states[-2:]


@pytest.mark.slow
def test_a_worker_is_killed_in_mid_score(tipcast: Start, model: str, trips: Path, tmp_path: Path) -> None:
    """Its tasks are done again by another, and the rows are there once each."""
    out = tmp_path / "scored"
    job = tipcast(*words(model, trips, out, "cluster.n_workers=2", "cluster.threads_per_worker=1"))
    job.wait_for(lambda: any(out.parent.glob(f".{out.name}.tipcast-*/parts/**/*.0")))
    worker = next(process for process in job.tree() if "spawn_main" in " ".join(process.cmdline()))
    worker.kill()
    code, _ = job.end(120)
    assert code == 0, job.err
    assert hidden(out) == []
    found = whole(out, trips)
    assert found["rows"] == sum(pq.read_metadata(path).num_rows for path in trips.iterdir())


def _cpu_s() -> float:
    """Return the processor's seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_second_run_does_nothing_in_three_seconds(tipcast: Start, model: str, trips: Path, tmp_path: Path) -> None:
    out, start = tmp_path / "scored", _cpu_s()
    code, _ = tipcast(*words(model, trips, out, "cluster.threads_per_worker=1"), name="first").end(120)
    assert code == 0
    took = _cpu_s() - start
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    start = _cpu_s()
    again = tipcast(*words(model, trips, out, "cluster.threads_per_worker=2", "block_bytes=4096"), name="again")
    code, _ = again.end(30)
    assert code == 0, again.err
    assert _cpu_s() - start < max(3, 0.35 * took), "three seconds, on a machine that does not stall"
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    whole(out, trips)


def test_a_full_disk(start: Start, model: str, trips: Path, tmp_path: Path) -> None:
    """No file may grow beyond a limit, as on a disk that is full: the old scores stay, and nothing else."""
    out, one = tmp_path / "scored", tmp_path / "one"
    one.mkdir()
    shutil.copy(sorted(trips.iterdir())[0], one)
    code, _ = start([sys.executable, "-m", "tipcast", *words(model, one, out, "keep=[id]")], name="first").end(120)
    assert code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    size = Path(model.removeprefix("sqlite:///")).stat().st_size
    table = pq.read_table(one)
    (path,) = one.iterdir()
    pq.write_table(pa.concat_tables([table] * 12), path)  # scores beyond the limit, which the store is below
    given = [sys.executable, "-c", LIMITED, str(size + 2_000_000), *words(model, one, out, "compression=none")]
    job = start(given, name="full")
    code, _ = job.end(120)
    last = job.err.splitlines()[-1]
    assert code == 5, job.err
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


@pytest.mark.parametrize("status", [503, 403, None])
@pytest.mark.parametrize("side", ["output", "input"])
def test_an_object_store_that_refuses(
    tipcast: Start, model: str, trips: Path, refusing: str, tmp_path: Path, status: int | None, side: str
) -> None:
    """Three tries, then one line that names the bucket and no key; without an answer too."""
    Refusing.status = status or 503
    endpoint = refusing if status else "http://127.0.0.1:9"
    given = words(model, trips, tmp_path / "scored")
    given[{"input": 2, "output": 3}[side]] = f"{side}=s3://mybucket/some/prefix/"
    job = tipcast(*given, name="job", AWS_ENDPOINT_URL=endpoint, AWS_DEFAULT_REGION="us-east-1", **SECRETS)
    code, seconds = job.end(60)
    last = job.err.splitlines()[-1]
    assert code == 5, job.err
    assert last.startswith("error[T009] ")
    assert "mybucket" in last
    assert seconds < 40
    for secret in SECRETS.values():
        assert secret not in job.err + (job.folder / "stdout").read_text()
    if status:
        most = 3 if status == 503 else 2
        assert 1 <= max(Refusing.asked.count(each) for each in Refusing.asked) <= most, Refusing.asked
    assert not (tmp_path / "scored").exists()


def test_twice_at_once(tipcast: Start, model: str, trips: Path, tmp_path: Path) -> None:
    """The second job sees the first and leaves the folder to it."""
    out = tmp_path / "scored"
    first = tipcast(*words(model, trips, out), name="first")
    first.wait_for(lambda: hidden(out))
    second = tipcast(*words(model, trips, out), name="second")
    code, _ = second.end(PATIENCE_S)
    assert (code, second.err.splitlines()[-1][:11]) == (7, "error[S011]")
    code, _ = first.end(PATIENCE_S)
    assert code == 0, first.err
    whole(out, trips)
