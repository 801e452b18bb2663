"""`tipcast doctor`: what it finds wrong, what it leaves behind, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
from distributed import LocalCluster
from tests.conftest import NO_PAGES

from tipcast import cli
from tipcast.compute import gpus
from tipcast.config.compose import compose, to_object
from tipcast.config.errors import Finding, State, TipcastError
from tipcast.jobs import doctor
from tipcast.jobs.doctor import chosen, examine
from tipcast.measure import environment

Doctor = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def ask(store: str, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run the command; return its exit code, check -> row of its JSON, and standard error."""

    def run(*overrides: str) -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        code = cli.main(["doctor", "print=json", f"tracking.uri={store}", *overrides])
        shown = capsys.readouterr()
        said = json.loads(shown.out.splitlines()[-1])
        assert said["command"].startswith("tipcast doctor print=json")
        return code, {row["check"]: row for row in said["checks"]}, shown.err

    return run


def fails(found: dict[str, Any]) -> dict[str, str]:
    return {name: row["code"] for name, row in found.items() if row["state"] == "fail"}


def test_all_is_well_here(ask: Doctor, store: str) -> None:
    code, found, err = ask("tracking.experiment=nowhere-yet")
    assert (code, fails(found)) == (0, {}), err
    assert err == ""
    assert list(found) == ["gpus", "packages", "rapids", "xgboost", "workers", "tracking", "data.train", "data.test"]
    assert found["data.train"]["found"].endswith("yellow trips, 2019-01-01..2019-03-31")
    client = mlflow.MlflowClient(store)
    assert client.search_runs([client.get_experiment_by_name("nowhere-yet").experiment_id]) == []


def test_the_first_failure_decides_the_end(ask: Doctor, tmp_path: Path, closed_port: int) -> None:
    server = f"http://127.0.0.1:{closed_port}"
    missing = ("data=files", "data.train=missing.parquet")
    code, found, err = ask(*missing)
    assert (code, fails(found)) == (3, {"data.train": "D001"})
    assert "data.test" not in found, "it is not named"
    assert err.splitlines()[-1].startswith("error[D001] missing.parquet: ")
    code, found, err = ask(*missing, f"tracking.uri={server}")
    assert (code, fails(found)) == (5, {"tracking": "T001", "data.train": "D001"})
    assert found["tracking"]["fix"]
    assert err.splitlines()[-1].startswith(f"error[T001] {server}: ")
    assert not list(tmp_path.iterdir()), "nothing is left in the working folder"


def test_a_mistake_of_the_configuration(ask: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "print=json", "cluster.n_workers=0"]) == 2, "no table: no job would begin"
    shown = capsys.readouterr()
    assert (shown.out, shown.err.partition(":")[0]) == ("", "error[C003] cluster.n_workers")


def test_no_period_is_a_warning(ask: Doctor) -> None:
    code, found, _ = ask("data=tlc")
    assert code == 0
    assert found["data"]["state"] == "warning"


def test_months_are_looked_for_as_prepare_does(ask: Doctor) -> None:
    words = ("data.train=null", "data.test=null", "data.months=2019-01..2019-02", "data.rows=100")
    _, found, _ = ask(*words)
    assert found["data.months"]["found"] == "2 files, 100 rows, 2 parts, yellow trips, 2019-01-01..2019-02-28"
    assert "data.train" not in found


@pytest.mark.parametrize(
    ("words", "code", "failed"),
    [
        (["tracking.uri=sqlite:///file/mlflow.db"], 5, {"tracking": "T002"}),
        (["cluster=scheduler", "cluster.address=tcp://192.0.2.1:8786"], 2, {"workers": "C009"}),
        (
            ["cluster=scheduler", "cluster.address=tcp://127.0.0.1:1", "cluster.connect_timeout_s=1"],
            4,
            {"workers": "K001"},
        ),
    ],
)
def test_what_comes_after_a_failure_is_looked_at_too(
    ask: Doctor, tmp_path: Path, words: list[str], code: int, failed: dict[str, str]
) -> None:
    (tmp_path / "file").touch()
    ended, found, err = ask(*words)
    assert (ended, fails(found)) == (code, failed)
    assert "Traceback" not in err
    assert found["data.test"]["state"] == "ok"


