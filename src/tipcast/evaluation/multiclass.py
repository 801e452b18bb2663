"""Several classes: one confusion matrix and the log loss, summed part by part where the rows lie.

The headline is the log loss: it ranks models by the probabilities that `score` writes, tells models
apart that are right equally often, and can be compared row by row. Accuracy comes second.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, module_of, to_host
from tipcast.evaluation.base import Evaluation, Evaluator, Metric, Tables, keys
from tipcast.evaluation.sums import (
    Floats,
    Ints,
    Sums,
    select_good,
    shares_of,
    values_of,
    weight_sums,
    weighted_mean_sums,
    weighted_rows,
)
from tipcast.tasks.kinds import MULTICLASS

MOST_CLASSES = 10
"""Most classes whose recalls are metrics; with more, recalls are in the table only."""


@dataclass(frozen=True)
class MulticlassSums(Sums):
    """Sums over rows whose class is known, each times the row's weight; ``histogram`` is of all
    rows, without weights.
    """

    histogram: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(classes,) rows by predicted class; a part without rows may have no class here."""
    confusion: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    """(classes, classes) rows, or their weights, by true and by predicted class."""
    log_loss: float = 0.0
    squares: float = 0.0
    """Sum of the rows' squared log loss, for the interval; it is times the squared weights."""
    mixed: float = 0.0
    """Sum of the log loss times the squared weights; 0 without weights."""
    brier: float = 0.0
    """Sum over rows and classes of squared differences of probability and target."""

    def right(self, axis: int) -> Floats:
        """Return (classes,) the share of each class's rows that is right, 0 for a class without
        rows: with axis 1 the recall, with axis 0 the precision.
        """
        return shares_of(np.diag(self.confusion), self.confusion.sum(axis=axis))


def log_loss(predictions: Array, target: Array) -> Array:
    """Return (rows,) minus the logarithm of the true class's probability, clipped for the dtype."""
    xp = module_of(predictions)
    true_class = predictions[xp.arange(len(predictions)), target.astype(xp.int64)]
    eps = float(np.finfo(predictions.dtype).eps)  # as scikit-learn clips
    return -xp.log(xp.clip(true_class.astype(xp.float64), eps, 1 - eps))


def known_class_sums(
    weights: Array | None, probabilities: Array, targets: Array, called: Array
) -> dict[str, Any]:
    """Return the fields of ``MulticlassSums`` that count rows whose class is known.

    ``probabilities`` are (rows, classes), ``targets`` and ``called`` (rows,): the true classes and
    those predicted. ``weights`` are (rows,) above 0, or None.
    """
    xp = module_of(probabilities)
    rows, classes = probabilities.shape
    cells = xp.bincount(targets * classes + called, weights, minlength=classes * classes)
    confusion = to_host(cells).reshape(classes, classes)
    losses = log_loss(probabilities, targets)
    true_class = probabilities[xp.arange(rows), targets].astype(xp.float64)
    squares = probabilities.astype(xp.float64) ** 2

    if weights is None:
        return {
            "confusion": confusion,
            "log_loss": float(losses.sum()),
            "squares": float(xp.dot(losses, losses)),
            "brier": float(squares.sum()) + float((1 - 2 * true_class).sum()),
        }

    *_, total, mixed, squared_losses = weighted_mean_sums(losses, weights)
    return {
        "weights": weight_sums(weights),
        "confusion": confusion,
        "log_loss": total,
        "squares": squared_losses,
        "mixed": mixed,
        "brier": float(xp.dot(weights, squares.sum(axis=1) + 1 - 2 * true_class)),
    }


