"""Jobs as processes of their own, held at a gate while a test hits them, and what they must not
leave behind.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests import warm
from tests.waiting import wait_until

from tipcast.config import disk

HERE = Path(__file__).parent
LIMIT_S = 300.0
"""The watchdog: what only a hang takes, also on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is below this folder: `make test` runs it alone, after the rest."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.faults)


@dataclass
class Store:
    """The sqlite file that all jobs of a test write to."""

    file: Path

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.file}"

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.file, timeout=20)) as database:
            return database.execute(sql).fetchall()

    def statuses(self) -> list[str]:
        """Return the states of all runs, in the order of their start."""
        return [status for (status,) in self.query("select status from runs order by start_time")]

    def tag(self, key: str) -> list[str]:
        """Return a tag's values, of all runs that have it."""
        return [value for (value,) in self.query(f"select value from tags where key = '{key}'")]


@dataclass
class Job:
    """A process that leads a session of its own, in a folder of its own."""

    process: subprocess.Popen[bytes] | warm.Job
    folder: Path
    gate: Path

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()

    @property
    def events(self) -> list[tuple[str, int]]:
        """Points that were passed or reached, and the process that did, in order."""
        lines = self.gate.read_text().splitlines() if self.gate.exists() else []
        return [(point, int(process)) for point, process in map(str.split, lines)]

    def trials(self) -> list[int]:
        """Return the trials that were begun on workers, by number: which of several comes first is
        chance.
        """
        return sorted(
            int(point.partition("-")[2]) for point, _ in self.events if point.startswith("trial-")
        )

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds, while the process lives."""

        def holds() -> object:
            assert self.process.poll() is None, self.err
            return condition()

        wait_until(holds, LIMIT_S, lambda: self.err)

    def reached(self, point: str, times: int = 1) -> list[int]:
        """Wait until a point was reached so many times; return the processes that did."""

        def at() -> list[int]:
            return [process for name, process in self.events if name == point]

        self.wait_until(lambda: len(at()) >= times)
        return at()

    def open_gate(self) -> None:
        """Let all processes that wait at the gate go on, and those that will come."""
        Path(f"{self.gate}.go").touch()

    def ends(self, code: int) -> str:
        """Wait for the end, with this exit code and without processes left; return standard error's
        last line.
        """
        assert self.process.wait(LIMIT_S) == code, self.err
        wait_until(lambda: not self.living_processes(), LIMIT_S, self.living_processes)
        return self.err.splitlines()[-1] if self.err else ""

    def living_processes(self) -> list[psutil.Process]:
        """Return the processes of the session that still run."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if (
                    os.getsid(process.pid) == self.process.pid
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """Jobs that have been started; all that is left of them ends with the test."""
    started: list[Job] = []
    yield started
    for job in started:
        for process in job.living_processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        job.process.wait(LIMIT_S)


@pytest.fixture
def store(tables: Path, tmp_path: Path) -> Iterator[Store]:
    """A store with MLflow's tables; whatever a test does to jobs, no run is left open."""
    store = Store(Path(shutil.copy(tables, tmp_path / "mlflow.db")))
    yield store
    assert "RUNNING" not in store.statuses()


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files of all jobs of a test: whatever it does to them, the next one
    leaves none there.

    Its path is short, as a job has a folder of its own there.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        monkeypatch.setattr(disk, "SHARED", Path(folder))
        disk.remove_abandoned()
        of_mlflow = "tmp*"  # which `mlflow run` itself makes, and leaves
        assert [path for path in Path(folder).iterdir() if not path.match(of_mlflow)] == []


@pytest.fixture
def tipcast(temporary: Path, jobs: list[Job], store: Store, tmp_path: Path) -> Callable[..., Job]:
    """Start `tipcast ...` in a process that has loaded its libraries, or any command; it is held at
    a point.
    """

    def begin(
        *words: str,
        name: str = "job",
        hold: str = "",
        gate: Path | None = None,
        before: Callable[[], None] | None = None,
        command: Sequence[str] = (),
        folder: Path | None = None,
        **more: str,
    ) -> Job:
        job_folder = tmp_path / name
        job_folder.mkdir()
        gate = gate or job_folder / "gate"
        more = {
            "TMPDIR": str(temporary),
            **more,
            "MLFLOW_TRACKING_URI": store.uri,
            "TIPCAST_GATE": f"{hold}:{gate}",
        }
        variables = warm.environment() | more
        process: subprocess.Popen[bytes] | warm.Job
        if command:
            with (
                (job_folder / "stdout").open("wb") as out,
                (job_folder / "stderr").open("wb") as err,
            ):
                process = subprocess.Popen(
                    command,
                    cwd=folder or job_folder,
                    env=variables,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
        else:
            process = warm.start(words, job_folder, variables, before)
        jobs.append(Job(process, job_folder, gate))
        return jobs[-1]

    return begin


@pytest.fixture
def scheduler(tipcast: Callable[..., Job], tmp_path: Path) -> tuple[Job, str]:
    """A Dask scheduler without workers, and its address."""
    words = [
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
        "--scheduler-file",
        "scheduler.json",
    ]
    command = [sys.executable, "-m", "dask", "scheduler", *words]
    # Dask's own folders stay
    job = tipcast(command=command, name="scheduler", TMPDIR=str(tmp_path))
    file = job.folder / "scheduler.json"
    job.wait_until(lambda: file.exists() and file.read_text().endswith("}"))
    return job, str(json.loads(file.read_text())["address"])


@pytest.fixture
def worker(
    tipcast: Callable[..., Job], scheduler: tuple[Job, str], tmp_path: Path
) -> Callable[..., Job]:
    """Start a worker of one thread for that scheduler."""
    words = [scheduler[1], "--nthreads", "1", "--host", "127.0.0.1", "--no-dashboard", "--no-nanny"]
    command = [sys.executable, "-m", "dask", "worker", *words]
    return partial(tipcast, command=command, name="worker", TMPDIR=str(tmp_path))
