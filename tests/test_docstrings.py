"""Docstrings of the public names: they follow numpydoc, are complete, and their examples run."""

import doctest
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import without_mlflow

import tipcast

ROOT = Path(__file__).resolve().parent.parent
ERRORS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
PUBLIC = {name: getattr(tipcast, name) for name in tipcast.__all__ if name != "__version__"}
METHODS = {
    f"{name}.{method}": function
    for name, value in PUBLIC.items()
    if inspect.isclass(value)
    for method, function in vars(value).items()
    if inspect.isfunction(function) and not method.startswith("_")
}
DOCUMENTED = PUBLIC | METHODS
FUNCTIONS = {name: value for name, value in DOCUMENTED.items() if inspect.isfunction(value)}
SECTION = re.compile(r"^(\w+)\n-+\n((?:.*\n)*?)(?=\n\w+\n-+\n|\Z)", re.MULTILINE)
ENTRY = re.compile(r"^(\**\w+)(?: : .+)?$", re.MULTILINE)
"""Name of a parameter or attribute, at the beginning of its line."""


def sections(value: Any) -> dict[str, str]:
    """Return title -> text of the numpydoc sections of a docstring."""
    return dict(SECTION.findall(f"{inspect.getdoc(value)}\n"))


def parameters(function: Callable[..., Any]) -> list[str]:
    """Return the parameters of a signature as numpydoc writes them: ``name`` and ``**name``."""
    return [
        re.sub(r":.*|=.*", "", str(parameter)).strip()
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self"
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_documented(name: str) -> None:
    text = sections(FUNCTIONS[name]).get("Parameters", "")
    assert ENTRY.findall(text) == parameters(FUNCTIONS[name])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("section", ["Returns", "Raises", "Examples"])
def test_every_function_has_the_section(name: str, section: str) -> None:
    assert sections(FUNCTIONS[name])[section].strip()


def test_every_attribute_of_a_result_is_documented() -> None:
    text = sections(tipcast.Result)["Attributes"]
    assert ENTRY.findall(text) == [*tipcast.Result.__dataclass_fields__]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_code_is_one_of_the_page_of_errors(name: str) -> None:
    codes = re.findall(r"\b[A-Z]\d{3}\b", sections(FUNCTIONS[name])["Raises"])
    assert codes
    assert [code for code in codes if f"\n| {code} |" not in ERRORS] == []


def test_docstrings_follow_numpydoc() -> None:
    """By the rules of pydocstyle for NumPy's convention."""
    modules = {inspect.getsourcefile(value) for value in PUBLIC.values()}
    rules = ["--select=D", "--ignore=D105,D107", "--config=lint.pydocstyle.convention='numpy'"]
    ruff = Path(sys.executable).with_name("ruff")
    checked = subprocess.run(
        [ruff, "check", "--no-cache", "--isolated", *rules, *sorted(map(str, modules))],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.usefixtures("small_pictures", "forked_workers")
@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples_are_true(
    name: str, registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by itself in an empty folder, but for a store that has version 1 of `tipcast`."""
    without_mlflow(monkeypatch, tmp_path)
    shutil.copy(registered, tmp_path)
    finder = doctest.DocTestFinder(recurse=False)
    report: list[str] = []

    (example,) = finder.find(DOCUMENTED[name], name, globs={})
    assert example.examples
    doctest.DocTestRunner().run(example, out=report.append)
    assert not report, "".join(report)
