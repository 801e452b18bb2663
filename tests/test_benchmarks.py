"""The measuring harness: which pairs count, what is recorded; and every committed result says where it comes from."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import harness
import table
from harness import Comparison, Pair, compare, write_result

ROOT = Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def test_ratio_is_of_the_medians_of_undisturbed_pairs() -> None:
    pairs = (Pair(1.0, 2.0, 0.0), Pair(1.2, 2.0, 0.1), Pair(9.0, 1.0, 0.11), Pair(1.1, 4.0, 0.0))
    result = Comparison(("ours", "theirs"), pairs, wanted=3)
    assert [pair.void for pair in pairs] == [False, False, True, False]
    assert result.medians == (1.1, 2.0)
    assert result.ratio == pytest.approx(0.55)
    assert result.enough
    assert "NOT VALID" not in str(result)


def test_too_few_undisturbed_pairs_are_said() -> None:
    result = Comparison(("a", "b"), (Pair(1.0, 2.0, 0.5), Pair(1.0, 2.0, 0.0)), wanted=2)
    assert not result.enough
    assert "only 1 of 2 pairs" in str(result)
    assert result.record()["enough"] is False


def test_works_are_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_busy_seconds", lambda: 0.0)
    order: list[str] = []
    result = compare(lambda: order.append("a"), lambda: order.append("b"), pairs=3, warmups=1)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert len(result.pairs) == 3


def test_disturbed_pairs_are_measured_again_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_busy_seconds", lambda: time.perf_counter() * 1000)
    result = compare(lambda: time.sleep(0.001), lambda: None, pairs=2, warmups=0)
    assert len(result.pairs) == 2 * harness.MAX_TRIES
    assert not result.valid


def test_ones_own_work_is_not_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which only this process and its ended commands work shows no foreign share."""
    monkeypatch.setattr(harness, "_busy_seconds", harness._own_seconds)
    result = compare(lambda: sum(range(300_000)), [sys.executable, "-c", "sum(range(300_000))"], pairs=1, warmups=0)
    assert result.pairs[0].foreign == 0.0
    before = harness._own_seconds()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert harness._own_seconds() > before


def test_a_failing_command_is_an_error() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        compare([sys.executable, "-c", "raise SystemExit(3)"], lambda: None, pairs=1)


def test_result_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    path = write_result("name", Comparison(("a", "b"), (Pair(1.0, 2.0, 0.0),), wanted=1), rows=10, goal="<= 0.6")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["results"][0]["ratio"] == 0.5
    assert content["facts"] == {"rows": 10, "goal": "<= 0.6"}
    assert content["environment"]["cores"] >= 1
    assert content["environment"]["versions"]["numpy"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_committed_result_says_where_it_comes_from(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert {"date", "commit", "system", "processor", "cores", "memory_gib", "python", "versions"} <= set(
        content["environment"]
    )
    assert content["results"]
    assert all(row.get("enough", True) for row in content["results"]), "too few undisturbed pairs"


@pytest.mark.parametrize("page", list(table.TABLES))
def test_pages_tell_what_the_results_say(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for shown in table.TABLES[page]:
        assert text.count(shown()) == 1, "run benchmarks/table.py and copy what it prints"
