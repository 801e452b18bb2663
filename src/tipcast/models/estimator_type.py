"""Whether a library's class predicts what a task asks for: classes, values or clusters."""

from sklearn.base import ClassifierMixin, ClusterMixin, DensityMixin, OutlierMixin, RegressorMixin

from tipcast.config.errors import TipcastError
from tipcast.tasks.kinds import Kind

MIXINS = {
    ClassifierMixin: "classifier",
    RegressorMixin: "regressor",
    ClusterMixin: "clusterer",
    OutlierMixin: "outlier_detector",
    DensityMixin: "density_estimator",
}
"""Base of scikit-learn's classes -> the type of an estimator, as its tags have it."""


def check_type(cls: type, name: str, kind: Kind, where: str) -> None:
    """Refuse (C002) a class of another type than the task's kind needs, before anything is fitted.

    A regressor would be fitted on classes without a complaint, and its values taken for
    probabilities.
    """
    estimator_type = type_of(cls)
    if estimator_type is None or estimator_type in kind.estimator_types:
        return

    needed = _with_article(kind.estimator_types[0])
    what = f"{name} is {_with_article(estimator_type)}, but {kind} needs {needed}"
    raise TipcastError("C002", where, what, f"use one such as {kind.estimator_example}")


def type_of(cls: type) -> str | None:
    """Return the type of an estimator's class, as scikit-learn's tags name it; None if it cannot be
    told.

    Only the class is looked at: an object may need parameters or a Dask cluster. cuML's classes
    have an attribute; the methods of others, such as Dask-ML's, show the type.
    """
    declared = getattr(cls, "_estimator_type", None)
    if isinstance(declared, str):
        return declared

    for mixin, estimator_type in MIXINS.items():
        if issubclass(cls, mixin):
            return estimator_type

    if ".cluster." in f"{cls.__module__}." or hasattr(cls, "fit_predict"):
        return "clusterer"
    if hasattr(cls, "predict_proba") or hasattr(cls, "decision_function"):
        return "classifier"
    if cls.__module__.startswith("dask_ml."):
        return "regressor"
    return None


def _with_article(estimator_type: str) -> str:
    words = estimator_type.replace("_", " ")
    if words[0] in "aeiou":
        return f"an {words}"
    return f"a {words}"
