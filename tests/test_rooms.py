"""Rules on the source as a whole: who imports whom, how long modules are, and what must never be written."""

from __future__ import annotations

import ast
import graphlib
import re
import shutil
import subprocess
import sys
import tomllib
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
) + sorted(path for path in ROOT.iterdir() if path.is_file() and path.name != ".git" and path.suffix != ".db")
MAX_LINES = 450
BUDGET = {
    "compute": 1188,
    "config": 1408,
    "datasets": 4100,
    "evaluation": 1755,
    "jobs": 2632,
    "measure": 211,
    "models": 1884,
    "scoring": 1060,
    "search": 961,
    "tasks": 235,
    "tipcast": 532,
    "tracking": 1853,
}
"""Room -> lines that it may have, ``tipcast`` of what is in none. It only falls: what grows a room makes it up."""
SLACK = 100
"""Lines by which a room may be below its budget, before that has to be lowered."""
ABOVE_DATASETS = sorted(
    path
    for path in MODULES
    if path.relative_to(SOURCE).parts[0] not in ("datasets", "tasks", "__init__.py", "__main__.py")
)
WORDS_OF_TRIPS = {word + plural for word in ("trip", "fare", "tip", "zone", "colour", "taxi") for plural in ("", "s")}
KNOWS_TRIPS = {
    "config/schema.py": {"trips", "zone", "colour"},  # the keys of conf/data, conf/task and conf/score.yaml
    "tracking/model_code/model.py": {"zone", "zones"},  # of the time
}
IMPORTS_BY_TEXT = {
    "__init__.py": "so that `import tipcast` loads nothing",
    "api.py": "a job is a module",
    "evaluation/__init__.py": "a kind of task is a module",
    "models/build.py": "a model's yaml names its class",
    "models/library.py": "a model's yaml names its class",
}
FORBIDDEN_CALLS = {
    "eval": "runs text as code",
    "exec": "runs text as code",
    "pickle.load": "runs what the file says",
    "pickle.loads": "runs what the bytes say",
    "cloudpickle.load": "runs what the file says",
    "cloudpickle.loads": "runs what the bytes say",
    "joblib.load": "is pickle",
    "yaml.load": "can make objects: use yaml.safe_load",
    "os.system": "uses a shell",
    "os.popen": "uses a shell",
    "hydra.utils.instantiate": "makes objects that configuration names",
    "instantiate": "makes objects that configuration names",
    "tempfile.mktemp": "lets others make the file first: use mkstemp",
}
FORBIDDEN_ARGUMENTS = {("shell", True), ("verify", False), ("allow_pickle", True)}
CIRCLES: set[str] = set()
"""Rooms whose modules still import each other in a circle: it only falls."""
PRIVATE: dict[str, set[str]] = {}
"""Module -> private names of Dask and MLflow that it uses, for want of another way."""
VAGUE_NAMES = {"each", "found", "known", "own", "said", "there", "told"}
VAGUE_PHRASES = ("is no ", "none of", "of which", "what is told")
VAGUE = {"names": 226, "phrases": 55}
"""How often those are assigned or written: it only falls. Use a noun of the field, and "must be ..., got ..."."""
LEAKED = re.compile(
    r"/(work|root|opt)/|\.\./shared/(?!taxi\b)|files\.pythonhosted|pypi\.org/simple|--(extra-)?index-url|--find-links"
)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on a tree that has pyproject.toml and src."""
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for a name or attribute, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def forbidden(tree: ast.Module) -> list[str]:
    """Return what a module calls that it must not."""
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = dotted(call.func)
        if name in FORBIDDEN_CALLS:
            found.append(f"line {call.lineno}: {name} {FORBIDDEN_CALLS[name]}")
        for keyword in call.keywords:
            if isinstance(keyword.value, ast.Constant) and (keyword.arg, keyword.value.value) in FORBIDDEN_ARGUMENTS:
                found.append(f"line {call.lineno}: {keyword.arg}={keyword.value.value}")
    return found


def words(text: str) -> set[str]:
    """Return the words of a name or a sentence in small letters: those of ``PULocation`` and of ``pu_location``."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


def of_a_dataset(tree: ast.Module) -> set[str]:
    """Return which words of trips a module has among its identifiers and in its strings."""
    found: set[str] = set()
    for node in ast.walk(tree):
        texts = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "module", "asname", "value")]
        found |= {word for text in texts if isinstance(text, str) for word in words(text)}
    return found & WORDS_OF_TRIPS


