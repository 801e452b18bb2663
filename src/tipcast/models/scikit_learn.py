"""The local estimators that scikit-learn has as its own, as that: for searches that are scikit-learn's own too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tipcast.models import knn, svc
from tipcast.models.forest import LocalForest
from tipcast.models.logistic import LocalLogistic


def known(estimator: Any) -> bool:
    """Tell whether scikit-learn has a local estimator as its own."""
    return type(estimator) in _OWN


def own(estimator: Any, seed: int) -> Any:
    """Return scikit-learn's own classifier that computes what a local estimator does, unfitted, on one thread."""
    return _OWN[type(estimator)](estimator, seed)


def path(classifier: Any, name: str) -> str:
    """Return a parameter's name from outside of a pipeline: ``step__name``, the shortest where there are several."""
    return str(min((each for each in classifier.get_params() if f"__{each}".endswith(f"__{name}")), key=len))


def _forest(estimator: LocalForest, seed: int) -> Any:
    return estimator.unfitted(**estimator.given, random_state=seed, n_jobs=1)


def _logistic(estimator: LocalLogistic, seed: int) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(**estimator.params, solver="newton-cholesky"))


def _knn(estimator: knn.LocalKnn, seed: int) -> Any:
    return make_pipeline(StandardScaler(), KNeighborsClassifier(**estimator.params, algorithm="kd_tree"))


_OWN: Mapping[type, Callable[[Any, int], Any]] = {
    LocalForest: _forest,
    LocalLogistic: _logistic,
    knn.LocalKnn: _knn,
    svc.LocalSvc: lambda estimator, seed: svc.pipeline(estimator),
}
