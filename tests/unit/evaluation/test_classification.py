"""Metrics of two classes against scikit-learn, and of the difference of two models' AUC against
DeLong's definition.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn import metrics as reference
from tests.conftest import spread

from tipcast.evaluation import binary_sums, classification
from tipcast.evaluation.base import Evaluation
from tipcast.evaluation.classification import Classification
from tipcast.evaluation.roc import MAX_POINTS, area_under, thin
from tipcast.evaluation.sums import Interval, PartedColumns

EVALUATOR = Classification()
TIGHT = 1e-12
Z95 = 1.959963984540054
BINNED = 2e-6
"""How far an AUC of continuous scores may be from scikit-learn's."""


def rows(count: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Continuous float32 scores, and labels that they are the probabilities of."""
    draw = np.random.default_rng(seed)
    scores = draw.beta(3, 4, count).astype(np.float32)
    return scores, (draw.random(count) < scores).astype(np.int8)


def cases() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Scores and labels that are easy to get wrong."""
    r = np.random.default_rng(7)
    n = 5000
    even = r.integers(0, 2, n)
    smooth = r.random(n)
    labels = (r.random(n) < smooth).astype(np.int32)
    ends = np.r_[np.zeros(40), np.ones(40), np.full(20, -0.0)]
    return {
        "continuous": rows(50_000),
        "heavy ties": (np.round(smooth, 2), labels),
        "two values": (np.where(smooth > 0.5, 0.7, 0.2), labels),
        "all equal": (np.full(n, 0.25), labels),
        "zeros and ones": (ends, r.integers(0, 2, len(ends))),
        "perfect": (0.2 + 0.6 * even, even),
        "upside down": (0.8 - 0.6 * even, even),
        "four rows": (np.asarray([0.1, 0.4, 0.35, 0.8]), np.asarray([0, 0, 1, 1])),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", list(cases()))
def test_equals_scikit_learn(
    client: Client, monkeypatch: pytest.MonkeyPatch, name: str, dtype: type
) -> None:
    monkeypatch.setattr(classification, "MOST_ROWS", 700)
    scores, labels = cases()[name]
    scores = scores.astype(dtype)
    found = EVALUATOR.evaluate(
        client, spread(client, scores), spread(client, labels), threshold=0.3
    )
    wide = scores.astype(np.float64)  # scikit-learn sums float32 in float32
    called = wide >= 0.3
    eps = np.finfo(dtype).eps
    continuous = name == "continuous"
    assert found.headline_value == pytest.approx(
        reference.roc_auc_score(labels, scores), abs=BINNED if continuous else TIGHT
    )
    precision = reference.average_precision_score(labels, scores)
    assert found.metrics["average_precision"] == pytest.approx(
        precision, abs=1e-5 if continuous else TIGHT
    )
    expected = {
        "log_loss": reference.log_loss(labels, np.clip(wide, eps, 1 - eps)),
        "brier": reference.brier_score_loss(labels, wide),
        "accuracy": reference.accuracy_score(labels, called),
        "precision": reference.precision_score(labels, called, zero_division=0),
        "recall": reference.recall_score(labels, called),
        "f1": reference.f1_score(labels, called),
        "positive_rate": labels.mean(),
    }
    assert found.rows == len(labels)
    assert {key: found.metrics[key] for key in expected} == pytest.approx(
        expected, abs=TIGHT, rel=1e-9
    )
    assert found.metrics["mean_prediction"] == pytest.approx(wide.mean(), abs=1e-5)
    assert (
        found.sums.confusion.tolist()
        == reference.confusion_matrix(labels, called, labels=[0, 1]).tolist()
    )


@pytest.fixture(scope="module")
def judged(client: Client) -> Callable[[str], Evaluation]:
    """Evaluate a case at the threshold that is found, the first time that it is asked for."""

    @functools.cache
    def judge_once(name: str) -> Evaluation:
        scores, labels = cases()[name]
        columns = (spread(client, scores), spread(client, labels))
        return EVALUATOR.evaluate(client, *columns, threshold=None)

    return judge_once


@pytest.mark.parametrize("name", list(cases()))
def test_the_threshold_is_the_most_accurate(judged: Callable[[str], Evaluation], name: str) -> None:
    scores, labels = cases()[name]
    found = judged(name)
    best = max(np.mean((scores >= t) == labels) for t in [*np.arange(0, 1, 2**-16), 1.0, 2.0])
    assert found.metrics["accuracy"] == pytest.approx(best, abs=TIGHT)
    assert np.mean((scores >= found.threshold) == labels) == pytest.approx(best, abs=TIGHT)


@pytest.mark.parametrize("name", list(cases()))
def test_the_curve_has_few_points(judged: Callable[[str], Evaluation], name: str) -> None:
    assert len(judged(name).roc["fpr"]) <= 2000


@pytest.mark.parametrize("name", list(cases()))
def test_the_curve_goes_from_no_row_to_all(judged: Callable[[str], Evaluation], name: str) -> None:
    curve = judged(name).roc
    assert (curve["fpr"][0], curve["tpr"][0]) == (0, 0)
    assert (curve["fpr"][-1], curve["tpr"][-1]) == (1, 1)


@pytest.mark.parametrize("name", list(cases()))
def test_the_area_below_the_curve_is_the_auc(
    judged: Callable[[str], Evaluation], name: str
) -> None:
    found = judged(name)
    area = np.trapezoid(found.roc["tpr"], found.roc["fpr"])
    assert area == pytest.approx(found.metrics["auc"], abs=1e-4)


@pytest.mark.parametrize("name", list(cases()))
def test_thresholds_fall_along_the_curve(judged: Callable[[str], Evaluation], name: str) -> None:
    thresholds = judged(name).roc["threshold"]
    assert np.isinf(thresholds[0])
    assert (np.diff(thresholds) < 0).all()


@pytest.mark.parametrize("name", list(cases()))
def test_each_point_of_the_curve_is_that_of_its_threshold(
    judged: Callable[[str], Evaluation], name: str
) -> None:
    scores, labels = cases()[name]
    curve = judged(name).roc
    for i in np.linspace(1, len(curve["fpr"]) - 1, 25).astype(int):
        called = scores >= curve["threshold"][i]
        assert curve["tpr"][i] == pytest.approx(called[labels == 1].mean(), abs=TIGHT)
        assert curve["fpr"][i] == pytest.approx(called[labels == 0].mean(), abs=TIGHT)
        assert curve["precision"][i] == pytest.approx(labels[called].mean(), abs=TIGHT)
    assert curve["precision"][0] == curve["precision"][1], "of no rows there is none"


def test_an_auc_of_crowded_scores_says_how_far_it_may_be_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores, labels = rows(5000)
    auc = EVALUATOR.evaluate_here(scores, labels).headline_value
    expected = reference.roc_auc_score(labels, scores)
    assert auc == pytest.approx(expected, abs=TIGHT), "of few rows nothing is binned"
    monkeypatch.setattr(binary_sums, "MOST_EXACT", 1000)
    for scale in (1e-2, 1e-9):
        crowded = scores * np.float32(scale)
        found = EVALUATOR.evaluate_here(crowded, labels)
        assert (
            BINNED
            < abs(found.headline_value - reference.roc_auc_score(labels, crowded))
            <= found.resolution
        )
        delong = area_under(*found.sums.vertices()[1:])[1]
        wider = max(delong.low - found.resolution, 0), min(delong.high + found.resolution, 1)
        assert found.interval == wider


def test_bins_count_every_row(client: Client) -> None:
    """Also of Series, of which some are empty; bins without rows are left out."""
    scores, labels = cases()["two values"]
    found = EVALUATOR.evaluate(
        client, *(spread(client, values, (0, 5000), pd.Series) for values in (scores, labels))
    )
    assert (16 * found.calibration["from"]).tolist() == [3, 11]
    with pytest.raises(ValueError, match="zip"):
        EVALUATOR.evaluate(client, spread(client, scores), spread(client, labels, (1,)))
    scores, labels = cases()["heavy ties"]
    scores = np.round(scores * 64) / 64  # full of scores on the bins' borders
    found = EVALUATOR.evaluate(
        client, spread(client, scores), spread(client, labels), threshold=0.5
    )
    at = np.minimum((scores * 16).astype(int), 15)
    expected = pd.DataFrame({"scores": scores, "labels": labels}).groupby(at).agg(["size", "mean"])
    assert (16 * found.calibration["from"]).tolist() == expected.index.tolist()
    assert found.calibration["rows"].tolist() == expected["scores", "size"].tolist()
    np.testing.assert_allclose(
        found.calibration["mean_prediction"], expected["scores", "mean"], rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(
        found.calibration["positive_rate"], expected["labels", "mean"], rtol=0, atol=TIGHT
    )
    apart = (
        abs(expected["scores", "mean"] - expected["labels", "mean"]) * expected["scores", "size"]
    )
    assert found.metrics["calibration_error"] == pytest.approx(apart.sum() / len(scores), abs=1e-5)


def delong(labels: Any, first: Any, second: Any = 0.0) -> tuple[float, float]:
    """Return the first model's AUC less the second's (0 of one score for all), and half its
    interval by DeLong.
    """
    kernels = []
    for scores in (first, second):
        ones, zeros = (np.broadcast_to(scores, labels.shape)[labels == label] for label in (1, 0))
        kernels.append((ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros))
    apart = kernels[0] - kernels[1]
    variance = sum(np.var(apart.mean(axis=axis), ddof=1) / apart.shape[1 - axis] for axis in (1, 0))
    return float(apart.mean()), Z95 * float(np.sqrt(variance))


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_the_interval_equals_delongs_definition(digits: int) -> None:
    r = np.random.default_rng(digits)
    scores = np.round(r.random(700), digits)
    labels = (r.random(700) < 0.2 + 0.6 * scores).astype(int)
    apart, half = delong(labels, scores)  # from an AUC of 0.5
    found = EVALUATOR.evaluate_here(scores, labels).interval
    assert found == pytest.approx((0.5 + apart - half, 0.5 + apart + half), abs=TIGHT)


def difference(
    client: Client, labels: Any, *scores: Any, binned: bool = False
) -> tuple[float, Interval]:
    *predictions, targets = (
        spread(client, values, (700, 701, 2200)) for values in (*scores, labels)
    )
    both = [EVALUATOR.evaluate(client, values, targets) for values in predictions]
    if binned:  # as of many rows, whose scores are not kept
        none = np.zeros((2, 0))
        both = [replace(found, sums=replace(found.sums, kept_scores=none)) for found in both]
    return EVALUATOR.difference(PartedColumns([*predictions, targets], client), both)


@pytest.mark.parametrize("binned", [False, True])
@pytest.mark.parametrize("better", [0.0, 0.3])
def test_the_difference_of_two_models_equals_delongs_definition(
    client: Client, better: float, binned: bool
) -> None:
    # the models share most of their noise; the first is better by so much
    r = np.random.default_rng(1)
    labels = (r.random(3000) < 0.4).astype(np.int32)
    shared = labels + r.normal(0, 1.5, 3000)
    margins = (shared + shift * labels + r.normal(0, 0.7, 3000) for shift in (better, 0.0))
    first, second = (
        np.round(1 / (1 + np.exp(-margin)), 3).astype(np.float32) for margin in margins
    )
    value, half = delong(labels, first, second)
    found, interval = difference(client, labels, first, second, binned=binned)
    assert found == pytest.approx(value, abs=TIGHT)
    assert interval == pytest.approx((value - half, value + half), abs=1e-4 if binned else TIGHT)
    assert (interval.low > 0) == (better > 0)
    assert difference(client, labels, first, first, binned=binned) == (0, Interval(0, 0))


def test_scores_that_share_a_bin_tell_nothing(client: Client) -> None:
    labels = np.arange(300_000) % 2
    assert difference(client, labels, 1e-6 * labels, 1e-6 * (1 - labels)) == (
        0,
        Interval(-1.0, 1.0),
    )
    # and of one positive nothing is known
    labels = np.array([0, 0, 1])
    scores = np.array([0.1, 0.5, 0.3])
    both = [EVALUATOR.evaluate_here(values, labels) for values in (scores, scores[::-1])]
    parts = PartedColumns([[scores], [scores[::-1]], [labels]])
    assert EVALUATOR.difference(parts, both)[1] == Interval(-1.0, 1.0)


@pytest.mark.parametrize(
    ("positives", "negatives", "expected"),
    [
        ([0, 1, 0], [20, 0, 30], Interval(0.0, 1.0)),  # of one positive nothing is known
        ([0, 50], [50, 0], Interval(1.0, 1.0)),
        ([0, 1, 4], [4, 1, 0], Interval(pytest.approx(0.98 - 1.96 * 0.0008**0.5, abs=1e-4), 1.0)),
    ],
)
def test_bounds_of_the_interval(
    positives: list[int], negatives: list[int], expected: Interval
) -> None:
    assert area_under(np.asarray(positives, float), np.asarray(negatives, float))[1] == expected


def test_a_thinned_curve_is_near_the_whole() -> None:
    labels = (np.random.default_rng(0).random(60_000) < np.linspace(0, 1, 60_000) ** 20).astype(int)
    y = np.r_[0, np.cumsum(labels)] / labels.sum()
    x = np.r_[0, np.cumsum(1 - labels)] / (1 - labels).sum()
    chosen = thin(x, y)
    assert (len(chosen) <= MAX_POINTS, chosen[0], chosen[-1]) == (True, 0, 60_000)
    assert np.trapezoid(x[chosen], y[chosen]) == pytest.approx(np.trapezoid(x, y), abs=1e-4)
    few = np.asarray([0, 0, 0, 1, 1, 0, 1, 1, 1])
    assert thin(np.r_[0, np.cumsum(1 - few)] / 4, np.r_[0, np.cumsum(few)] / 5).tolist() == [
        0,
        3,
        5,
        6,
        9,
    ]
