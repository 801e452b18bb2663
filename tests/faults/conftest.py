"""Jobs as processes of their own that can be hit, and what they must not leave behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120


def environment() -> dict[str, str]:
    """Return the environment without MLflow's variables, in which tipcast can be imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    return kept | {"PYTHONPATH": str(ROOT / "src")}


@dataclass
class Job:
    """A process group of its own, in a folder of its own."""

    process: subprocess.Popen[bytes]
    folder: Path

    def wait_for(self, what: Callable[[], object]) -> None:
        """Wait until something is true, while the process lives."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert self.process.poll() is None, self.err
            assert time.monotonic() < deadline, self.err
            time.sleep(0.1)

    def fitting(self) -> None:
        """Wait until XGBoost trains: a worker loads it for nothing else."""
        self.wait_for(lambda: any(map(trains, self.tree())))
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

    def end(self, limit_s: float) -> tuple[int, float]:
        """Wait for the end; return the exit code and the seconds it took."""
        start = time.monotonic()
        code = self.process.wait(limit_s)
        return code, time.monotonic() - start


def trains(process: psutil.Process) -> bool:
    """Whether this is a worker that has loaded XGBoost."""
    try:
        return "spawn_main" in " ".join(process.cmdline()) and any(
            "libxgboost" in region.path for region in process.memory_maps()
        )
    except psutil.Error:  # it has ended meanwhile
        return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start jobs, and end all that is left of them."""
    jobs: list[Job] = []

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

    yield begin
    for job in jobs:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait(10)


@pytest.fixture
def tipcast(start: Callable[..., Job]) -> Callable[..., Job]:
    """Start `tipcast ...`."""
    return lambda *words, **more: start([sys.executable, "-m", "tipcast", *words], **more)


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
