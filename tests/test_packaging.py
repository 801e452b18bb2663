"""What is shipped and installed: MLproject, the environment files, version floors, locked
requirements, the wheel.

Docker's files too, as far as they can be checked without it: pinned, private, in order, without
secrets.
"""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow.projects._project_spec import load_project
from mlflow.utils.environment import _PythonEnv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tests.conftest import python
from tests.unit.config.test_arguments import PAYLOADS

from tipcast.config.jobs import JOBS
from tipcast.jobs import doctor

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
BASE = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {
    name: [Requirement(text) for text in texts]
    for name, texts in PROJECT["optional-dependencies"].items()
}
CONDA = yaml.safe_load((ROOT / "conda.yaml").read_text(encoding="utf-8"))
MLPROJECT = yaml.safe_load((ROOT / "MLproject").read_text(encoding="utf-8"))
COMMAND = "PYTHONPATH=src${{PYTHONPATH:+:$PYTHONPATH}} TIPCAST_LAUNCHED=1 python -P -m tipcast "
COMPOSE: dict[str, Any] = yaml.safe_load(
    (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])[^}]*)?\}")
EXAMPLE = (ROOT / "docker" / "example.env").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
FLOORS = {"mlflow": "3.10", "hydra-core": "1.3.8", "pyarrow": "14.0.1", "s3fs": "2025"}
"""Lowest versions that SECURITY.md promises, or below which pip goes back to something unusable."""
HOSTILE = [*PAYLOADS, "\ntouch broken\n", "${IFS}touch${IFS}broken", ""]


def by_name(requirements: list[Requirement]) -> dict[str, Requirement]:
    return {canonicalize_name(item.name): item for item in requirements}


def pip_list() -> dict[str, str]:
    """Return pip's package -> requirement, of conda.yaml."""
    (pip,) = (item["pip"] for item in CONDA["dependencies"] if isinstance(item, dict))
    return {name: str(item) for name, item in by_name([Requirement(text) for text in pip]).items()}


def test_mlproject_declares_no_parameters() -> None:
    points = {name: {"command": COMMAND + name} for name in JOBS}
    assert MLPROJECT["entry_points"] == points | {"main": points["train"]}


