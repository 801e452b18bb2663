"""Kinds of tasks: what a target may be, what a model predicts, and what predictions are called.

A kind is an object without state. Code that depends on the kind asks this object, so a new kind is
a class here, or in a user's package, and an evaluator.
"""

import contextlib
import importlib.metadata
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from tipcast.compute.base import Array
from tipcast.config.errors import unknown

GROUP = "tipcast.kinds"
"""Entry points of installed packages that name kinds."""


@dataclass(frozen=True)
class Boosting:
    """How XGBoost learns a kind."""

    objective: str
    metric: str
    """Metric that stops a training early, unless another is named."""
    metrics: re.Pattern[str]
    """Matches metrics that mean something for the kind: XGBoost would compute any."""


@dataclass(frozen=True)
class Kind(ABC):
    """What is predicted, and how predictions are written."""

    name: ClassVar[str]
    """The name in ``task.kind`` and in a saved model's manifest."""
    evaluator: ClassVar[str]
    """Dotted name of the class that evaluates predictions, an ``evaluation.base.Evaluator``."""
    has_target: ClassVar[bool] = True
    """Whether the rows have a target column, which models learn to predict."""
    has_classes: ClassVar[bool] = True
    """Whether the target is a class, an integer from 0; otherwise it is a number."""
    has_positive: ClassVar[bool] = False
    """Whether a prediction is the probability of the second of two classes, the positive one."""
    column_per_class: ClassVar[bool] = False
    """Whether a prediction is a probability for each class."""
    default_classes: ClassVar[tuple[str, ...]] = ()
    """Names of the classes that a target function returns; empty if a user must name them."""
    outputs: ClassVar[tuple[str, ...]]
    """Values of a portable model's parameter ``output``, the default first."""
    label: ClassVar[str | None] = None
    """How a portable model turns a prediction into a label: ``threshold``, ``largest`` or ``first``
    of its columns; None if there are no labels.
    """
    estimator_types: ClassVar[tuple[str, ...]]
    """Types of scikit-learn's estimators, by its tags, that predict the kind; errors name the
    first.
    """
    estimator_example: ClassVar[str]
    """Dotted name of a class of these types."""
    example_model: ClassVar[str] = "xgboost"
    """A model that learns the kind, for whoever has chosen one that does not."""
    example_values: ClassVar[int] = 2
    """Number of different values in ``example_target``, from 0 on."""
    boosting: ClassVar[Boosting | None] = None
    """How XGBoost learns the kind; None if it cannot."""

    def __str__(self) -> str:
        return self.name

    @property
    def missing_target(self) -> float:
        """Value that stands for a missing target: -1 for classes, NaN for numbers."""
        if self.has_classes:
            return -1
        return np.nan

    def target_dtype(self, real: DTypeLike) -> DTypeLike:
        """Return the dtype of a target's array; ``real`` is that of numbers."""
        if self.has_classes:
            return np.dtype(np.int32)
        return real

    def takes_classes(self, number: int) -> bool:
        """Tell whether the target may be a column with that many different values."""
        return self.has_classes and number >= 2

    def example_target(self, rows: int) -> Array | None:
        """Return a (rows,) target on which a library tries parameters, with the kind's values in
        turn; None without a target.
        """
        if not self.has_target:
            return None
        return np.arange(rows) % self.example_values

    def prediction_columns(self, classes: Sequence[str]) -> list[str] | None:
        """Return the columns of a portable model's predictions; None: they are (rows,) values."""
        return None

    @abstractmethod
    def scored_columns(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns that a scored file gets."""

    @abstractmethod
    def scored_values(
        self, predictions: Array, classes: Sequence[str], threshold: float | None
    ) -> list[Array]:
        """Return the values of ``scored_columns``, each (rows,), from what ``Scorer.score``
        returned, on the host.
        """


@dataclass(frozen=True)
class Binary(Kind):
    """One of two classes; a prediction is the probability of the second, (rows,)."""

    name = "classification"
    evaluator = "tipcast.evaluation.classification.Classification"
    has_positive = True
    default_classes = ("0", "1")
    outputs = ("probability", "label")
    label = "threshold"
    estimator_types = ("classifier",)
    estimator_example = "sklearn.linear_model.LogisticRegression"
    example_model = "logistic"
    boosting = Boosting(
        objective="binary:logistic",
        metric="logloss",
        metrics=re.compile(r"(logloss|auc|aucpr|pre|error(@[\d.]+)?|rmse|mae)"),
    )

    def takes_classes(self, number: int) -> bool:
        """Tell whether there are two classes."""
        return number == 2

    def scored_columns(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the probability and of the class, 0 or 1."""
        return ("probability", "prediction")

    def scored_values(
        self, predictions: Array, classes: Sequence[str], threshold: float | None
    ) -> list[Array]:
        """Return probabilities, and 1 for those at or above the threshold."""
        return [predictions.astype(np.float64), (predictions >= threshold).astype(np.int8)]


@dataclass(frozen=True)
class Multiclass(Kind):
    """One of several classes; a prediction is a probability for each, (rows, classes)."""

    name = "multiclass"
    evaluator = "tipcast.evaluation.multiclass.Multiclass"
    column_per_class = True
    outputs = ("probability", "label")
    label = "largest"
    example_values = 3
    estimator_types = ("classifier",)
    estimator_example = "sklearn.linear_model.LogisticRegression"
    example_model = "logistic"
    boosting = Boosting(
        objective="multi:softprob",
        metric="mlogloss",
        metrics=re.compile(r"(mlogloss|merror|auc)"),
    )

    def takes_classes(self, number: int) -> bool:
        """Tell whether there are more than two classes."""
        return number > 2

    def prediction_columns(self, classes: Sequence[str]) -> list[str]:
        """Return the classes."""
        return list(classes)

    def scored_columns(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return a column for the probability of each class, and one for the likeliest."""
        return (*(f"probability_{name}" for name in classes), "prediction")

    def scored_values(
        self, predictions: Array, classes: Sequence[str], threshold: float | None
    ) -> list[Array]:
        """Return each class's probabilities, and the name of the likeliest class."""
        likeliest = np.asarray(classes)[predictions.argmax(axis=1)]
        return [*predictions.astype(np.float64).T, likeliest]


@dataclass(frozen=True)
class Regression(Kind):
    """A number; a prediction is a number too, (rows,)."""

    name = "regression"
    evaluator = "tipcast.evaluation.regression.Regression"
    has_classes = False
    outputs = ("value",)
    estimator_types = ("regressor",)
    estimator_example = "sklearn.linear_model.Ridge"
    example_model = "ridge"
    boosting = Boosting(
        objective="reg:squarederror",
        metric="rmse",
        metrics=re.compile(r"(rmse|rmsle|mae|mape|mphe)"),
    )

    def scored_columns(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return the column of the predicted number."""
        return ("prediction",)

    def scored_values(
        self, predictions: Array, classes: Sequence[str], threshold: float | None
    ) -> list[Array]:
        """Return the numbers."""
        return [predictions.astype(np.float64)]


@dataclass(frozen=True)
class Clustering(Kind):
    """Groups of rows without labels.

    A prediction is the number of a row's cluster and its distance from the centre, (rows, 2).
    """

    name = "clustering"
    evaluator = "tipcast.evaluation.clustering.Clustering"
    has_target = False
    has_classes = False
    outputs = ("cluster", "label")
    label = "first"
    # A mixture estimates a density; its components are the clusters.
    estimator_types = ("clusterer", "density_estimator")
    estimator_example = "sklearn.cluster.KMeans"
    example_model = "kmeans"

    def prediction_columns(self, classes: Sequence[str]) -> list[str]:
        """Return the columns of the cluster and of the distance."""
        return ["label", "distance"]

    def scored_columns(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the cluster and of the distance."""
        return ("cluster", "distance")

    def scored_values(
        self, predictions: Array, classes: Sequence[str], threshold: float | None
    ) -> list[Array]:
        """Return the clusters' numbers and the distances."""
        return [predictions[:, 0].astype(np.int32), predictions[:, 1].astype(np.float64)]


BINARY = Binary()
MULTICLASS = Multiclass()
REGRESSION = Regression()
CLUSTERING = Clustering()
KINDS: dict[str, Kind] = {kind.name: kind for kind in (BINARY, MULTICLASS, REGRESSION, CLUSTERING)}
"""Kinds by name: those that come with tipcast, and others as they are registered."""


def register(kind: Kind) -> None:
    """Register a kind, for ``task.kind``.

    An installed package does the same with an entry point of the group ``tipcast.kinds``: the class
    of a ``Kind`` under its name. Workers must be able to import the class.
    """
    KINDS[kind.name] = kind


def named(name: str) -> Kind:
    """Return a kind by name: registered, shipped, or of an installed package; C003 for another."""
    if name not in KINDS:
        for entry in importlib.metadata.entry_points(group=GROUP, name=name):
            register(entry.load()())
    if name not in KINDS:
        installed = sorted(importlib.metadata.entry_points(group=GROUP).names)
        choices = dict.fromkeys([*KINDS, *installed])
        raise unknown("task.kind", "kind", name, choices, "C003")
    return KINDS[name]


def every_kind() -> Mapping[str, Kind]:
    """Return all kinds by name, also those of installed packages, except any that does not load."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name not in KINDS:
            # Whatever one package raises, the others are listed.
            with contextlib.suppress(Exception):
                register(entry.load()())
    return KINDS


def named_by(name: str | None) -> Kind | None:
    """Return the kind that a configuration names, see ``named``; None if the target column decides
    the kind.
    """
    if name is None:
        return None
    return named(name)
