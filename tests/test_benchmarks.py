"""The measuring harness: which pairs count, what is recorded; and every committed result says where
it comes from.
"""

import ast
import importlib
import importlib.util
import itertools
import json
from pathlib import Path

import pandas as pd
import pytest
from tests.conftest import git

import harness
import other_folds
import table
from by_sklearn import Side
from harness import Comparison, Pair, compare, write_result
from package_tables import Table

ROOT = Path(__file__).resolve().parent.parent
SUBJECT = "src/tipcast/evaluation/metrics.py"
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def test_ratio_is_of_the_medians_of_undisturbed_pairs() -> None:
    pairs = (Pair(1.0, 2.0, 0.0), Pair(1.2, 2.0, 0.1), Pair(9.0, 1.0, 0.11), Pair(1.1, 4.0, 0.0))
    result = Comparison(("ours", "theirs"), pairs, wanted=3)
    assert [pair.void for pair in pairs] == [False, False, True, False]
    assert result.medians == (1.1, 2.0)
    assert result.ratio == pytest.approx(0.55)
    assert result.enough
    assert "NOT VALID" not in str(result)
    few = Comparison(("ours", "theirs"), pairs, wanted=4)
    assert "only 3 of 4 pairs" in str(few)
    assert few.record()["enough"] is False


@pytest.fixture(params=["quiet", "busy"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How busy other processes keep the machine."""
    seconds = {"quiet": itertools.repeat(0.0), "busy": itertools.count(0.0, 1e6)}
    monkeypatch.setattr(harness, "_busy_seconds", seconds[request.param].__next__)
    machine: str = request.param
    return machine


def test_works_are_run_in_turn(machine: str) -> None:
    order: list[str] = []
    compare(*(lambda name=name: order.append(name) for name in "ab"), pairs=3)
    assert "".join(order).startswith("ab" + "ab" + "ba" + "ab")


def test_disturbed_pairs_are_run_again(machine: str) -> None:
    result = compare(lambda: None, lambda: None, pairs=3)
    wanted = {"quiet": (3, 3), "busy": (3 * harness.MAX_TRIES, 0)}
    assert (len(result.pairs), len(result.valid)) == wanted[machine]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a module and a result, to which the harness and the tables look."""
    root = tmp_path / "tree"
    results = root / "benchmarks" / "results"
    subject = root / SUBJECT
    results.mkdir(parents=True)
    subject.parent.mkdir(parents=True)
    subject.write_text("one = 1\n")
    (results / "binned_auc.json").write_text("{}")
    for words in ("init -q", "add .", "commit -qm first"):
        git(root, *words.split())
    for module in (harness, table):
        monkeypatch.setattr(module, "ROOT", root)
        monkeypatch.setattr(module, "RESULTS", results)
    return root


def state() -> tuple[object, object]:
    """Return of which commit the harness takes the tree to be, and whether it has changed."""
    found = harness.describe_environment()
    return found["commit"], found["changed"]


@pytest.mark.parametrize("copied", [False, True])
def test_changes_are_of_files_but_not_of_results(tree: Path, copied: bool) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    if copied:  # without git, held against what it was made of
        (tree / ".commit").write_text(commit + "\n" + git(tree, "ls-tree", "-r", "HEAD"))
        (tree / ".git").rename(tree.parent / "elsewhere")
    else:
        (tree / "benchmarks" / "results" / "binned_auc.json").write_text("[]")
    (tree / "untracked").write_text("")
    assert state() == (commit, False)
    (tree / SUBJECT).write_text("one = 2\n")
    assert state() == (commit, True)
    (tree / SUBJECT).unlink()
    assert state() == (commit, True)
    if copied:
        (tree / ".commit").unlink()
        assert state() == (None, True)


@pytest.mark.parametrize(("name", "subject"), [("binned_auc", SUBJECT), ("suite", "tests/a")])
def test_results_older_than_their_subject_are_stale(tree: Path, name: str, subject: str) -> None:
    assert table.stale("tracking") == "missing"
    write_result(name, {}, out=tree / "benchmarks" / "results")
    for path, text, older in (
        ("other", "one = 2\n", False),
        (SUBJECT, '"""What it is."""\none = 1  # indeed\n', False),
        (subject, "one = 2\n", True),
    ):
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_text(text)
        git(tree, "add", path)
        git(tree, "commit", "-qm", "change")
        assert bool(table.stale(name)) == older
    assert table.stale(name).endswith(f": {subject.removeprefix('src/tipcast/')}")
    pair = Comparison(("a", "b"), (Pair(1.0, 2.0, 0.0),), wanted=1)
    content = json.loads(
        write_result(name, pair, out=tree / "benchmarks" / "results", rows=10).read_text()
    )
    assert table.stale(name) == ""
    assert (content["results"][0]["ratio"], content["facts"]) == (0.5, {"rows": 10})


@pytest.mark.parametrize(
    "of", [{"commit": None, "changed": False}, {"commit": "a", "changed": True}]
)
def test_a_result_of_no_commit_is_refused(tree: Path, of: dict[str, object]) -> None:
    clean = {"commit": "a", "changed": False}
    for environment, facts in ((of, {}), (clean, {"trained_on": of})):
        content = json.dumps({"environment": environment, "facts": facts})
        (tree / "benchmarks" / "results" / "binned_auc.json").write_text(content)
        with pytest.raises(table.Refused):
            table.read("binned_auc")
        assert table.stale("binned_auc").startswith("refused")


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_committed_result_says_where_it_comes_from(path: Path) -> None:
    content = table.read(path.stem)
    assert {"date", "system", "processor", "cores", "memory_gib", "python", "versions"} <= set(
        content["environment"]
    )
    assert content["results"]
    assert all(row.get("enough", True) for row in content["results"]), "too few undisturbed pairs"
    assert all((ROOT / "src" / "tipcast" / source).exists() for source in table.SOURCES[path.stem])


def test_pages_tell_what_the_results_say() -> None:
    texts = [page.read_text(encoding="utf-8") for page in table.pages()]
    for page, text in zip(table.pages(), texts, strict=True):
        assert table.filled(text) == text, f"{page.name}: run benchmarks/table.py --write"
    shown = [name for text in texts for name in table.MARKED.findall(text)]
    assert sorted(shown) == sorted(table.tables())


def test_what_scripts_import_of_tipcast_is_there() -> None:
    """No test runs the scripts of GPUs: a name that has moved would show on the next GPU machine
    only.
    """
    for path in sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tipcast"):
                module = importlib.import_module(str(node.module))
                for name in node.names:
                    assert hasattr(module, name.name) or importlib.util.find_spec(
                        f"{node.module}.{name.name}"
                    ), path


def row_of_table(**more: object) -> dict[str, object]:
    """Return a table's row of the result of other_tables."""
    names = {"table": "wine", "package": "scikit-learn", "target": "kind", "model": "ridge"}
    values = {"rows": 10, "columns": 2, "run": 0.5, "scikit_learn": 0.5}
    apart = {"metrics_apart": 0.0, "ways_apart": 0.0}
    return {**names, **values, **apart, "metric": "rmse", "trained_on": "csv", **more}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "| not measured | not measured |"),
        (
            {"folds": {"metrics_apart": 1e-16, "broken": {"rows": 0}}, "rows_apart": 0.0},
            "| 1e-16 (<= 1e-09, met) | 0 (<= 0, met) |",
        ),
        (
            {"folds": {"metrics_apart": 1e-8, "broken": {"rows": 2}}, "rows_apart": 1.0},
            "| 1e-08 (<= 1e-09, **missed**) | 3 (<= 0, **missed**) |",
        ),
    ],
)
def test_folds_of_a_package_table_are_told(tree: Path, more: dict[str, object], told: str) -> None:
    results = tree / "benchmarks" / "results"
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "all", "--allow-empty")
    packages = {"scikit-learn": "1.0"}
    write_result("other_tables", [row_of_table(**more)], out=results, packages=packages)
    assert told in table.other_tables()


