"""Optuna's tree-structured Parzen estimator, asked and told on the driver, in the order of the trials."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from tipcast.search.proposals import Proposal
from tipcast.search.space import WHOLE, Axis, Space


@final
class Tpe:
    """Proposes by what is known of the trials that have ended; those that run count as poor, so that it spreads out."""

    def __init__(self, space: Space, seed: int, taken: int = 0) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._distributions = {name: _distribution(axis) for name, axis in space.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of options that are experimental
            sampler = optuna.samplers.TPESampler(seed=seed + taken, constant_liar=True)  # no draw comes again
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._trials: dict[int, int] = {}

    def ask(self, number: int) -> Proposal:
        """Propose the next trial."""
        trial = self._study.ask(self._distributions)
        self._trials[number] = trial.number
        return Proposal(number, {name: self._value(name, trial.params[name]) for name in self._space})

    def tell(self, number: int, value: float | None) -> None:
        """Say how a trial ended; None: it failed."""
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        self._study.tell(self._trials[number], value, state=state)

    def add(self, params: Mapping[str, Any], value: float) -> None:
        """Take over a trial that ended before."""
        known = {name: self._known(name, params[name]) for name in self._space}
        self._study.add_trial(optuna.trial.create_trial(params=known, distributions=self._distributions, value=value))

    def again(self, number: int, params: Mapping[str, Any]) -> None:
        """Take over a trial that was proposed before and has not ended."""
        self._study.enqueue_trial({name: self._known(name, params[name]) for name in self._space})
        self.ask(number)

    def _value(self, name: str, found: Any) -> Any:
        axis = self._space[name]
        if axis.kind == "list":
            return axis.values[found]
        return found if axis.kind in WHOLE else axis.inside(found)

    def _known(self, name: str, value: Any) -> Any:
        axis = self._space[name]
        return axis.values.index(value) if axis.kind == "list" else value


def _distribution(axis: Axis) -> BaseDistribution:
    if axis.kind == "list":
        return CategoricalDistribution(range(len(axis.values)))
    if axis.kind in WHOLE:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.kind == "int_log")
    return FloatDistribution(axis.low, axis.high, log=axis.kind == "log")
