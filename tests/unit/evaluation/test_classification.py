"""Exact metrics of two classes against scikit-learn, over workers and inside one process."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client
from sklearn import metrics as reference

from tipcast.config.errors import TipcastError
from tipcast.evaluation import classification, counts, sorted_scores
from tipcast.evaluation.classification import Classification

TIGHT = 1e-12


def spread(client: Client, values: np.ndarray, parts: int = 3) -> list:
    """Put an array on the workers in uneven partitions."""
    cuts = np.sort(np.random.default_rng(len(values)).integers(0, len(values) + 1, parts - 1))
    return [client.submit(np.array, part, pure=False) for part in np.split(values, cuts)]


def cases() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Scores and labels that are easy to get wrong."""
    r = np.random.default_rng(7)
    n = 5000
    even = r.integers(0, 2, n)
    smooth = r.random(n)
    labels = (r.random(n) < smooth).astype(np.int32)
    ends = np.r_[np.zeros(40), np.ones(40), np.full(20, -0.0), smooth[:50]]
    return {
        "smooth": (smooth, labels),
        "heavy ties": (np.round(smooth, 2), labels),
        "two values": (np.where(smooth > 0.5, 0.7, 0.2), labels),
        "all equal": (np.full(n, 0.25), labels),
        "zeros and ones": (ends, r.integers(0, 2, len(ends))),
        "perfect": (0.2 + 0.6 * even, even),
        "upside down": (0.8 - 0.6 * even, even),
        "rare": (smooth, (r.random(n) < 0.003 * smooth).astype(np.int8)),
        "four rows": (np.asarray([0.1, 0.4, 0.35, 0.8]), np.asarray([0, 0, 1, 1])),
        "tiny scores": (smooth * 1e-9, labels),
    }


def calibration_error(scores: np.ndarray, labels: np.ndarray) -> float:
    """Mean distance of scores and labels in 20 bins, bin by bin."""
    bins = np.minimum((scores.astype(np.float64) * 20).astype(int), 19)
    apart = [abs((scores[bins == each].astype(np.float64) - labels[bins == each]).sum()) for each in range(20)]
    return sum(apart) / len(scores)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", list(cases()))
def test_equals_scikit_learn(client: Client, monkeypatch: pytest.MonkeyPatch, name: str, dtype: type) -> None:
    monkeypatch.setattr(counts, "BLOCKS", dict.fromkeys(counts.BLOCKS, 257))
    monkeypatch.setattr(sorted_scores, "LEAST_ROWS", 64)
    scores, labels = cases()[name]
    scores = scores.astype(dtype)
    found = Classification().evaluate(client, spread(client, scores), spread(client, labels), threshold=0.3)
    wide = scores.astype(np.float64)  # scikit-learn sums float32 in float32
    called = wide >= 0.3
    eps = np.finfo(dtype).eps
    expected = {
        "auc": reference.roc_auc_score(labels, scores),
        "average_precision": reference.average_precision_score(labels, scores),
        "log_loss": reference.log_loss(labels, np.clip(wide, eps, 1 - eps)),
        "brier": reference.brier_score_loss(labels, wide),
        "accuracy": reference.accuracy_score(labels, called),
        "precision": reference.precision_score(labels, called, zero_division=0),
        "recall": reference.recall_score(labels, called),
        "f1": reference.f1_score(labels, called),
        "positive_rate": labels.mean(),
        "mean_prediction": wide.mean(),
        "calibration_error": calibration_error(scores, labels),
        "rows": len(labels),
    }
    assert found.metrics == pytest.approx(expected, abs=TIGHT, rel=TIGHT)
    assert list(found.metrics)[0] == "auc"
    c = found.confusion
    matrix = [[c.true_negatives, c.false_positives], [c.false_negatives, c.true_positives]]
    assert matrix == reference.confusion_matrix(labels, called, labels=[0, 1]).tolist()


