"""Builds: which distributions bring XGBoost and RAPIDS, and what they compute on."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Sequence

from packaging.utils import canonicalize_name

from tipcast.config.errors import TipcastError
from tipcast.config.finding import Finding, ok

RAPIDS = ("cudf", "cuml", "dask_cuda", "dask_cudf", "raft_dask")
"""Import names of what the gpu extra brings."""
CUDA_SUFFIX = re.compile(r"-cu(\d+)$")


def providers(packages: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return import name -> the distributions that bring it -> their versions."""
    found: dict[str, dict[str, str]] = {package: {} for package in packages}
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.name or "")
        for package in packages:
            if package.replace("_", "-") in name and _brings(distribution, package):
                found[package][name] = distribution.version
    return found


def _brings(distribution: importlib.metadata.Distribution, package: str) -> bool:
    return any(file.parts == (package, "__init__.py") for file in distribution.files or ())


def check_xgboost(cuda: bool) -> Finding:
    """Find out which XGBoost there is and what it computes on.

    Parameters
    ----------
    cuda
        Whether it must train on NVIDIA GPUs.

    Raises
    ------
    TipcastError
        C020 none, several that overwrite each other, one that does not load, or one without CUDA.

    """
    found = [f"{name} {version}" for name, version in providers(("xgboost",))["xgboost"].items()]
    build = "xgboost" if cuda else "xgboost-cpu"
    if len(found) > 1:
        names = " ".join(text.partition(" ")[0] for text in found)
        raise TipcastError(
            "C020",
            "xgboost",
            f"{' and '.join(found)} overwrite each other's files",
            f"pip uninstall {names}, then pip install {build}",
        )
    try:
        compiled = bool(importlib.import_module("xgboost").build_info().get("USE_CUDA"))
    except ImportError as problem:
        raise TipcastError("C020", "xgboost", str(problem), f"pip install {build}") from problem
    except Exception as problem:  # its own error where its library does not load
        raise TipcastError(
            "C020", "xgboost", f"does not load: {_first_line(problem)}", f"pip install --force-reinstall {build}"
        ) from problem
    told = f"{found[0] if found else 'xgboost'}, {'CUDA' if compiled else 'CPU'} build"
    if cuda and not compiled:
        raise TipcastError(
            "C020",
            "xgboost",
            f"{told}: it cannot train on a GPU",
            "pip uninstall xgboost-cpu, then pip install xgboost",
        )
    return ok(told)


def check_rapids(needed: bool) -> Finding:
    """Find out which release of RAPIDS is installed, and for which CUDA.

    Raises
    ------
    TipcastError
        C020 it is needed and not there, or its parts are of several releases or builds.

    """
    found = providers(RAPIDS)
    missing = [package for package, builds in found.items() if not builds]
    fix = "pip install -r requirements/gpu.txt, or make the environment of conda.yaml"
    if len(missing) == len(RAPIDS) and not needed:
        return ok("not installed and not needed")
    if missing and needed:
        raise TipcastError("C020", "RAPIDS", f"lacks {', '.join(missing)}", fix)
    builds = {name: version for each in found.values() for name, version in each.items()}
    releases = {".".join(version.split(".")[:2]) for version in builds.values()}
    cudas = {match[1] for match in map(CUDA_SUFFIX.search, builds) if match}
    told = ", ".join(f"{name} {version}" for name, version in builds.items())
    if needed and (len(releases) > 1 or len(cudas) > 1 or len(builds) > len(RAPIDS)):
        raise TipcastError("C020", "RAPIDS", f"is of several releases or builds: {told}", fix)
    return ok(told)


def _first_line(problem: Exception) -> str:
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)
