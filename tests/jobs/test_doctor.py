"""`tipcast doctor`: what it finds wrong here, with made-up GPUs and packages, and how it ends."""

import contextlib
import functools
import io
import json
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import mlflow
import pytest
import xgboost
from dask.utils import format_bytes
from distributed import Client, LocalCluster
from distributed.system import MEMORY_LIMIT
from tests.conftest import NO_PAGES
from tests.waiting import WATCHDOG_S

import tipcast
from tipcast import cli
from tipcast.compute import gpus
from tipcast.compute.base import count
from tipcast.compute.cluster import cores, worker_info
from tipcast.compute.gpus import Gpu
from tipcast.config import schema
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, LocalCudaCluster, SchedulerCluster
from tipcast.jobs import doctor

Doctor = Callable[..., tuple[int, dict[str, Any], str]]
CPU, GPU = BackendSpec("cpu"), BackendSpec("gpu")


def run_doctor(store: str, *overrides: str) -> tuple[int, dict[str, Any], str]:
    """Return the exit code of the command, check -> row of its JSON, and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["doctor", "print=json", f"tracking.uri={store}", *overrides])
    said = json.loads(out.getvalue().splitlines()[-1])
    assert said["command"].startswith("tipcast doctor print=json")
    return code, {row["check"]: row for row in said["checks"]}, err.getvalue()


@pytest.fixture
def ask(store: str) -> Doctor:
    """Run the command."""
    return functools.partial(run_doctor, store)


def fails(checks: dict[str, Any]) -> dict[str, str]:
    return {name: row["code"] for name, row in checks.items() if row["state"] == "fail"}


@dataclass(frozen=True)
class Examined:
    """What the command has said of this machine, on which all is well."""

    exit_code: int
    checks: dict[str, Any]
    stderr: str
    start_cluster: Mock

    def finding(self, check: str) -> str:
        return str(self.checks[check]["found"])


@pytest.fixture(scope="module")
def examined(store: str, tmp_path_factory: pytest.TempPathFactory) -> Examined:
    words = ("cluster.n_workers=1", "cluster.threads_per_worker=1")
    start_cluster = Mock(side_effect=AssertionError("a cluster is started"))
    with (
        contextlib.chdir(tmp_path_factory.mktemp("examined")),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(LocalCluster, "__init__", start_cluster)
        shown = run_doctor(store, "tracking.experiment=nowhere-yet", *words)
    return Examined(*shown, start_cluster)


def test_a_machine_where_all_is_well_passes(examined: Examined) -> None:
    assert (examined.exit_code, fails(examined.checks), examined.stderr) == (0, {}, "")


def test_the_doctor_looks_at_all_that_a_job_needs(examined: Examined) -> None:
    looked_at = ["gpus", "packages", "workers", "tracking", "data.train", "data.test"]
    assert list(examined.checks) == looked_at


def test_the_doctor_starts_no_cluster(examined: Examined) -> None:
    assert not examined.start_cluster.called


def test_the_doctor_opens_no_run(examined: Examined, store: str) -> None:
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("nowhere-yet")
    assert client.search_runs([experiment.experiment_id]) == []


def test_the_doctor_says_how_many_workers_there_would_be(examined: Examined) -> None:
    assert examined.finding("workers").startswith("1 worker of 1 thread and ")


def test_the_doctor_says_which_versions_are_here(examined: Examined) -> None:
    assert f"tipcast {tipcast.__version__}, python 3." in examined.finding("packages")


def test_the_doctor_says_what_xgboost_was_built_for(examined: Examined) -> None:
    device = "CUDA" if xgboost.build_info()["USE_CUDA"] else "CPU"
    assert f"a {device} build of XGBoost" in examined.finding("packages")


def test_the_doctor_says_which_rows_there_are(examined: Examined) -> None:
    finding = examined.finding("data.train")
    assert finding.endswith("yellow trips, 2019-01-01..2019-03-31")


@dataclass(frozen=True)
class Ill:
    """What the command has said where something is wrong."""

    words: list[str]
    expected_code: int
    expected_failures: dict[str, str]
    """Check -> code, the first first."""
    exit_code: int
    checks: dict[str, Any]
    stderr: str
    files: list[str]
    """In the working folder."""


@pytest.fixture(
    scope="module",
    params=[
        (["data=files", "data.train=missing.parquet"], 3, {"data.train": "D001"}),
        (
            ["tracking.uri=SERVER", "data=files", "data.train=missing.parquet"],
            5,
            {"tracking": "T001", "data.train": "D001"},
        ),
        (["tracking.uri=sqlite:///file/mlflow.db"], 5, {"tracking": "T002"}),
        (["cluster=scheduler", "cluster.address=tcp://192.0.2.1:8786"], 2, {"workers": "C009"}),
    ],
    ids=["missing_file", "no_server", "no_store", "no_scheduler"],
)
def ill(
    request: pytest.FixtureRequest, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Ill:
    words, code, failures = request.param
    folder = tmp_path_factory.mktemp("ill")
    (folder / "file").touch()
    with contextlib.chdir(folder), socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        shown = run_doctor(store, *(word.replace("SERVER", server) for word in words))
    files = [path.name for path in folder.iterdir()]
    return Ill(words, code, failures, *shown, files)


def test_the_first_failure_decides_the_exit_code(ill: Ill) -> None:
    assert ill.exit_code == ill.expected_code


def test_a_failure_hides_no_other(ill: Ill) -> None:
    assert fails(ill.checks) == ill.expected_failures


def test_a_failure_hides_no_check_that_passes(ill: Ill) -> None:
    if "data=files" in ill.words:
        assert "data.test" not in ill.checks, "it is not named"
    else:
        assert ill.checks["data.test"]["state"] == "ok"


def test_the_last_line_is_the_first_failure(ill: Ill) -> None:
    first = ill.checks[next(iter(ill.expected_failures))]
    where = first["found"].partition(": ")[0]
    assert ill.stderr.splitlines()[-1].startswith(f"error[{first['code']}] {where}: ")
    assert "Traceback" not in ill.stderr


def test_a_failure_has_a_fix(ill: Ill) -> None:
    assert ill.checks[next(iter(ill.expected_failures))]["fix"]


def test_the_doctor_leaves_nothing_in_the_working_folder(ill: Ill) -> None:
    assert ill.files == ["file"]


def test_whatever_a_check_raises_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: str
) -> None:
    def check() -> str:
        raise ValueError("https://ada:hunter2@host.example/x is odd\nand more")

    monkeypatch.setattr(doctor, "show_packages", check)
    assert cli.main(["doctor", f"tracking.uri={store}"]) == 2
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("packages"))
    assert (
        lines[at] == "packages    fail  packages: ValueError: https://host.example/x is odd [C022]"
    )
    assert lines[at + 1].strip().startswith("fix: repeat with debug=true")
    assert lines[-1].startswith("data.test   ok    "), "the table is whole"
    assert shown.err.startswith("error[C022] packages: ")


@pytest.mark.parametrize(
    ("backend", "version", "state"),
    [(GPU, "3.2.0", "warn"), (GPU, "3.4.1", "ok"), (CPU, "3.2.0", "ok")],
)
def test_a_stack_that_no_gpu_result_measures_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, backend: BackendSpec, version: str, state: str
) -> None:
    monkeypatch.setattr(xgboost, "__version__", version)
    row = doctor.passed(doctor.check_packages(backend))
    assert (row["state"], row["code"]) == (state, "")
    assert f"tipcast {tipcast.__version__}, python 3." in row["found"]
    assert row["found"].startswith(f"XGBoost {version} on Python 3.") == (state == "warn")
    assert ("Python 3.12" in row["fix"]) == (state == "warn")


# GPUs and workers of this machine


@pytest.fixture
def set_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the machine GPUs, with all that they need."""

    def make(*names: str) -> None:
        visible = [
            Gpu(f"NVIDIA {name}", 143_771 << 20, 143_000 << 20, "580.65.06", str(at))
            for at, name in enumerate(names)
        ]
        monkeypatch.setattr(gpus, "visible", lambda: visible)
        monkeypatch.setattr(gpus, "missing_packages", list)

    return make


