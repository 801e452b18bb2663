"""Metrics of two classes against scikit-learn, over workers and inside one process."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn import metrics as reference

from tipcast.compute.base import Session
from tipcast.config.errors import TipcastError
from tipcast.evaluation import classification
from tipcast.evaluation.classification import Binned, Classification

JUDGE = Classification()
TIGHT = 1e-12
BINNED = 2e-6
"""How far an AUC of continuous scores may be from scikit-learn's."""
THRESHOLD = 0.45


def spread(client: Client, values: np.ndarray, parts: int = 3) -> list:
    """Put an array on the workers in uneven partitions."""
    cuts = np.sort(np.random.default_rng(len(values)).integers(0, len(values) + 1, parts - 1))
    return [client.submit(np.array, part, pure=False) for part in np.split(values, cuts)]


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
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
def test_equals_scikit_learn(client: Client, monkeypatch: pytest.MonkeyPatch, name: str, dtype: type) -> None:
    monkeypatch.setattr(classification, "MOST_ROWS", 700)
    scores, labels = cases()[name]
    scores = scores.astype(dtype)
    found = JUDGE.evaluate(client, spread(client, scores), spread(client, labels), threshold=0.3)
    wide = scores.astype(np.float64)  # scikit-learn sums float32 in float32
    called = wide >= 0.3
    eps = np.finfo(dtype).eps
    continuous = name == "continuous"
    assert found.headline == pytest.approx(reference.roc_auc_score(labels, scores), abs=BINNED if continuous else TIGHT)
    precision = reference.average_precision_score(labels, scores)
    assert found.metrics["average_precision"] == pytest.approx(precision, abs=1e-5 if continuous else TIGHT)
    expected = {
        "log_loss": reference.log_loss(labels, np.clip(wide, eps, 1 - eps)),
        "brier": reference.brier_score_loss(labels, wide),
        "accuracy": reference.accuracy_score(labels, called),
        "precision": reference.precision_score(labels, called, zero_division=0),
        "recall": reference.recall_score(labels, called),
        "f1": reference.f1_score(labels, called),
        "positive_rate": labels.mean(),
        "rows": len(labels),
    }
    assert {key: found.metrics[key] for key in expected} == pytest.approx(expected, abs=TIGHT, rel=1e-9)
    assert found.metrics["mean_prediction"] == pytest.approx(wide.mean(), abs=1e-5)
    assert list(found.metrics)[0] == "auc"
    assert found.confusion.matrix.tolist() == reference.confusion_matrix(labels, called, labels=[0, 1]).tolist()


@pytest.mark.parametrize("name", list(cases()))
def test_curves_and_the_most_accurate_threshold(client: Client, name: str) -> None:
    scores, labels = cases()[name]
    found = JUDGE.evaluate(client, spread(client, scores), spread(client, labels), threshold=None)
    best = max(np.mean((scores >= t) == labels) for t in [*np.arange(0, 1, 2**-16), 1.0, 2.0])
    assert found.metrics["accuracy"] == pytest.approx(best, abs=TIGHT)
    assert np.mean((scores >= found.threshold) == labels) == pytest.approx(best, abs=TIGHT)
    roc, pr = found.roc, found.precision_recall
    assert len(roc.fpr) <= 2000
    assert (roc.fpr[0], roc.tpr[0], roc.fpr[-1], roc.tpr[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(roc.tpr, roc.fpr) == pytest.approx(found.metrics["auc"], abs=1e-4)
    assert np.isinf(roc.thresholds[0])
    assert (np.diff(roc.thresholds) < 0).all()
    for i in np.linspace(1, len(roc.fpr) - 1, 25).astype(int):
        called = scores >= roc.thresholds[i]
        assert roc.tpr[i] == pytest.approx(called[labels == 1].mean(), abs=TIGHT)
        assert roc.fpr[i] == pytest.approx(called[labels == 0].mean(), abs=TIGHT)
    for i in np.linspace(0, len(pr.recall) - 1, 25).astype(int):
        called = scores >= pr.thresholds[i]
        assert pr.precision[i] == pytest.approx(labels[called].mean(), abs=TIGHT)
        assert pr.recall[i] == pytest.approx(called[labels == 1].mean(), abs=TIGHT)


def test_an_auc_of_crowded_scores_says_how_far_it_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = rows(5000)
    assert JUDGE.evaluate_here(scores, labels).metrics["auc"] == pytest.approx(
        reference.roc_auc_score(labels, scores), abs=1e-12
    ), "of few rows nothing is binned"
    monkeypatch.setattr(classification, "MOST_EXACT", 1000)
    for scale in (1e-2, 1e-9):
        crowded = scores * np.float32(scale)
        found = JUDGE.evaluate_here(crowded, labels).metrics
        assert BINNED < abs(found["auc"] - reference.roc_auc_score(labels, crowded)) <= found["auc_resolution"]


def test_bins_count_every_row(client: Client) -> None:
    scores, labels = cases()["heavy ties"]
    scores = np.round(scores * 64) / 64  # full of scores on the bins' borders
    found = JUDGE.evaluate(client, spread(client, scores), spread(client, labels), threshold=0.5)
    at = np.minimum((scores * 16).astype(int), 15)
    error = 0.0
    for i in range(16):
        inside = at == i
        assert found.calibration.rows[i] == inside.sum()
        assert found.calibration.mean_score[i] == pytest.approx(scores[inside].mean(), abs=1e-5)
        assert found.calibration.rate[i] == pytest.approx(labels[inside].mean(), abs=TIGHT)
        error += abs((scores[inside] - labels[inside]).sum()) / len(scores)
    assert found.metrics["calibration_error"] == pytest.approx(error, abs=1e-5)
    fine = np.minimum((scores * 64).astype(int), 63)
    for counts, label in ((found.histogram.negatives, 0), (found.histogram.positives, 1)):
        assert counts.tolist() == np.bincount(fine[labels == label], minlength=64).tolist()


def test_series_and_empty_partitions_and_bins(client: Client) -> None:
    scores, labels = cases()["two values"]
    s = [client.submit(pd.Series, part, pure=False) for part in (scores[:0], scores, scores[:0])]
    y = [client.submit(pd.Series, part, pure=False) for part in (labels[:0], labels, labels[:0])]
    found = JUDGE.evaluate(client, s, y)
    assert found.headline == pytest.approx(reference.roc_auc_score(labels, scores), abs=TIGHT)
    assert np.flatnonzero(found.calibration.rows).tolist() == [3, 11]
    assert np.isnan(found.calibration.rate).sum() == 14


@pytest.mark.parametrize(
    ("scores", "labels", "code", "said"),
    [
        ([0.1, np.nan, 0.3], [0, 1, 1], "D030", "1 of 3 scores are outside 0..1 or NaN"),
        ([0.1, 1.5, -0.3], [0, 1, 1], "D030", "2 of 3 scores are outside"),
        ([0.1, -1e-30, 0.3], [0, 1, 1], "D030", "1 of 3 scores are outside"),
        ([0.1, np.inf, 0.3], [0, 1, 1], "D030", "1 of 3 scores are outside"),
        ([0.1, 0.2, 0.3], [0, 1, 2], "D031", "1 of 3 labels"),
        ([0.1, 0.2, 0.3], [0, -1, 1], "D031", "1 of 3 labels"),
        ([0.1, 0.2, 0.3], [1, 1, 1], "D015", "all 3 rows are of class 1"),
        ([0.1, 0.2, 0.3], [0, 0, 0], "D015", "all 3 rows are of class 0"),
        ([], [], "D014", "no rows"),
    ],
)
def test_refuses(client: Client, scores: list, labels: list, code: str, said: str) -> None:
    columns = [spread(client, np.asarray(scores, np.float32), 2), spread(client, np.asarray(labels, dtype=int), 2)]
    with pytest.raises(TipcastError) as caught:
        JUDGE.evaluate(client, *columns, where="data.test")
    assert caught.value.code == code
    assert said in str(caught.value)
    assert "data.test" in str(caught.value)


def test_partitions_of_unlike_number_are_a_mistake(client: Client) -> None:
    two = np.asarray([0.5, 0.6])
    with pytest.raises(ValueError, match="differ in number"):
        JUDGE.evaluate(client, spread(client, two, 2), spread(client, np.asarray([0, 1]), 1))


def test_the_same_in_this_process_as_over_workers(client: Client) -> None:
    scores, labels = rows(5000)
    whole = JUDGE.evaluate(client, spread(client, scores), spread(client, labels))
    here = JUDGE.evaluate_here(scores, labels)
    assert here.metrics == pytest.approx(whole.metrics, abs=TIGHT)
    assert (here.threshold, here.confusion, here.interval) == (whole.threshold, whole.confusion, whole.interval)


def test_parts_add_up_and_rows_without_a_label_count_as_scores_only() -> None:
    scores, labels = rows(5000)
    labels[::2] = -1
    whole = JUDGE.count(scores, labels, threshold=THRESHOLD)
    cuts = (0, 10, 3000, 3000, 5000)
    parts = [JUDGE.count(scores[a:b], labels[a:b], threshold=THRESHOLD) for a, b in zip(cuts, cuts[1:], strict=False)]
    known = JUDGE.count(scores[1::2], labels[1::2], threshold=THRESHOLD)
    for found in (whole, JUDGE.total(parts)):
        assert found.rows.tolist() == whole.rows.tolist()
        assert found.positives.tolist() == known.positives.tolist()
        assert found.negatives.tolist() == known.negatives.tolist()
        assert found.log_loss == pytest.approx(known.log_loss)
        assert (found.called, found.true_positives) == ((scores >= np.float32(THRESHOLD)).sum(), known.true_positives)
        assert JUDGE.summary(found)["mean"] == pytest.approx(scores.mean(dtype=float), rel=1e-12)
    for target in (None, np.ones(5000, np.int8)):
        assert JUDGE.of_sums(JUDGE.count(scores, target, threshold=THRESHOLD), THRESHOLD) is None


def test_no_rows() -> None:
    nothing = JUDGE.total([])
    assert nothing.rows.sum() == 0
    assert JUDGE.summary(nothing) == {}
    assert JUDGE.of_sums(nothing, 0.5) is None
    assert JUDGE.count(np.empty(0, np.float32), np.empty(0, np.int8), threshold=0.5).called == 0


def test_each_device_counts_alike(backend: Session) -> None:
    def counted(frames: object) -> Binned:  # nested, so that it travels by value
        import numpy

        from tipcast.evaluation.classification import Classification

        draw = numpy.random.default_rng(1)
        scores = draw.beta(3, 4, 3000).astype("float32")
        labels = (draw.random(3000) < scores).astype("int8")
        xp = frames.xp  # type: ignore[attr-defined]
        return Classification().count(xp.asarray(scores), xp.asarray(labels), threshold=0.45)

    found = backend.client.submit(counted, backend.frames, pure=False).result()
    expected = JUDGE.count(*rows(3000, 1), threshold=THRESHOLD)
    for name, value in dataclasses.asdict(expected).items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-6, err_msg=name)
