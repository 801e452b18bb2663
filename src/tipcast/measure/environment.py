"""What `tipcast doctor` looks at before any job: Python, packages and their builds, memory, and space in folders."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil
from distributed.system import MEMORY_LIMIT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tipcast import __version__
from tipcast.config.conf_files import conf_dir
from tipcast.config.errors import Finding, TipcastError, ok, warning

NAME = "tipcast"
TOOLS = {"uv": "mlflow run --env-manager uv"}
"""Packages that no job imports -> the only command that needs them."""
PYTHON = "Requires-Python"
RAPIDS = ("cudf", "cuml", "dask_cuda", "dask_cudf", "raft_dask")
"""Import names of what the gpu extra brings."""
CUDA_SUFFIX = re.compile(r"-cu(\d+)$")
GIB = 1 << 30
LEAST_ROOM, LITTLE_ROOM = GIB // 4, 2 * GIB
"""Free bytes of a folder below which a job fails, or may fail: plots, the model, the store, rows spilled by workers."""
LEAST_MEMORY, LITTLE_MEMORY = GIB // 2, 2 * GIB
"""Free bytes below which even the sample's rows do not fit beside Python, Dask and MLflow, or just do."""


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


def requirements(extra: str) -> tuple[str, list[str]]:
    """Return which Python and which packages tipcast asks for.

    Parameters
    ----------
    extra
        ``cpu`` or ``gpu``.

    Returns
    -------
    python : str
        A range such as ``>=3.11,<3.14``.
    packages : list of str
        Requirements, those of extras with their markers; of the installed distribution, else of the checkout's
        pyproject.toml.

    Raises
    ------
    TipcastError
        C020 neither is there.

    """
    try:
        told = importlib.metadata.metadata(NAME)
        return told[PYTHON], told.get_all("Requires-Dist") or []
    except importlib.metadata.PackageNotFoundError:
        file = conf_dir().parent / "pyproject.toml"
    if not file.is_file():
        raise TipcastError("C020", NAME, "is not installed, so nothing says what it needs", "pip install tipcast")
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    return project["requires-python"], [*project["dependencies"], *project["optional-dependencies"][extra]]


def check_versions(extra: str) -> Finding:
    """Compare what is installed with what tipcast asks for.

    Raises
    ------
    TipcastError
        C020 a package that is missing or has a version outside its range.

    """
    asked = requirements(extra)[1]
    wrong = misfits(asked, extra)
    fix = f"pip install -r requirements/{extra}.txt, or install {NAME}[{extra}] anew"
    grave = [text for name, text in wrong.items() if name not in TOOLS]
    if grave:
        raise TipcastError("C020", f"{NAME}[{extra}]", "; ".join(grave), fix)
    if wrong:
        return warning("; ".join(f"{text}: needed by {TOOLS[name]}" for name, text in wrong.items()), fix)
    return ok(f"all that {NAME}[{extra}] {__version__} asks for, in its ranges")


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


def misfits(asked: Iterable[str], extra: str, version_of: Callable[[str], str | None] = installed) -> dict[str, str]:
    """Return what is missing or outside its range.

    Parameters
    ----------
    asked
        Requirements as metadata has them: ``pandas<3.1,>=3.0``, ``uv>=0.7; extra == "cpu"``.
    extra
        The extra that counts.
    version_of
        Name -> version, None where it is not installed.

    Returns
    -------
    dict
        Name -> what is wrong, in words.

    """
    wrong: dict[str, str] = {}
    for requirement in map(Requirement, asked):
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        version = version_of(name)
        if version is None:
            wrong[name] = f"{name} is missing"
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong[name] = f"{name} {version} is not {requirement.specifier}"
    return wrong


def check_python(extra: str, running: str, platform: str) -> Finding:
    """Hold Python's version against the range that tipcast asks for.

    Parameters
    ----------
    extra
        See ``requirements``.
    running
        Version of the interpreter.
    platform
        The machine in words.

    Raises
    ------
    TipcastError
        C020 a version outside the range.

    """
    wanted = requirements(extra)[0]
    if not SpecifierSet(wanted).contains(running, prereleases=True):
        raise TipcastError(
            "C020", f"Python {running}", f"is not {wanted}", "make an environment with Python 3.11 to 3.13"
        )
    return ok(f"{running} on {platform}")


def check_memory() -> Finding:
    """Find out how much memory jobs may use and how much of it is free.

    Raises
    ------
    TipcastError
        C021 too little.

    """
    free = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    return judged(
        "this machine", free, MEMORY_LIMIT, (LEAST_MEMORY, LITTLE_MEMORY), "end other programs, or use fewer rows"
    )


def check_folder(folder: Path) -> Finding:
    """Find out how much room a folder has, and whether files can be made in it.

    Raises
    ------
    TipcastError
        C021 too little room, or no file can be made.

    """
    try:
        usage = shutil.disk_usage(folder)
        with tempfile.TemporaryFile(dir=folder, prefix=".tipcast-") as file:
            file.write(b"tipcast")
    except OSError as problem:
        raise TipcastError(
            "C021",
            folder,
            f"no file can be written: {problem.strerror or problem}",
            "change its permissions, or use another folder (TMPDIR names the temporary one)",
        ) from problem
    return judged(
        str(folder), usage.free, usage.total, (LEAST_ROOM, LITTLE_ROOM), "free some room, or use another disk"
    )


def judged(where: str, free: int, total: int, limits: tuple[int, int], fix: str) -> Finding:
    """Return what so many free bytes mean.

    Parameters
    ----------
    where
        What has them.
    free, total
        Bytes.
    limits
        Bytes below which there is too little, and little.
    fix
        What to do about it.

    Raises
    ------
    TipcastError
        C021 too little.

    """
    told = f"{free / GIB:,.1f} GiB free of {total / GIB:,.1f} GiB"
    if free < limits[0]:
        raise TipcastError("C021", where, f"{told}: too little", fix)
    return warning(f"{where}: {told}: little", fix) if free < limits[1] else ok(f"{where}: {told}")
