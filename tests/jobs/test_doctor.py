"""`tipcast doctor`: what it finds wrong here, with made-up GPUs and packages, and how it ends."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
import xgboost
from distributed import Client, LocalCluster
from distributed.system import MEMORY_LIMIT
from tests.conftest import NO_PAGES, python
from tests.waiting import WATCHDOG_S, wait_until

import tipcast
from tipcast import cli
from tipcast.compute import gpus
from tipcast.compute.base import count
from tipcast.compute.cluster import cores
from tipcast.compute.gpus import Gpu
from tipcast.compute.workers import known
from tipcast.config import schema
from tipcast.config.compose import compose, to_object
from tipcast.config.errors import Finding, State, TipcastError
from tipcast.config.schema import BackendSpec, LocalCudaCluster, SchedulerCluster
from tipcast.jobs import doctor

Doctor = Callable[..., tuple[int, dict[str, Any], str]]
Install = Callable[..., None]
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CUDA = bool(xgboost.build_info()["USE_CUDA"])
CPU, GPU = BackendSpec("cpu"), BackendSpec("gpu")
THERE = SchedulerCluster("scheduler", address="tcp://127.0.0.1:8786")


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


def test_all_is_well_here_and_no_cluster_is_started(ask: Doctor, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a cluster is started")

    monkeypatch.setattr(LocalCluster, "__init__", start)
    words = ("cluster.n_workers=1", "cluster.threads_per_worker=1")
    code, found, err = ask("tracking.experiment=nowhere-yet", *words)
    assert (code, fails(found), err) == (0, {}, "")
    assert list(found) == ["gpus", "packages", "xgboost", "workers", "tracking", "data.train", "data.test"]
    assert found["workers"]["found"].startswith("1 worker of 1 thread and ")
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


def test_a_mistake_of_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "print=json", "cluster.n_workers=0"]) == 2, "no table: no job would begin"
    shown = capsys.readouterr()
    assert (shown.out, shown.err.partition(":")[0]) == ("", "error[C003] cluster.n_workers")


def test_the_periods_that_are_named_are_looked_for(ask: Doctor) -> None:
    code, found, _ = ask("data=tlc")
    assert (code, found["data"]["state"]) == (0, "warning"), "none is named"
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


def test_versions_outside_their_ranges(ask: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requirements", lambda extra: ["numpy<1", "pandas>=2"])
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


def test_whatever_a_check_raises_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: str
) -> None:
    def ends(problem: Exception) -> Callable[..., Finding]:
        def check(*_: object) -> Finding:
            raise problem

        return check

    finding = doctor.examine("broken", ends(ValueError("https://ada:hunter2@host.example/x is odd\nand more")))
    assert finding.found == "broken: ValueError: https://host.example/x is odd"
    assert finding.problem
    assert finding.problem.code == "C022"
    assert isinstance(finding.problem.__cause__, ValueError), "debug=true shows where"
    monkeypatch.setattr(doctor, "check_xgboost", ends(KeyError("unforeseen")))
    (composed,) = compose("doctor", [f"tracking.uri={store}"])
    with pytest.raises(TipcastError, match="C022"):
        doctor.run(to_object(composed.config), "tipcast doctor")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "6 ok, 0 warning, 1 fail"
    assert sum(line.startswith("xgboost     fail") for line in lines) == 1


@pytest.mark.parametrize(("option", "cuda"), [("cpu", False), ("gpu", True)])
def test_the_backend_decides_what_is_needed(option: str, cuda: bool) -> None:
    (composed,) = compose("doctor", [f"backend={option}"])
    checks: dict[str, Any] = doctor.chosen(to_object(composed.config))
    assert (checks["packages"].args, checks["xgboost"].args) == ((option,), (cuda,))


# GPUs and workers of this machine


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make GPUs up, with all that they need."""

    def make(*names: str, driver: str = "580.65.06") -> None:
        found = [Gpu(at, f"NVIDIA {name}", 143_771 << 20, driver) for at, name in enumerate(names)]
        monkeypatch.setattr(gpus, "visible", lambda: found)
        monkeypatch.setattr(gpus, "missing_packages", list)

    return make


