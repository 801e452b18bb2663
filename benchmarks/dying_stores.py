"""Tracking stores that a benchmark kills, freezes and starts again: an MLflow server, and
PostgreSQL.

    with closing(Server(folder)) as store:
        store.start()
        store.kill()
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

START_S = 180.0
"""Most seconds until a store answers, also on a busy machine."""
END_S = 30.0
"""Most seconds until a process that was asked to end has ended."""
LIVING: set[int] = set()
"""Processes of all stores and jobs that have been started and not ended yet."""


def wait_until(condition: Callable[[], object], limit_s: float, what: str) -> None:
    """Wait until a condition holds; TimeoutError after so many seconds."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.05)


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all below it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end_family(pid: int) -> None:
    """Kill a process that leads a group, its group, and all below it."""
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    LIVING.discard(pid)


def end_all() -> None:
    """Kill everything that was started, as when this script is interrupted."""
    for pid in list(LIVING):
        end_family(pid)


atexit.register(end_all)


class Store:
    """A store that is a process with others below it, in a folder that has its files."""

    NAME = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """Address of the store, the same after each start."""
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _how(self) -> dict[str, Any]:
        """Return more arguments of its Popen."""
        return {}

    def _answers(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start the store on its files, and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._how(),
            )
        LIVING.add(self._process.pid)
        wait_until(self._answers, START_S, f"{self.NAME} answers; its log is {self._folder}/log")

    def kill(self) -> None:
        """Kill all of its processes, if it runs."""
        if self._process is not None:
            end_family(self._process.pid)
            self._process.wait(END_S)
            self._process = None

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask its first process to end, and wait for that."""
        assert self._process
        self._process.send_signal(number)
        self._process.wait(END_S)
        self.kill()

    def freeze(self) -> None:
        """Stop all of its processes where they are."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let its processes go on."""
        self._signal(signal.SIGCONT)
        wait_until(self._answers, START_S, f"{self.NAME} answers again")

    def _signal(self, number: signal.Signals) -> None:
        assert self._process
        self._process.send_signal(number)  # the first one: no more come
        for process in family(self._process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    close = kill


class Server(Store):
    """`mlflow server` on an sqlite file, with the artifacts that it serves."""

    NAME = "server"

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _command(self) -> list[str]:
        words = ["--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        words += ["--backend-store-uri", "sqlite:///server.db"]
        words += ["--artifacts-destination", "./artifacts"]
        return [sys.executable, "-m", "mlflow", "server", *words]

    def _how(self) -> dict[str, Any]:
        variables = {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        return {"env": {**os.environ, **variables}}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                return True
        except OSError:
            return False


class PostgreSQL(Store):
    """A database server, with a cluster of databases of its own."""

    NAME = "postgresql"
    USER = "nobody" if os.getuid() == 0 else None
    """User whom its processes run as: never root."""

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg://mlflow@127.0.0.1:{self._port}/postgres"

    def make(self) -> None:
        """Make its files in the folder, which becomes that of its user."""
        if self.USER:
            shutil.chown(self._folder, self.USER)
        words = ["-U", "mlflow", "-A", "trust", "-E", "UTF8", "--no-sync", "-D", "data"]
        subprocess.run(
            [program("initdb"), *words],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=START_S,
            **self._how(),
        )

    def _command(self) -> list[str]:
        settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"]
        words = [word for setting in settings for word in ("-c", setting)]
        return [program("postgres"), "-D", "data", "-p", str(self._port), *words]

    def _how(self) -> dict[str, Any]:
        return {"user": self.USER, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}}

    def _answers(self) -> bool:
        import psycopg

        address = self.uri.replace("+psycopg", "")
        try:
            psycopg.connect(address, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop_at_once(self) -> None:
        """End it as `pg_ctl stop --mode immediate` does."""
        self.end(signal.SIGQUIT)


def program(name: str) -> str:
    """Return the path of a program of PostgreSQL, which Debian keeps off the PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    path = os.pathsep.join([os.environ["PATH"], *map(str, folders)])
    if found := shutil.which(name, path=path):
        return found
    raise SystemExit(f"no {name} here (Debian: apt-get install postgresql)")
