"""Hydra's launcher `dask` under Hydra's own suite for launchers, unchanged, and on a cluster that
is up.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from hydra.core.singleton import Singleton
from hydra.test_utils.launcher_common_tests import LauncherTestSuite
from hydra.version import VersionBase
from tests.waiting import WATCHDOG_S, wait_until

APP = """
import logging
import hydra
from omegaconf import DictConfig

@hydra.main(version_base="1.3", config_path=None)
def app(config: DictConfig) -> None:
    logger = logging.getLogger("distributed.worker")
    logger.error("Failed to communicate with scheduler during heartbeat.")
    if config.get("x") == config.get("bad"):
        raise ValueError(f"x is {config.x}")
    open("done", "w").write(str(config.get("x")))

if __name__ == "__main__":
    app()
"""


@pytest.fixture(autouse=True)
def _source_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let applications in other folders find this source, and Hydra be of no version that another
    test has set.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    monkeypatch.delitem(Singleton._instances, VersionBase, raising=False)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("launcher_name", "overrides"), [("dask", ["hydra.launcher.n_workers=2"])])
class TestLauncher(LauncherTestSuite):
    """All of Hydra's tests of a launcher, which it finds as a plugin."""


def _app(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "app.py").write_text(APP)
    command = [
        sys.executable,
        "app.py",
        "-m",
        "hydra/launcher=dask",
        "hydra.job.chdir=true",
        "hydra.sweep.dir=out",
    ]
    return subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_jobs_run_on_the_workers_of_an_address(tmp_path: Path) -> None:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=2, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        ended = _app(
            tmp_path, f"hydra.launcher.address='{cluster.scheduler_address}'", "+x=range(0,4)"
        )
    assert ended.returncode == 0, ended.stderr
    assert [(tmp_path / f"out/{n}/done").read_text() for n in range(4)] == ["0", "1", "2", "3"]


def test_a_job_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    ended = _app(
        tmp_path,
        "hydra.launcher.n_workers=1",
        "hydra.sweeper.max_batch_size=2",
        "+x=1,2,3,4",
        "+bad=3",
    )
    assert ended.returncode == 1
    assert "x is 3" in ended.stderr
    # Dask tells so, with a traceback, where a worker's end cuts it off
    assert "during heartbeat" not in ended.stderr
    assert [n for n in range(4) if (tmp_path / f"out/{n}/done").exists()] == [0, 1, 3]


def _clients(dask_scheduler: Any) -> int:
    """Return how many clients a scheduler has."""
    return sum(name.startswith("Client-") for name in dask_scheduler.clients)


def test_a_scheduler_that_freezes_ends_the_launch(tmp_path: Path) -> None:
    impatient = "from tipcast.compute import watch\nwatch.SILENT_S = 1.0\n"
    (tmp_path / "app.py").write_text(impatient + APP)
    file = tmp_path / "scheduler.json"
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    command = [sys.executable, "-m", "dask", "scheduler", *words]

    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as scheduler:
        try:
            wait_until(lambda: file.exists() and file.read_text().endswith("}"))
            address = json.loads(file.read_text())["address"]
            settings = ["hydra/launcher=dask", f"hydra.launcher.address='{address}'", "+x=1"]
            app = subprocess.Popen(
                [sys.executable, "app.py", "-m", *settings],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            with Client(address, set_as_default=False) as client:
                wait_until(lambda: client.run_on_scheduler(_clients) == 2)
            os.kill(scheduler.pid, signal.SIGSTOP)
            _, stderr = app.communicate(timeout=WATCHDOG_S)
        finally:
            scheduler.kill()
    assert app.returncode == 1
    assert "the scheduler has not answered for 1 s" in stderr
