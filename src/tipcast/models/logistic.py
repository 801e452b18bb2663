"""Logistic regression over all workers: scikit-learn's objective on standardised features, solved by Newton's method.

dask-ml's class also penalises the intercept, which gives other coefficients. A Newton step is one pass over the rows
that sums (features + 1)^2 numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tipcast.compute.base import Frame, module_of, to_host
from tipcast.config.errors import TipcastError
from tipcast.models import native
from tipcast.models.base import (
    Estimator,
    Fitted,
    Progress,
    Split,
    array_model,
    check_names,
    columns,
    parts,
    positive,
    positive_int,
    shares,
)
from tipcast.models.fit import parts_of
from tipcast.models.moments import moments, standard

VALID = ("C", "max_iter", "tol")
HINTS = {
    "penalty": "model.params.C: the penalty is l2",
    "solver": "nothing: Newton's method is exact",
    "random_state": "nothing: it is not random",
}

Sums = Callable[..., list[Any]]
"""Applies a function of (x, y, **arguments) to every part and returns the results."""


@final
@dataclass(frozen=True)
class Logistic(Estimator):
    """The least of ``sum(log loss) + |coef|^2 / (2 C)`` over standardised features; the intercept is not penalised."""

    def check(self) -> None:
        """Refuse unknown parameters and impossible values."""
        check_names("params", list(self.params), VALID, HINTS)
        check_names("fit", list(self.training), (), {})
        positive("model.params.C", self.params.get("C", 1.0))
        positive("model.params.tol", self.params.get("tol", 1e-6))
        positive_int("model.params.max_iter", self.params.get("max_iter", 50))

    def fit(self, rows: Split, seed: int, threads: int = 1) -> Fitted:
        """Minimise over frames in memory."""

        def sums(function: Callable[..., Any], **arguments: Any) -> list[Any]:
            return [function(*part, **arguments) for part in zip(parts(rows.x), parts(rows.y), strict=True)]

        return self._newton(sums, columns(rows.x))

    def fit_distributed(self, client: Any, rows: Split, seed: int, progress: Progress = None) -> Fitted:
        """Minimise over the rows of all workers."""
        values, labels = parts_of(client, rows.x), parts_of(client, rows.y)

        def sums(function: Callable[..., Any], **arguments: Any) -> list[Any]:
            return list(client.gather(client.map(function, values, labels, **arguments, pure=False)))

        return self._newton(sums, columns(rows.x), progress)

    def _newton(self, sums: Sums, features: Sequence[str], progress: Progress = None) -> Fitted:
        """Newton's method with step halving (Nocedal and Wright, Numerical Optimization, 2nd ed., section 3.3)."""
        rows, mean, scale, used = standard(sums(_moments))
        if used.partition(":")[0] != self.device:
            raise TipcastError("C010", "backend", f"the rows are on {used} and not on {self.device}", "report this")
        limit, tolerance = int(self.params.get("max_iter", 50)), float(self.params.get("tol", 1e-6))
        penalty = np.full(len(features) + 1, 1 / float(self.params.get("C", 1.0)))
        penalty[-1] = 0  # the intercept

        def evaluate(weights: Any) -> tuple[float, float, Any, Any]:
            terms = sums(_terms, mean=mean, scale=scale, weights=weights)
            loss, gradient, hessian = (sum(parts) for parts in zip(*terms, strict=True))
            total = loss + 0.5 * float(penalty @ weights**2)
            return float(loss) / rows, float(total), gradient + penalty * weights, hessian + np.diag(penalty)

        weights = np.zeros(len(features) + 1)
        logloss, total, gradient, hessian = evaluate(weights)
        history = [logloss]
        iteration = 0
        while np.abs(gradient).max() / rows > tolerance and iteration < limit:
            step = np.linalg.solve(hessian, gradient)
            for _ in range(30):
                new = evaluate(weights - step)
                if new[1] <= total + 1e-12 * abs(total):
                    break
                step /= 2
            weights = weights - step
            logloss, total, gradient, hessian = new
            history.append(logloss)
            iteration += 1
            if progress:
                progress(iteration, limit)
        converged = bool(np.abs(gradient).max() / rows <= tolerance)
        if not converged:
            logging.getLogger("tipcast").warning(
                "not converged after %d iterations: raise model.params.max_iter", limit
            )
        return array_model(
            native.LogisticScorer(weights[:-1], float(weights[-1]), mean, scale),
            "npz-logistic",
            history={"train": {"logloss": history}},
            importance=shares(features, np.abs(weights[:-1])),
            importance_kind="standardised coefficients",
            info={"device": used, "iterations": iteration, "converged": str(converged).lower()},
        )


def _moments(x: Frame, y: Frame) -> Any:
    return moments(x)


def _terms(x: Frame, y: Frame, mean: Any, scale: Any, weights: Any) -> tuple[float, Any, Any]:
    """Log loss of a part, its gradient and its Hessian in (coefficients, intercept)."""
    features, labels = x.values, y.values
    xp = module_of(features)
    mean, scale, weights = (xp.asarray(each) for each in (mean, scale, weights))
    values = xp.empty((len(x), len(mean) + 1))
    values[:, :-1] = (features - mean) / scale
    values[:, -1] = 1
    margin = values @ weights
    p = 0.5 * (1 + xp.tanh(0.5 * margin))
    loss = float((xp.logaddexp(0, margin) - labels * margin).sum())
    return loss, to_host(values.T @ (p - labels)), to_host(values.T @ (values * (p * (1 - p))[:, None]))