def test_a_scheduler_that_is_there(ask: Doctor) -> None:
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, **NO_PAGES}
    with LocalCluster(host="tcp://127.0.0.1", **options) as cluster:
        address = cluster.scheduler_address
        code, found, _ = ask("cluster=scheduler", f"cluster.address={address}")
        assert (code, found["workers"]["state"]) == (0, "ok")
        code, found, _ = ask(
            "cluster=scheduler", f"cluster.address={address}", "cluster.n_workers=2", "cluster.wait_s=1"
        )
        assert (code, fails(found)) == (4, {"workers": "K002"})
        assert len(cluster.scheduler.workers) == 1, "the cluster is not ours to end"


def test_no_cluster_is_started(ask: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a cluster is started")

    monkeypatch.setattr(LocalCluster, "__init__", start)
    code, found, _ = ask("cluster.n_workers=1", "cluster.threads_per_worker=1")
    assert code == 0
    assert found["workers"]["found"].startswith("1 worker of 1 thread on ")


def test_versions_outside_their_ranges(ask: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "requirements", lambda extra: ["numpy<1", "pandas>=2"])
    code, found, err = ask()
    assert (code, fails(found)) == (2, {"packages": "C020"})
    assert "is not <1" in found["packages"]["found"]
    assert "pandas" not in found["packages"]["found"]
    assert err.startswith("error[C020] tipcast[cpu]: numpy ")


def test_gpus_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: str) -> None:
    """The line with its fix is there before the checks that take seconds begin."""
    if gpus.visible():
        pytest.skip("this machine has a GPU")
    shown: list[str] = []

    def versions_checked(*_: object) -> Any:
        shown.extend(capsys.readouterr().out.splitlines())
        return Finding("all")

    monkeypatch.setattr(doctor, "check_versions", versions_checked)
    assert cli.main(["doctor", "backend=gpu", f"tracking.uri={store}"]) == 2
    assert [line.split()[:2] for line in shown[:2]] == [["check", "state"], ["gpus", "fail"]]
    assert shown[1].endswith(" [C010]")
    assert shown[2].strip().startswith("fix: ")
    rest = capsys.readouterr()
    assert rest.out.splitlines()[-1].endswith(" fail"), "the table is whole"
    assert rest.err.startswith("error[C010] ")


def test_whatever_a_check_raises_is_a_line() -> None:
    def broken() -> Any:
        raise ValueError("https://ada:hunter2@host.example/x is odd\nand more")

    def leaving() -> Any:
        raise SystemExit(3)

    def stopped() -> Any:
        raise Terminated(143)

    class Terminated(SystemExit):
        """As a signal raises it."""

    with pytest.raises(Terminated):
        examine("stopped", stopped)
    finding = examine("broken", broken)
    assert finding.state is State.fail
    assert finding.found == "broken: ValueError: https://host.example/x is odd"
    assert finding.problem
    assert finding.problem.code == "C022"
    assert isinstance(finding.problem.__cause__, ValueError), "debug=true shows where"
    assert "SystemExit" in examine("leaving", leaving).found
    assert examine("fine", lambda: Finding("well")) == Finding("well")


def test_an_unknown_failure_ends_the_job_after_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: str
) -> None:
    def broken(*_: object) -> Any:
        raise KeyError("unforeseen")

    monkeypatch.setattr(doctor, "check_rapids", broken)
    (composed,) = compose("doctor", [f"tracking.uri={store}"])
    with pytest.raises(TipcastError, match="C022"):
        doctor.run(to_object(composed.config), "tipcast doctor")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "7 ok, 0 warning, 1 fail"
    assert sum(line.startswith("rapids      fail") for line in lines) == 1


@pytest.mark.parametrize(("option", "cuda"), [("cpu", False), ("gpu", True)])
def test_the_backend_decides_what_is_needed(option: str, cuda: bool) -> None:
    (composed,) = compose("doctor", [f"backend={option}"])
    checks: dict[str, Any] = chosen(to_object(composed.config))
    assert checks["packages"].args == (option,)
    assert checks["rapids"].args == checks["xgboost"].args == (cuda,)
