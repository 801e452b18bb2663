"""Every way of launching: `mlflow run`, `python -m tipcast` and the installed command."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest
from tests import warm
from tests.conftest import python

from tipcast import __version__, cli

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = "$(touch broken) `touch broken` ; touch broken | {0} ' \" && touch broken"


def query(store: Path | str, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(store)) as database:
        return database.execute(sql).fetchall()


@dataclass(frozen=True)
class Launched:
    """What `mlflow run` left behind."""

    project: Path
    store: str
    words: str
    """What it said."""

    def pairs(self, table: str) -> dict[str, Any]:
        return dict(query(self.store, f"select key, value from {table}"))

    @property
    def runs(self) -> list[tuple[Any, ...]]:
        return query(self.store, "select name, status, run_uuid from runs")


@pytest.fixture(scope="module")
def launched(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """From a copy of what it needs, without git, in this environment."""
    folder = tmp_path_factory.mktemp("launched")
    project = folder / "project"
    store = shutil.copy(tables, folder)
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, project / name)
    for name in ("MLproject", "conda.yaml"):
        shutil.copy(ROOT / name, project)
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"MLFLOW_TRACKING_URI": f"sqlite:///{store}", "PATH": scripts, "PYTHONPATH": ""}
    given = [
        "model=random_forest",
        "model.params.max_depth=4",
        "data.rows=5000",
        f"tracking.run_name={HOSTILE}",
    ]
    words = [word for parameter in given for word in ("-P", parameter)]
    ended = python(
        project, "-m", "mlflow", "run", ".", "--env-manager", "local", *words, **variables
    )
    assert ended.returncode == 0, ended.stderr
    return Launched(project, str(store), ended.stdout + ended.stderr)


def test_mlflow_run_trains_in_the_launchers_run(launched: Launched) -> None:
    ((_, status, run_id),) = launched.runs
    tags = launched.pairs("tags")
    assert status == "FINISHED"
    assert launched.pairs("latest_metrics")["test/auc"] > 0.52
    assert (tags["mlflow.project.entryPoint"], tags["job"]) == ("main", "train")
    assert run_id in launched.words


def test_a_value_of_mlflow_run_arrives_as_it_was_typed(launched: Launched) -> None:
    """No shell has read it."""
    ((name, _, _),) = launched.runs
    assert name == HOSTILE
    assert not list(launched.project.rglob("broken"))


def test_parameters_of_mlflow_run_are_those_of_the_training(launched: Launched) -> None:
    params = launched.pairs("params")
    assert params.items() >= {"model.params.max_depth": "4", "model": "random_forest"}.items()
    assert params["model.name"] == "random_forest"


def test_a_mistake_is_a_tag_of_the_launchers_run(
    tables: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """`mlflow run` has opened it, passes its parameters as flags, and ends it as FAILED by the exit
    code.
    """
    uri = f"sqlite:///{shutil.copy(tables, tmp_path)}"
    client = mlflow.MlflowClient(uri)
    run_id = client.create_run("0").info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    assert cli.main(["train", "--model.params.max_dept", "4"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(
        r"error\[C001\] model.params.max_dept: .* Fix: did you mean model.params.max_depth", line
    )
    tags = client.get_run(run_id).data.tags
    assert (tags["error.code"], tags["error.message"]) == ("C001", line)


def test_a_worker_that_does_not_start_ends_the_job(tables: Path, tmp_path: Path) -> None:
    """What it says stands above the job's last line."""
    store = shutil.copy(tables, tmp_path)
    said = "import os, sys; print('no such card', file=sys.stderr, flush=True); os._exit(3)"
    (tmp_path / "ends.py").write_text(said)
    command = [
        "train",
        "data.rows=2000",
        "cluster.n_workers=2",
        "cluster.processes=true",
        "cluster.wait_s=300",
    ]
    preload = {"DASK_DISTRIBUTED__WORKER__PRELOAD": str(tmp_path / "ends.py")}
    words = [*command, f"tracking.uri=sqlite:///{store}"]
    code = warm.start(words, tmp_path, warm.environment() | preload).wait(300)
    *before, last = (tmp_path / "stderr").read_text().splitlines()
    assert re.match(
        r"error\[K002\] cluster=local: a worker process died during startup, or .* Fix: ", last
    )
    assert "no such card" in "\n".join(before), before
    assert code == 4
    assert query(store, "select status from runs") == [("FAILED",)]


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
@pytest.mark.parametrize("name", ["x" * 150, "absent"])
def test_temporary_folders_of_batch_systems(name: str, tables: Path, tmp_path: Path) -> None:
    """A socket's path may have 108 bytes; where the folder is not there, Python takes another."""
    folder = tmp_path / name
    store = shutil.copy(tables, tmp_path)
    if name != "absent":
        folder.mkdir()
    words = [
        "prepare",
        "data.months=2019-01",
        "data.rows=1000",
        "out=months",
        "cluster.n_workers=1",
    ]
    ended = python(
        tmp_path,
        "-m",
        "tipcast",
        *words,
        TMPDIR=str(folder),
        MLFLOW_TRACKING_URI=f"sqlite:///{store}",
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "months").is_dir()


def test_files_with_the_names_of_libraries_are_not_imported(tables: Path, tmp_path: Path) -> None:
    """Neither by the command nor by its two workers, and they stay alone in the working folder."""
    store = shutil.copy(tables, tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    names = {
        f"{name}.py"
        for name in ("dask", "numbers", "queue", "random", "sklearn", "tipcast", "types", "xgboost")
    }
    for name in names:
        (folder / name).write_text("raise SystemExit(f'imported {__file__}')")
    words = ["data.rows=2000", "cluster.n_workers=2", "model.params.n_estimators=5"]
    command = [
        str(Path(sys.executable).parent / "tipcast"),
        "train",
        *words,
        f"tracking.uri=sqlite:///{store}",
    ]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "imported" not in ended.stdout + ended.stderr
    assert {path.name for path in folder.iterdir()} - {"mlruns"} == names


LOADING = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "tipcast.config.schema":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["tipcast", "train"]
runpy.run_module("tipcast", run_name="__main__")
"""


def test_ctrl_c_while_the_command_loads_prints_no_traceback(tmp_path: Path) -> None:
    ended = python(tmp_path, "-c", LOADING)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


SCRIPT = """
import sys, threading
from tipcast.cli import main
print('begun')
codes = []
thread = threading.Thread(target=lambda: codes.append(main(sys.argv[1:])))
thread.start()
thread.join()
print('ended', *codes)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A script that has called the command from a thread, without a guard of its main module."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "script.py").write_text(SCRIPT)
    words = [
        "-q",
        "prepare",
        "data.months=2019-01",
        "data.rows=1000",
        "out=months",
        "cluster.n_workers=1",
    ]
    return python(folder, "script.py", *words)


def test_a_script_may_call_it_from_any_thread(script: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in script.stderr
    assert script.stdout.splitlines()[-1] == "ended 0"


def test_a_script_needs_no_guard(script: subprocess.CompletedProcess[str]) -> None:
    """Python runs a script again in the processes that it spawns."""
    assert script.stdout.count("begun") == 1


def test_the_command_tells_its_version(tmp_path: Path) -> None:
    assert python(tmp_path, "-m", "tipcast", "--version").stdout == f"tipcast {__version__}\n"