@pytest.mark.parametrize(("driver", "state"), [("570.124", State.warning), ("580.65.06", State.ok), ("?", State.ok)])
def test_gpus_are_counted_and_an_old_driver_is_a_warning(has: Callable[..., None], driver: str, state: State) -> None:
    has("H200", "H200", "L4", driver=driver)
    finding = doctor.check_gpus(GPU, schema.LocalCluster("local"))
    assert finding.state is state
    assert finding.found.startswith(f"2 x NVIDIA H200 140 GiB, 1 x NVIDIA L4 140 GiB, driver {driver}")
    unused = doctor.check_gpus(CPU, schema.LocalCluster("local"))
    assert unused.state is State.ok, "what is not used may be old"
    assert unused.found.endswith("; backend=cpu uses none")


def test_only_a_gpu_backend_here_needs_a_gpu(has: Callable[..., None]) -> None:
    has()
    assert doctor.check_gpus(CPU, schema.LocalCluster("local")).state is State.ok
    assert "cluster=scheduler" in doctor.check_gpus(GPU, THERE).found
    with pytest.raises(TipcastError, match=r"C010.*backend=cpu"):
        doctor.check_gpus(GPU, LocalCudaCluster("local_cuda"))


@pytest.mark.parametrize(("wanted", "found"), [(None, "2 workers"), (1, "1 worker")])
def test_workers_on_gpus(has: Callable[..., None], wanted: int | None, found: str) -> None:
    has("H200", "H200")
    cluster = LocalCudaCluster("local_cuda", n_workers=wanted, memory_limit="5GiB")
    assert doctor.check_workers(GPU, cluster).found == f"{found} of 1 thread and 5 GiB on 2 GPUs"


