"""Which XGBoost and which RAPIDS there are: of this environment, and of made-up ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import xgboost

from tipcast.config.errors import TipcastError
from tipcast.config.finding import State
from tipcast.measure.builds import RAPIDS, check_rapids, check_xgboost, providers

Install = Callable[..., None]
CUDA = bool(xgboost.build_info()["USE_CUDA"])
PARTS = {name: f"{name.replace('_', '-')}-cu13" for name in RAPIDS}


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


def test_xgboost_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "xgboost")
    for text, words in (("raise OSError('libomp is not loaded')", "libomp"), ("import no_such_part", "no_such_part")):
        (tmp_path / "xgboost.py").write_text(text)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        sys.path_importer_cache.pop(str(tmp_path), None)
        with pytest.raises(TipcastError, match=f"C020.*{words}"):
            check_xgboost(cuda=False)


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
