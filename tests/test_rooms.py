"""Rules on the source as a whole: who imports whom, how long modules are, and what must never be
written.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tipcast"
MODULES = sorted(SOURCE.rglob("*.py"))
TEXTS = sorted(
    path
    for folder in ("src", "conf", "tests", "benchmarks", "docs", "requirements", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".yaml", ".toml", ".md", ".txt", ".json", ""}
    and path.is_file()
    and path != Path(__file__)
) + sorted(path for path in ROOT.iterdir() if path.is_file() and path.name != ".git")
MAX_LINES = 450
MAX_LOCALS = 15
LONGER = {"models/native.py": 500, "tracking/model_code/model.py": 500}
"""Modules that may be longer: each travels inside saved models as one file."""
ABOVE_DATASETS = sorted(
    path
    for path in MODULES
    if path.relative_to(SOURCE).parts[0] not in ("datasets", "tasks", "__init__.py", "__main__.py")
)
WORDS_OF_TRIPS = {
    word + plural
    for word in ("trip", "fare", "tip", "zone", "colour", "taxi")
    for plural in ("", "s")
}
KNOWS_TRIPS = {
    # the keys of conf/data, conf/task and conf/score.yaml
    "config/data_schema.py": {"trips", "zone", "colour"},
    "config/schema.py": {"colour"},
    "tracking/model_code/model.py": {"zone", "zones"},  # of the time
}
IMPORTS_BY_TEXT = {
    "__init__.py": "so that `import tipcast` loads nothing",
    "commands.py": "a job is a module",
    "evaluation/__init__.py": "a kind of task is a module",
    "models/build.py": "a model's yaml names its class",
    "models/library_class.py": "a model's yaml names its class",
}
PRIVATE: dict[str, set[str]] = {}
"""Module -> private names of Dask and MLflow that it uses, for want of another way."""
VAGUE_NAMES = {"each", "found", "known", "own", "said", "there", "told"}
VAGUE_PHRASES = ("is no ", "none of", "of which", "what is told")
VAGUE = {"names": 1, "phrases": 30}
"""How often those are assigned or written: it only falls. Use a noun of the field, and "must be
..., got ...".
"""
LEAKED = re.compile(
    r"/(work|root|opt)/|\.\./shared/(?!taxi\b)|files\.pythonhosted|pypi\.org/simple|--(extra-)?index-url|--find-links"
)


def lint_imports(folder: Path) -> str:
    """Return what import-linter says of a tree that has pyproject.toml and src."""
    program = Path(sys.executable).with_name("lint-imports")
    path = {"PYTHONPATH": str(folder / "src")}
    return subprocess.run(
        [program, "--no-cache"], cwd=folder, env=path, stdout=subprocess.PIPE, text=True
    ).stdout


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for a name or attribute, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def words(text: str) -> set[str]:
    """Return the words of a name or a sentence in small letters: those of ``PULocation`` and of
    ``pu_location``.
    """
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


def of_a_dataset(tree: ast.Module) -> set[str]:
    """Return which words of trips a module has among its identifiers and in its strings."""
    found: set[str] = set()
    for node in ast.walk(tree):
        texts = [
            getattr(node, field, None)
            for field in ("id", "attr", "name", "arg", "module", "asname", "value")
        ]
        found |= {word for text in texts if isinstance(text, str) for word in words(text)}
    return found & WORDS_OF_TRIPS


def imported_by_text(tree: ast.Module) -> list[str]:
    """Return calls of ``import_module`` whose name may be of a module of tipcast's own."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [
        call
        for call in calls
        if dotted(call.func).rpartition(".")[2] in ("import_module", "__import__")
    ]
    names = [ast.unparse(call.args[0]) for call in found]
    return [name for name in names if not re.match(r"'(?!tipcast)", name)]


def test_imports_keep_to_the_rooms(tmp_path: Path) -> None:
    """No contract of pyproject.toml is broken, and a breach of each is found."""
    said = lint_imports(ROOT)
    assert " 0 broken" in said, said
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, line in (
        ("datasets/base.py", "from tipcast.jobs import train"),
        ("datasets/base.py", "from omegaconf import OmegaConf"),
        ("datasets/address.py", "def f():\n    from tipcast.datasets import find_files"),
        ("jobs/train.py", "import mlflow.tracking"),
        ("jobs/train.py", "import optuna"),
        ("models/base.py", "import cupy"),
        ("evaluation/report.py", "import matplotlib.pyplot"),
    ):
        with (tmp_path / "src" / "tipcast" / module).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    said = lint_imports(tmp_path)
    assert " 0 kept, 7 broken" in said, said


