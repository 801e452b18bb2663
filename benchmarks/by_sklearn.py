"""scikit-learn's estimators and metrics, for what a registered model has learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn import metrics
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from package_tables import Table
from score_ways import matrix

Array = np.ndarray[Any, Any]
TREES = {"n_estimators": 100, "max_depth": 12, "random_state": 0}
ESTIMATORS: dict[tuple[str, bool], Callable[[], Any]] = {
    ("logistic", False): lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    ("ridge", True): lambda: make_pipeline(StandardScaler(), Ridge()),
    ("linear", True): lambda: make_pipeline(StandardScaler(), LinearRegression()),
    ("poisson", True): lambda: make_pipeline(StandardScaler(), PoissonRegressor(max_iter=200)),
    ("extra_trees", False): lambda: ExtraTreesClassifier(**TREES),
    ("extra_trees", True): lambda: ExtraTreesRegressor(**TREES),
    ("hist_gradient_boosting", False): lambda: HistGradientBoostingClassifier(random_state=0),
    ("hist_gradient_boosting", True): lambda: HistGradientBoostingRegressor(random_state=0),
}
"""Model, and whether it is of values -> the estimator, by its own defaults where conf/model has the
same.
"""
LINEAR = ("logistic", "ridge", "linear", "poisson")
"""Models for which a text is no code, but a column of its own."""


@dataclass(frozen=True)
class Side:
    """Rows of a file that can be learned from or tested on, each by its number in the file."""

    rows: pd.DataFrame
    """As the file has them."""
    x: pd.DataFrame
    """(rows, features) float64: what the registered model gets."""
    y: pd.Series
    """(rows,) values, or numbers of classes."""
    weight: pd.Series | None
    """(rows,), None where all rows count the same."""


def usable(table: Table, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have a target and, where rows have weights, a weight."""
    return rows.dropna(subset=[name for name in (table.target, table.weight) if name])


def sides_of(
    table: Table, kind: str, model: Any, train: pd.DataFrame, test: pd.DataFrame
) -> tuple[Side, Side]:
    """Return the rows that a model has learned from, and those that it is tested on."""
    targets = coded(pd.concat([train, test])[table.target], kind)
    found = []
    for rows, y in ((train, targets[: len(train)]), (test, targets[len(train) :])):
        features = model.predict(rows, params={"output": "features"})
        x = pd.DataFrame(np.asarray(features, dtype=np.float64), rows.index).rename(columns=str)
        weight = rows[table.weight].astype(np.float64) if table.weight else None
        found.append(Side(rows, x, pd.Series(y, rows.index), weight))

    return found[0], found[1]


def coded(target: pd.Series, kind: str) -> Array:
    """Return a column as values or, of classes, as their numbers in order."""
    if kind == "regression":
        return target.to_numpy(dtype=np.float64)
    return pd.factorize(target.astype(object), sort=True)[0]


def estimator_of(table: Table, kind: str, manifest: dict[str, Any], x: pd.DataFrame) -> Any:
    """Return scikit-learn's estimator for features ``x``, not fitted."""
    estimator = ESTIMATORS[table.model, kind == "regression"]()
    if table.model in LINEAR:
        estimator.steps[0] = ("prepare", with_columns_of_texts(manifest, x.to_numpy()))
    if table.balanced:
        last_step(estimator).set_params(class_weight="balanced")
    return estimator


def with_columns_of_texts(manifest: dict[str, Any], rows: Array) -> ColumnTransformer:
    """Return scikit-learn's step that standardises numbers and gives each code of a text a column
    of 0 and 1.
    """
    texts = [column["name"] for column in manifest["columns"] if column["type"] == "category"]
    places = [manifest["features"].index(name) for name in texts]
    categories = [np.unique(codes[~np.isnan(codes)]) for codes in rows[:, places].T]
    encode = OneHotEncoder(categories=categories, handle_unknown="ignore", sparse_output=False)
    return ColumnTransformer([("texts", encode, places)], remainder=StandardScaler())


def last_step(estimator: Any) -> Any:
    """Return what predicts within an estimator."""
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def weights_of_fit(estimator: Any, weight: pd.Series | None) -> dict[str, pd.Series]:
    """Return the arguments of a fit that weigh its rows."""
    if weight is None:
        return {}
    step = f"{estimator.steps[-1][0]}__" if isinstance(estimator, Pipeline) else ""
    return {f"{step}sample_weight": weight}


def told_by(estimator: Any, x: pd.DataFrame, kind: str, classes: int) -> Array:
    """Return what a fitted estimator tells of rows: (rows, 1), or (rows, classes) of several.

    A class that it has not seen has no probability.
    """
    if kind == "regression":
        return matrix(estimator.predict(x))

    told = np.zeros((len(x), classes))
    told[:, estimator.classes_] = estimator.predict_proba(x)
    return told[:, 1:] if kind == "classification" else told


def judged(kind: str, target: Any, told: Array, weight: pd.Series | None) -> dict[str, float]:
    """Return scikit-learn's metrics of predictions: of classes the target is their numbers."""
    if kind == "regression":
        own = {
            "rmse": metrics.root_mean_squared_error,
            "mae": metrics.mean_absolute_error,
            "r2": metrics.r2_score,
        }
    elif kind == "classification":
        own = {"auc": metrics.roc_auc_score, "average_precision": metrics.average_precision_score}
        own |= {"log_loss": metrics.log_loss, "brier": metrics.brier_score_loss}
    else:
        labels = np.arange(told.shape[1])
        log_loss = metrics.log_loss(target, told, labels=labels, sample_weight=weight)
        called = told.argmax(axis=1)
        accuracy = metrics.accuracy_score(target, called, sample_weight=weight)
        return {"log_loss": float(log_loss), "accuracy": float(accuracy)}

    return {
        name: float(function(target, told[:, 0], sample_weight=weight))
        for name, function in own.items()
    }


def apart(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the largest difference of a run's metric and scikit-learn's, relative to the latter
    where it is above 1.
    """
    return max(abs(run - theirs) / max(1.0, abs(theirs)) for run, theirs in pairs)
