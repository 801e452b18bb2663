"""Every way of launching: `mlflow run`, `python -m tipcast` and the installed command."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import mlflow
import pytest
from tests import warm
from tests.conftest import python

from tipcast import __version__, cli

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ("MLproject", "conda.yaml", "src", "conf")
HOSTILE = "$(touch broken) `touch broken` ; touch broken | {0} ' \" && touch broken"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what `mlflow run` needs, without git."""
    copy = tmp_path_factory.mktemp("launch") / "project"
    copy.mkdir()
    for name in PROJECT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name)
        else:
            shutil.copy(ROOT / name, copy)
    return copy


def mlflow_run(project: Path, store: Path | str, *parameters: str) -> subprocess.CompletedProcess[str]:
    """Run the project's main entry point in this environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PYTHONPATH"))}
    environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{store}"
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    words = [word for parameter in parameters for word in ("-P", parameter)]
    return subprocess.run(
        [sys.executable, "-m", "mlflow", "run", ".", "--env-manager", "local", *words],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def query(store: Path | str, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(store)) as database:
        return database.execute(sql).fetchall()


def test_mlflow_run_trains_in_the_launchers_run(project: Path, tables: Path, tmp_path: Path) -> None:
    store = shutil.copy(tables, tmp_path)
    ended = mlflow_run(
        project,
        store,
        "model=random_forest",
        "model.params.max_depth=4",
        "data.rows=5000",
        f"tracking.run_name={HOSTILE}",
    )
    assert ended.returncode == 0, ended.stderr
    ((name, status, run_id),) = query(store, "select name, status, run_uuid from runs")
    assert status == "FINISHED"
    assert name == HOSTILE, "a value arrives as it was typed and no shell has read it"
    assert not list(project.rglob("broken"))
    params = dict(query(store, "select key, value from params"))
    assert params["model.params.max_depth"] == "4"
    assert params["model"] == "random_forest"
    assert params["model.name"] == "random_forest"
    assert len(params) == len(query(store, "select key from params"))
    metrics = dict(query(store, "select key, value from latest_metrics"))
    assert metrics["test/auc"] > 0.52
    tags = dict(query(store, "select key, value from tags"))
    assert tags["mlflow.project.entryPoint"] == "main"
    assert tags["job"] == "train"
    assert run_id in ended.stdout + ended.stderr


def test_a_mistake_is_a_tag_of_the_launchers_run(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`mlflow run` has opened it, passes its parameters as flags, and ends it as FAILED by the exit code."""
    uri = f"sqlite:///{shutil.copy(tables, tmp_path)}"
    client = mlflow.MlflowClient(uri)
    run_id = client.create_run("0").info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    assert cli.main(["train", "--model.params.max_dept", "4"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"error\[C001\] model.params.max_dept: .* Fix: did you mean model.params.max_depth", line)
    tags = client.get_run(run_id).data.tags
    assert (tags["error.code"], tags["error.message"]) == ("C001", line)


def test_python_runs_the_package(tmp_path: Path) -> None:
    ended = python(tmp_path, "-m", "tipcast", "--version")
    assert ended.stdout == f"tipcast {__version__}\n"


@pytest.mark.parametrize(
    ("text", "wait_s", "said"),
    [
        ("import os, sys; print('no such card', file=sys.stderr, flush=True); os._exit(3)", 300, "no such card"),
        ("import time; time.sleep(600)", 1, ""),
    ],
)
def test_a_worker_that_does_not_start_ends_the_job(
    text: str, wait_s: int, said: str, tables: Path, tmp_path: Path
) -> None:
    """What it says stands above the job's last line."""
    store = shutil.copy(tables, tmp_path)
    (tmp_path / "ends.py").write_text(text)
    command = ["train", "data.rows=2000", "cluster.n_workers=2", "cluster.processes=true", f"cluster.wait_s={wait_s}"]
    preload = {"DASK_DISTRIBUTED__WORKER__PRELOAD": str(tmp_path / "ends.py")}
    words = [*command, f"tracking.uri=sqlite:///{store}"]
    code = warm.start(words, tmp_path, warm.environment() | preload).wait(300)
    *before, last = (tmp_path / "stderr").read_text().splitlines()
    assert re.match(r"error\[K002\] cluster=local: a worker process ended while it started, or .* Fix: ", last)
    assert said in "\n".join(before), before
    assert code == 4
    assert query(store, "select status from runs") == [("FAILED",)]


def test_a_script_may_call_it_from_any_thread_and_without_a_guard(tmp_path: Path) -> None:
    """Python runs a script again in the processes that it spawns."""
    script = tmp_path / "script.py"
    words = ["-q", "prepare", "data.months=2019-01", "data.rows=1000", "out=months", "cluster.n_workers=1"]
    script.write_text(
        "import threading\n"
        "from tipcast.cli import main\n"
        "print('begun')\n"
        "codes = []\n"
        f"thread = threading.Thread(target=lambda: codes.append(main({words})))\n"
        "thread.start()\n"
        "thread.join()\n"
        "print('ended', *codes)\n"
    )
    ended = python(tmp_path, script)
    assert "Traceback" not in ended.stderr
    assert ended.stdout.count("begun") == 1
    assert ended.stdout.splitlines()[-1] == "ended 0"
