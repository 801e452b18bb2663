"""What is installed against what tipcast's own metadata asks for: Python and the versions of packages."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Callable, Iterable

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tipcast import __version__
from tipcast.config.errors import TipcastError
from tipcast.config.finding import Finding, ok, warning
from tipcast.config.location import conf_dir
from tipcast.measure.builds import CUDA_SUFFIX, providers

NAME = "tipcast"
TOOLS = {"uv": "mlflow run --env-manager uv"}
"""Packages that no job imports -> the only command that needs them."""
PYTHON = "Requires-Python"


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
