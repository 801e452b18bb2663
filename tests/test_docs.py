"""What is written for people agrees with the code: error codes, links, the changelog, the security
page.
"""

import ast
import pydoc
import re
import shlex
import tokenize
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click

import tipcast
from tipcast import commands
from tipcast.config import data_schema, schema
from tipcast.config.errors import EXIT_CODES
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.schema import REQUIRED
from tipcast.tasks.make import make_task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow's, of its own classes, at import
    import mlflow.cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"[A-Z]\d{3}")
ROW = re.compile(r"^\| ([A-Z]\d{3}) \| (\S.*) \| (\S.*) \|$", re.MULTILINE)
ERRORS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def raised_codes() -> set[str]:
    """Return every string of the form D001 in src (no docstring is one)."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py"))
    texts = {
        node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)
    }
    return {text for text in texts if isinstance(text, str) and CODE.fullmatch(text)}


def anchor(heading: str) -> str:
    """Return the anchor that code hosts give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


DOCUMENTED = [code for code, _, _ in ROW.findall(ERRORS)]
"""Codes of errors, as docs/errors.md has them."""


def test_error_codes_are_documented_once_in_order() -> None:
    in_order = sorted(set(DOCUMENTED), key=lambda code: ("CDKTMS".index(code[0]), code))
    assert in_order == DOCUMENTED


def test_documented_error_codes_are_those_that_are_raised() -> None:
    assert set(DOCUMENTED) == raised_codes()


def test_exit_codes_are_documented() -> None:
    table = {
        letter: int(code)
        for code, letter in re.findall(r"^\| (\d+) \| ([A-Z]) \|", ERRORS, re.MULTILINE)
    }
    assert table == EXIT_CODES


def test_links_lead_somewhere() -> None:
    """And so do paths in backticks that begin with a folder of the project, unless they hold a
    placeholder.
    """
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(
            r"`((?:src|conf|tests|benchmarks|docs|requirements)/[^`\s]*)`", text
        ):
            if not re.search(r"[*<{A-Z]", name.removesuffix(".md")):
                assert (ROOT / name.partition("::")[0]).exists(), (page, name)
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text):
            name, _, fragment = target.partition("#")
            linked = (page.parent / name).resolve() if name else page
            assert linked.exists(), (page, target)
            assert linked.is_relative_to(ROOT), (page, target)
            headings = (
                re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
                if fragment
                else []
            )
            assert not fragment or fragment in map(anchor, headings), (page, target)


def test_the_ways_through_the_code_are_true() -> None:
    drawn = (
        (ROOT / "CONTRIBUTING.md")
        .read_text()
        .partition("## Ways through the code")[2]
        .partition("\n## ")[0]
    )
    steps = set(re.findall(r"\b([a-z]+(?:/[a-z_]+)+)\.([A-Za-z_]\w*(?:\.[a-z_]\w*)*)", drawn))
    steps = {
        (module, name) for module, name in steps if (ROOT / "src/tipcast" / module).parent.is_dir()
    }
    assert len(steps) > 30
    for module, name in steps:
        found = pydoc.locate(f"tipcast.{module.replace('/', '.')}.{name}")
        assert found is not None, f"CONTRIBUTING.md names {module}.{name}"


def test_the_page_of_the_seeds_is_true() -> None:
    """All 71 rows are there, and the tests that they name; tests/typed holds their commands."""
    text = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
    rows = [
        re.split(r"(?<!\\)\|", line)[1:-1]
        for line in text.splitlines()
        if re.match(r"\| \d+ ", line)
    ]
    assert [int(row[0]) for row in rows] == list(range(1, 72))
    states = Counter(row[-1].strip() for row in rows)
    assert (
        f"**{states['works']} work, {states['in part']} in part, {states['not yet']} not yet.**"
        in text
    )
    assert set(states) <= {"works", "in part", "not yet"}
    for *_, shown, state in rows:
        _are_there(shown)
        assert shown.strip() or state.strip() != "works"


