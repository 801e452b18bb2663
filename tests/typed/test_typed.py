"""Every command of README.md and docs, as a user types it: the console script's own process,
started by a shell.

And commands.yaml and docs/commands.md have what the documents show, and docs/seeds.md claims no
more than that.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import sqlite3
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import filelock
import pytest
from tests.waiting import wait_until

from tipcast import commands

from .conftest import WATCHDOG_S, environment, run, started
from .documents import PAGE, ROOT, Entry, commands_of_pages, entries, page, sample_lines, with_ids

LEFT = {
    "metric": "select run_uuid from latest_metrics where key = ?",
    "model": "select source_run_id from logged_models",
    "version": "select name, cast(version as text) from model_versions",
    "alias": "select alias, cast(version as text) from registered_model_aliases where name = "
    "'tipcast'",
}
TABLE = entries()
RUN = {name: entry for name, entry in TABLE.items() if not entry.cannot}


def test_every_command_of_the_documents_has_an_entry() -> None:
    commands = set(commands_of_pages())
    table = set(TABLE)
    assert sorted(commands - table) == []
    assert sorted(table - commands) == [], "the documents do not show these"


def test_the_page_is_as_written_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.typed"


def test_what_works_ran() -> None:
    """Commands of a row of docs/seeds.md that works ran, or need a GPU, compose, and a test or
    result is named.
    """
    rows = re.findall(
        r"^\| \d+ \|(.*)\|(.*)\|(.*)\| works \|$",
        (ROOT / "docs" / "seeds.md").read_text("utf-8"),
        re.M,
    )
    assert len(rows) > 60
    for _, how, shown_by in rows:
        for command in re.findall(r"`(tipcast [a-z]+(?: [^`]+)?)`", how.replace("\\|", "|")):
            assert TABLE[command].cannot in ("", "GPU"), command
            if TABLE[command].cannot:
                assert "`" in shown_by, command
                assert commands.compose_jobs(shlex.split(command)[1], shlex.split(command)[2:])


@pytest.mark.typed
@pytest.mark.parametrize("entry", list(RUN.values()), ids=list(RUN))
def test_a_command_runs_as_typed(
    entry: Entry,
    template: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "typed"
    # the store has absolute paths
    shutil.copytree(template, folder, ignore=shutil.ignore_patterns("mlruns"))
    ids = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
    variables = environment(folder)
    if entry.bucket:
        request.getfixturevalue("bucket")
        _fill_bucket(folder)
        variables |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    before = _rows(folder, "select run_uuid from runs")
    if entry.first:
        run(with_ids(entry.first, ids), folder, variables)
    with contextlib.ExitStack() as beside:
        # the command's text names it
        if port := urllib.parse.urlsplit(entry.serves or entry.ready).port:
            beside.enter_context(filelock.FileLock(f"{template}.{port}", timeout=2 * WATCHDOG_S))
        servers = [
            beside.enter_context(started(command, folder, variables)) for command in entry.beside
        ]
        said = (folder / "servers").read_text
        if entry.ready:
            _answers(entry.ready, folder)
            workers = sum(map(int, re.findall(r"--nworkers (\d+)", " ".join(entry.beside))))
            wait_until(lambda: said().count("Registered to") >= workers, WATCHDOG_S, said)
        if entry.serves:
            beside.enter_context(started(entry.typed(ids), folder, variables))
            _answers(entry.serves, folder)
            wait_until(
                lambda: all(_is_left(what, folder, before, said()) for what in entry.leaves),
                WATCHDOG_S,
                said,
            )
            return
        output = run(entry.typed(ids), folder, variables)
        assert not [server for server in servers if server.poll() is not None], said()
    assert "Traceback" not in output, output[-6000:]
    ended = _rows(folder, "select run_uuid, status from runs")
    assert {status for run_id, status in ended if (run_id,) not in before} & {
        "FAILED",
        "KILLED",
    } == set(), output
    for line in sample_lines(entry.sample) if entry.sample else ():
        assert re.search(line, output), f"no line as {line} in\n{output}"
    for what in entry.leaves:
        assert _is_left(with_ids(what, ids), folder, before, output), (
            f"{what}: not there after\n{output}"
        )


def _answers(url: str, folder: Path) -> None:
    """Wait until an address answers: with `/health` over HTTP, otherwise by taking a connection."""
    address = urllib.parse.urlsplit(url)

    def open_it() -> bool:
        with contextlib.suppress(OSError):
            if address.path:
                return bool(urllib.request.urlopen(url, timeout=5).status == 200)
            socket.create_connection(
                (str(address.hostname), int(address.port or 0)), timeout=5
            ).close()
            return True
        return False

    wait_until(open_it, WATCHDOG_S, (folder / "servers").read_text)


def _rows(folder: Path, query: str, *values: object) -> set[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as store:
        return set(store.execute(query, values))


def _is_left(what: str, folder: Path, before: set[tuple[Any, ...]], output: str) -> bool:
    kind, _, name = what.partition(" ")
    if kind == "file":
        return any(folder.glob(name))
    if kind == "says":
        return name in output
    query, *values = LEFT[kind], *([name] if kind == "metric" else [])
    rows = _rows(folder, query, *values)
    return tuple(name.split()) in rows if kind in ("version", "alias") else bool(rows - before)


def _fill_bucket(folder: Path) -> None:
    import pandas as pd
    import s3fs

    # the command reads as nobody
    store = s3fs.S3FileSystem(s3_additional_kwargs={"ACL": "public-read"})
    store.mkdir("bucket")
    for month in ("2019-01", "2019-02"):
        with store.open(f"bucket/{month}.csv", "wb") as file:
            pd.read_parquet(folder / "months" / f"{month}.parquet").to_csv(file, index=False)
