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
"""Beginnings of the names of classes whose models only a pickle could hold."""


def find_class(name: str, where: str = "model.classes") -> Any:
    """Return the class with a dotted name.

    Raises C006 for another library's class, C002 for one that does not exist or has no ``fit``.
    """
    if name.startswith(BOOSTING):
        what = f"{name} cannot be saved without a pickle, which tipcast does not write"
        raise TipcastError("C006", where, what, "use model=xgboost or model=hist_gradient_boosting")

    if not name.startswith(ALLOWED):
        what = f"{name} is outside {', '.join(ALLOWED)}"
        raise TipcastError("C006", where, what, "use a class of these libraries")

    module, _, attribute = name.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        fix = (
            "use one that is installed; pip install '.[dask-ml]' in tipcast's checkout brings "
            "Dask-ML"
        )
        raise TipcastError("C002", where, f"no class {name}: {problem}", fix) from problem

    # A clustering with fit_predict alone has no rule for rows outside the fit.
    predicts = hasattr(cls, "predict") or hasattr(cls, "fit_predict")
    if not inspect.isclass(cls) or not hasattr(cls, "fit") or not predicts:
        what = f"{name} is not a class with fit and predict"
        raise TipcastError("C002", where, what, "use an estimator")

    return cls


def takes_sample_weight(cls: type, method: str) -> bool:
    """Whether a method of a class, ``fit`` or ``partial_fit``, takes ``sample_weight``.

    Classes that pass any keyword on to another estimator do not count: that may not take it.
    cuML's Dask forests have the parameter, and raise an error if it is given.
    """
    if cls.__module__.startswith("cuml.dask.ensemble."):
        return False
    return "sample_weight" in inspect.signature(getattr(cls, method)).parameters


def fit_weighted(model: Any, x: Any, y: Any = None, weight: Any = None) -> Any:
    """Fit a model to arrays; targets or weights that are None are left out."""
    sides = [x] if y is None else [x, y]
    if weight is None:
        return model.fit(*sides)
    return model.fit(*sides, sample_weight=weight)


def as_sklearn(model: Any) -> Any:
    """Return a model of cuML's as scikit-learn's, with float64 arrays: some models do not take
    float32 arrays and float64 rows together.
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
    """Return the features' weights in the model, and in words what they measure; None if the
    library has none.
    """
    if hasattr(model, "feature_importances_") and steps.encoder is None:
        weights = np.asarray(model.feature_importances_, dtype=np.float64)
        return weights, "the library's feature_importances_"

    if hasattr(model, "coef_"):
        coefficients = model.coef_
        if hasattr(coefficients, "toarray"):  # a sparse matrix
            coefficients = coefficients.toarray()
        return steps.spread(np.atleast_2d(coefficients)), "standardized coefficients"

    return None, ""


def check_saved(model: Any) -> None:
    """Refuse (C003) a model whose saved file could not be loaded, before a fit on all rows."""
    skops_content(native.SklearnScorer(model))


def skops_content(scorer: native.SklearnScorer) -> bytes:
    """Return the content of the model's file; C003 if ``native.load`` would not load it."""
    import skops.io

    content: bytes = skops.io.dumps(scorer.model)
    unknown = set(skops.io.get_untrusted_types(data=content)) - set(native.TRUSTED)
    if unknown:
        what = f"its file would contain {', '.join(sorted(unknown))}, which cannot be loaded"
        raise TipcastError("C003", "model.classes", what, "use another class")
    return content