def folds_of(rows: pd.DataFrame) -> other_folds.Folds:
    """Return the folds of a run whose rows are each tested by the fold in their column ``fold``."""
    predictions = rows.reset_index(names="row")[["row", "fold"]].assign(target=rows["y"].to_numpy())
    most = rows["fold"].value_counts().sort_index()
    return other_folds.Folds(predictions, {}, (len(rows) - most).tolist())


def table_of(**more: str) -> Table:
    """Return what a benchmark asks of a table."""
    return Table("made", "none", lambda _: pd.DataFrame(), "y", "ridge", **more)


@pytest.fixture
def ten_rows() -> pd.DataFrame:
    """Two rows of each of five groups, a fold for each group, one after another in time."""
    group = [number // 2 for number in range(10)]
    days = pd.Timestamp("2025-01-01") + pd.to_timedelta(group, unit="D")
    return pd.DataFrame(
        {"group": group, "fold": [number + 1 for number in group], "when": days}
    ).assign(y=[float(number) for number in range(10)])


def side_of(rows: pd.DataFrame) -> Side:
    """Return rows as scikit-learn would get them."""
    return Side(rows, rows[["group"]].astype(float), rows["y"], None)


def broken_rules(asked: Table, rows: pd.DataFrame, folds: other_folds.Folds) -> dict[str, int]:
    """Return the rules of folds that some rows or groups break, and how many."""
    train = side_of(rows)
    splits = other_folds.splits_of(asked, train, folds.predictions)
    found = other_folds.broken(asked, folds, train, side_of(rows.iloc[:0]), splits)
    return {rule: count for rule, count in found.items() if count}


def test_no_rule_of_folds_is_broken_by_whole_groups(ten_rows: pd.DataFrame) -> None:
    assert broken_rules(table_of(group="group"), ten_rows, folds_of(ten_rows)) == {}


def test_a_group_in_two_folds_is_counted(ten_rows: pd.DataFrame) -> None:
    ten_rows.loc[0, "group"] = 4
    assert broken_rules(table_of(group="group"), ten_rows, folds_of(ten_rows)) == {
        "groups_in_two_folds": 1
    }


def test_a_row_of_two_folds_is_counted(ten_rows: pd.DataFrame) -> None:
    folds = folds_of(ten_rows)
    twice = pd.concat([folds.predictions, folds.predictions.iloc[:1].assign(fold=2)])
    folds = other_folds.Folds(twice, {}, folds.train_rows)
    assert broken_rules(table_of(), ten_rows, folds)["rows_on_two_sides"] == 1


def test_a_row_later_than_the_tests_of_its_fold_is_counted(ten_rows: pd.DataFrame) -> None:
    ten_rows.loc[0, "when"] = pd.Timestamp("2026-01-01")
    folds = folds_of(ten_rows)
    folds = other_folds.Folds(folds.predictions, {}, [0, 2, 4, 6, 8])
    assert broken_rules(table_of(time="when"), ten_rows, folds)["rows_later_than_tests"] == 4


def test_a_prediction_of_another_row_is_counted(ten_rows: pd.DataFrame) -> None:
    folds = folds_of(ten_rows)
    folds.predictions.loc[0, "target"] = 7.0
    assert broken_rules(table_of(), ten_rows, folds) == {"targets_of_other_rows": 1}
