"""A sweep that is hit anywhere: every trial is FINISHED exactly once, none is RUNNING, none is fitted twice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.faults.conftest import STOP_S

from tipcast.tracking import lease

FORM = re.compile(r"^error\[[CDKTMS]\d{3}\] \S.* Fix: .+")
QUICK = (
    "data.rows=6000", "model.params.n_estimators=20", "model.fit.early_stopping_rounds=null", "print=json",
    "cluster.performance_report=false", "tracking.system_metrics=false", "cluster.threads_per_worker=2",
    "cluster.wait_s=300",  # a busy machine starts a worker in a minute
)  # fmt: skip


@dataclass
class Sweep:
    """A sweep in a folder of its own, its processes and what it leaves."""

    folder: Path
    begin: Callable[..., Any]
    processes: list[Any] = field(default_factory=list)

    def start(self, *words: str, before: Callable[[], None] | None = None, **variables: str) -> Any:
        """Start `tipcast sweep`, after ``before`` in its process."""
        variables |= {
            "TIPCAST_WITNESS": str(self.folder),
            "DASK_DISTRIBUTED__WORKER__PRELOAD": str(Path(__file__).with_name("witness.py")),
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder / 'mlflow.db'}",
        }
        job = self.begin("sweep", *QUICK, *words, name=f"job{len(self.processes)}", before=before, **variables)
        self.processes.append(job)
        return job

    def gate(self, number: int | None = None) -> Path:
        """Let fits wait until the file is taken away."""
        path = self.folder / ("gate" if number is None else f"gate{number}")
        path.touch()
        return path

    def fits(self, what: str) -> list[tuple[int, int]]:
        """Return trials and processes of the fits that have begun or ended, in order."""
        path = self.folder / "fits"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(number), int(process)) for which, number, process in lines if which == what]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.folder / "mlflow.db", timeout=20)) as database:
            return database.execute(sql).fetchall()

    @property
    def parent(self) -> str:
        """The sweep's run."""
        ((run_id,),) = self.query("select run_uuid from tags where key = 'job' and value = 'sweep'")
        return str(run_id)

    def tag(self, name: str, run_id: str | None = None) -> str:
        found = self.query(f"select value from tags where key = '{name}' and run_uuid = '{run_id or self.parent}'")
        return str(found[0][0]) if found else ""

    def children(self) -> list[tuple[int, int, str, str]]:
        """Return trial, attempt, state and message of every child run."""
        rows = self.query(
            "select n.value, a.value, r.status, coalesce(m.value, '') from runs r"
            " join tags n on n.run_uuid = r.run_uuid and n.key = 'trial.number'"
            " join tags a on a.run_uuid = r.run_uuid and a.key = 'trial.attempt'"
            " left join tags m on m.run_uuid = r.run_uuid and m.key = 'error.message'"
        )
        return sorted((int(number), int(attempt), status, message) for number, attempt, status, message in rows)

    def finished(self) -> list[int]:
        return [number for number, _, status, _ in self.children() if status == "FINISHED"]

    def whole(self, trials: int) -> None:
        """Every trial is FINISHED exactly once, nothing is open, and only attempts that were killed are repeated.

        A fit may end in the moment of the blow, before its result has left the worker: it is fitted again as well.
        """
        assert sorted(self.finished()) == list(range(trials))
        assert not [child for child in self.children() if child[2] == "RUNNING"]
        killed = Counter(number for number, _, status, _ in self.children() if status == "KILLED")
        ended = Counter(number for number, _ in self.fits("end") if number >= 0)
        assert all(1 <= ended[number] <= 1 + killed[number] for number in range(trials)), (ended, killed)


@pytest.fixture
def sweep(tipcast: Callable[..., Any], tables: Path, tmp_path: Path) -> Iterator[Sweep]:
    shutil.copy(tables, tmp_path / "mlflow.db")
    made = Sweep(tmp_path, tipcast)
    yield made
    for name in ("gate", *(path.name for path in tmp_path.glob("gate*"))):
        (tmp_path / name).unlink(missing_ok=True)


