"""What the doctor looks at before any job: versions and builds, of this environment and of made-up ones."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import xgboost

from tipcast.config.errors import State, TipcastError
from tipcast.measure import environment
from tipcast.measure.environment import (
    RAPIDS,
    check_rapids,
    check_versions,
    check_xgboost,
    misfits,
    providers,
    requirements,
)

Install = Callable[..., None]
ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CUDA = bool(xgboost.build_info()["USE_CUDA"])
PARTS = {name: f"{name.replace('_', '-')}-cu13" for name in RAPIDS}


def test_this_environment_fits() -> None:
    assert misfits(PROJECT["dependencies"], "cpu") == {}


def test_wrong_requirements_are_told() -> None:
    numpy = importlib.metadata.version("numpy")
    asked = ["numpy<1", "no-such-package>=3", "pandas>=2", 'scipy<0.1; extra == "gpu"', 'dask<1; extra == "cpu"']
    elsewhere = ["numpy<1; sys_platform == 'nowhere'", "NumPy>=1", "b>=1; python_version < '3'"]
    found = misfits([*elsewhere, *asked], "cpu")
    assert found == {
        "numpy": f"numpy {numpy} is not <1",
        "no-such-package": "no-such-package is missing",
        "dask": f"dask {importlib.metadata.version('dask')} is not <1",
    }


def test_any_build_will_do(install: Install) -> None:
    install("cudf", "26.10.0a12", "cudf/__init__.py")
    install("cuml", "26.12.0a3", "cuml/__init__.py")
    install("xgboost", "3.2.0", "xgboost/__init__.py")
    assert misfits(["cudf-cu13==26.10.*", "xgboost-cpu>=3.2,<3.5"], "cpu") == {}
    assert misfits(["cuml-cu13==26.10.*", "xgboost-cpu>=3.3", "dask-cuda"], "cpu") == {
        "cuml-cu13": "cuml-cu13 26.12.0a3 is not ==26.10.*",
        "xgboost-cpu": "xgboost-cpu 3.2.0 is not >=3.3",
        "dask-cuda": "dask-cuda is missing",
    }


def test_requirements_of_the_installed_distribution(install: Install) -> None:
    needs = 'Requires-Dist: numpy>=2\nRequires-Dist: uv; extra == "cpu"\n'
    install("tipcast", "0.1.0", metadata=needs)
    assert requirements("cpu") == ["numpy>=2", 'uv; extra == "cpu"']
    with pytest.raises(TipcastError, match=r"C020.*numpy is missing.*requirements/cpu.txt"):
        check_versions("cpu")
    install("numpy", "2.4.0")
    finding = check_versions("cpu")
    assert finding.state is State.warning, "no job needs uv"
    assert finding.found == "uv is missing: needed by mlflow run --env-manager uv"
    install("uv", "0.9")
    assert check_versions("cpu").state is State.ok


@pytest.mark.usefixtures("site")
def test_requirements_of_a_checkout() -> None:
    assert requirements("gpu") == [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["gpu"]]


def test_neither_a_checkout_nor_installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "conf_dir", lambda: site / "tipcast" / "conf")
    with pytest.raises(TipcastError, match="C020"):
        requirements("cpu")


def test_a_provider_has_the_package_s_files(install: Install) -> None:
    install("xgboost-cpu", "3.2.0", "xgboost/__init__.py")
    install("xgboost-ray", "0.1", "xgboost_ray/__init__.py", "xgboost_ray/xgboost/__init__.py")
    install("dask-cudf-cu13", "26.10.0", "dask_cudf/__init__.py")
    assert providers(("xgboost", "cudf", "dask_cudf")) == {
        "xgboost": {"xgboost-cpu": "3.2.0"},
        "cudf": {},
        "dask_cudf": {"dask-cudf-cu13": "26.10.0"},
    }


def test_the_build_of_this_environment() -> None:
    finding = check_xgboost(cuda=CUDA)
    assert finding.state is State.ok
    assert xgboost.__version__ in finding.found
    assert finding.found.endswith("CUDA build" if CUDA else "CPU build")


def test_a_cpu_build_does_not_train_on_a_gpu() -> None:
    if CUDA:
        assert check_xgboost(cuda=False).state is State.ok, "a CUDA build trains on a CPU too"
        return
    with pytest.raises(TipcastError, match=r"C020.*CPU build.*pip install xgboost"):
        check_xgboost(cuda=True)


def test_two_packages_of_xgboost_are_an_error(
    install: Install, site: Path, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("xgboost-cu13", "9.9.9", "xgboost/__init__.py")
    monkeypatch.setattr(sys, "path", [*paths, str(site)])
    with pytest.raises(TipcastError) as caught:
        check_xgboost(cuda=False)
    assert caught.value.code == "C020"
    assert "xgboost-cu13 9.9.9" in caught.value.what
    assert xgboost.__version__ in caught.value.what
    assert caught.value.fix.startswith("pip uninstall ")


@pytest.mark.parametrize(
    ("text", "words"), [("raise OSError('libomp is not loaded')", "libomp"), ("import no_such_part", "no_such_part")]
)
def test_xgboost_that_does_not_load(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "xgboost.py").write_text(text)
    # A process of its own: import hooks that another test's library has installed would meet this module too.
    program = "from tipcast.measure.environment import check_xgboost; check_xgboost(cuda=False)"
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert re.search(rf"C020.*{words}", done.stderr.splitlines()[-1])


def test_rapids(install: Install) -> None:
    assert check_rapids(needed=False).found == "not installed and not needed"
    with pytest.raises(TipcastError, match=r"C020.*lacks cudf, cuml"):
        check_rapids(needed=True)
    for package, name in PARTS.items():
        install(name, "26.10.0", f"{package}/__init__.py")
    finding = check_rapids(needed=True)
    assert finding.state is State.ok
    assert "cuml-cu13 26.10.0" in finding.found


@pytest.mark.parametrize(("name", "version"), [("cuml-cu12", "26.10.0"), ("cuml-cu13", "26.08.0")])
def test_rapids_of_several_releases(install: Install, name: str, version: str) -> None:
    for package, usual in PARTS.items():
        if package != "cuml":
            install(usual, "26.10.0", f"{package}/__init__.py")
    install(name, version, "cuml/__init__.py")
    with pytest.raises(TipcastError, match=f"C020.*several releases or builds.*{name} {version}"):
        check_rapids(needed=True)
    assert check_rapids(needed=False).state is State.ok