def imported_by_text(tree: ast.Module) -> list[str]:
    """Return calls of ``import_module`` whose name may be of a module of tipcast's own."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [call for call in calls if dotted(call.func).rpartition(".")[2] in ("import_module", "__import__")]
    return [ast.unparse(call) for call in found if not _of_others(call.args[0])]


def _of_others(name: ast.expr) -> bool:
    return isinstance(name, ast.Constant) and not str(name.value).startswith("tipcast")


def test_imports_keep_to_the_rooms() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_a_breach_is_found(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, line in (
        ("datasets/base.py", "from tipcast.jobs import train"),
        ("datasets/base.py", "from omegaconf import OmegaConf"),
        ("jobs/train.py", "import mlflow.tracking"),
        ("jobs/train.py", "import optuna"),
        ("models/base.py", "import cupy"),
        ("evaluation/report.py", "import matplotlib.pyplot"),
    ):
        with (tmp_path / "src" / "tipcast" / module).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode != 0
    broken = "\n".join(text for text in done.stdout.splitlines() if " BROKEN" in text)
    for contract in ("one way", "Hydra", "MLflow", "Optuna", "GPU", "Matplotlib"):
        assert contract in broken, done.stdout


def test_every_room_has_its_layer() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = re.findall(r"\w+", " ".join(settings["contracts"][0]["layers"]))
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    assert rooms
    assert rooms <= set(layers)


def test_rooms_keep_to_their_budgets() -> None:
    lines: Counter[str] = Counter()
    for path in MODULES:
        room, *rest = path.relative_to(SOURCE).parts
        lines[room if rest else "tipcast"] += len(path.read_text(encoding="utf-8").splitlines())
    grown = {room: count for room, count in lines.items() if count > BUDGET.get(room, 0)}
    assert not grown, "more lines than the budget: take as many away"
    assert not {room: lines[room] for room in BUDGET if lines[room] < BUDGET[room] - SLACK}, "lower the budget"


def test_modules() -> None:
    vague_files = {"utils", "util", "helpers", "common", "misc"}
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        tree, where = ast.parse(text), path.relative_to(SOURCE)
        assert ast.get_docstring(tree), f"{where}: every module opens with a sentence on what it is for"
        assert len(text.splitlines()) <= MAX_LINES, where
        assert not {part.removesuffix(".py") for part in where.parts} & vague_files, where
        assert forbidden(tree) == [], where
        assert bool(imported_by_text(tree)) == (str(where) in IMPORTS_BY_TEXT), where


def test_forbidden_calls_and_modules_imported_by_text_are_found() -> None:
    for code in (
        "eval('1')",
        "pickle.load(f)",
        "yaml.load(t, L)",
        "run(c, shell=True)",
        "get(u, verify=False)",
        "np.load(f, allow_pickle=True)",
    ):
        assert forbidden(ast.parse(code)), code
    for code in ("importlib.import_module('tipcast.jobs.train')", "import_module(f'{room}.x')", "__import__(name)"):
        assert imported_by_text(ast.parse(code)), code
    assert not imported_by_text(ast.parse("importlib.import_module('xgboost')"))


def test_configuration_names_no_target() -> None:
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert not re.search(r"^\s*_target_\s*:", path.read_text(encoding="utf-8"), re.MULTILINE), path


def test_nothing_of_one_workplace_is_written() -> None:
    for path in TEXTS:
        assert LEAKED.findall(path.read_text(encoding="utf-8")) == [], path


def test_only_datasets_and_tasks_know_what_a_trip_is() -> None:
    for path in ABOVE_DATASETS:
        known = KNOWS_TRIPS.get(str(path.relative_to(SOURCE)), set())
        assert of_a_dataset(ast.parse(path.read_text(encoding="utf-8"))) == known, path
    for code in (
        "from tipcast.datasets.taxi import schema",
        "fare_amount = 1",
        "row['tip_amount']",
        "def f(zones): pass",
        "f(colour='green')",
        "COLOURS",
        "class TripFiles: pass",
        "f'{n} trips'",
    ):
        assert of_a_dataset(ast.parse(code)), code
    assert not of_a_dataset(ast.parse("import tipcast.jobs; multiple = 'stripped of tipcast, coloured'"))


def circle(modules: dict[str, str]) -> list[str]:
    """Return modules that import each other, by name -> source; also by imports in functions."""
    imports: dict[str, set[str]] = {}
    for name, source in modules.items():
        tree = ast.parse(source)
        checks = [node for node in tree.body if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING"]
        types_alone = {inner for node in checks for inner in node.body}
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node not in types_alone]
        imported = {
            text for node in nodes for text in (str(node.module), *(f"{node.module}.{a.name}" for a in node.names))
        }
        imports[name] = imported & (modules.keys() - {name})
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as problem:
        return list(problem.args[1])
    return []


def private_names(tree: ast.Module) -> set[str]:
    """Return names with an underscore that a module takes from Dask or MLflow."""
    others, found = set(), set()
    for node in ast.walk(tree):
        names = [a.name for a in getattr(node, "names", [])] if isinstance(node, ast.Import | ast.ImportFrom) else []
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
        count["names"] += (stored and node.id in VAGUE_NAMES) or (isinstance(node, ast.arg) and node.arg in VAGUE_NAMES)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            count["phrases"] += sum(map(node.value.count, VAGUE_PHRASES))
    return count


def test_no_modules_of_a_room_import_each_other() -> None:
    rooms: dict[str, dict[str, str]] = {}
    for path in MODULES:
        name = ".".join(("tipcast", *path.relative_to(SOURCE).with_suffix("").parts))
        rooms.setdefault(path.relative_to(SOURCE).parts[0], {})[name] = path.read_text(encoding="utf-8")
    assert {room for room, modules in rooms.items() if circle(modules)} == CIRCLES
    assert circle({"t.a": "def f():\n from t import b", "t.b": "from t.a import x"})


def test_private_names_of_others_are_not_used() -> None:
    used = {str(path.relative_to(SOURCE)): private_names(ast.parse(path.read_text("utf-8"))) for path in MODULES}
    assert {path: names for path, names in used.items() if names} == PRIVATE
    assert private_names(ast.parse("import mlflow\nmlflow.tracking._x.y"))
    assert private_names(ast.parse("from distributed.utils import _x"))


def test_vague_words_only_leave() -> None:
    count: Counter[str] = Counter()
    for path in MODULES:
        count.update(vague(ast.parse(path.read_text(encoding="utf-8"))))
    assert not {kind: count[kind] for kind in VAGUE if count[kind] > VAGUE[kind]}, "name it by what it is"
    assert not {kind: count[kind] for kind in VAGUE if count[kind] < VAGUE[kind] * 0.9}, "lower the number"
    assert vague(ast.parse("found = 'x is no number'")) == {"names": 1, "phrases": 1}
