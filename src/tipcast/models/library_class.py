"""Classes of libraries that a model's yaml may name, and their fitted objects as scikit-learn's."""

import importlib
import inspect
from typing import Any

import numpy as np

from tipcast.compute.base import Array
from tipcast.config.errors import TipcastError
from tipcast.models import native
from tipcast.models.preprocessing import Preprocessing

ALLOWED = ("sklearn.", "cuml.", "dask_ml.")
"""Beginnings of class names that an override may give."""
BOOSTING = ("xgboost.", "lightgbm.", "catboost.")
"""Of classes whose models only a pickle would hold."""


def find_class(name: str, where: str = "model.classes") -> Any:
    """Return the class of a dotted name; C006 one of another library, C002 one that is not there or
    has no ``fit``.
    """
    if name.startswith(BOOSTING):
        what = f"{name} cannot be saved without a pickle, which tipcast does not write"
        raise TipcastError("C006", where, what, "use model=xgboost or model=hist_gradient_boosting")

    if not name.startswith(ALLOWED):
        raise TipcastError(
            "C006",
            where,
            f"{name} is outside {', '.join(ALLOWED)}",
            "name a class of these libraries",
        )

    module, _, attribute = name.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        fix = (
            "name one that is installed; pip install '.[dask-ml]' in tipcast's checkout brings "
            "Dask-ML"
        )
        raise TipcastError("C002", where, f"no class {name}: {problem}", fix) from problem

    # fit_predict: clusters without a rule for rows outside of the fit.
    predicts = hasattr(cls, "predict") or hasattr(cls, "fit_predict")
    if not inspect.isclass(cls) or not hasattr(cls, "fit") or not predicts:
        raise TipcastError(
            "C002", where, f"{name} is not a class with fit and predict", "name an estimator"
        )

    return cls


def as_sklearn(model: Any) -> Any:
    """Return a model of cuML's as scikit-learn's, with float64 arrays: some take no float32 beside
    float64 rows.
    """
    for calibrated in getattr(model, "calibrated_classifiers_", ()):
        model.estimator = calibrated.estimator = as_sklearn(calibrated.estimator)
    if not hasattr(model, "as_sklearn"):
        return model
    model = model.as_sklearn()
    for name, values in vars(model).items():
        if isinstance(values, np.ndarray) and values.dtype == np.float32:
            setattr(model, name, values.astype(np.float64))
    return model


def importance(model: Any, steps: Preprocessing) -> tuple[Array | None, str]:
    """Return the features' weights as the library tells them, and what they are; None where it does
    not.
    """
    if hasattr(model, "feature_importances_") and steps.encoder is None:
        weights = np.asarray(model.feature_importances_, dtype=np.float64)
        return weights, "the library's feature_importances_"

    if hasattr(model, "coef_"):
        coefficients = model.coef_.toarray() if hasattr(model.coef_, "toarray") else model.coef_
        return steps.spread(np.atleast_2d(coefficients)), "standardised coefficients"

    return None, ""


def check_saved(model: Any) -> None:
    """Refuse (C003) a fitted model whose file nothing would load, before it is fitted on all
    rows.
    """
    skops_content(native.SklearnScorer(model))


def skops_content(scorer: native.SklearnScorer) -> bytes:
    """Return what the model's file holds; C003 for what ``native.load`` would not load."""
    import skops.io

    content: bytes = skops.io.dumps(scorer.model)
    unknown = set(skops.io.get_untrusted_types(data=content)) - set(native.TRUSTED)
    if unknown:
        what = f"its file would hold {', '.join(sorted(unknown))}, which nothing loads"
        raise TipcastError("C003", "model.classes", what, "use another class")
    return content