def test_modules() -> None:
    vague_files = {"utils", "util", "helpers", "common", "misc"}
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        where = path.relative_to(SOURCE)
        assert ast.get_docstring(tree), (
            f"{where}: every module opens with a sentence on what it is for"
        )
        most = LONGER.get(where.as_posix(), MAX_LINES)
        assert len(text.splitlines()) <= most, where
        assert not {part.removesuffix(".py") for part in where.parts} & vague_files, where
        assert "allow_pickle=True" not in text, where
        assert bool(imported_by_text(tree)) == (str(where) in IMPORTS_BY_TEXT), where
    for code in (
        "importlib.import_module('tipcast.jobs.train')",
        "import_module(f'{room}.x')",
        "__import__(name)",
    ):
        assert imported_by_text(ast.parse(code)), code
    assert not imported_by_text(ast.parse("importlib.import_module('xgboost')"))


def test_configuration_names_no_target() -> None:
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert not re.search(r"^\s*_target_\s*:", path.read_text(encoding="utf-8"), re.MULTILINE), (
            path
        )


def test_nothing_of_one_workplace_is_written() -> None:
    for path in TEXTS:
        content = path.read_bytes()
        # a file that a job left here, as a store with its journals, is no text
        if b"\0" not in content:
            assert LEAKED.findall(content.decode("utf-8")) == [], path


def test_no_room_above_datasets_knows_what_a_trip_is() -> None:
    for path in ABOVE_DATASETS:
        known = KNOWS_TRIPS.get(str(path.relative_to(SOURCE)), set())
        assert of_a_dataset(ast.parse(path.read_text(encoding="utf-8"))) == known, path


def test_words_of_trips_are_found_in_a_module() -> None:
    planted = ast.parse("f(colour=row['TIP_Amount'], x=lambda zones: TripFiles)")
    assert of_a_dataset(planted) == {"colour", "tip", "zones", "trip"}
    assert not of_a_dataset(
        ast.parse("import tipcast.jobs; multiple = 'stripped of tipcast, coloured'")
    )


def private_names(tree: ast.Module) -> set[str]:
    """Return names with an underscore that a module takes from Dask or MLflow."""
    others = set()
    found = set()
    for node in ast.walk(tree):
        names = (
            [a.name for a in getattr(node, "names", [])]
            if isinstance(node, ast.Import | ast.ImportFrom)
            else []
        )
        for name, path in ((n, f"{getattr(node, 'module', None) or n}.{n}") for n in names):
            if path.partition(".")[0] in ("dask", "distributed", "mlflow"):
                others.add(name.partition(".")[0])
                found |= {path} if re.search(r"\._[a-z]", path) else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            path = dotted(node)
            found |= {path} if path.partition(".")[0] in others else set()
    return found


def vague(tree: ast.Module) -> Counter[str]:
    """Count vague names that a module assigns, and vague phrases in its strings."""
    count: Counter[str] = Counter()
    for node in ast.walk(tree):
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        count["names"] += (stored and node.id in VAGUE_NAMES) or (
            isinstance(node, ast.arg) and node.arg in VAGUE_NAMES
        )
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            count["phrases"] += sum(map(node.value.count, VAGUE_PHRASES))
    return count


def test_private_names_of_others_are_not_used() -> None:
    used = {
        str(path.relative_to(SOURCE)): private_names(ast.parse(path.read_text("utf-8")))
        for path in MODULES
    }
    assert {path: names for path, names in used.items() if names} == PRIVATE
    assert private_names(ast.parse("import mlflow\nmlflow.tracking._x.y"))
    assert private_names(ast.parse("from distributed.utils import _x"))


def test_functions_have_few_locals() -> None:
    """A reader keeps no more than 15 names in mind; ruff limits statements and branches."""
    many = []
    for path in MODULES:
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                names = local_names(function)
                if len(names) > MAX_LOCALS:
                    many.append((path.name, function.name, len(names)))
    assert not many


def local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that a function assigns, without its parameters."""
    return {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def test_vague_words_only_leave() -> None:
    count: Counter[str] = Counter()
    for path in MODULES:
        count.update(vague(ast.parse(path.read_text(encoding="utf-8"))))
    assert not {kind: count[kind] for kind in VAGUE if count[kind] > VAGUE[kind]}, (
        "name it by what it is"
    )
    assert not {kind: count[kind] for kind in VAGUE if count[kind] < VAGUE[kind] * 0.9}, (
        "lower the number"
    )
    assert vague(ast.parse("found = 'x is no number'")) == {"names": 1, "phrases": 1}
