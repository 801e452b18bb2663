"""Every command of README.md and docs, as a user types it: the console script's own process, started by a shell."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import filelock
import pytest
from tests.waiting import wait_until

from .conftest import environment
from .documents import Entry, entries, with_ids

WATCHDOG_S = 300.0


RUN = {name: entry for name, entry in entries().items() if not entry.cannot}


@pytest.mark.typed
@pytest.mark.parametrize("entry", list(RUN.values()), ids=list(RUN))
def test_a_command_runs_as_typed(
    entry: Entry, template: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "typed"
    shutil.copytree(template, folder, ignore=shutil.ignore_patterns("mlruns"))  # the store has absolute paths
    ids = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
    variables = environment(folder)
    if entry.bucket:
        request.getfixturevalue("bucket")
        _fill_bucket(folder)
        variables |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    before = _rows(folder, "select run_uuid from runs")
    if entry.first:
        _run(with_ids(entry.first, ids), folder, variables)
    with contextlib.ExitStack() as started:
        if entry.serves or entry.ready:  # the command's text names its port
            started.enter_context(filelock.FileLock(f"{template}.ports", timeout=2 * WATCHDOG_S))
        for command in entry.beside:
            started.enter_context(_started(command, folder, variables))
        if entry.ready:
            _answers(entry.ready, folder)
        if entry.serves:
            started.enter_context(_started(entry.typed(ids), folder, variables))
            _answers(entry.serves, folder)
            return
        output = _run(entry.typed(ids), folder, variables)
    ended = _rows(folder, "select run_uuid, status from runs")
    assert {status for run, status in ended if (run,) not in before} & {"FAILED", "KILLED"} == set(), output
    for what in entry.leaves:
        assert _is_left(with_ids(what, ids), folder, before, output), f"{what}: not there after\n{output}"


def _begun(command: str, folder: Path, variables: dict[str, str], output: str) -> subprocess.Popen[bytes]:
    with (folder / output).open("ab") as file:
        return subprocess.Popen(
            ["bash", "-ec", command], cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _run(command: str, folder: Path, variables: dict[str, str]) -> str:
    """Return what a command prints; its processes end with it."""
    (folder / "output").unlink(missing_ok=True)
    process = _begun(command, folder, variables, "output")
    try:
        code = process.wait(WATCHDOG_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = (folder / "output").read_text(encoding="utf-8", errors="replace")
    assert code == 0, f"{command}\nended with {code}:\n{text[-6000:]}"
    assert "Traceback" not in text, text[-6000:]
    return text


@contextlib.contextmanager
def _started(command: str, folder: Path, variables: dict[str, str]) -> Iterator[None]:
    process = _begun(command, folder, variables, "servers")
    try:
        yield
        assert process.poll() is None, (folder / "servers").read_text(encoding="utf-8")[-6000:]
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(20)


def _answers(url: str, folder: Path) -> None:
    """Wait until an address answers: with `/health` over HTTP, otherwise by taking a connection."""
    address = urllib.parse.urlsplit(url)

    def open_it() -> bool:
        with contextlib.suppress(OSError):
            if address.path:
                return bool(urllib.request.urlopen(url, timeout=5).status == 200)
            socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=5).close()
            return True
        return False

    wait_until(open_it, WATCHDOG_S, (folder / "servers").read_text)


def _rows(folder: Path, query: str, *values: object) -> set[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        return set(store.execute(query, values))


def _is_left(what: str, folder: Path, before: set[tuple[Any, ...]], output: str) -> bool:
    kind, _, name = what.partition(" ")
    if kind == "metric":
        found = _rows(folder, "select run_uuid from latest_metrics where key = ?", name)
        return bool(found - before)
    if kind == "model":
        return bool(_rows(folder, "select source_run_id from logged_models") - before)
    if kind == "version":
        return tuple(name.split()) in _rows(folder, "select name, cast(version as text) from model_versions")
    if kind == "alias":
        aliases = _rows(
            folder, "select alias, cast(version as text) from registered_model_aliases where name = 'tipcast'"
        )
        return tuple(name.split()) in aliases
    if kind == "file":
        return any(folder.glob(name))
    assert kind == "says", what
    return name in output


def _fill_bucket(folder: Path) -> None:
    import pandas as pd
    import s3fs

    store = s3fs.S3FileSystem(s3_additional_kwargs={"ACL": "public-read"})  # the command reads as nobody
    store.mkdir("bucket")
    for month in ("2019-01", "2019-02"):
        with store.open(f"bucket/{month}.csv", "wb") as file:
            pd.read_parquet(folder / "months" / f"{month}.parquet").to_csv(file, index=False)
