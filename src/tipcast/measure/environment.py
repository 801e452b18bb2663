"""What `tipcast doctor` looks at before any job: the installed packages and their builds."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import tomllib
from collections.abc import Iterable, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tipcast import __version__
from tipcast.config.conf_files import conf_dir
from tipcast.config.errors import Finding, TipcastError

NAME = "tipcast"
TOOLS = {"uv": "mlflow run --env-manager uv"}
"""Packages that no job imports -> the only command that needs them."""
RAPIDS = ("cudf", "cuml", "dask_cuda", "dask_cudf", "raft_dask")
"""Import names of what the gpu extra brings."""
CUDA_SUFFIX = re.compile(r"-cu(\d+)$")


def providers(packages: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return import name -> the distributions that bring it -> their versions."""
    bring = importlib.metadata.packages_distributions()
    return {
        package: {canonicalize_name(name): importlib.metadata.version(name) for name in bring.get(package, ())}
        for package in packages
    }


def check_xgboost(cuda: bool) -> Finding:
    """Find out which XGBoost there is; C020 where it cannot train, or with ``cuda`` not on GPUs."""
    builds = providers(("xgboost",))["xgboost"]
    found = [f"{name} {version}" for name, version in builds.items()]
    build = "xgboost" if cuda else "xgboost-cpu"
    fix = f"pip install {build}"
    if len(found) > 1:
        what = f"{' and '.join(found)} overwrite each other's files"
        raise TipcastError("C020", "xgboost", what, f"pip uninstall {' '.join(builds)}, then {fix}")
    try:
        compiled = bool(importlib.import_module("xgboost").build_info().get("USE_CUDA"))
    except ImportError as problem:
        raise TipcastError("C020", "xgboost", str(problem), fix) from problem
    except Exception as problem:  # its own error where its library does not load
        told = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
        fix = f"pip install --force-reinstall {build}"
        raise TipcastError("C020", "xgboost", f"does not load: {told}", fix) from problem
    told = f"{found[0] if found else 'xgboost'}, {'CUDA' if compiled else 'CPU'} build"
    if cuda and not compiled:
        fix = "pip uninstall xgboost-cpu, then pip install xgboost"
        raise TipcastError("C020", "xgboost", f"{told}: it cannot train on a GPU", fix)
    return Finding(told)


def check_rapids(needed: bool) -> Finding:
    """Find out which release of RAPIDS there is; C020 where one is needed and parts lack or are of several."""
    found = providers(RAPIDS)
    missing = [package for package, builds in found.items() if not builds]
    fix = "pip install -r requirements/gpu.txt, or make the environment of conda.yaml"
    if len(missing) == len(RAPIDS) and not needed:
        return Finding("not installed and not needed")
    if missing and needed:
        raise TipcastError("C020", "RAPIDS", f"lacks {', '.join(missing)}", fix)
    builds = {name: version for each in found.values() for name, version in each.items()}
    releases = {".".join(version.split(".")[:2]) for version in builds.values()}
    cudas = {match[1] for match in map(CUDA_SUFFIX.search, builds) if match}
    told = ", ".join(f"{name} {version}" for name, version in builds.items())
    if needed and (len(releases) > 1 or len(cudas) > 1 or len(builds) > len(RAPIDS)):
        raise TipcastError("C020", "RAPIDS", f"is of several releases or builds: {told}", fix)
    return Finding(told)


def requirements(extra: str) -> list[str]:
    """Return the packages that tipcast with an extra, ``cpu`` or ``gpu``, asks for, those of extras with their markers.

    They are those of the installed distribution, else of the checkout's pyproject.toml; C020 where neither is there.
    """
    try:
        return importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:
        file = conf_dir().parent / "pyproject.toml"
    if not file.is_file():
        raise TipcastError("C020", NAME, "is not installed, so nothing says what it needs", "pip install .")
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


def check_versions(extra: str) -> Finding:
    """Compare what is installed with what tipcast asks for; C020 for what is missing or outside its range."""
    wrong, asked = misfits(requirements(extra), extra), f"{NAME}[{extra}]"
    fix = f"pip install -r requirements/{extra}.txt, or install {asked} anew"
    grave = [text for name, text in wrong.items() if name not in TOOLS]
    if grave:
        raise TipcastError("C020", asked, "; ".join(grave), fix)
    if wrong:
        return Finding("; ".join(f"{text}: needed by {TOOLS[name]}" for name, text in wrong.items()), fix)
    return Finding(f"Python {platform.python_version()} and all that {asked} {__version__} asks for, in its ranges")


def installed(name: str) -> str | None:
    """Return the version of a distribution, whichever of its builds is installed; None where none is."""
    if name.startswith("xgboost"):
        return next(iter(providers(("xgboost",))["xgboost"].values()), None)
    for candidate in (name, CUDA_SUFFIX.sub("", name)):  # conda's packages do not name CUDA
        try:
            return importlib.metadata.version(candidate)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def misfits(asked: Iterable[str], extra: str) -> dict[str, str]:
    """Return name -> in words what of an extra's requirements is missing or outside its range.

    They are as metadata has them: ``pandas<3.1,>=3.0``, ``uv>=0.7; extra == "cpu"``.
    """
    wrong: dict[str, str] = {}
    for requirement in map(Requirement, asked):
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        version = installed(name)
        if version is None:
            wrong[name] = f"{name} is missing"
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong[name] = f"{name} {version} is not {requirement.specifier}"
    return wrong