@pytest.mark.parametrize(
    ("workers", "memory", "fix"),
    [
        (1, None, ""),
        (cores() + 1, None, "cluster.n_workers"),
        (1, MEMORY_LIMIT // 2 + (1 << 20), ""),
        (2, MEMORY_LIMIT // 2 + (1 << 20), "memory_limit"),
    ],
)
def test_workers_against_cores_and_memory(workers: int, memory: int | None, fix: str) -> None:
    limit = None if memory is None else f"{memory}B"
    spec = schema.LocalCluster("local", n_workers=workers, threads_per_worker=1, memory_limit=limit)
    finding = doctor.check_workers(CPU, spec)
    assert bool(finding.fix) == bool(fix)
    assert fix in finding.fix
    share = (memory or MEMORY_LIMIT // workers) / (1 << 30)
    assert f" of 1 thread and {share:.3g} GiB on {count(cores(), 'core')}" in finding.found


# A scheduler that runs already


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """Address of a scheduler with one worker in this process."""
    options = {"n_workers": 1, "threads_per_worker": 2, "memory_limit": "5GiB", "processes": False, **NO_PAGES}
    with LocalCluster(host="tcp://127.0.0.1", **options) as cluster:
        yield str(cluster.scheduler_address)


def spec(address: str, workers: int = 1) -> SchedulerCluster:
    return SchedulerCluster("scheduler", address=address, n_workers=workers, wait_s=1, connect_timeout_s=WATCHDOG_S)


def test_a_scheduler_that_is_there(ask: Doctor, scheduler: str) -> None:
    code, found, _ = ask("cluster=scheduler", f"cluster.address={scheduler}")
    assert code == 0
    assert found["workers"]["found"] == f"{scheduler}: 1 worker (1 of 2 threads and 5 GiB), wanted 1; same versions"
    code, found, _ = ask("cluster=scheduler", f"cluster.address={scheduler}", "cluster.n_workers=2", "cluster.wait_s=1")
    assert (code, fails(found)) == (4, {"workers": "K002"})
    with Client(scheduler) as client:
        assert len(known(client)) == 1, "the cluster is not ours to end"


def test_workers_that_a_gpu_job_would_refuse(scheduler: str, has: Callable[..., None]) -> None:
    has()
    with pytest.raises(TipcastError, match=r"K006.*several threads"):
        doctor.check_scheduler(GPU, spec(scheduler))


@pytest.mark.parametrize(
    ("whole", "told"),
    [(True, f"tipcast {tipcast.__version__} here, 9.9.9 on 1 there"), (False, "1 of 2 workers lack tipcast.*jobs")],
)
def test_a_worker_without_the_same_tipcast(whole: bool, told: str, scheduler: str, tmp_path: Path) -> None:
    package = tmp_path / "tipcast"
    if whole:
        shutil.copytree(ROOT / "src" / "tipcast", package, ignore=shutil.ignore_patterns("__pycache__"))
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text('__version__ = "9.9.9"\n')
    command = [sys.executable, "-m", "dask", "worker", scheduler, "--no-nanny", "--no-dashboard", "--nthreads", "1"]
    own = os.environ | {"PYTHONPATH": str(tmp_path)}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, cwd=tmp_path, env=own, stdout=log, stderr=log) as process,
        Client(scheduler) as client,
    ):
        try:
            client.wait_for_workers(2, timeout=WATCHDOG_S)
            with pytest.raises(TipcastError, match=f"K005.*{told}"):
                doctor.check_scheduler(CPU, spec(scheduler, 2))
        finally:
            process.kill()
            process.wait()
            wait_until(lambda: len(known(client)) == 1)


VERSIONS = {"python": "3.11.7", "dask": "2026.7.1", "xgboost": "3.2.0", "numpy": "2.4.6"}
BUILD = {"xgboost-cpu" if name == "xgboost" else name: version for name, version in VERSIONS.items()}
OTHER = VERSIONS | {"xgboost": "3.3.0"}
BARE = {name: version for name, version in VERSIONS.items() if name != "xgboost"}


@pytest.mark.parametrize(
    ("scheduler_has", "workers_have", "expected"),
    [
        ({"python": "3.11.9", "dask": "2026.7.1"}, [VERSIONS | {"numpy": "2"}, BUILD], []),
        (
            VERSIONS | {"dask": "1"},
            [OTHER, OTHER, BARE],
            ["dask 2026.7.1 here, 1 on 1 there", "xgboost 3.2.0 here, 3.3.0 on 2, none on 1 there"],
        ),
    ],
    ids=["builds and what only workers need are alike", "differences are counted"],
)
def test_differences(scheduler_has: dict[str, str], workers_have: list[dict[str, str]], expected: list[str]) -> None:
    class Answers:
        """Stands for a client whose cluster is asked for its versions."""

        def run(self, *_: Any, **__: Any) -> dict[str, str]:
            return {str(at): tipcast.__version__ for at in range(len(workers_have))}

        def get_versions(self, packages: list[str]) -> dict[str, Any]:
            workers = {str(at): {"packages": versions} for at, versions in enumerate(workers_have)}
            return {"client": {"packages": VERSIONS}, "scheduler": {"packages": scheduler_has}, "workers": workers}

    assert doctor.differences(Answers(), "here") == expected


# Packages


@pytest.fixture
def paths() -> list[str]:
    """The folders that packages are really in."""
    return list(sys.path)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str]) -> Path:
    """The only folder that packages are looked for in."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


@pytest.fixture
def install(site: Path) -> Install:
    """Write what an installer leaves of a package."""

    def write(name: str, version: str, *files: str, metadata: str = "") -> None:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        for file in files:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).touch()

    return write


def test_wrong_requirements_are_told() -> None:
    assert doctor.misfits(PROJECT["dependencies"], "cpu") == {}, "this environment fits"
    numpy = importlib.metadata.version("numpy")
    asked = ["numpy<1", "no-such-package>=3", "pandas>=2", 'scipy<0.1; extra == "gpu"', 'dask<1; extra == "cpu"']
    elsewhere = ["numpy<1; sys_platform == 'nowhere'", "NumPy>=1", "b>=1; python_version < '3'"]
    assert doctor.misfits([*elsewhere, *asked], "cpu") == {
        "numpy": f"numpy {numpy} is not <1",
        "no-such-package": "no-such-package is missing",
        "dask": f"dask {importlib.metadata.version('dask')} is not <1",
    }


def test_any_build_will_do(install: Install) -> None:
    install("cudf", "26.10.0a12", "cudf/__init__.py")
    install("cuml", "26.12.0a3", "cuml/__init__.py")
    install("dask-cudf-cu12", "26.10.0", "dask_cudf/__init__.py")
    install("xgboost", "3.2.0", "xgboost/__init__.py")
    install("xgboost-ray", "0.1", "xgboost_ray/__init__.py", "xgboost_ray/xgboost/__init__.py")
    assert doctor.misfits(["cudf-cu13==26.10.*", "xgboost-cpu>=3.2,<3.5"], "cpu") == {}
    asked = ["cuml-cu13==26.10.*", "xgboost-cpu>=3.3", "dask-cuda", "dask-cudf-cu13==26.10.*"]
    assert doctor.misfits(asked, "cpu") == {
        "cuml-cu13": "cuml-cu13 26.12.0a3 is not ==26.10.*",
        "xgboost-cpu": "xgboost-cpu 3.2.0 is not >=3.3",
        "dask-cuda": "dask-cuda is missing",
        "dask-cudf-cu13": "dask-cudf-cu13 is missing",
    }


def test_requirements_of_the_installed_distribution(install: Install) -> None:
    needs = 'Requires-Dist: numpy>=2\nRequires-Dist: uv; extra == "cpu"\n'
    install("tipcast", "0.1.0", metadata=needs)
    with pytest.raises(TipcastError, match=r"C020.*numpy is missing.*requirements/cpu.txt"):
        doctor.check_versions("cpu")
    install("numpy", "2.4.0")
    finding = doctor.check_versions("cpu")
    assert finding.state is State.warning, "no job needs uv"
    assert finding.found == "uv is missing: needed by mlflow run --env-manager uv"
    install("uv", "0.9")
    assert doctor.check_versions("cpu").state is State.ok


def test_requirements_of_a_checkout_or_of_nothing(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.requirements("gpu") == [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["gpu"]]
    monkeypatch.setattr(doctor, "conf_dir", lambda: site / "tipcast" / "conf")
    with pytest.raises(TipcastError, match="C020"):
        doctor.requirements("cpu")


def test_the_build_of_this_environment() -> None:
    finding = doctor.check_xgboost(cuda=CUDA)
    assert finding.state is State.ok
    assert xgboost.__version__ in finding.found
    assert finding.found.endswith("CUDA build" if CUDA else "CPU build")
    if CUDA:
        assert doctor.check_xgboost(cuda=False).state is State.ok, "a CUDA build trains on a CPU too"
        return
    with pytest.raises(TipcastError, match=r"C020.*CPU build.*pip install xgboost"):
        doctor.check_xgboost(cuda=True)


def test_two_packages_of_xgboost_are_an_error(
    install: Install, site: Path, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("xgboost-cu13", "9.9.9", "xgboost/__init__.py")
    monkeypatch.setattr(sys, "path", [*paths, str(site)])
    with pytest.raises(TipcastError, match="C020") as caught:
        doctor.check_xgboost(cuda=False)
    assert "xgboost-cu13 9.9.9" in caught.value.what
    assert xgboost.__version__ in caught.value.what
    assert caught.value.fix.startswith("pip uninstall ")


@pytest.mark.parametrize(
    ("text", "words"), [("raise OSError('libomp is not loaded')", "libomp"), ("import no_such_part", "no_such_part")]
)
def test_xgboost_that_does_not_load(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "xgboost.py").write_text(text)
    # A process of its own: import hooks that another test's library has installed would meet this module too.
    program = "from tipcast.jobs.doctor import check_xgboost; check_xgboost(cuda=False)"
    done = python(tmp_path, "-c", program)  # whose folder comes first
    assert re.search(rf"C020.*{words}", done.stderr.splitlines()[-1])