@pytest.mark.parametrize("name", list(cases()))
def test_curve_has_the_area_and_lies_on_the_exact_one(client: Client, name: str) -> None:
    scores, labels = cases()[name]
    found = Classification().evaluate(client, spread(client, scores), spread(client, labels), threshold=None)
    roc = found.roc
    assert len(roc.fpr) <= 2000
    assert (roc.fpr[0], roc.tpr[0], roc.fpr[-1], roc.tpr[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(roc.tpr, roc.fpr) == pytest.approx(found.metrics["auc"], abs=1e-4)
    assert np.isinf(roc.thresholds[0])
    assert (np.diff(roc.thresholds) < 0).all()
    for i in np.linspace(1, len(roc.fpr) - 1, 25).astype(int):
        called = scores >= roc.thresholds[i]
        assert roc.tpr[i] == pytest.approx(called[labels == 1].mean(), abs=TIGHT)
        assert roc.fpr[i] == pytest.approx(called[labels == 0].mean(), abs=TIGHT)
    pr = found.precision_recall
    for i in np.linspace(0, len(pr.recall) - 1, 25).astype(int):
        called = scores >= pr.thresholds[i]
        assert pr.precision[i] == pytest.approx(labels[called].mean(), abs=TIGHT)
        assert pr.recall[i] == pytest.approx(called[labels == 1].mean(), abs=TIGHT)


@pytest.mark.parametrize("name", list(cases()))
def test_chosen_threshold_is_the_most_accurate(client: Client, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(counts, "BLOCKS", dict.fromkeys(counts.BLOCKS, 100))
    scores, labels = cases()[name]
    found = Classification().evaluate(client, spread(client, scores), spread(client, labels), threshold=None)
    best = max(np.mean((scores >= t) == labels) for t in [*np.unique(scores), 2])
    assert found.metrics["accuracy"] == pytest.approx(best, abs=TIGHT)
    assert np.mean((scores >= found.threshold) == labels) == pytest.approx(best, abs=TIGHT)


def test_bins_count_every_row(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "BLOCKS", dict.fromkeys(counts.BLOCKS, 333))
    scores, labels = cases()["heavy ties"]  # full of scores on the bins' borders
    found = Classification().evaluate(client, spread(client, scores), spread(client, labels), threshold=0.5)
    at = np.minimum(np.searchsorted(np.arange(1, 20) / 20, scores, side="right"), 19)
    for i in range(20):
        inside = at == i
        assert found.calibration.rows[i] == inside.sum()
        assert found.calibration.mean_score[i] == pytest.approx(scores[inside].mean(), abs=TIGHT)
        assert found.calibration.rate[i] == pytest.approx(labels[inside].mean(), abs=TIGHT)
    fine = np.minimum(np.searchsorted(np.arange(1, 50) / 50, scores, side="right"), 49)
    assert found.histogram.positives.tolist() == np.bincount(fine[labels == 1], minlength=50).tolist()
    assert found.histogram.negatives.tolist() == np.bincount(fine[labels == 0], minlength=50).tolist()


def test_empty_bins_have_no_rate(client: Client) -> None:
    scores, labels = cases()["two values"]
    found = Classification().evaluate(client, spread(client, scores), spread(client, labels), threshold=0.5)
    assert np.flatnonzero(found.calibration.rows).tolist() == [4, 14]
    assert np.isnan(found.calibration.rate).sum() == 18


def test_series_and_empty_partitions(client: Client) -> None:
    import pandas as pd

    scores, labels = cases()["smooth"]
    s = [client.submit(pd.Series, part, pure=False) for part in (scores[:0], scores, scores[:0])]
    y = [client.submit(pd.Series, part, pure=False) for part in (labels[:0], labels, labels[:0])]
    found = Classification().evaluate(client, s, y)
    assert found.headline == pytest.approx(reference.roc_auc_score(labels, scores), abs=TIGHT)


@pytest.mark.parametrize("borders", [[0.5], [0.2, 0.2, 0.9], [0.0, 0.999999, 1.0]])
def test_any_borders_give_the_same(client: Client, borders: list[float]) -> None:
    scores, labels = cases()["two values"]  # nothing lies between 0.2 and 0.7, or above: some buckets are empty
    parts = zip(spread(client, scores), spread(client, labels), strict=True)
    ordered = [client.submit(sorted_scores.sort_keys, *part, pure=False) for part in parts]
    split = [sorted_scores.key_of(border, "uint64") for border in borders]
    found = classification.of_buckets(client, sorted_scores.merge(client, ordered, split, "uint64", "here"), None)
    whole = classification.of_buckets(client, sorted_scores.merge(client, ordered, [], "uint64", "here"), None)
    assert found.metrics == pytest.approx(whole.metrics, abs=TIGHT)
    assert found.interval == whole.interval
    assert found.roc.tpr.tolist() == whole.roc.tpr.tolist()
    assert found.metrics["auc"] == pytest.approx(reference.roc_auc_score(labels, scores), abs=TIGHT)


@pytest.mark.parametrize(
    ("scores", "labels", "code", "said"),
    [
        ([0.1, np.nan, 0.3], [0, 1, 1], "D030", "1 of 3 scores are NaN"),
        ([0.1, 1.5, -0.3], [0, 1, 1], "D030", "2 of 3 scores are outside 0..1"),
        ([0.1, -1e-30, 0.3], [0, 1, 1], "D030", "1 of 3 scores are outside"),
        ([0.1, np.inf, 0.3], [0, 1, 1], "D030", "1 of 3 scores are outside"),
        ([0.1, 0.2, 0.3], [0, 1, 2], "D031", "1 of 3 labels"),
        ([0.1, 0.2, 0.3], [0, -1, 1], "D031", "1 of 3 labels"),
        ([0.1, 0.2, 0.3], [1, 1, 1], "D015", "all 3 rows are of class 1"),
        ([0.1, 0.2, 0.3], [0, 0, 0], "D015", "all 3 rows are of class 0"),
        ([], [], "D014", "no rows"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_refuses(client: Client, scores: list, labels: list, code: str, said: str, dtype: type) -> None:
    columns = [spread(client, np.asarray(scores, dtype=dtype), 2), spread(client, np.asarray(labels, dtype=int), 2)]
    with pytest.raises(TipcastError) as caught:
        Classification().evaluate(client, *columns, where="data.test")
    assert caught.value.code == code
    assert said in str(caught.value)
    assert "data.test" in str(caught.value)


def test_mistakes_of_the_caller(client: Client) -> None:
    one, two = np.asarray([0.5]), np.asarray([0.5, 0.6])
    with pytest.raises(ValueError, match="differ in number"):
        Classification().evaluate(client, spread(client, two, 2), spread(client, np.asarray([0, 1]), 1))
    with pytest.raises(ValueError, match="1 scores came with 2 labels"):
        Classification().evaluate(client, spread(client, one, 1), spread(client, np.asarray([0, 1]), 1))
    mixed = [client.submit(np.array, two), client.submit(np.array, two.astype(np.float32))]
    truth = [client.submit(np.array, np.asarray([0, 1]), pure=False) for _ in range(2)]
    with pytest.raises(ValueError, match="several dtypes"):
        Classification().evaluate(client, mixed, truth)


def test_the_same_as_over_workers(client: Client) -> None:
    r = np.random.default_rng(0)
    scores = np.round(r.beta(4, 4, 5000), 3).astype(np.float32)
    labels = (r.random(5000) < scores).astype(np.int32)
    parts = [slice(0, 2000), slice(2000, 5000)]
    x, y = ([client.submit(np.array, values[part], pure=False) for part in parts] for values in (scores, labels))
    whole, here = Classification().evaluate(client, x, y), Classification().evaluate_here(scores, labels)
    assert here.metrics.keys() == whole.metrics.keys()
    for name, value in here.metrics.items():
        assert abs(value - whole.metrics[name]) < 1e-12, name
    assert here.threshold == whole.threshold
    assert here.confusion == whole.confusion
    assert here.interval == whole.interval
    assert abs(here.metrics["auc"] - reference.roc_auc_score(labels, scores)) < 1e-12