def _are_there(shown: str) -> None:
    """Tests and committed results that a cell names in backticks, as ``tests/FILE.py::TEST`` or
    ``RESULT``.
    """
    for name in re.findall(r"`([^`]+)`", shown):
        path, _, test = name.partition("::")
        if test:
            assert f"\ndef {test}(" in (ROOT / path).read_text(encoding="utf-8"), name
        else:
            assert (ROOT / "benchmarks" / "results" / f"{name}.json").exists(), name


def _command_of(words: list[str]) -> tuple[tuple[str, ...], click.Command]:
    """Return the command of MLflow's that words name, and its path; its options are all known to
    it.
    """
    found: click.Command = mlflow.cli.cli
    path: tuple[str, ...] = ()
    while words and isinstance(found, click.Group):
        name, *words = words
        inner = found.get_command(click.Context(found), name)
        assert inner is not None, name
        found = inner
        path = (*path, str(inner.name))
    known = {name for option in found.params for name in option.opts}
    assert {word for word in words if word.startswith("-")} <= known, path
    return path, found


def _leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield from (
            _leaves(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]
        )


def test_the_page_of_mlflow_is_true() -> None:
    """Commands and calls are MLflow's, none of its commands is left out, and what works names a
    test that is there.
    """
    text = (ROOT / "docs" / "mlflow.md").read_text(encoding="utf-8")
    assert f"MLflow {mlflow.__version__} " in text
    lines = text.partition("## Start runs")[2].splitlines()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")
    ]
    states = Counter[str]()
    listed = set()
    for what, state, *shown in rows:
        if what.startswith(("call", "command")):
            continue
        for name in re.findall(r"`([^`]+)`", what):
            if name.startswith("mlflow "):
                listed.add(_command_of(shlex.split(name)[1:])[0])
            elif name.startswith("mlflow."):
                assert pydoc.locate(name), name
        for tests in shown:
            word = re.match(r"works|does not", state)
            assert word is not None, state
            states[word[0]] += 1
            _are_there(re.sub(r"`[A-Z_]+`", "", tests))
            assert bool(tests) == (word[0] == "works"), what
    assert f"**{states['works']} work, {states['does not']} do not.**" in text
    lacking = [
        path
        for path in _leaves(mlflow.cli.cli)
        if not any(path[: len(command)] == command for command in listed)
    ]
    assert lacking == []


def test_the_columns_that_tasks_need_are_listed() -> None:
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    rows = {
        cell: set(re.findall(r"`(\w+)`", row))
        for cell, row in re.findall(r"^\| ([^|]+) \| (`[^|]+) \|$", text, re.MULTILINE)
    }
    for name in ("high_tip", "high_tip_card", "tip_amount", "duration"):
        task = make_task(commands.compose_jobs("train", [f"task={name}"])[0].config.task, Taxi())
        listed = next(columns for cell, columns in rows.items() if f"`{name}`" in cell)
        listed |= rows["every task on trips"] - {"task"}
        assert set(Recipe(Taxi(), task).columns) == listed, name
    assert rows["`prepare`"] == set(REQUIRED)


def test_the_package_has_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tipcast.__version__ == project["version"]


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    assert first is not None
    assert first.group(1) == tipcast.__version__


def test_security_page_tells_what_must_be_known() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    headings = (
        "Reporting a vulnerability",
        "Trust boundaries",
        "Secrets",
        "Outside connections",
        "Dependencies",
    )
    parties = ("configuration", "data files", "models", "scheduler", "tracking server")
    rows = [f"\n| {package} | " for package in ("mlflow", "pyarrow", "hydra-core")]
    for part in (
        *(f"\n## {heading}\n" for heading in (*headings, "Known limits")),
        *parties,
        *rows,
    ):
        assert part in text
    assert "NCCL between workers are *not* encrypted" in text


KEY = re.compile(r"`((?:data|task|model|search|backend|cluster|tracking)\.[a-z_]+)\b[^`]*`")
NOT_KEYS = {
    "data.digest": "a tag of versions",
    "data.left_out": "a parameter of runs",
    "data.train_period": "a tag of versions",
    "data.test_period": "a tag of versions",
    "model.uri": "a tag of scorings",
}


