"""Sums over rows of two classes: their scores in fine bins, and one by one where there are few."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, module_of, to_host
from tipcast.evaluation.roc import SquaredWeights, Vertices
from tipcast.evaluation.sums import Sums, select_good, weight_sums, weighted_rows

BINS = 2**16
"""Equal-width bins of scores; float32 scores and borders of bins compare exactly."""
MOST_EXACT = 1 << 18
"""Labelled rows whose scores are kept: 4 MB."""
UNLABELLED = 2
"""Stands for the label of a row that belongs to neither class."""


@dataclass(frozen=True)
class BinarySums(Sums):
    """Sums over rows with a score in 0..1; those of labelled rows are times the row's weight."""

    bins: NDArray[Any] = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64))
    """(2, bins) rows labelled 0, and rows labelled 1, or the sums of their weights."""
    square_bins: NDArray[Any] = field(default_factory=lambda: np.zeros((2, 0)))
    """(2, bins) sums of the squared weights; empty without weights."""
    class_rows: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(2,) rows of each class whose weight is above 0; empty without weights."""
    called: int = 0
    """All rows with a score at or above the threshold."""
    score_sum: float = 0.0
    """Sum of the scores of all rows."""
    true_positives: float = 0
    """Rows, or the sum of their weights."""
    false_positives: float = 0
    log_loss: float = 0.0
    squares: float = 0.0
    """Sum of squared differences of score and label."""
    kept_scores: NDArray[Any] = field(default_factory=lambda: np.zeros((2, 0)))
    """(2, rows) score and label of each labelled row, in no order; with weights (3, rows) of each
    whose weight is above 0, the weight last. Empty if there are too many rows.
    """

    @property
    def confusion(self) -> NDArray[Any]:
        """Labelled rows (2, 2), or the sums of their weights, by true class and by the class they
        were called.
        """
        negatives, positives = self.bins.sum(axis=1)
        tp = self.true_positives
        fp = self.false_positives
        cells = np.asarray([[negatives - fp, fp], [positives - tp, tp]])
        return cells.clip(0)  # sums of weights are rounded

    @property
    def resolution(self) -> float:
        """How far the AUC of these rows can be from the exact one: half the share of pairs whose
        rows are in one bin.
        """
        if self.kept_scores.size:
            return 0.0
        negatives, positives = self.bins.sum(axis=1).tolist()
        pairs: float = 2.0 * positives * negatives
        return float(self.bins.prod(axis=0).sum()) / pairs

    def vertices(self) -> Vertices:
        """Return the labelled rows of each class, or their weights, by score, or by bin."""
        if self.kept_scores.size and not self.weighted:
            scores, places = np.unique(self.kept_scores[0], return_inverse=True)
            positives = np.bincount(places, self.kept_scores[1])
            return Vertices(scores, positives, np.bincount(places) - positives)

        if self.kept_scores.size:
            scores, labels, weights = self.kept_scores
            scores, places = np.unique(scores, return_inverse=True)
            positives = np.bincount(places, labels * weights)
            return Vertices(scores, positives, np.bincount(places, (1 - labels) * weights))

        used = np.flatnonzero(self.bins.any(axis=0))
        negatives, positives = self.bins[:, used].astype(float)
        return Vertices(used / self.bins.shape[1], positives, negatives)

    def squared_weights(self) -> SquaredWeights | None:
        """Return what the AUC's interval needs besides the vertices; None without weights."""
        if not self.weighted:
            return None

        negative_rows, positive_rows = self.class_rows.tolist()
        if self.kept_scores.size:
            scores, labels, weights = self.kept_scores
            _, places = np.unique(scores, return_inverse=True)
            positives: NDArray[Any] = np.bincount(places, labels * weights**2)
            negatives: NDArray[Any] = np.bincount(places, (1 - labels) * weights**2)
        else:
            used = np.flatnonzero(self.bins.any(axis=0))
            negatives, positives = self.square_bins[:, used]

        return SquaredWeights(positive_rows, negative_rows, positives, negatives)