HERE = f"this machine has {count(cores(), 'core')} and {format_bytes(MEMORY_LIMIT)}"


@pytest.mark.parametrize("memory", [None, "2GiB"])
def test_workers_on_cores_are_counted(memory: str | None) -> None:
    cluster = schema.LocalCluster("local", n_workers=2, threads_per_worker=3, memory_limit=memory)
    shown = memory or format_bytes(MEMORY_LIMIT // 2)
    assert doctor.check_workers(CPU, cluster) == f"2 workers of 3 threads and {shown}; {HERE}"


@pytest.mark.parametrize(("wanted", "words"), [(None, "3 workers"), (1, "1 worker")])
def test_workers_on_gpus_are_counted(
    set_gpus: Callable[..., None], wanted: int | None, words: str
) -> None:
    set_gpus("H200", "H200", "L4")
    cluster = LocalCudaCluster("local_cuda", n_workers=wanted, memory_limit="5GiB")
    assert doctor.check_workers(GPU, cluster) == f"{words} of 1 thread and 5GiB; {HERE}"


def test_gpus_are_counted_by_model(set_gpus: Callable[..., None]) -> None:
    set_gpus("H200", "H200", "L4")
    assert doctor.show_gpus().startswith(
        "2 x NVIDIA H200 140.40 GiB, 1 x NVIDIA L4 140.40 GiB, driver 580.65.06"
    )


def test_a_machine_without_a_gpu_says_so(set_gpus: Callable[..., None]) -> None:
    set_gpus()
    assert doctor.show_gpus() == "no NVIDIA GPU is visible"


def test_workers_on_gpus_that_are_not_there_fail(set_gpus: Callable[..., None]) -> None:
    set_gpus()
    with pytest.raises(TipcastError, match=r"K006.*backend=cpu"):
        doctor.check_workers(GPU, LocalCudaCluster("local_cuda"))


# A scheduler that runs already


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """Address of a scheduler with one worker in this process."""
    options = {
        "n_workers": 1,
        "threads_per_worker": 2,
        "memory_limit": "5GiB",
        "processes": False,
        **NO_PAGES,
    }
    with LocalCluster(host="tcp://127.0.0.1", **options) as cluster:
        yield str(cluster.scheduler_address)


def spec(address: str) -> SchedulerCluster:
    return SchedulerCluster(
        "scheduler", address=address, n_workers=1, wait_s=1, connect_timeout_s=WATCHDOG_S
    )


def test_a_scheduler_that_is_there(
    ask: Doctor, scheduler: str, set_gpus: Callable[..., None]
) -> None:
    code, found, _ = ask("cluster=scheduler", f"cluster.address={scheduler}")
    assert code == 0
    assert (
        found["workers"]["found"]
        == f"{scheduler}: 1 worker (1 of 2 threads and 5.00 GiB), wanted 1; same versions"
    )
    code, found, _ = ask(
        "cluster=scheduler",
        f"cluster.address={scheduler}",
        "cluster.n_workers=2",
        "cluster.wait_s=1",
    )
    assert (code, fails(found)) == (4, {"workers": "K002"})
    with Client(scheduler) as client:
        assert len(worker_info(client)) == 1, "the cluster is not ours to end"
    set_gpus()
    with pytest.raises(TipcastError, match=r"K006.*several threads"):
        doctor.check_workers(GPU, spec(scheduler))


def test_a_worker_without_the_same_tipcast(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def differences(**answers: object) -> list[str]:
        client: Any = SimpleNamespace(run=lambda *_, **__: answers)
        return doctor.differences(client)

    same = doctor._versions()
    assert differences(first=same, second=same) == []
    other = differences(first=same, second={**same, "tipcast": "9.9.9"})
    assert other == [f"tipcast {tipcast.__version__} here, 9.9.9 on 1 there"]
    lacking = differences(first=same, second=ModuleNotFoundError("No module named 'tipcast'"))
    assert lacking == [
        "1 of 2 workers have no tipcast, or another version: No module named 'tipcast'"
    ]
    monkeypatch.setattr(doctor, "differences", lambda _: other)
    with pytest.raises(TipcastError, match=f"K005.*{re.escape(other[0])}.*same requirements file"):
        doctor.check_workers(CPU, spec(scheduler))


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    """A table of a number, a text of three values and a price."""
    lines = [f"{row},a{row % 3},{row * 3 % 47}.5" for row in range(60)]
    path = tmp_path / "houses.csv"
    path.write_text("\n".join(["size,town,price", *lines]))
    return path


def test_a_table_is_looked_at_before_its_column_is_named(ask: Doctor, houses: Path) -> None:
    code, found, _ = ask("data=table", f"data.train={houses}")
    assert (code, found["data.train"]["found"]) == (0, "1 file, 1 part, rows")
    assert "task" not in found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task.target=price"], "price: regression, from 2 features"),
        (["task.target=town"], "town: multiclass of 3 classes, from 2 features"),
        (["task=clusters"], "groups of similar rows: clustering, from 3 features"),
    ],
)
def test_what_a_table_would_be_asked_for_is_said(
    ask: Doctor, houses: Path, words: list[str], said: str
) -> None:
    code, found, _ = ask("data=table", f"data.train={houses}", *words)
    assert (code, found["task"]["found"]) == (0, said)


def test_a_column_that_a_table_lacks_fails(ask: Doctor, houses: Path) -> None:
    code, found, _ = ask("data=table", f"data.train={houses}", "task.target=prize")
    assert (code, fails(found)) == (3, {"task": "D007"})
    assert found["task"]["fix"] == "did you mean price?"


@pytest.mark.parametrize(
    ("data", "target"), [("blobs", "label: multiclass of 8 classes"), ("regression", "y: regr")]
)
def test_made_rows_are_looked_at_with_their_task(ask: Doctor, data: str, target: str) -> None:
    code, found, _ = ask(f"data={data}")
    assert (code, fails(found)) == (0, {})
    assert found["data.train"]["found"] == f"100,000 rows, 1 part, {data} rows"
    assert found["data.test"]["found"] == f"20,000 rows, 1 part, {data} rows"
    assert found["task"]["found"].startswith(target)