def gone(processes: list[Any], limit_s: float = 2) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=limit_s)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def strike(sweep: Sweep, job: Any, number: int) -> None:
    """Kill the worker that holds a trial at its gate, and let the trial pass the next time."""
    gate = sweep.folder / f"gate{number}"
    job.wait_for(lambda: number in [begun for begun, _ in sweep.fits("begin")])
    process = [process for begun, process in sweep.fits("begin") if begun == number][-1]
    os.kill(process, signal.SIGKILL)
    gate.unlink()


@pytest.mark.parametrize("times", [(-1, 3), pytest.param((-1, 0, 3, 5, 7), marks=pytest.mark.long)])
def test_workers_killed_at_any_time(sweep: Sweep, times: tuple[int, ...]) -> None:
    """F05: while it reads, in the first trial, between two, in the last one."""
    for number in times:
        sweep.gate(number)
    job = sweep.start("search.trials=8", "search.attempts=9")
    for number in times:
        strike(sweep, job, number)
    assert job.end() == 0, job.err
    sweep.whole(8)
    lost = [child for child in sweep.children() if child[2] == "KILLED"]
    assert {number for number, *_ in lost} >= set(times) - {-1}
    reason = re.compile(r"worker tcp://127.0.0.1:\d+ (died|has gone, or is paused)")
    assert all(reason.fullmatch(message) for *_, message in lost)
    attempts = {number: attempt for number, attempt, status, _ in sweep.children() if status == "FINISHED"}
    assert attempts[3] >= 2


def test_a_trial_that_runs_out_of_memory(sweep: Sweep) -> None:
    """F06: it fails and says why; the others are fitted once, also the one that was beside it."""
    (sweep.folder / "hog2").touch()
    beside = sweep.gate(1)
    job = sweep.start("search.trials=6", "cluster.memory_limit=700MiB")
    job.wait_for(lambda: 2 in Counter(begun for begun, _ in sweep.fits("begin")).values())  # one of the two
    beside.unlink()
    assert job.end() == 7, job.err
    assert FORM.match(job.err.splitlines()[-1]), job.err
    assert job.err.splitlines()[-1].startswith("error[S001] ")
    assert "worker out of memory, limit 700 MiB" in job.err.splitlines()[-1]
    assert sorted(sweep.finished()) == [0, 1, 3, 4, 5]
    ((_, attempt, status, message),) = [child for child in sweep.children() if child[0] == 2 and child[2] != "KILLED"]
    assert (status, attempt) == ("FAILED", 2)
    assert "worker out of memory, limit 700 MiB" in message
    assert Counter(number for number, _ in sweep.fits("end") if number >= 0) == Counter([0, 1, 3, 4, 5])
    assert [number for number, *_ in sweep.children()].count(1) == 2, "it was begun again"
    assert sweep.query(f"select status from runs where run_uuid = '{sweep.parent}'") == [("FINISHED",)]
    assert sweep.tag("error.code") == "S001"


def test_workers_that_are_all_paused(sweep: Sweep) -> None:
    """F07: what would wait for ever ends after cluster.wait_s."""
    words = ("search.trials=4", "cluster.wait_s=4", "cluster.memory_limit=1GiB")
    job = sweep.start(*words, DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE="0.1")
    assert job.end() == 4, job.err
    assert FORM.match(job.err.splitlines()[-1])
    assert job.err.splitlines()[-1].startswith("error[K003] ")
    assert not [child for child in sweep.children() if child[2] == "RUNNING"]
    assert sweep.tag("error.code") == "K003"


