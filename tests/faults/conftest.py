"""Jobs as processes of their own that can be hit, and what they must not leave behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests import warm
from tests.warm import environment

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120
STOP_S = 60
"""How long a job that is told to stop may take: it takes two or three seconds; only a hang takes so many."""


@dataclass
class Job:
    """A process group of its own, in a folder of its own."""

    process: subprocess.Popen[bytes] | warm.Job
    folder: Path

    def wait_for(self, what: Callable[[], object], every_s: float = 0.02) -> None:
        """Wait until something is true, while the process lives."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert self.process.poll() is None, self.err
            assert time.monotonic() < deadline, self.err
            time.sleep(every_s)

    def fitting(self) -> None:
        """Wait until XGBoost trains: a worker loads it for nothing else."""
        self.wait_for(lambda: any(map(trains, self.tree())), every_s=0.2)
        time.sleep(1)

    @property
    def err(self) -> str:
        """Standard error so far."""
        return (self.folder / "stderr").read_text()

    @property
    def statuses(self) -> list[str]:
        """States of all runs in the store."""
        with contextlib.closing(sqlite3.connect(self.folder / "mlflow.db", timeout=20)) as database:
            return [status for (status,) in database.execute("select status from runs")]

    def tree(self) -> list[psutil.Process]:
        """Return the process and all that it started."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def end(self, limit_s: float = PATIENCE_S) -> int:
        """Wait for the end; return the exit code."""
        return self.process.wait(limit_s)


BUSY_S = 1.5


def is_worker(process: psutil.Process) -> bool:
    """Tell whether a process is a worker: spawned, or forked from the one that has loaded the workers' libraries."""
    try:
        words = process.cmdline()
        parent = process.parent()
        forked = parent is not None and "distributed.nanny" in " ".join(words) and parent.cmdline() == words
        return forked or "spawn_main" in " ".join(words)
    except psutil.Error:
        return False


def trains(process: psutil.Process) -> bool:
    """Whether this is a worker that has loaded XGBoost and computes: reading takes less time."""
    with contextlib.suppress(psutil.Error):
        loaded = is_worker(process) and any("libxgboost" in region.path for region in process.memory_maps())
        return loaded and process.cpu_times().user > BUSY_S
    return False


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """Jobs that have been started; all that is left of them ends with the test."""
    started: list[Job] = []
    yield started
    for job in started:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait(10)


@pytest.fixture
def start(jobs: list[Job], tmp_path: Path) -> Callable[..., Job]:
    """Start any command."""

    def begin(command: Sequence[str], name: str = "job", folder: Path | None = None, **variables: str) -> Job:
        own = tmp_path / name
        own.mkdir()
        with (own / "stdout").open("wb") as out, (own / "stderr").open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=folder or own,
                env=environment() | variables,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        jobs.append(Job(process, own))
        return jobs[-1]

    return begin


@pytest.fixture
def tipcast(jobs: list[Job], tables: Path, tmp_path: Path) -> Callable[..., Job]:
    """Start `tipcast ...` in a process that has loaded its libraries, where a store has its tables."""

    def begin(*words: str, name: str = "job", before: Callable[[], None] | None = None, **variables: str) -> Job:
        own = tmp_path / name
        own.mkdir()
        shutil.copy(tables, own / "mlflow.db")
        process = warm.start(words, own, environment() | variables, before)
        jobs.append(Job(process, own))
        return jobs[-1]

    return begin


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what `mlflow run` needs."""
    copy = tmp_path / "project"
    copy.mkdir()
    for name in ("MLproject", "conda.yaml"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy
