"""An evaluation from counts against the exact one, and sums of parts against the whole."""

from __future__ import annotations

import numpy as np
import pytest

from tipcast.compute.base import Session
from tipcast.evaluation.classification import Binned, Classification

JUDGE = Classification()

THRESHOLD = 0.45


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    scores = draw.beta(3, 4, count).astype(np.float32)
    return scores, (draw.random(count) < scores).astype(np.int8)


@pytest.mark.parametrize("count", [2000, 200_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_exact_metrics(count: int, dtype: type) -> None:
    scores, labels = rows(count)
    scores = scores.astype(dtype)
    exact = JUDGE.evaluate_here(scores, labels)
    counted = JUDGE.count(scores, labels, threshold=exact.threshold)
    found = JUDGE.of_sums(counted, exact.threshold)
    assert found is not None
    most = counted.resolution
    assert 0 < most < 1e-4
    assert abs(found.metrics["auc"] - exact.metrics["auc"]) <= most
    assert found.metrics["average_precision"] == pytest.approx(exact.metrics["average_precision"], abs=1e-4)
    for name in ("log_loss", "brier", "accuracy", "precision", "recall", "f1", "positive_rate", "rows"):
        assert found.metrics[name] == pytest.approx(exact.metrics[name], rel=1e-9), name
    assert found.confusion == exact.confusion
    assert found.interval.low == pytest.approx(exact.interval.low, abs=1e-5)
    assert found.histogram.positives.tolist() == exact.histogram.positives.tolist()
    assert found.calibration.rows.tolist() == exact.calibration.rows.tolist()
    assert np.nanmax(np.abs(found.calibration.mean_score - exact.calibration.mean_score)) < 1e-4
    area = np.trapezoid(found.roc.tpr, found.roc.fpr)
    assert area == pytest.approx(exact.metrics["auc"], abs=1e-4)
    assert (found.roc.fpr[0], found.roc.tpr[0], found.roc.thresholds[0]) == (0, 0, np.inf)
    assert (found.roc.fpr[-1], found.roc.tpr[-1]) == (1, 1)
    assert len(found.roc.fpr) <= 2000


def test_parts_add_up() -> None:
    scores, labels = rows(5000)
    whole = JUDGE.count(scores, labels, threshold=THRESHOLD)
    cuts = (0, 10, 3000, 3000, 5000)
    parts = [JUDGE.count(scores[a:b], labels[a:b], threshold=THRESHOLD) for a, b in zip(cuts, cuts[1:], strict=False)]
    summed = JUDGE.total(parts)
    for name in ("rows", "positives", "negatives"):
        assert getattr(summed, name).tolist() == getattr(whole, name).tolist()
    assert (summed.called, summed.true_positives) == (whole.called, whole.true_positives)
    assert summed.log_loss == pytest.approx(whole.log_loss)
    means = [JUDGE.summary(each)["mean"] for each in (summed, whole)]
    assert means == pytest.approx([scores.mean(dtype=float)] * 2, rel=1e-12)


def test_rows_without_a_label_count_as_scores_only() -> None:
    scores, labels = rows(4000)
    some = labels.copy()
    some[::2] = -1
    found = JUDGE.count(scores, some, threshold=THRESHOLD)
    assert found.rows.sum() == 4000
    assert found.positives.sum() + found.negatives.sum() == 2000
    expected = JUDGE.count(scores[1::2], labels[1::2], threshold=THRESHOLD)
    assert found.log_loss == pytest.approx(expected.log_loss)
    assert found.called == (scores >= np.float32(THRESHOLD)).sum()
    assert JUDGE.summary(found)["mean"] == pytest.approx(scores.mean(dtype=float), rel=1e-12)
    assert JUDGE.of_sums(JUDGE.count(scores, None, threshold=THRESHOLD), THRESHOLD) is None
    assert JUDGE.of_sums(JUDGE.count(scores, np.ones(4000, np.int8), threshold=THRESHOLD), THRESHOLD) is None


def test_the_ends_of_the_range() -> None:
    scores = np.array([0.0, 1.0, np.nextafter(1.0, 0.0), 0.5], dtype=np.float32)
    found = JUDGE.count(scores, np.array([0, 1, 1, 0], np.int8), threshold=0.5)
    assert found.rows[0] == 1
    assert found.rows[-1] == 2
    assert found.called == 3
    evaluation = JUDGE.of_sums(found, 0.5)
    assert evaluation is not None
    assert evaluation.metrics["auc"] == 1.0
    assert np.isfinite(evaluation.metrics["log_loss"])


def test_no_rows() -> None:
    nothing = JUDGE.total([])
    assert nothing.rows.sum() == 0
    assert JUDGE.summary(nothing) == {}
    assert JUDGE.of_sums(nothing, 0.5) is None
    assert JUDGE.count(np.empty(0, np.float32), np.empty(0, np.int8), threshold=0.5).called == 0


def test_on_each_device(backend: Session) -> None:
    def counted(frames: object) -> Binned:  # nested, so that it travels by value
        import numpy

        from tipcast.evaluation.classification import Classification

        draw = numpy.random.default_rng(1)
        scores = draw.beta(3, 4, 3000).astype("float32")
        labels = (draw.random(3000) < scores).astype("int8")
        xp = frames.xp  # type: ignore[attr-defined]
        return Classification().count(xp.asarray(scores), xp.asarray(labels), threshold=0.45)

    found = backend.client.submit(counted, backend.frames, pure=False).result()
    expected = JUDGE.count(*rows(3000, 1), threshold=0.45)
    assert found.rows.tolist() == expected.rows.tolist()
    assert found.true_positives == expected.true_positives
    assert found.score_sum == pytest.approx(expected.score_sum, rel=1e-12)
    assert found.log_loss == pytest.approx(expected.log_loss, rel=1e-6)