@pytest.mark.parametrize(
    ("number", "times", "expected"),
    [("SIGTERM", 1, 143), ("SIGINT", 1, 130), pytest.param("SIGINT", 2, 130, marks=pytest.mark.long)],
)
def test_stopped(sweep: Sweep, number: str, times: int, expected: int) -> None:
    """F08, F09: everything is closed as KILLED within seconds, in few lines that say how to go on."""
    sweep.gate(2)
    sweep.gate(3)
    job = sweep.start("search.trials=6")
    job.wait_for(lambda: {2, 3} <= {begun for begun, _ in sweep.fits("begin")} and len(sweep.children()) == 4)
    job.wait_for(lambda: len(sweep.finished()) == 2)
    tree = job.tree()
    assert len(tree) > 1
    job.wait_for(lambda: "(2/6)" in job.err)
    before = len(job.err.splitlines())
    for _ in range(times):
        with contextlib.suppress(ProcessLookupError):  # the first was enough
            # Ctrl-C of a terminal goes to every process of the group
            (os.killpg if number == "SIGINT" else os.kill)(job.process.pid, signal.Signals[number])
        time.sleep(0.3 if times > 1 else 0)
    assert job.end(STOP_S) == expected, job.err
    assert gone(tree)
    lines = job.err.splitlines()[before:]
    assert len(lines) <= 3, lines
    assert lines[-2] == f"2 of 6 trials are done; go on with: tipcast sweep resume={sweep.parent}"
    assert lines[-1].endswith("a run that was open is closed as KILLED")
    assert Counter(status for *_, status, _ in sweep.children()) == {"FINISHED": 2, "KILLED": 2}
    assert sweep.query(f"select status from runs where run_uuid = '{sweep.parent}'") == [("KILLED",)]


def test_killed_and_resumed(sweep: Sweep) -> None:
    """F10, F28: a resumed sweep runs what is missing, one process at a time."""
    sweep.gate(4)
    gate = sweep.gate(5)
    first = sweep.start("search.trials=8", "search=tpe")
    first.wait_for(lambda: {4, 5} <= {begun for begun, _ in sweep.fits("begin")} and len(sweep.children()) == 6)
    first.wait_for(lambda: len(sweep.finished()) == 4)
    tree = first.tree()
    parent = sweep.parent
    os.kill(first.process.pid, signal.SIGKILL)
    first.end()
    assert gone(tree, 20)
    assert Counter(status for *_, status, _ in sweep.children()) == {"FINISHED": 4, "RUNNING": 2}
    (sweep.folder / "gate4").unlink()
    second = sweep.start(f"resume={parent}")
    second.wait_for(lambda: len(sweep.fits("begin")) > 8)
    third = sweep.start(f"resume={parent}")
    assert third.end() == 7, third.err
    last = third.err.splitlines()[-1]
    assert FORM.match(last)
    assert last.startswith(f"error[S002] {parent}: process {second.process.pid} on {socket.gethostname()}")
    gate.unlink()
    assert second.end() == 0, second.err
    sweep.whole(8)
    assert Counter(number for number, _ in sweep.fits("end") if number >= 0) == Counter(range(8)), "none ended before"
    killed = [child for child in sweep.children() if child[2] == "KILLED"]
    assert [(number, attempt) for number, attempt, *_ in killed] == [(4, 1), (5, 1)]
    said = json.loads((second.folder / "stdout").read_text().splitlines()[-1])
    assert said["run_id"] == parent
    assert said["trials"] == {"finished": 8, "failed": 0, "all": 8}
    fourth = sweep.start(f"resume={parent}", "cluster.processes=false")
    assert fourth.end() == 0, fourth.err
    assert len(sweep.fits("end")) == len([fit for fit in sweep.fits("end") if fit[0] < 0]) + 8, (
        "nothing is fitted again"
    )


def looks_often() -> None:
    """Look every half second whether the sweep is still this process's."""
    lease.RENEW_S = 0.5


def hears_nothing() -> None:
    """Be on another machine: without the locks of this one, and where nothing was heard of the sweep's process."""
    lease.SILENCE_S, tempfile.tempdir = 0.0, None


def test_taken_over_by_another_process(sweep: Sweep, tmp_path: Path) -> None:
    """F28: a process that was cut off leaves a sweep to the one that has taken it over, which ends it."""
    gate = sweep.gate(2)
    first = sweep.start("search.trials=4", "cluster.n_workers=1", before=looks_often)
    first.wait_for(lambda: len(sweep.finished()) == 3)
    (tmp_path / "elsewhere").mkdir()
    second = sweep.start(f"resume={sweep.parent}", before=hears_nothing, TMPDIR=str(tmp_path / "elsewhere"))
    second.wait_for(lambda: [number for number, _ in sweep.fits("begin")].count(2) == 2)
    time.sleep(2)  # the first has looked
    gate.unlink()
    assert first.end() == 7, first.err
    assert first.err.splitlines()[-1].startswith(f"error[S002] {sweep.parent}: another process works on this run")
    assert second.end() == 0, second.err
    sweep.whole(4)
    assert [child[:3] for child in sweep.children() if child[0] == 2] == [(2, 1, "KILLED"), (2, 2, "FINISHED")]
    assert sweep.query(f"select status from runs where run_uuid = '{sweep.parent}'") == [("FINISHED",)]


