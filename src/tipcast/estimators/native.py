"""Load saved models and score with them; this file travels inside saved models and imports nothing of tipcast."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

MISSING = "missing"
"""Booster attribute: the value that means missing; absent: NaN does."""


class XGBoostScorer:
    """Scores by a binary XGBoost booster, on the device that it is set to."""

    def __init__(self, booster: Any, threads: int = 1, device: str = "cpu") -> None:
        booster.set_param({"nthread": threads, "device": device})
        self.booster = booster

    def score(self, x: Any) -> Any:
        """Return P(1), (n,) float32, for (n, features) float32 values."""
        values = _values(x)
        if not len(values):
            return values[:, 0]
        missing = float(self.booster.attr(MISSING) or "nan")
        return self.booster.inplace_predict(values, missing=missing, validate_features=False)


class ForestScorer:
    """Scores by a scikit-learn random forest of two classes."""

    def __init__(self, forest: Any, threads: int = 1) -> None:
        forest.n_jobs = threads
        self.forest = forest

    def score(self, x: Any) -> Any:
        """Return P(1), (n,) float64, for (n, features) float32 values."""
        values = _values(x)
        return self.forest.predict_proba(values)[:, 1] if len(values) else np.empty(0)


class TreeliteScorer:
    """Scores by treelite's own interpreter, where scikit-learn is not installed."""

    def __init__(self, model: Any, threads: int = 1) -> None:
        self.model, self.threads = model, threads

    def score(self, x: Any) -> Any:
        """Return P(1), (n,) float64, for (n, features) float32 values."""
        import treelite.gtil

        values = _values(x)
        if not len(values):
            return np.empty(0)
        return treelite.gtil.predict(self.model, values, nthread=self.threads)[:, 0, 1].astype(np.float64, copy=False)


class LogisticScorer:
    """Scores by a logistic regression on standardised features."""

    def __init__(self, coef: Any, intercept: float, mean: Any, scale: Any) -> None:
        self.coef, self.intercept, self.mean, self.scale = coef, float(intercept), mean, scale

    def score(self, x: Any) -> Any:
        """Return P(1), (n,) float64, for (n, features) float32 values."""
        margin = (_values(x) - self.mean) / self.scale @ self.coef + self.intercept
        return 0.5 * (1 + np.tanh(0.5 * margin))  # the logistic function, without overflow


def load(path: str | os.PathLike[str], format: str, device: str = "cpu", threads: int = 1) -> Any:
    """Load a saved model.

    Parameters
    ----------
    path
        A file whose digest the caller has checked: a damaged one can crash the process.
    format
        ``xgboost-ubj``, ``treelite`` or ``npz-logistic``.
    device
        ``cpu`` or ``cuda``; only XGBoost scores on both.
    threads
        Threads of one call of ``score``; 0 takes all cores.

    Returns
    -------
    object
        With ``score(x)``: (n, features) float32 -> (n,) float P(1).

    Raises
    ------
    ValueError
        For a format that is none of these.

    """
    if format == "xgboost-ubj":
        import xgboost

        return XGBoostScorer(xgboost.Booster(model_file=os.fspath(path)), threads, device)
    if format == "treelite":
        return _forest(os.fspath(path), threads)
    if format == "npz-logistic":
        with np.load(path, allow_pickle=False) as arrays:
            return LogisticScorer(arrays["coef"], float(arrays["intercept"]), arrays["mean"], arrays["scale"])
    msg = f"unknown model format {format!r}"
    raise ValueError(msg)


def _forest(path: str, threads: int) -> Any:
    """Score by scikit-learn where it is installed: same numbers as treelite's interpreter, four times as fast."""
    import treelite

    model = treelite.Model.deserialize(path)
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return TreeliteScorer(model, threads)
    import treelite.sklearn

    return ForestScorer(treelite.sklearn.export_model(model), threads or -1)


def _values(x: Any) -> Any:
    """Return a frame's array, on its own device; an array as it is."""
    return getattr(x, "values", x)
