"""A support-vector classifier of a sample of the rows, with probabilities by Platt's sigmoid.

Fitting takes time quadratic in the rows, and scoring a row takes all support vectors: one worker fits on at most
``fit.rows`` rows. Our own scorer is five times as fast as scikit-learn's, and runs on GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tipcast.compute.base import device_of
from tipcast.config.errors import TipcastError
from tipcast.models.base import Fitted, array_model, check_names, positive, positive_int
from tipcast.models.library import named
from tipcast.models.native import SvcScorer
from tipcast.models.sampled import Sampled, Taken, joined

DEFAULTS = {"C": 1.0, "gamma": 0.1, "tol": 0.001}
HINTS = {
    "probability": "nothing: scores are probabilities, by the sigmoid of CalibratedClassifierCV",
    "random_state": "seed=...",
    "cache_size": "nothing: the sample is small",
}
FOLDS = 3
MACHINES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "cpu": ("sklearn.svm.SVC", {}),
    "cuda": ("cuml.svm.SVC", {"output_type": "numpy"}),  # which takes and gives host arrays
}
"""Device -> class, and its arguments beside the model's parameters."""


@final
class Svc(Sampled):
    """One classifier of the sample."""

    ROWS = 3000

    def check(self) -> None:
        """Refuse unknown parameters and impossible values."""
        check_names("params", list(self.params), (*DEFAULTS, "kernel"), HINTS)
        check_names("fit", list(self.training), ("rows", "folds"), {})
        for name, default in DEFAULTS.items():
            positive(f"model.params.{name}", self.params.get(name, default))
        if self.params.get("kernel", "rbf") != "rbf":
            what = f"no saved model has the kernel {self.params['kernel']}"
            raise TipcastError("C003", "model.params.kernel", what, "use rbf")
        positive_int("model.fit.rows", self.training.get("rows", self.ROWS))
        if positive_int("model.fit.folds", self.training.get("folds", FOLDS)) < 2:
            raise TipcastError("C003", "model.fit.folds", "one fold leaves no rows to fit on", "use 2 or more")

    def learn(self, taken: Taken, features: Sequence[str], seed: int, threads: int) -> Fitted:
        """Fit on the sample, the sigmoid by cross-validation."""
        x, y = joined(taken)
        least = min(np.bincount(y, minlength=2))
        if least < _folds(self):
            what = f"{least} of the {len(y):,} rows that svc is fitted on are of one class"
            fix = "raise model.fit.rows, or check the target and its threshold"
            raise TipcastError("D015", "training rows", what, fix)
        found = scorer(pipeline(self).fit(x, y))
        return array_model(
            found,
            "npz-svc",
            info={"device": device_of(taken[0][0]), "rows": len(y), "support_vectors": len(found.dual)},
        )


def pipeline(estimator: Svc) -> Any:
    """Return the fit as scikit-learn has it, unfitted: scaling, the classifier and the sigmoid of its decisions.

    scikit-learn 1.9 deprecated ``SVC(probability=True)`` in favour of this calibration: the sigmoid of Platt (1999),
    Probabilistic Outputs for Support Vector Machines, is fitted on the decisions of classifiers that have not seen the
    rows, by cross-validation, and the classifier itself on all of them.
    """
    given = {name: float(estimator.params.get(name, default)) for name, default in DEFAULTS.items()}
    name, more = MACHINES[estimator.device]
    machine = named(name, "model=svc")(kernel="rbf", **given, **more)
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


def _folds(estimator: Svc) -> int:
    return int(estimator.training.get("folds") or FOLDS)