@final
class Multiclass(Evaluator):
    """Compares (rows, classes) probabilities with classes 0 to classes - 1."""

    kind = MULTICLASS
    sums = MulticlassSums
    metrics = (
        Metric("log_loss", False, label="log loss"),
        Metric("accuracy", True),
        Metric("f1_macro", True),
        Metric("brier", False),
    )
    plots = ("confusion",)
    odd_predictions = (
        "rows have probabilities outside 0..1 or NaN",
        "let the model return probabilities",
    )
    odd_targets = "labels are outside the model's {sums.histogram.size} classes, which count from 0"
    loss = staticmethod(log_loss)

    def details(self, evaluation: Evaluation, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return the recall of each class that has rows, by its name."""
        sums = evaluation.sums
        recalls = _by_class("recall", _names(sums, classes), sums.right(1).tolist())
        rows = sums.confusion.sum(axis=1)
        return {
            key: recall
            for (key, recall), class_rows in zip(recalls.items(), rows, strict=False)
            if class_rows
        }

    def tables(self, evaluation: Any, classes: Sequence[str] = ()) -> Tables:
        """Return rows, recall and precision of each class, and the confusion matrix; with weights,
        the sum of the weights in place of the rows.
        """
        sums = evaluation.sums
        names = list(_names(evaluation.sums, classes))
        size = "weight" if sums.weighted else "rows"
        columns = {"class": names, size: sums.confusion.sum(axis=1).tolist()}
        columns |= {"recall": sums.right(1).tolist(), "precision": sums.right(0).tolist()}
        matrix = {"true": names} | dict(zip(names, sums.confusion.T.tolist(), strict=True))
        return {"tables/classes.json": columns, "tables/confusion.json": matrix}

    def count(
        self,
        predictions: Array,
        target: Array | None = None,
        weights: Array | None = None,
        *,
        threshold: float | None = None,
    ) -> MulticlassSums:
        """Count predicted classes, and what metrics need of rows whose class is not -1."""
        probabilities = values_of(predictions)
        xp = module_of(probabilities)
        classes = probabilities.shape[1]
        possible = ((probabilities >= 0) & (probabilities <= 1)).all(axis=1)
        odd, (probabilities, targets, weights) = select_good(
            possible, probabilities, target, weights
        )

        rows = len(probabilities)
        called = probabilities.argmax(axis=1)
        sums = MulticlassSums(
            scored=rows,
            impossible_predictions=odd,
            unknown=rows,
            histogram=to_host(xp.bincount(called, minlength=classes)),
            confusion=np.zeros((classes, classes), dtype=np.int64),
        )
        if targets is None or not rows:
            return sums

        targets = targets.astype(xp.int64)
        possible = (targets >= 0) & (targets < classes)
        unknown, columns = select_good(possible, weights, probabilities, targets, called)
        return replace(sums, unknown=unknown, **known_class_sums(*weighted_rows(*columns)))

    def summary(self, sums: MulticlassSums, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return the share of rows predicted as each class."""
        rates = sums.histogram / max(sums.scored, 1)
        return _by_class("predicted_rate", _names(sums, classes), rates.tolist())

    def of_sums(self, sums: MulticlassSums, threshold: float | None = None) -> Any:
        """Evaluate the rows whose class is known; None if there are none that count."""
        if not sums.counted:
            return None

        right = np.diag(sums.confusion)
        true_and_called = sums.confusion.sum(axis=0) + sums.confusion.sum(axis=1)
        used = true_and_called > 0  # classes that a row has or is predicted to have
        metrics = {
            "log_loss": sums.log_loss / sums.weight,
            "accuracy": float(right.sum() / sums.weight),
            "f1_macro": float((2 * right[used] / true_and_called[used]).mean()),
            "brier": sums.brier / sums.weight,
        }
        interval = sums.mean_interval(sums.log_loss, sums.squares, sums.mixed)
        return Evaluation(metrics, interval, sums)


def _names(sums: MulticlassSums, classes: Sequence[str]) -> Sequence[str]:
    return classes or [str(at) for at in range(len(sums.histogram))]


def _by_class(metric: str, names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """Return a metric of each class by its key; nothing if there are many classes."""
    if len(names) > MOST_CLASSES:
        return {}
    return {f"{metric}/{key}": value for key, value in zip(keys(names), values, strict=False)}