def test_keys_that_pages_name_are_in_the_schema() -> None:
    schemas = {
        "backend": [schema.BackendSpec],
        "cluster": [*schema.CLUSTERS.values()],
        "data": [*data_schema.SOURCES.values(), data_schema.OwnData],
        "model": [schema.ModelSpec],
        "search": [schema.SearchSpec],
        "task": [schema.TaskSpec],
        "tracking": [schema.TrackingSpec],
    }
    keys = {
        f"{group}.{field.name}"
        for group, kinds in schemas.items()
        for kind in kinds
        for field in fields(kind)
    }
    for page in PAGES:
        if page.name != "0015-what-left.md":  # keys that are gone
            assert set(KEY.findall(page.read_text(encoding="utf-8"))) <= keys | set(NOT_KEYS), page
    assert not keys & set(NOT_KEYS)


WRITTEN = ("src", "conf", "docker", "tests", "benchmarks", "examples")
"""Folders of the code."""
LIBRARIES = ("distributed", "mlflow.environment_variables", "optuna.pruners", "pyarrow")
"""Modules whose names pages give without the module."""
PREFIXES = ("cudf.", "cupy.", "dask_cudf.", "hydra.", "alias.")
"""Libraries of GPUs, keys that are refused, tags of a name that a user chooses."""
NOT_OURS = {
    "DaskStorage": "of optuna-integration, which is not installed",
    "Default": "MLflow's experiment",
    "probability_CLASS": "CLASS stands for any",
    "random.py": "a file of a user's",
    "tls.yaml": "a file of a user's",
    **dict.fromkeys(
        ("Pickup_longitude", "Start_Lon", "Trip_Pickup_DateTime", "puLocationId", "startLon"),
        "a column of files that are refused",
    ),
}


def _code() -> str:
    """Return the code without its comments and docstrings, in which a name that is gone may live
    on.
    """
    texts = []
    for path in (path for folder in WRITTEN for path in (ROOT / folder).rglob("*.*")):
        if path.suffix == ".py" and path != Path(__file__).resolve():
            with path.open("rb") as file:
                tokens = [
                    token
                    for token in tokenize.tokenize(file.readline)
                    if token.type != tokenize.COMMENT
                ]
            texts += [
                token.string for token in tokens if not token.string.startswith(('"""', 'r"""'))
            ]
        elif path.suffix in {".yaml", ".yml"}:
            texts.append(re.sub(r"#.*", "", path.read_text(encoding="utf-8")))
    return "\n".join(texts)


def _is_there(name: str, code: str, words: set[str]) -> bool:
    """Tell whether a name is one of the code, or of a library."""
    if name in NOT_OURS or name.startswith(PREFIXES):
        return True
    if "." in name:
        return name in code or pydoc.locate(name) is not None
    return name in words or any(
        pydoc.locate(f"{module}.{name}") is not None for module in LIBRARIES
    )


def test_names_that_pages_give_are_those_of_the_code() -> None:
    """Files, modules, classes, constants and all names with a dot, a capital or an underscore; not
    what is gone.
    """
    code = _code()
    words = set(re.findall(r"\w+", code))
    folders = [ROOT, ROOT / "src" / "tipcast"]
    for page in PAGES:
        if page.name in {"CHANGELOG.md", "0015-what-left.md"}:
            continue
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        names = set(re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?`", text))
        named = {
            name for name in names if re.search(r"[A-Z_.]", name) and not KEY.match(f"`{name}`")
        }
        gone = sorted(name for name in named if not _is_there(name, code, words))
        gone += sorted(set(re.findall(r"\b[CDKTMS]\d{3}\b", text)) - words)  # codes of errors
        assert not gone, (page.name, gone)

        paths = re.findall(
            r"(?<![\w./:-])([a-z_]+(?:/[a-z_\d-]+)*/[a-z_\d-]+\.(?:json|md|py|yaml))\b", text
        )
        inside = [
            path
            for path in paths
            if any((top / path.partition("/")[0]).is_dir() for top in folders)
        ]
        absent = sorted(
            path for path in inside if not any((top / path).exists() for top in folders)
        )
        assert not absent, (page.name, absent)
