"""What is shipped and installed: MLproject, the environment files, version floors, locked requirements, the wheel."""

import ast
import os
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

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {name: [Requirement(text) for text in texts] for name, texts in PROJECT["optional-dependencies"].items()}
CONDA = yaml.safe_load((ROOT / "conda.yaml").read_text(encoding="utf-8"))
MLPROJECT = yaml.safe_load((ROOT / "MLproject").read_text(encoding="utf-8"))
ENTRY_POINTS = {
    "main": "train",
    "train": "train",
    "sweep": "sweep",
    "ladder": "ladder",
    "promote": "promote",
    "score": "score",
    "prepare": "prepare",
    "doctor": "doctor",
    "inspect": "inspect",
}
FLOORS = {"mlflow": "3.10", "hydra-core": "1.3.8", "pyarrow": "14.0.1", "s3fs": "2025"}
"""Lowest versions that SECURITY.md promises, or below which pip goes back to something unusable."""
HOSTILE = [
    "$(touch broken)", "`touch broken`", "; touch broken", "| touch broken", "& touch broken", "&& touch broken",
    "\ntouch broken\n", "' ; touch broken ; '", '" ; touch broken ; "', "> broken", "${IFS}touch${IFS}broken",
    "{0.__class__}", "{PATH}", "a b", "",
]  # fmt: skip


def by_name(requirements: list[Requirement]) -> dict[str, Requirement]:
    return {canonicalize_name(item.name): item for item in requirements}


def floor(requirement: Requirement) -> Version:
    """Return the lower bound of a requirement."""
    (bound,) = (item for item in requirement.specifier if item.operator in {">=", "=="})
    return Version(bound.version.removesuffix(".*"))


def pip_list() -> dict[str, Requirement]:
    (pip,) = (item["pip"] for item in CONDA["dependencies"] if isinstance(item, dict))
    return by_name([Requirement(text) for text in pip])


def conda_list() -> dict[str, str]:
    """Return conda's package -> version."""
    return dict((item.split("=", 1) + [""])[:2] for item in CONDA["dependencies"] if isinstance(item, str))


