"""A support-vector classifier of a sample of the rows, with probabilities by Platt's sigmoid.

A fit's time grows with the square of the rows, and a row's score takes all support vectors: one worker fits, on at most
``fit.rows`` of the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from tipcast.backends import svm
from tipcast.backends.base import Array, Frame
from tipcast.backends.host import device_of
from tipcast.config.errors import TipcastError, travelling
from tipcast.estimators import sampling
from tipcast.estimators.base import Fitted, Future, Progress, columns, shares
from tipcast.estimators.native_svc import FORMAT, SvcScorer, kernel
from tipcast.estimators.parameters import check_names, positive, positive_int

DEFAULTS = {"C": 1.0, "gamma": 0.1, "tol": 0.001}
HINTS = {
    "probability": "nothing: scores are probabilities, by the sigmoid of CalibratedClassifierCV",
    "random_state": "seed=...",
    "cache_size": "nothing: the sample is small",
}
ROWS, FOLDS = 3000, 3
MACHINES: Mapping[str, Callable[..., Any]] = {"cpu": SVC, "cuda": svm.machine}
"""Device -> the library's class, or what makes one."""
PROBES = 500
"""Rows at which the decision's slope is taken for the features' importance."""


@final
@dataclass(frozen=True)
class DistributedSvc:
    """One classifier, fitted by one worker on a sample of the rows of all."""

    params: Mapping[str, Any]
    training: Mapping[str, Any]
    device: str
    categorical: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse unknown parameters and impossible values."""
        _check(self.params, self.training)

    def fit(
        self,
        client: Any,
        x: Sequence[Future],
        y: Sequence[Future],
        validation: tuple[Sequence[Future], Sequence[Future]] | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fitted:
        """Take the sample, and fit on it.

        Parameters
        ----------
        client
            ``distributed.Client`` whose workers hold the rows.
        x, y
            Futures of (n, features) float32 DataFrames and (n,) int32 Series, part by part alike.
        validation
            Not used: the sigmoid is fitted on training rows that the fit has not seen.
        seed
            Of the sample.
        progress
            Not called: the library does not tell.

        Raises
        ------
        TipcastError
            D015 when the sample has too few rows of a class.

        """
        sample, every = sampling.start(client, x, y, rows(self.training), seed)
        features = client.submit(columns, x[0], pure=False)
        used = client.submit(_device, x[0], pure=False)
        fitted: Fitted = client.submit(_fit, sample, self, features, used, pure=False).result()
        logging.getLogger("tipcast").info(
            "svc is fitted on %s of %s training rows (model.fit.rows)", f"{fitted.info['rows']:,}", f"{every:,}"
        )
        return fitted


@final
@dataclass(frozen=True)
class LocalSvc:
    """One classifier, fitted on a sample of one process's rows."""

    params: Mapping[str, Any]
    training: Mapping[str, Any]
    device: str
    categorical: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse unknown parameters and impossible values."""
        _check(self.params, self.training)

    def fit(self, x: Frame, y: Frame, validation: tuple[Frame, Frame] | None, seed: int, threads: int = 1) -> Fitted:
        """Take the sample from frames in memory, and fit on it."""
        part = sampling.take(x, y, sampling.chosen(len(x), rows(self.training), seed))
        return _fit([part], self, columns(x), _device(x))


def rows(training: Mapping[str, Any]) -> int:
    """Return how many rows are fitted on at most."""
    return int(training.get("rows") or ROWS)


def pipeline(estimator: DistributedSvc | LocalSvc) -> Any:
    """Return the fit as scikit-learn has it, unfitted: scaling, the classifier and the sigmoid of its decisions.

    scikit-learn 1.9 deprecated ``SVC(probability=True)`` in favour of this calibration: the sigmoid of Platt (1999),
    Probabilistic Outputs for Support Vector Machines, is fitted on the decisions of classifiers that have not seen the
    rows, by cross-validation, and the classifier itself on all of them.
    """
    given = {name: float(estimator.params.get(name, default)) for name, default in DEFAULTS.items()}
    machine = MACHINES[estimator.device](kernel="rbf", **given)
    return make_pipeline(StandardScaler(), CalibratedClassifierCV(machine, cv=_folds(estimator), ensemble=False))


def scorer(fitted: Any) -> SvcScorer:
    """Return a fitted ``pipeline`` without its libraries."""
    calibrated = fitted[-1].calibrated_classifiers_[0]
    machine, sigmoid = calibrated.estimator, calibrated.calibrators[0]
    return SvcScorer(
        vectors=np.asarray(machine.support_vectors_, dtype=np.float64),
        dual=np.asarray(machine.dual_coef_, dtype=np.float64).ravel(),
        intercept=np.ravel(machine.intercept_)[0],
        gamma=machine.gamma,
        mean=fitted[0].mean_,
        scale=fitted[0].scale_,
        slope=-sigmoid.a_,
        offset=-sigmoid.b_,
    )


@travelling
def _fit(
    parts: Sequence[tuple[Array, Array]], estimator: DistributedSvc | LocalSvc, features: Sequence[str], used: str
) -> Fitted:
    x, y = sampling.joined(parts)
    least = min(np.bincount(y, minlength=2))
    if least < _folds(estimator):
        raise TipcastError(
            "D015",
            "training rows",
            f"{least} of the {len(y):,} rows that svc is fitted on are of one class",
            "raise model.fit.rows, or check the target and its threshold",
        )
    found = scorer(pipeline(estimator).fit(x, y))
    return Fitted(
        scorer=found,
        history={},
        importance=shares(features, _slopes(found, x)),
        importance_kind="slope of the decision",
        info={"device": used, "rows": len(y), "support_vectors": len(found.dual)},
        model=found,
        file="model.npz",
        format=FORMAT,
        write=_write,
    )


def _slopes(found: SvcScorer, x: Array) -> Array:
    """Return the mean size of the decision's derivative by each standardised feature, at some of the rows."""
    z = (x[:: -(-len(x) // PROBES)] - found.mean) / found.scale
    weights = kernel(z, found.vectors, found.gamma) * found.dual
    return np.abs(weights @ found.vectors - weights.sum(axis=1)[:, None] * z).mean(axis=0)


def _folds(estimator: DistributedSvc | LocalSvc) -> int:
    return int(estimator.training.get("folds") or FOLDS)


def _device(x: Frame) -> str:
    return device_of(x.values)


def _write(model: SvcScorer, path: Path) -> None:
    np.savez(path, **model.arrays())


def _check(params: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    check_names("params", list(params), (*DEFAULTS, "kernel"), HINTS)
    check_names("fit", list(training), ("rows", "folds"), {})
    for name, default in DEFAULTS.items():
        positive(f"model.params.{name}", params.get(name, default))
    if params.get("kernel", "rbf") != "rbf":
        raise TipcastError(
            "C003", "model.params.kernel", f"no saved model has the kernel {params['kernel']}", "use rbf"
        )
    positive_int("model.fit.rows", training.get("rows", ROWS))
    if positive_int("model.fit.folds", training.get("folds", FOLDS)) < 2:
        raise TipcastError("C003", "model.fit.folds", "one fold leaves no rows to fit on", "use 2 or more")