@pytest.mark.long
def test_halving_killed_and_resumed(sweep: Sweep) -> None:
    """F10, F28: what was finished at a rung is not fitted again, also where more trees were being grown."""
    gates = [sweep.gate(number) for number in range(1, 6)]
    first = sweep.start("search=halving", "search.trials=6", "cluster.threads_per_worker=1", "cluster.n_workers=2")
    for number in range(5):  # each waits again once it comes back for more trees
        first.wait_for(lambda number=number: number in [ended for ended, _ in sweep.fits("end")])
        sweep.gate(number)
        gates[number].unlink(missing_ok=True) if number < 4 else None
    judged = "select count(*) from tags where key = 'trial.rungs'"
    first.wait_for(lambda: sweep.query(judged) == [(5,)])
    first.wait_for(lambda: len([n for n, _ in sweep.fits("begin") if n >= 0]) == 7)  # one is given more trees
    os.kill(first.process.pid, signal.SIGKILL)
    first.end()
    for number in range(6):
        (sweep.folder / f"gate{number}").unlink(missing_ok=True)
    second = sweep.start(f"resume={sweep.parent}")
    assert second.end() == 0, second.err
    assert sorted(sweep.finished()) == list(range(6))
    assert [number for number, _, status, _ in sweep.children() if status != "FINISHED"] == [5]
    told = sweep.query(
        "select n.value, t.value from tags t join tags n on n.run_uuid = t.run_uuid and n.key = 'trial.number'"
        " where t.key = 'trial.rungs'"
    )
    rungs = {int(number): len(json.loads(value)) for number, value in told}
    assert Counter(number for number, _ in sweep.fits("end") if number >= 0) == rungs


def test_scores_that_are_no_numbers(sweep: Sweep) -> None:
    """F26: such a trial fails, and is never the best."""
    job = sweep.start(
        "search=grid", "search.space.learning_rate=[0.1,3.4e38]", "model.params.min_child_weight=0",
        "model.params.reg_lambda=0", "tracking.register=tips", "cluster.processes=false",
    )  # fmt: skip
    assert job.end() == 7, job.err
    assert "non-finite metric" in job.err.splitlines()[-1]
    assert [(number, status) for number, _, status, _ in sweep.children()] == [(0, "FINISHED"), (1, "FAILED")]
    assert sweep.query("select code.value from tags code where code.key = 'error.code' and code.value = 'M010'")
    said = json.loads((job.folder / "stdout").read_text().splitlines()[-1])
    assert said["best"]["trial"] == 0
    assert said["model_uri"] == "models:/tips/1"


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 2), *(pytest.param(seed, 4, marks=pytest.mark.long) for seed in (2, 3))]
)
def test_chaos(sweep: Sweep, seed: int, kills: int) -> None:
    """F30: workers are killed at random moments of random trials."""
    chance = random.Random(seed)
    trials = 4 * kills
    job = sweep.start(
        f"search.trials={trials}", "search.attempts=20", "cluster.n_workers=2", "cluster.threads_per_worker=1",
        "model.params.n_estimators=150",
    )  # fmt: skip
    chosen = sorted(chance.sample(range(1, trials * 2 // 3), kills))  # a later one is over before the blow
    gate = sweep.gate(chosen[0])  # it waits for its blow; the others may be hit between two trials
    for trial in chosen:
        job.wait_for(lambda trial=trial: trial in [begun for begun, _ in sweep.fits("begin")])
        time.sleep(chance.uniform(0, 0.5))
        begun = [process for _, process in sweep.fits("begin")[-2:]]
        with contextlib.suppress(ProcessLookupError):
            os.kill(dict(sweep.fits("begin"))[trial] if gate.exists() else chance.choice(begun), signal.SIGKILL)
        gate.unlink(missing_ok=True)
    assert job.end() == 0, job.err
    sweep.whole(trials)
    assert "KILLED" in [status for *_, status, _ in sweep.children()]