def test_mlproject_declares_no_parameters() -> None:
    assert set(MLPROJECT["entry_points"]) == set(ENTRY_POINTS)
    for name, point in MLPROJECT["entry_points"].items():
        assert set(point) == {"command"}, name
        assert not re.search(r"(?<!\{)\{(?!\{)", point["command"]), "a placeholder"
        assert not re.search(r"['\"]", point["command"]), "a quote undoes MLflow's quoting"


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize(("before", "path"), [(None, "src"), ("", "src"), ("/elsewhere", "src:/elsewhere")])
def test_mlproject_commands_start_the_job(tmp_path: Path, entry_point: str, before: str | None, path: str) -> None:
    """In a shell with a `python` that prints its arguments: hostile values stay one word, PYTHONPATH is kept."""
    python = tmp_path / "python"
    program = "import os, sys\nprint((sys.argv[1:], os.environ['PYTHONPATH']))\n"
    python.write_text(f"#!{sys.executable}\n{program}", encoding="utf-8")
    python.chmod(0o755)
    values = {f"a.b{at}": value for at, value in enumerate(HOSTILE)}
    command = load_project(ROOT).get_entry_point(entry_point).compute_command(values, None)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | ({} if before is None else {"PYTHONPATH": before})
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    words = [word for key, value in values.items() for word in (f"--{key}", value)]
    assert ast.literal_eval(done.stdout) == (["-m", "tipcast", ENTRY_POINTS[entry_point], *words], path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["python"]


def test_pip_list_is_the_cpu_environment_with_the_build_of_xgboost_that_fits_both() -> None:
    cpu = by_name([item for item in BASE + EXTRAS["cpu"] if item.marker is None])
    cpu["xgboost"] = by_name(EXTRAS["gpu"])["xgboost"]
    assert {name: str(item) for name, item in pip_list().items()} == {name: str(item) for name, item in cpu.items()}


def test_conda_list_is_the_gpu_extra_without_xgboost() -> None:
    wanted = {
        name.removesuffix("-cu13"): str(item.specifier).removeprefix("==")
        for name, item in by_name(EXTRAS["gpu"]).items()
        if name not in {"uv", "xgboost"}
    }
    listed = conda_list()
    assert {name: listed.get(name) for name in wanted} == wanted
    assert set(listed) - set(wanted) == {"python", "pip", "cuda-version"}
    assert listed["cuda-version"].split(".")[0] == "13", "the extra's packages end in -cu13"
    assert CONDA["channels"] == ["rapidsai", "conda-forge"]


def test_mlflow_reads_the_environment_file() -> None:
    environment = _PythonEnv.from_conda_yaml(ROOT / "conda.yaml")
    assert environment.python == conda_list()["python"]
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(environment.python)
    assert len(environment.dependencies) == len(pip_list())
    assert not (ROOT / "uv.lock").exists(), "MLflow would use it in place of conda.yaml"


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_an_environment_has_one_xgboost(extra: str) -> None:
    builds = [item for item in EXTRAS[extra] if item.name.startswith("xgboost")]
    for platform in ("linux", "darwin"):
        assert sum(item.marker is None or item.marker.evaluate({"sys_platform": platform}) for item in builds) == 1
    assert not [item for item in BASE + EXTRAS["test"] if item.name.startswith("xgboost")]


def test_version_floors() -> None:
    for name, lowest in FLOORS.items():
        assert floor(by_name(BASE)[name]) >= Version(lowest), name


def test_every_import_is_a_declared_dependency() -> None:
    declared = set(by_name(BASE + EXTRAS["cpu"] + EXTRAS["gpu"]))
    owners = packages_distributions()
    imported: dict[str, Path] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0]: path for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported[node.module.partition(".")[0]] = path
    on_gpus = {"cudf", "cuml", "cupy", "dask_cuda", "dask_cudf", "nvforest", "pylibcudf", "pynvml", "raft_dask", "rmm"}
    absent_here = on_gpus - set(owners)
    foreign = set(imported) - set(sys.stdlib_module_names) - {"tipcast", "hydra_plugins"} - absent_here
    assert "numpy" in foreign
    undeclared = {
        name: imported[name]
        for name in foreign
        if not declared & {canonicalize_name(item) for item in owners.get(name, [])}
    }
    assert undeclared == {}


@pytest.mark.parametrize(("name", "extras"), [("cpu", ["cpu"]), ("gpu", ["gpu"]), ("test", ["cpu", "test"])])
def test_requirements_are_pinned_with_hashes(name: str, extras: list[str]) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if entry and not entry.startswith("#")]
    pinned: dict[str, list[Requirement]] = {}
    for entry in entries:
        first, *hashes = re.split(r"\s*\\\n\s*", entry.strip())
        requirement = Requirement(first)
        assert [item.operator for item in requirement.specifier] == ["=="], first
        assert hashes, first
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", text) for text in hashes), first
        pinned.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    assert not re.search(r"://|^-", text, re.MULTILINE), "an address or an option"
    for wanted in BASE + [item for extra in extras for item in EXTRAS[extra]]:
        versions = [str(item.specifier).removeprefix("==") for item in pinned.get(canonicalize_name(wanted.name), [])]
        assert versions, wanted
        assert all(wanted.specifier.contains(version) for version in versions), wanted


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel as an installer does, without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"import os; from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    return zipfile.ZipFile(folder / done.stdout.strip().splitlines()[-1])


def test_wheel_holds_the_configuration_and_the_package(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    configuration = {str(path.relative_to(ROOT)) for path in (ROOT / "conf").rglob("*.yaml")}
    sources = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert configuration
    assert {name for name in names if ".dist-info/" not in name} == sources | {
        f"tipcast/{name}" for name in configuration
    }
    (entry_points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
    assert "tipcast = tipcast.cli:main" in wheel.read(entry_points).decode()


def test_wheel_runs_from_where_it_is_unpacked(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    command = [sys.executable, "-m", "tipcast", "train", "--cfg", "job"]
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "threshold" in done.stdout


def test_version_is_the_same_everywhere() -> None:
    text = (ROOT / "src" / "tipcast" / "__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{PROJECT["version"]}"' in text
