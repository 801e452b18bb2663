"""What becomes of `tipcast train`, `sweep`, `score` and `promote` when their tracking store goes
away, for a while or for good, and what `tipcast replay` brings to it afterwards.

    PYTHONPATH=src python benchmarks/dead_tracker.py --at-once 2 --out FOLDER
    PYTHONPATH=src python benchmarks/dead_tracker.py --patience-s 8 --only gone --out FOLDER

Each moment is a job as a process of its own, on a copy of a store in which the same job has run
undisturbed. A gate holds the job at a point until the store is away. What a run has afterwards is
compared with the undisturbed run by name and value. Times away are shares of the patience: 20 and
75 s of 90. PostgreSQL is Debian's package `postgresql`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Run
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from dying_stores import LIVING, PostgreSQL, Server, Store, end_all, end_family, wait_until
from harness import options, write_result

HANG_S = 500.0
"""Most seconds that a job may take beside its patience."""
PATIENCE_S = 90.0
# One thread: the trials of a sweep end in one order.
WORDS = (
    "cluster.n_workers=1",
    "cluster.threads_per_worker=1",
    "cluster.performance_report=false",
    "tracking.system_metrics=false",
    "print=json",
)
MODEL = ("data.rows=20000", "model.params.n_estimators=20", "tracking.register=tips")
JOBS = {
    "train": MODEL,
    "sweep": ("search=random", "search.trials=4", *MODEL),
    "score": ("model_uri=models:/tips/1", "input=../trips", "output=scored"),
    "promote": ("model_uri=models:/tips/1",),
}
"""Job -> its words. The model that is scored and promoted is that of the undisturbed training."""
PREPARE = (
    "data.rows=20000",
    "data.months=2019-01..2019-03",
    "out=trips",
    "cluster.n_workers=1",
    "cluster.threads_per_worker=1",
)
AWAY_S = {"20 s": 20.0, "75 s": 75.0, "restart 10 s": 10.0}
"""Way -> seconds for which the store is away, of 90 s of patience."""
OFFLINE = re.compile(r"tipcast replay (\S+?mlflow\.db)")
OF_PROCESS = re.compile(
    r"(metric|model metric)/((seconds|memory)/.*|.*_per_s)"
    r"|tag/(tipcast\.(process|commit|dirty|replay\.of)|sweep\.study)"
    r"|version tag/(sha256\.manifest|tipcast\.(commit|dirty))"
)
"""Names of what differs from run to run."""
IDS = (
    (re.compile(r"[0-9a-f]{8}-(?=\d{4}\b)"), "STUDY-"),
    (re.compile(r"\bm-[0-9a-f]{32}\b"), "MODEL"),
    (re.compile(r"(?:\b|(?<=%27))[0-9a-f]{32}\b"), "RUN"),
    (re.compile(r"models:/tips/\d+|versions/\d+|version \d+"), "VERSION"),
    (re.compile(r"/[^\s`]*/scored"), "scored"),
    (re.compile(r"\d+(\.\d+)?(?= (s|MB|rows/s)\b)"), "N"),
    (re.compile(r"(?<=\| )\d+\.\d+(?= \|)"), "N"),  # metrics are compared by themselves
)
"""What stands for ids, versions, places, seconds and memory in texts that are compared."""


@dataclass(frozen=True)
class Moment:
    """A death of a store."""

    store: str
    way: str
    job: str
    point: str
    """The gate at which the job is held as the store goes away."""

    def __str__(self) -> str:
        return f"{self.store} {self.way}, {self.job} at {self.point}"


MOMENTS = (
    Moment("server", "gone", "train", "run"),
    Moment("server", "gone", "train", "fit"),
    Moment("server", "gone", "train", "version"),
    Moment("server", "gone", "sweep", "trial-1"),
    Moment("server", "gone", "score", "scored-1"),
    Moment("server", "gone", "promote", "run"),
    Moment("server", "frozen", "train", "run"),
    Moment("server", "frozen", "train", "version"),
    Moment("server", "frozen", "sweep", "trial-3"),
    Moment("server", "frozen", "score", "scored-1"),
    Moment("server", "20 s", "train", "fit"),
    Moment("server", "20 s", "sweep", "trial-3"),
    Moment("server", "75 s", "train", "version"),
    Moment("postgresql", "gone", "train", "fit"),
    Moment("postgresql", "gone", "sweep", "trial-3"),
    Moment("postgresql", "frozen", "train", "version"),
    Moment("postgresql", "frozen", "promote", "run"),
    Moment("postgresql", "restart 10 s", "train", "run"),
    Moment("postgresql", "restart 10 s", "sweep", "trial-1"),
    Moment("postgresql", "restart 10 s", "score", "scored-1"),
)


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int | None
    """None if it had to be killed."""
    seconds: float
    out: str
    err: str

    @property
    def said(self) -> dict[str, Any]:
        """The object that it has printed last."""
        lines = self.out.strip().splitlines()
        return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}


class Command:
    """A tipcast command that runs in a folder, held at a gate if it is given a point."""

    def __init__(self, words: list[str], folder: Path, uri: str | None, point: str = "") -> None:
        self._folder = folder
        self._point = point
        self._passed = folder / "gate"
        self._began = time.monotonic()
        names = ("MLFLOW_TRACKING_URI", "MLFLOW_HTTP_REQUEST_MAX_RETRIES")
        variables = {name: text for name, text in os.environ.items() if name not in names}
        if uri:
            variables["MLFLOW_TRACKING_URI"] = uri
        if point:
            variables["TIPCAST_GATE"] = f"{point}:{self._passed}"
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tipcast", *words],
                cwd=folder,
                env=variables,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        LIVING.add(self._process.pid)

    def reach(self) -> None:
        """Wait until the command is held at its gate; RuntimeError if it ends before."""

        def reached() -> bool:
            if self._process.poll() is not None:
                raise RuntimeError(f"it ended before {self._point}: {self._text('err')[-1500:]}")
            lines = self._passed.read_text().splitlines() if self._passed.exists() else []
            return any(line.startswith(f"{self._point} ") for line in lines)

        wait_until(reached, HANG_S, f"the job reaches {self._point}")

    def go(self) -> None:
        """Let it pass its gate."""
        Path(f"{self._passed}.go").touch()

    def end(self, limit_s: float = HANG_S) -> Ended:
        """Wait for the end; after so many seconds it is killed."""
        code = None
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            seconds = time.monotonic() - self._began
            end_family(self._process.pid)
            self._process.wait()
        return Ended(code, seconds, self._text("out"), self._text("err"))

    def _text(self, name: str) -> str:
        return (self._folder / name).read_text(encoding="utf-8")


def run(words: list[str], folder: Path, uri: str | None) -> Ended:
    """Run a tipcast command to its end; RuntimeError if it fails."""
    command = Command(words, folder, uri)
    ended = command.end()
    if ended.code:
        raise RuntimeError(f"{words[0]} ends with {ended.code}: {ended.err[-1500:]}")
    return ended


@dataclass(frozen=True)
class Undisturbed:
    """A job that nobody disturbs: the template of the moments of a kind of store."""

    seconds: float
    recorded: Mapping[str, Any]


class Template:
    """A store in which each job has run undisturbed, to be copied for each moment."""

    def __init__(self, kind: str, folder: Path, words: tuple[str, ...]) -> None:
        self._folder = folder / kind
        self.trips = folder / "trips"
        self.words = words
        self._kind = {"server": Server, "postgresql": PostgreSQL}[kind]
        self.jobs: dict[str, Undisturbed] = {}

    def make(self, jobs: list[str]) -> None:
        """Run each job once; the store is stopped at the end."""
        place = self._folder / "store"
        place.mkdir(parents=True)
        (self._folder / "trips").symlink_to(self.trips, target_is_directory=True)
        store = self._kind(place)
        if isinstance(store, PostgreSQL):
            store.make()
        with closing(store):
            store.start()
            for job in dict.fromkeys(["train", *jobs]):
                folder = self._folder / job
                folder.mkdir()
                ended = run([job, *JOBS[job], *self.words], folder, store.uri)
                client = mlflow.MlflowClient(store.uri, store.uri)
                recorded = dict(everything(client, ended.said["run_id"]))
                self.jobs[job] = Undisturbed(ended.seconds, recorded)
                print(f"{self._kind.NAME}: {job} undisturbed {ended.seconds:.1f} s", flush=True)
            _free_alias(client)
            store.end(signal.SIGTERM if isinstance(store, Server) else signal.SIGINT)

    def copy(self, folder: Path) -> Store:
        """Return a store on a copy of the files."""
        subprocess.run(["cp", "-a", f"{self._folder}/store", folder], check=True, timeout=120)
        return self._kind(folder / "store")


def _free_alias(client: mlflow.MlflowClient) -> None:
    """Take the alias from the model that has been promoted, so that it can be promoted again."""
    model = client.get_registered_model("tips")
    for alias in model.aliases:
        client.delete_registered_model_alias("tips", alias)
    for name in model.tags:
        client.delete_registered_model_tag("tips", name)


def everything(client: mlflow.MlflowClient, run_id: str) -> Iterator[tuple[str, Any]]:
    """Yield what a run and the runs below it have, by name, without what differs from run to
    run.
    """
    whole = client.get_run(run_id)
    experiments = [whole.info.experiment_id]
    condition = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}'"
    children = client.search_runs(experiments, condition)

    yield from _of_run(client, whole)
    for child in children:
        prefix = f"trial {child.data.tags['trial.number']}/{child.data.tags['trial.attempt']}"
        for name, value in _of_run(client, child):
            yield f"{prefix}: {name}", value
    yield "trials", len(children)


def _of_run(client: mlflow.MlflowClient, run: Run) -> Iterator[tuple[str, Any]]:
    """Yield what one run has, by name."""
    for name, value in _raw(client, run):
        if not OF_PROCESS.fullmatch(name):
            yield name, value


def _raw(client: mlflow.MlflowClient, run: Run) -> Iterator[tuple[str, Any]]:
    run_id = run.info.run_id
    yield "status", run.info.status
    yield "name", run.info.run_name
    yield "ended", run.info.end_time is not None
    for key, text in run.data.params.items():
        yield f"param/{key}", text
    for key, text in run.data.tags.items():
        yield f"tag/{key}", without_ids(text)
    for key in run.data.metrics:
        points = client.get_metric_history(run_id, key)
        yield f"metric/{key}", sorted((point.step, point.value) for point in points)
    for path, is_empty in _files(client, run_id):
        yield f"artifact/{without_ids(path)}", "empty" if is_empty else "file"
    for item in run.inputs.dataset_inputs:
        yield f"dataset/{item.dataset.name}", item.dataset.digest
    yield "models used", len(run.inputs.model_inputs)
    yield "models linked", len(run.outputs.model_outputs) if run.outputs else 0
    yield from _models(client, run)

    versions = client.search_model_versions(f"run_id='{run_id}'")
    yield "versions", len(versions)
    for version in versions:
        yield "version status", version.status
        yield "version description", without_ids(version.description or "")
        for key, text in version.tags.items():
            yield f"version tag/{key}", without_ids(text)


def _models(client: mlflow.MlflowClient, run: Run) -> Iterator[tuple[str, Any]]:
    """Yield what the logged models of a run have."""
    condition = f"source_run_id='{run.info.run_id}'"
    models = client.search_logged_models([run.info.experiment_id], condition)
    yield "models", len(models)
    for model in models:
        yield f"model/{model.name}", str(model.status)
        for path, is_empty in _files_below(client.list_logged_model_artifacts, model.model_id):
            yield f"model file/{path}", "empty" if is_empty else "file"
        for point in model.metrics or ():
            yield f"model metric/{point.key}", point.value
        for key, text in model.params.items():
            yield f"model param/{key}", text
        for key in model.tags:
            if key != "tipcast.request":
                yield f"model tag/{key}", "there"


def _files(client: mlflow.MlflowClient, run_id: str) -> Iterator[tuple[str, bool]]:
    return _files_below(client.list_artifacts, run_id)


def _files_below(entries: Any, owner: str, path: str | None = None) -> Iterator[tuple[str, bool]]:
    """Yield the path of each file, and whether it is empty."""
    for entry in entries(owner, path):
        if entry.is_dir:
            yield from _files_below(entries, owner, entry.path)
        else:
            yield entry.path, not entry.file_size


def without_ids(text: str) -> str:
    """Return a text without ids, versions, places and seconds."""
    for pattern, word in IDS:
        text = pattern.sub(word, text)
    return text


def differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """Return the names of what differs: is missing, is another value, or is too much."""
    lost = []
    for name, value in expected.items():
        if name not in actual:
            lost.append(f"{name}: missing")
        elif actual[name] != value:
            lost.append(f"{name}: {change(str(value), str(actual[name]))}")
    return lost + [f"{name}: too much" for name in actual if name not in expected]


def change(before: str, after: str) -> str:
    """Return two texts from where they differ."""
    same = len(os.path.commonprefix([before, after]))
    begin = max(0, same - 20)
    return f"{before[begin : same + 60]!r} became {after[begin : same + 60]!r}"


def meet(moment: Moment, template: Template, patience_s: float) -> dict[str, Any]:
    """Let a store die as a job is at a point; return what became of the job and of its run."""
    began = time.monotonic()
    row: dict[str, Any] = {**vars(moment)}
    try:
        with tempfile.TemporaryDirectory(prefix="tipcast-dead-") as name:
            folder = Path(name)
            folder.chmod(0o755)  # another user's database is in it
            (folder / "job").mkdir()
            (folder / "trips").symlink_to(template.trips, target_is_directory=True)
            store = template.copy(folder)
            with closing(store):
                store.start()
                row |= _met(moment, template, store, folder / "job", patience_s)
    except Exception as problem:  # a moment that fails is a row too
        row |= {"lost": ["everything"], "said": f"{type(problem).__name__}: {problem}"[-2500:]}
    print(f"{moment}: {row} after {time.monotonic() - began:.0f} s", flush=True)
    return row


def _met(
    moment: Moment, template: Template, store: Store, folder: Path, patience_s: float
) -> dict[str, Any]:
    """Run the job and let the store die; return what became of both."""
    undisturbed = template.jobs[moment.job]
    words = [moment.job, *JOBS[moment.job], *template.words]
    before = {run.info.run_id for run in _all_runs(store)}

    job = Command(words, folder, store.uri, moment.point)
    try:
        job.reach()
        held = time.monotonic()
        _let_die(store, moment.way)
        job.go()
        held_s = time.monotonic() - held
        if moment.way in AWAY_S:
            away_s = AWAY_S[moment.way] * patience_s / PATIENCE_S
            time.sleep(away_s)
            store.start()
    finally:
        ended = job.end(HANG_S + patience_s)

    if moment.way == "gone":
        store.start()
    if moment.way == "frozen":
        store.thaw()

    row: dict[str, Any] = {
        "exit_code": ended.code,
        "seconds": ended.seconds - held_s,
        "above_s": ended.seconds - held_s - undisturbed.seconds,
        "said": _last_lines(ended.err),
    }
    client = mlflow.MlflowClient(store.uri, store.uri)
    lost: list[str] = []
    if moment.job == "promote" and ended.code:
        lost += _promoted_again(client, words, ended, folder, store.uri)
    if file := OFFLINE.search(ended.err):
        row |= _replayed(client, moment, file[1], folder, store.uri, lost)

    mine = [run for run in _all_runs(store) if run.info.run_id not in before]
    top = [
        run
        for run in mine
        if MLFLOW_PARENT_RUN_ID not in run.data.tags and run.data.tags.get("job") == moment.job
    ]
    lost += [f"run {run.info.run_name} is RUNNING" for run in mine if run.info.status == "RUNNING"]
    if moment.job == "promote" and ended.code:
        return {**row, "lost": lost}

    if len(top) != 1:
        lost.append(f"{len(top)} runs")
    for run in top[:1]:
        lost += differences(undisturbed.recorded, dict(everything(client, run.info.run_id)))
    return {**row, "lost": lost}


def _let_die(store: Store, way: str) -> None:
    """Kill, stop or freeze a store."""
    if way == "frozen":
        store.freeze()
    elif isinstance(store, PostgreSQL) and way in AWAY_S:
        store.stop_at_once()
    else:
        store.kill()


def _all_runs(store: Store) -> list[Run]:
    """Return the runs of all experiments of a store."""
    client = mlflow.MlflowClient(store.uri, store.uri)
    experiments = [item.experiment_id for item in client.search_experiments()]
    return list(client.search_runs(experiments, max_results=1000))


def _last_lines(err: str) -> str:
    """Return the warnings and errors that a job has printed, and its last line."""
    lines = err.splitlines()
    marked = [line for line in lines if re.match(r"WARNING|ERROR|error\[", line)]
    return "\n".join(dict.fromkeys([*marked[-6:], *lines[-1:]]))[-1500:]


def _promoted_again(
    client: mlflow.MlflowClient, words: list[str], ended: Ended, folder: Path, uri: str
) -> list[str]:
    """Return what is wrong with a promotion that the store has ended: with its line, the alias, or
    the same command once more.
    """
    lost = []
    if "T001" not in ended.err:
        lost.append("no T001")
    if client.get_registered_model("tips").aliases:
        lost.append("the alias has moved")
    again = folder.with_name("again")
    again.mkdir()
    if Command(words, again, uri).end().code != 0:
        lost.append("the second promotion fails")
    # A database gives it as a number.
    if str(client.get_registered_model("tips").aliases.get("champion")) != "1":
        lost.append("the alias has not moved")
    return lost


def _replayed(
    client: mlflow.MlflowClient,
    moment: Moment,
    file: str,
    folder: Path,
    uri: str,
    lost: list[str],
) -> dict[str, Any]:
    """Replay an offline store twice; add to ``lost`` what the second time changed."""
    words = ["replay", file, "print=json"]
    # The file has the server's address; a database's has no user.
    address = None if moment.store == "server" else uri
    first = Command(words, folder, address).end()
    row = {"replay_code": first.code, "replay_s": first.seconds}
    if first.code:
        lost.append("the replay fails")
        return {**row, "replay_said": first.err[-1500:]}

    runs = first.said["runs"]
    before = [dict(everything(client, run_id)) for run_id in runs]
    second = Command(words, folder, address).end()
    after = [dict(everything(client, run_id)) for run_id in runs]
    if second.code or "has all of this already" not in second.err or second.said["runs"]:
        lost.append(f"the second replay says {second.err[-500:]}")
    if before != after:
        lost.append("the second replay changes the run")
    return row


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, patience_s=PATIENCE_S, at_once=1, only="")
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "2"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupted)

    moments = [moment for moment in MOMENTS if re.search(given.only, str(moment))]
    words = (*WORDS, f"tracking.patience_s={given.patience_s:g}")
    with (
        tempfile.TemporaryDirectory(prefix="tipcast-dead-") as name,
        ThreadPoolExecutor(given.at_once) as pool,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        run(["prepare", *PREPARE], folder, None)
        kinds = sorted({moment.store for moment in moments})
        templates = {kind: Template(kind, folder, words) for kind in kinds}
        list(
            pool.map(
                lambda kind: templates[kind].make([m.job for m in moments if m.store == kind]),
                kinds,
            )
        )
        rows = list(pool.map(lambda m: meet(m, templates[m.store], given.patience_s), moments))

    facts = {name: value for name, value in vars(given).items() if name != "out"}
    write_result("dead_tracker", rows, out=given.out, **facts)


def _interrupted(_number: int, _frame: object) -> None:
    """End everything that was started, and this process."""
    end_all()
    os._exit(1)


if __name__ == "__main__":
    main()