@pytest.mark.parametrize(
    ("before", "path"), [(None, "src"), ("", "src"), ("/elsewhere", "src:/elsewhere")]
)
def test_mlproject_commands_start_the_job(tmp_path: Path, before: str | None, path: str) -> None:
    """In a shell with a `python` that prints its arguments: hostile values stay one word,
    PYTHONPATH is kept.
    """
    program = "import os, sys\nprint((sys.argv[1:], os.environ['PYTHONPATH']))\n"
    (tmp_path / "python").write_text(f"#!{sys.executable}\n{program}", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    values = {f"a.b{at}": value for at, value in enumerate(HOSTILE)}
    command = load_project(ROOT).get_entry_point("main").compute_command(values, None)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | (
        {} if before is None else {"PYTHONPATH": before}
    )
    out = subprocess.check_output(["bash", "-c", command], cwd=tmp_path, env=environment, text=True)
    words = [word for key, value in values.items() for word in (f"--{key}", value)]
    assert ast.literal_eval(out) == (["-P", "-m", "tipcast", "train", *words], path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["python"]


def test_the_environment_file_fits_the_extras() -> None:
    """Pip's list is the CPU's, with the build of XGBoost that fits both; conda's is the GPU's
    without XGBoost.
    """
    on_gpus = by_name(EXTRAS["gpu"])
    cpu = by_name([item for item in BASE + EXTRAS["cpu"] if item.marker is None]) | {
        "xgboost": on_gpus["xgboost"]
    }
    assert pip_list() == {name: str(item) for name, item in cpu.items()}
    listed = dict(
        (item.split("=", 1) + [""])[:2] for item in CONDA["dependencies"] if isinstance(item, str)
    )
    wanted = {
        name.removesuffix("-cu13"): str(item.specifier).removeprefix("==")
        for name, item in on_gpus.items()
        if name not in {"uv", "xgboost"}
    }
    python = listed.pop("python")
    assert listed == wanted | {"pip": "", "cuda-version": "13.*"}, (
        "the extra's packages end in -cu13"
    )
    assert CONDA["channels"] == ["rapidsai", "conda-forge"]
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python)


def test_mlflow_reads_the_environment_file() -> None:
    environment = _PythonEnv.from_conda_yaml(ROOT / "conda.yaml")
    assert f"python={environment.python}" in CONDA["dependencies"]
    assert len(environment.dependencies) == len(pip_list())
    assert not (ROOT / "uv.lock").exists(), "MLflow would use it in place of conda.yaml"


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_an_environment_has_one_xgboost(extra: str) -> None:
    builds = [item for item in EXTRAS[extra] if item.name.startswith("xgboost")]
    for platform in ("linux", "darwin"):
        assert (
            sum(
                item.marker is None or item.marker.evaluate({"sys_platform": platform})
                for item in builds
            )
            == 1
        )
    assert not [item for item in BASE + EXTRAS["test"] if item.name.startswith("xgboost")]


def test_the_environment_files_python_gets_the_xgboost_that_gpu_results_are_of() -> None:
    """And none older: its NCCL is for another CUDA than RAPIDS is."""
    python = next(
        item.removeprefix("python=")
        for item in CONDA["dependencies"]
        if str(item).startswith("python=")
    )
    locked = (ROOT / "requirements" / "gpu.txt").read_text(encoding="utf-8")
    lines = [
        Requirement(line.removesuffix("\\"))
        for line in re.findall(r"^(?:xgboost|nvidia-nccl)\S*==.*$", locked, re.MULTILINE)
    ]
    here = {"python_full_version": f"{python}.0", "sys_platform": "linux"}
    taken = {
        item.name: str(item.specifier)
        for item in lines
        if item.marker is None or item.marker.evaluate(here)
    }
    assert set(taken) == {"xgboost", "nvidia-nccl-cu13"}
    assert Version(taken["xgboost"].removeprefix("==")).release >= doctor.XGBOOST_FOR_CUDA_13


def test_version_floors() -> None:
    for name, lowest in FLOORS.items():
        bounds = [item.version for item in by_name(BASE)[name].specifier if item.operator == ">="]
        assert max(map(Version, bounds)) >= Version(lowest), name


def test_every_import_is_a_declared_dependency() -> None:
    owners = packages_distributions()
    imported: dict[str, Path] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += (
                [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
            )
            imported |= {name.partition(".")[0]: path for name in names}
    on_gpus = {
        "cudf",
        "cuml",
        "cupy",
        "dask_cuda",
        "dask_cudf",
        "nvforest",
        "pylibcudf",
        "pynvml",
        "raft_dask",
        "rmm",
    }
    foreign = (
        set(imported)
        - set(sys.stdlib_module_names)
        - {"_typeshed"}  # known to type checkers alone
        - {"tipcast", "hydra_plugins"}
        - (on_gpus - set(owners))
    )
    assert "numpy" in foreign
    declared = set(by_name(BASE + EXTRAS["cpu"] + EXTRAS["gpu"]))
    owned = {
        name for name in foreign if declared & set(map(canonicalize_name, owners.get(name, [])))
    }
    assert {name: imported[name] for name in foreign - owned} == {}


@pytest.mark.parametrize(
    ("name", "extras"), [("cpu", ["cpu"]), ("gpu", ["gpu"]), ("test", ["cpu", "test"])]
)
def test_requirements_are_pinned_with_hashes(name: str, extras: list[str]) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    pinned: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=[^\s#])", re.sub(r"\A(#.*\n)*", "", text)):
        line = (
            r"([\w.\-]+)(?:\[[\w, ]+\])?==([^\s;]+)(?: ;[^\n]*)?(?: \\\n    "
            r"--hash=sha256:[0-9a-f]{64})+"
        )
        first = re.fullmatch(line, entry.strip())
        assert first, entry
        pinned.setdefault(canonicalize_name(first[1]), []).append(first[2])
    for wanted in BASE + [item for extra in extras for item in EXTRAS[extra]]:
        assert all(map(wanted.specifier.contains, pinned[canonicalize_name(wanted.name)])), wanted


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel as an installer does, without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = (
        f"import os; from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    )
    out = subprocess.check_output([sys.executable, "-c", build], cwd=ROOT, text=True)
    return zipfile.ZipFile(folder / out.splitlines()[-1])


def test_wheel_holds_all_files_of_the_project(wheel: zipfile.ZipFile) -> None:
    """Sources, and the configuration beside them."""
    names = set(wheel.namelist())
    configuration = {str(path.relative_to(ROOT)) for path in (ROOT / "conf").rglob("*.yaml")}
    sources = {
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()
    }
    sources = {name for name in sources if "__pycache__" not in name}
    assert configuration
    package = {name for name in names if ".dist-info/" not in name}
    assert package == sources | {f"tipcast/{name}" for name in configuration}


def test_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (
        name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")
    )
    assert "tipcast = tipcast.__main__:main" in wheel.read(entry_points).decode()


def test_wheel_runs_from_where_it_is_unpacked(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    done = python(
        tmp_path, "-m", "tipcast", "train", "--cfg", "job", PYTHONPATH=str(tmp_path / "site")
    )
    assert done.returncode == 0, done.stderr
    assert "threshold" in done.stdout


def _texts(value: Any) -> list[str]:
    parts = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return [str(value)] if parts is None else [text for part in parts for text in _texts(part)]


def test_every_service_of_docker_says_when_it_is_ready() -> None:
    for name, service in SERVICES.items():
        assert ("healthcheck" in service) != (service.get("restart") == "no"), name
        for other, wanted in service.get("depends_on", {}).items():
            once = SERVICES[other].get("restart") == "no"
            assert wanted["condition"] == (
                "service_completed_successfully" if once else "service_healthy"
            )


def test_images_of_docker_are_pinned() -> None:
    for name, service in SERVICES.items():
        assert "build" in service or re.search(r":.*\d", service["image"]), name
    assert re.search(r"^FROM python:3\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE)


def test_the_image_of_docker_does_not_run_as_root() -> None:
    assert re.search(r"^USER (?!root)\w+$", DOCKERFILE, re.MULTILINE)


def test_the_server_of_docker_has_the_version_that_jobs_use() -> None:
    """requirements/cpu.txt is held against pyproject.toml."""
    (server,) = re.findall(r"mlflow==(\S+)", DOCKERFILE)
    assert f"mlflow=={server} " in (ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8")


PUBLISHED = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}


def test_docker_publishes_the_server_alone() -> None:
    assert list(PUBLISHED) == ["mlflow"]


def test_docker_publishes_on_loopback_alone() -> None:
    assert PUBLISHED
    for name, ports in PUBLISHED.items():
        assert all(port.startswith("127.0.0.1:") for port in ports), name


def test_what_keeps_the_data_is_on_the_inner_network_alone() -> None:
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert {name for name, service in SERVICES.items() if service["networks"] == ["inside"]} == {
        "database",
        "s3",
    }


def test_no_secret_is_in_files_of_docker() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET", key):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", str(value)), f"{name}.{key}"
        assert "PASSWORD" not in " ".join(_texts(service.get("command", []))), (
            f"{name}: `ps` shows a command"
        )
    assert not re.search(r"^[^#\n]*PASSWORD\w*=.", EXAMPLE, re.MULTILINE)
    assert "/docker/.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_every_variable_of_docker_is_in_the_example() -> None:
    used = [match.groups() for text in _texts(SERVICES) for match in VARIABLE.finditer(text)]
    assert {name for name, _ in used} == set(re.findall(r"^#? ?(\w+)=", EXAMPLE, re.MULTILINE))
    assert {name for name, kind in used if kind == "?"} == set(
        re.findall(r"^(\w+)=$", EXAMPLE, re.MULTILINE)
    )
