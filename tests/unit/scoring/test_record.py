"""What a run says of a scoring: its table of files, metrics and pace."""

from types import SimpleNamespace
from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.evaluation import evaluator_of
from tipcast.scoring.folder import ManifestEntry
from tipcast.scoring.record import file_counts, files_table, model_name, pace, prediction_metrics
from tipcast.scoring.results import ScoringResult
from tipcast.tasks.kinds import BINARY

REFUSED = TipcastError("D005", "in/c.csv", "damaged", "mend it")


def entry(name: str, rows: int, **unscored: int) -> ManifestEntry:
    return ManifestEntry(
        input=f"in/{name}", input_sha256=f"of {name}", recipe="r", rows=rows, unscored=unscored
    )


@pytest.fixture
def scored() -> ScoringResult:
    """Two files that were scored, the later name first, and one that was refused."""
    entries = {"b": entry("b", 3, far=1, late=0), "a": entry("a", 4, far=1)}
    return ScoringResult(entries, {"c": REFUSED}, evaluator_of(BINARY).total([]))


@pytest.fixture
def plan() -> Any:
    model = SimpleNamespace(name="tips", version="3", uri="models:/tips/3")
    task = SimpleNamespace(kind=BINARY, classes=("no", "yes"))
    return SimpleNamespace(model=model, task=task, unchanged={"d": entry("d", 9)})


def test_rows_without_a_score_are_added_up_by_reason(scored: ScoringResult) -> None:
    assert scored.unscored == {"far": 2}


def test_table_lists_scored_files_before_refused_ones(scored: ScoringResult) -> None:
    assert files_table(scored) == {
        "scores": ["a", "b", "c"],
        "input": ["in/a", "in/b", "in/c.csv"],
        "rows": [4, 3, None],
        "unscored": [1, 1, None],
        "input_sha256": ["of a", "of b", None],
        "scores_sha256": ["", "", None],
        "refused": ["", "", str(REFUSED)],
    }


def test_files_are_counted_by_what_became_of_them(plan: Any, scored: ScoringResult) -> None:
    counts = {"score/files": 2, "score/kept_files": 1, "score/refused_files": 1}
    assert file_counts(plan, scored) == counts


def test_metrics_without_known_answers_are_of_the_predictions_alone(
    plan: Any, scored: ScoringResult
) -> None:
    metrics = prediction_metrics(plan, scored, None)
    assert (metrics["score/rows"], metrics["score/unscored"]) == (7, 2)
    assert metrics["unscored/far"] == 2
    assert not [name for name in metrics if name.startswith("labelled/")]


def test_pace_is_of_the_rows_that_were_scored(scored: ScoringResult) -> None:
    assert pace(scored, {"seconds/score": 2.0}) == {"score/rows_per_s": 3.5}


def test_there_is_no_pace_where_no_row_was_scored() -> None:
    nothing = ScoringResult({}, {}, evaluator_of(BINARY).total([]))
    assert pace(nothing, {}) == {}


def test_model_that_is_not_registered_is_called_by_its_address(plan: Any) -> None:
    assert model_name(plan) == "tips version 3"
    plan.model.version = None
    assert model_name(plan) == "models:/tips/3"
