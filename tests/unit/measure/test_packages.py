"""Versions against what tipcast asks for: of this environment, and of made-up ones."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.finding import State
from tipcast.measure import packages
from tipcast.measure.packages import check_python, check_versions, misfits, requirements

Install = Callable[..., None]
PROJECT = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]


def test_this_environment_fits() -> None:
    assert misfits(PROJECT["dependencies"], "cpu") == {}


def test_wrong_requirements_are_told() -> None:
    numpy = importlib.metadata.version("numpy")
    asked = ["numpy<1", "no-such-package>=3", "pandas>=2", 'scipy<0.1; extra == "gpu"', 'dask<1; extra == "cpu"']
    found = misfits(asked, "cpu")
    assert found == {
        "numpy": f"numpy {numpy} is not <1",
        "no-such-package": "no-such-package is missing",
        "dask": f"dask {importlib.metadata.version('dask')} is not <1",
    }


def test_a_requirement_of_another_platform_does_not_count() -> None:
    asked = ["numpy<1; sys_platform == 'nowhere'", "NumPy>=1", "b>=1; python_version < '3'"]
    assert misfits(asked, "cpu") == {}


def test_a_release_candidate_counts_as_what_it_is() -> None:
    assert misfits(["cudf-cu13==26.10.*"], "gpu", lambda _: "26.10.0a12") == {}
    assert misfits(["cudf-cu13==26.10.*"], "gpu", lambda _: "26.12.0a3") == {
        "cudf-cu13": "cudf-cu13 26.12.0a3 is not ==26.10.*"
    }


def test_any_build_will_do(install: Install) -> None:
    install("cudf", "26.10.0", "cudf/__init__.py")
    install("xgboost", "3.2.0", "xgboost/__init__.py")
    assert misfits(["cudf-cu13==26.10.*", "xgboost-cpu>=3.2,<3.5"], "cpu") == {}
    assert set(misfits(["cuml-cu13==26.10.*", "xgboost-cpu>=3.3"], "cpu")) == {"cuml-cu13", "xgboost-cpu"}


def test_requirements_of_the_installed_distribution(install: Install) -> None:
    needs = 'Requires-Python: >=3.11\nRequires-Dist: numpy>=2\nRequires-Dist: uv; extra == "cpu"\n'
    install("tipcast", "0.1.0", metadata=needs)
    assert requirements("cpu") == (">=3.11", ["numpy>=2", 'uv; extra == "cpu"'])
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
    python, asked = requirements("gpu")
    assert python == PROJECT["requires-python"]
    assert asked == [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["gpu"]]


def test_neither_a_checkout_nor_installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "conf_dir", lambda: site / "tipcast" / "conf")
    with pytest.raises(TipcastError, match="C020"):
        requirements("cpu")


def test_python_is_in_its_range() -> None:
    assert check_python("cpu", "3.12.4", "Linux").found == "3.12.4 on Linux"
    for version in ("3.10.14", "3.14.0"):
        with pytest.raises(TipcastError, match=f"C020.*Python {version}"):
            check_python("cpu", version, "Linux")