def labels_of(target: Array | None, scores: Array) -> Array:
    """Return (rows,) labels of scored rows: 0, 1, or ``UNLABELLED`` of any other target."""
    xp = module_of(scores)
    labels = xp.full(len(scores), UNLABELLED, xp.int32)
    if target is not None:
        labels[target == 0] = 0
        labels[target == 1] = 1
    return labels


def count_labelled(
    binned: BinarySums, scores: Array, wide: Array, labels: Array, called: Array
) -> BinarySums:
    """Return a part's sums with those of its labelled rows added.

    All arrays are (rows,): scores as they are, ``wide`` the same in float64, labels, and whether a
    row is called positive.
    """
    xp = module_of(scores)
    positive = labels == 1
    labelled = labels < UNLABELLED
    unknown = len(scores) - int(labelled.sum())

    eps = float(np.finfo(scores.dtype).eps)  # as scikit-learn clips
    right = xp.where(positive, wide, 1 - wide)[labelled]
    kept_scores = binned.kept_scores
    if len(scores) - unknown <= MOST_EXACT:
        kept_scores = to_host(xp.stack([wide, positive])[:, labelled])

    return replace(
        binned,
        unknown=unknown,
        bins=bin_scores(scores, labels),
        true_positives=int((called & positive).sum()),
        false_positives=int((called & (labels == 0)).sum()),
        log_loss=-float(xp.log(xp.clip(right, eps, 1 - eps)).sum()),
        squares=float(((1 - right) ** 2).sum()),
        kept_scores=kept_scores,
    )


def count_weighted(
    binned: BinarySums, scores: Array, labels: Array, called: Array, weights: Array
) -> BinarySums:
    """Return a part's sums with those of its labelled rows added, times the rows' weights; for the
    arrays see ``count_labelled``.
    """
    xp = module_of(scores)
    labelled = labels < UNLABELLED
    unknown, columns = select_good(labelled, weights, scores, labels, called)
    weights, scores, labels, called = weighted_rows(*columns)
    wide = scores.astype(xp.float64)
    positive = labels == 1
    negative = labels == 0

    eps = float(np.finfo(scores.dtype).eps)  # as scikit-learn clips
    right = xp.where(positive, wide, 1 - wide)
    kept_scores = np.zeros((3, 0))
    if len(scores) <= MOST_EXACT:
        kept_scores = to_host(xp.stack([wide, positive, weights]))

    return replace(
        binned,
        unknown=unknown,
        weights=weight_sums(weights),
        bins=bin_scores(scores, labels, weights),
        square_bins=bin_scores(scores, labels, weights * weights),
        class_rows=np.asarray([int(negative.sum()), int(positive.sum())]),
        true_positives=float(weights[called & positive].sum()),
        false_positives=float(weights[called & negative].sum()),
        log_loss=-float(xp.dot(weights, xp.log(xp.clip(right, eps, 1 - eps)))),
        squares=float(xp.dot(weights, (1 - right) ** 2)),
        kept_scores=kept_scores,
    )


def bin_scores(scores: Array, labels: Array, weights: Array | None = None) -> NDArray[Any]:
    """Return (2, bins) rows labelled 0, and rows labelled 1, or the sums of their weights, on the
    host.
    """
    xp = module_of(scores)
    places = xp.minimum((scores * BINS).astype(xp.int32), BINS - 1)
    cells = to_host(xp.bincount(places + BINS * labels, weights, minlength=3 * BINS))
    if weights is None:
        cells = cells.astype(np.int32)
    bins: NDArray[Any] = cells[: 2 * BINS].reshape(2, BINS)
    return bins


def kept_together(parts: Sequence[BinarySums], sums: BinarySums) -> NDArray[Any]:
    """Return the kept scores of all parts, whose total is ``sums``; empty if a part has kept none
    or they are too many.
    """
    kept_scores = [part.kept_scores for part in parts if part.kept_scores.size]
    all_kept = sum(scores.shape[1] for scores in kept_scores) >= sums.counted
    few = sums.counted <= MOST_EXACT
    if not (sums.counted and all_kept and few):
        return BinarySums().kept_scores
    return np.concatenate(kept_scores, axis=1)
