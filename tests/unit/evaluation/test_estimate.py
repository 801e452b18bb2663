"""What is estimated without answers, held against what is so with them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from distributed import Client
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score

from tipcast.evaluation.classification import Classification
from tipcast.evaluation.estimate import GROUPS, estimated, measured, of_known, reference
from tipcast.evaluation.multiclass import Multiclass
from tipcast.evaluation.regression import Regression

CLASSES, VALUES = Classification(), Regression()


def scored(count: int, seed: int, a: float = 3, b: float = 4) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are too sure, and labels."""
    draw = np.random.default_rng(seed)
    true = draw.beta(a, b, count)
    odds = (true / (1 - true)) ** 1.5
    return (odds / (1 + odds)).astype(np.float32), (draw.random(count) < true).astype(np.int8)


def of_test(scores: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    return {"reference": json.loads(json.dumps(reference(CLASSES.evaluate_here(scores, labels), "test")))}


def test_of_the_test_rows_themselves_it_is_what_it_was() -> None:
    scores, labels = scored(40_000, 0)
    profile = of_test(scores, labels)
    assert profile["reference"]["value"] == pytest.approx(roc_auc_score(labels, scores))
    found = estimated(profile, CLASSES.count(scores))
    assert found is not None
    assert found.value == pytest.approx(roc_auc_score(labels, scores), abs=0.002)
    assert found.details["positive_rate"] == pytest.approx(labels.mean(), abs=1e-3)


@pytest.mark.parametrize(("a", "b"), [(2, 6), (8, 8), (6, 2), (1, 1)])
def test_of_easier_and_harder_rows(a: float, b: float) -> None:
    """Other rows, the same answers to each: the estimate is the truth within its interval."""
    profile = of_test(*scored(60_000, 1))
    scores, labels = scored(30_000, 2, a, b)
    found, real = estimated(profile, CLASSES.count(scores)), measured(CLASSES.of_sums(CLASSES.count(scores, labels)))
    assert found is not None
    assert found.value == pytest.approx(real.value, abs=0.01)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert found.details["positive_rate"] == pytest.approx(labels.mean(), abs=0.01)
    assert found.details["calibration_error"] == pytest.approx(real.details["calibration_error"], abs=0.01)
    assert real.details["calibration_error"] > 0.03, "scores that are too sure"


def test_it_cannot_see_other_answers_to_the_same_rows() -> None:
    scores, labels = scored(20_000, 3)
    found = estimated(of_test(scores, labels), CLASSES.count(scores, 1 - labels))
    assert found is not None
    assert found.value > 0.6 > 0.5 > roc_auc_score(1 - labels, scores)


def test_rates_are_isotonic_regression_of_groups() -> None:
    scores, labels = scored(10_000, 4)
    told = of_test(scores, labels)["reference"]
    points, rates = (1 / (1 + np.exp(-np.asarray(told[name]))) for name in ("scores", "rates"))
    assert len(rates) == len(points) == GROUPS
    borders = np.sort(scores)[200::200]  # groups of 200 rows
    at = np.searchsorted(borders, scores, side="right")
    assert (np.searchsorted(borders, points, side="right") == np.arange(GROUPS)).all(), "each in its group"
    means = np.bincount(at, labels) / np.bincount(at)
    expected = IsotonicRegression().fit(np.arange(GROUPS), means).predict(np.arange(GROUPS))
    np.testing.assert_allclose(rates, expected, atol=0.02)
    assert told["slope"] == pytest.approx(1 / 1.5, abs=0.05), "scores are too sure by that"


@pytest.mark.parametrize("count", [40, 300, 5000])
def test_of_few_rows_and_a_rare_class(count: int) -> None:
    draw = np.random.default_rng(count)
    scores = draw.beta(2, 100, count).astype(np.float32)
    labels = (draw.random(count) < scores).astype(np.int8)
    labels[:2] = 0, 1
    told = of_test(scores, labels)["reference"]
    assert 1 <= len(told["rates"]) <= max(5, count // 100, labels.sum() // 10)
    assert np.isfinite([*told["scores"], *told["rates"], told["slope"]]).all()
    found = estimated({"reference": told}, CLASSES.count(scores))
    assert found is not None
    assert 0.5 <= found.value <= 1


def test_few_different_scores() -> None:
    scores = np.repeat([0.2, 0.7], 500).astype(np.float32)
    labels = np.tile([0, 0, 0, 1, 1], 200).astype(np.int8)
    found = estimated(of_test(scores, labels), CLASSES.count(scores))
    assert found is not None
    assert found.value == pytest.approx(roc_auc_score(labels, scores), abs=1e-3)


def test_rows_whose_answer_is_known() -> None:
    scores, labels = scored(1000, 5)
    labels[300:] = -1
    sums = CLASSES.count(scores, labels)
    assert of_known(sums).rows.tolist() == CLASSES.count(scores[:300]).rows.tolist()
    assert of_known(CLASSES.count(scores)) is None
    truth = np.where(np.arange(1000) < 300, scores, np.nan)
    described = {"edges": np.linspace(0, 1, 51).tolist()}
    known = of_known(VALUES.count(scores, truth, reference=described))
    assert known.histogram.tolist() == VALUES.count(scores[:300], reference=described).histogram.tolist()
    assert of_known(VALUES.count(scores, reference=described)) is None
    probabilities = np.random.default_rng(0).dirichlet([1, 1, 1], 1000)
    classes = np.where(np.arange(1000) < 300, 1, -1)
    known = of_known(Multiclass().count(probabilities, classes))
    assert known.predicted.tolist() == Multiclass().count(probabilities[:300]).predicted.tolist()


def test_errors_of_numbers_follow_the_predictions(client: Client) -> None:
    """Errors grow with the prediction: of rows with larger ones more is expected, as it comes."""

    def rows(count: int, seed: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(seed)
        predicted = draw.gamma(2.0, scale, count)
        return predicted.astype(np.float32), (
            predicted + draw.normal(0.1, 0.3) + predicted * draw.normal(0, 0.2, count)
        )

    predicted, truth = rows(60_000, 0, 3.0)
    futures = [[client.submit(np.asarray, each, pure=False)] for each in (predicted, truth)]
    evaluation = VALUES.evaluate(client, *futures)
    profile = {"score": VALUES.profile(evaluation, "test"), "reference": reference(evaluation, "test")}
    assert json.loads(json.dumps(profile)) == profile
    for scale in (1.5, 3.0):
        new, _ = rows(30_000, 0, scale)
        answers = new + (truth - predicted).mean() + new * np.random.default_rng(1).normal(0, 0.2, len(new))
        sums = VALUES.count(new, answers, reference=profile["score"])
        found, real = estimated(profile, sums), measured(VALUES.of_sums(sums))
        assert found is not None
        assert found.value == pytest.approx(real.value, rel=0.05)
        assert found.details["bias"] == pytest.approx(real.details["bias"], abs=0.05)
        assert real.value == pytest.approx(math.sqrt(np.mean((new - answers) ** 2)), rel=1e-6)


def test_nothing_is_estimated_of_what_tells_nothing() -> None:
    scores, labels = scored(100, 6)
    sums = CLASSES.count(scores, labels)
    assert estimated({}, sums) is None
    assert estimated(of_test(scores, labels), CLASSES.count(scores[:0])) is None
    draw = np.random.default_rng(0)
    evaluation = Multiclass().evaluate_here(draw.dirichlet([1, 1, 1], 50), draw.integers(0, 3, 50))
    assert set(reference(evaluation, "test")) == {"split", "rows", "value"}
    assert estimated({"reference": reference(evaluation, "test")}, Multiclass().count(np.eye(3))) is None


def test_calibration_error_is_the_mean_distance_of_bins() -> None:
    scores, labels = np.repeat([0.12, 0.52], [100, 300]), np.zeros(400, dtype=np.int8)
    labels[:20], labels[100:300] = 1, 1
    found = CLASSES.evaluate_here(scores.astype(np.float64), labels)
    expected = (100 * abs(0.12 - 0.2) + 300 * abs(0.52 - 2 / 3)) / 400
    assert found.metrics["calibration_error"] == pytest.approx(expected, abs=1e-5)
