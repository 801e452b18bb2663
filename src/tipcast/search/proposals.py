"""The space that is searched, and the proposals from it in their order; Optuna runs on the driver
alone.
"""

import dataclasses
import itertools
import logging
import math
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, final

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState

from tipcast.config.errors import TipcastError
from tipcast.config.schema import ModelSpec, SearchSpec
from tipcast.models.build import build
from tipcast.search import MAX_TRIALS
from tipcast.search.halving import Halving
from tipcast.search.trial import Objective, Proposal, Searcher, TrialResult
from tipcast.tasks.kinds import Kind

optuna.logging.set_verbosity(optuna.logging.ERROR)  # Optuna would log every trial, as we do

RANGES = ("int", "int_log", "float", "log")
WHOLE = ("int", "int_log")
LOGARITHMIC = ("log", "int_log")
FORMS = "{int: [4, 12]}, {int_log: [50, 800]}, {float: [0.5, 1]}, {log: [0.01, 0.3]} or a list"
INSIDE = 0.382
"""Share of a range at which a further value is checked beforehand: it is rarely a whole number."""
MIN_TRIALS = 8
"""Least trials for the importance of parameters."""


Axis = CategoricalDistribution | FloatDistribution | IntDistribution
"""The values that one parameter may take."""
Space = Mapping[str, Axis]
Params = Mapping[str, Any]
FinishedTrials = Mapping[int, TrialResult]
"""Trials that ended in an earlier run of the sweep, by number."""


def points(axis: Axis, number: int) -> tuple[Any, ...]:
    """Return the values of a list, or that many points of a range with both ends."""
    if isinstance(axis, CategoricalDistribution):
        return axis.choices
    if isinstance(axis, IntDistribution) and axis.high - axis.low < number:
        return tuple(range(axis.low, axis.high + 1))

    if axis.log:
        spaced = np.geomspace(axis.low, axis.high, number)
    else:
        spaced = np.linspace(axis.low, axis.high, number)

    inner: list[float] = spaced[1:-1].tolist()
    if isinstance(axis, IntDistribution):
        inner = [round(value) for value in inner]
    else:  # eight digits are enough to search with, and to type again
        inner = [float(f"{value:.8g}") for value in inner]
    return tuple(dict.fromkeys((axis.low, *inner, axis.high)))


def is_logarithmic(axis: Axis) -> bool:
    """Tell whether an axis is a range whose logarithm is searched."""
    return not isinstance(axis, CategoricalDistribution) and axis.log


def _size(axis: Axis) -> float:
    """Return how many values an axis has."""
    if isinstance(axis, CategoricalDistribution):
        return len(axis.choices)
    if isinstance(axis, IntDistribution):
        return axis.high - axis.low + 1
    if axis.low == axis.high:
        return 1
    return math.inf


def probes(space: Space) -> list[tuple[str, Any]]:
    """Return parameters with values that are checked before a search: each value of a list, the
    bounds of a range, and one value inside a range of floats.
    """
    values: list[tuple[str, Any]] = []
    for name, axis in space.items():
        if isinstance(axis, CategoricalDistribution):
            values += [(name, value) for value in axis.choices]
            continue

        values += [(name, axis.low), (name, axis.high)]
        if isinstance(axis, FloatDistribution):
            values.append((name, axis.low + INSIDE * (axis.high - axis.low)))

    return values


def inside(space: Space, params: Params) -> bool:
    """Tell whether parameters are a point of a space; a model's configured parameters may lie
    outside.
    """

    def contains(axis: Axis, value: Any) -> bool:
        if isinstance(axis, CategoricalDistribution):
            return value in axis.choices
        number = type(value) in (int, float) and axis.low <= value <= axis.high
        return number and (isinstance(axis, FloatDistribution) or value == int(value))

    return all(name in params and contains(axis, params[name]) for name, axis in space.items())


def parse_space(space: Mapping[str, object]) -> dict[str, Axis]:
    """Read a space as yaml has it: parameter -> one of ``FORMS``, or null to leave the parameter
    out. The axes are sorted by name.

    Raises C003 for another form, an empty list, a value twice, and reversed or impossible bounds.
    """
    return {name: _axis(name, space[name]) for name in sorted(space) if space[name] is not None}


def _axis(name: str, form: object) -> Axis:
    axis: Axis | None = None
    if isinstance(form, list | tuple):
        axis = _list_axis(form)
    elif isinstance(form, Mapping) and len(form) == 1:
        ((kind, bounds),) = form.items()
        axis = _range_axis(kind, bounds)

    if axis is None:
        fix = f"write {FORMS}, each value once, bounds in order, those of logarithms above 0"
        raise TipcastError("C003", f"search.space.{name}", f"cannot be searched: {form}", fix)
    return axis


def _list_axis(values: Sequence[Any]) -> Axis | None:
    """Return the axis of a list; None if it is empty, has a value twice, or holds a mapping."""
    twice = any(first == second for first, second in itertools.combinations(values, 2))
    if not values or twice or any(isinstance(value, Mapping) for value in values):
        return None

    with warnings.catch_warnings():
        # Optuna warns of values that it could not write to a database.
        warnings.simplefilter("ignore")
        return CategoricalDistribution(values)


def _range_axis(kind: object, bounds: object) -> Axis | None:
    """Return the axis of a range; None for an unknown kind or impossible bounds."""
    if kind not in RANGES or not isinstance(bounds, list | tuple) or len(bounds) != 2:
        return None
    if not all(type(bound) in (int, float) and math.isfinite(bound) for bound in bounds):
        return None

    low, high = bounds
    log = kind in LOGARITHMIC
    if low > high or (log and low <= 0):
        return None
    if kind not in WHOLE:
        return FloatDistribution(low, high, log=log)
    if low != int(low) or high != int(high):
        return None
    return IntDistribution(low, high, log=log)


def merged_space(
    model: ModelSpec, overrides: Mapping[str, object], *, alone: bool
) -> dict[str, Axis]:
    """Return a model's space with the user's axes in place of the model's; with ``alone``, the
    user's axes only, if there are any.
    """
    if alone and overrides:
        return parse_space(overrides)
    return parse_space({**model.space, **overrides})


def check_space(
    model: ModelSpec,
    space: Space,
    device: str,
    categorical: Sequence[str],
    kind: Kind | None = None,
) -> None:
    """Let the estimator check some values of each axis.

    Raises C001 for a parameter that the model lacks, C003 for a value that the model refuses and
    for an empty space.
    """
    if not space:
        fix = f"add a parameter with {FORMS}"
        raise TipcastError("C003", "search.space", "has no parameters to search", fix)

    for name, value in probes(space):
        try:
            trial = dataclasses.replace(model, params={**model.params, name: value})
            build(trial, device, categorical, kind).check()
        except TipcastError as problem:
            if not problem.where.startswith("model."):
                raise
            fix = problem.fix.replace("model.params.", "search.space.")
            raise TipcastError(problem.code, f"search.space.{name}", problem.what, fix) from problem


def searcher(
    spec: SearchSpec,
    space: Space,
    seed: int,
    objective: Objective,
    finished: FinishedTrials,
    baseline: Params | None,
) -> Searcher:
    """Return the searcher, which proposes the next trial; trial 0 has the parameters of the
    baseline, if there is one.
    """
    if objective.rungs is not None:
        first = {at: trial for at, trial in finished.items() if at < objective.rungs.trials}
        sampler = dataclasses.replace(spec, name=spec.sampler)
        plain = dataclasses.replace(objective, rungs=None)
        proposer = searcher(sampler, space, seed, plain, first, baseline)
        return Halving(proposer, objective, objective.rungs, finished)

    if spec.name == "tpe":
        return Tpe(space, seed, objective, spec, finished, baseline)
    if spec.name == "grid":
        return Listed(grid(spec, space), finished)
    return Listed(random(spec, space, seed, baseline), finished)


def grid(spec: SearchSpec, space: Space) -> list[Proposal]:
    """Return every combination of lists and of some points of ranges, the last parameter changing
    fastest.

    Raises C003 for more combinations than ``search.trials``, or than a sweep may have.
    """
    axes = [points(axis, spec.points) for axis in space.values()]
    number = math.prod(map(len, axes))
    most = spec.trials or MAX_TRIALS
    if number > most:
        what = f"the grid has {number:,} points, more than {most:,}"
        fix = "search fewer parameters or values, or use search=random"
        raise TipcastError("C003", "search.trials", what, fix)

    return [Proposal(at, params) for at, params in enumerate(_combinations(space, axes))]


def random(
    spec: SearchSpec, space: Space, seed: int, baseline: Params | None = None
) -> list[Proposal]:
    """Return the baseline, if any, and draws without repeats; a longer search begins with the
    trials of a shorter one.
    """
    n_trials = spec.trials or MAX_TRIALS
    chosen: dict[str, Params] = {}
    if baseline is not None:
        chosen[repr(dict(baseline))] = baseline

    for params in _draws(space, seed):
        if len(chosen) == n_trials:
            break
        chosen.setdefault(repr(params), params)

    if len(chosen) < n_trials:
        logging.getLogger("tipcast").warning(
            "only %d distinct points exist, so only as many trials run", len(chosen)
        )

    return [Proposal(number, params) for number, params in enumerate(chosen.values())]


def _draws(space: Space, seed: int) -> Iterator[Params]:
    """Yield points of a space at random: each point of a small space once, in an order that the
    seed decides; those of a large space without end.
    """
    if math.prod(map(_size, space.values())) <= MAX_TRIALS:
        axes = [points(axis, MAX_TRIALS + 1) for axis in space.values()]
        every_point = list(_combinations(space, axes))
        for at in np.random.default_rng(seed).permutation(len(every_point)):
            yield every_point[at]
        return

    # The study is asked and never told: draws are independent.
    study = optuna.create_study(sampler=RandomSampler(seed))
    while True:
        yield study.ask({**space}).params


def _combinations(space: Space, axes: Sequence[Sequence[object]]) -> Iterable[Params]:
    """Return every combination of the values of each axis, the last one's changing fastest."""
    return (dict(zip(space, values, strict=True)) for values in itertools.product(*axes))


@final
class Listed:
    """Trials whose parameters are all chosen before the first begins, in their order."""

    def __init__(self, proposals: Sequence[Proposal], finished: FinishedTrials) -> None:
        self.total = len(proposals)
        self._missing = deque(proposal for proposal in proposals if proposal.number not in finished)

    def next(self) -> Proposal | None:
        """Return the next trial; None after the last."""
        if not self._missing:
            return None
        return self._missing.popleft()

    def tell(self, number: int, score: float | None) -> None:
        """Nothing: later trials do not depend on earlier ones."""


@final
class Tpe:
    """Optuna's tree-structured Parzen estimator, asked and told in the order of the trials.

    A trial is proposed when all trials before it have ended except the last ``max_concurrent`` - 1.
    Only the former's scores count; the latter are assumed to be poor, so that proposals spread out.
    Each trial is drawn by a seed of its own. So a proposal depends neither on the number of workers
    nor on which trial ends first, and is the same when a sweep is resumed. The estimator learns
    those parameters of the baseline, trial 0, that are inside the space.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        objective: Objective,
        spec: SearchSpec,
        finished: FinishedTrials,
        baseline: Params | None,
    ) -> None:
        self.total = spec.trials or 0
        self._space = dict(space)
        self._seed = seed
        self._max_concurrent = spec.max_concurrent
        self._finished = set(finished)
        self._fixed: dict[int, Params] = {}
        if baseline is not None:
            self._fixed[0] = baseline
        self._fixed |= {number: trial.params for number, trial in finished.items()}
        self._scores: dict[int, float | None] = {
            number: trial.score for number, trial in finished.items()
        }

        self._study = optuna.create_study(direction=_direction(objective))
        self._asked: list[optuna.Trial] = []
        self._n_told = 0

    def next(self) -> Proposal | None:
        """Propose the next trial that no earlier run has ended; None as long as it has to wait for
        trials before it, and after the last.
        """
        for number in range(len(self._asked), self.total):
            params = self._fixed.get(number)
            if params is None:
                if not self._tell_before(number - self._max_concurrent + 1):
                    return None
                return Proposal(number, self._ask(number))

            self._ask_fixed(params)
            if number not in self._finished:
                return Proposal(number, params)

        return None

    def _ask_fixed(self, params: Params) -> None:
        """Tell Optuna about parameters that it does not choose, as far as they are inside the
        space.
        """
        axes = {name: axis for name, axis in self._space.items() if inside({name: axis}, params)}
        self._study.enqueue_trial({name: params[name] for name in axes})
        self._asked.append(self._study.ask({**axes}))  # takes the parameters enqueued

    def _tell_before(self, number: int) -> bool:
        """Tell Optuna the scores of the trials before a number; False if one of them still runs."""
        while self._n_told < number:
            if self._n_told not in self._scores:
                return False

            score = self._scores[self._n_told]
            state = TrialState.COMPLETE
            if score is None:
                state = TrialState.FAIL
            self._study.tell(self._asked[self._n_told], score, state)
            self._n_told += 1

        return True

    def _ask(self, number: int) -> Params:
        """Let Optuna choose the parameters of a trial.

        Each trial has a seed of its own: one sampler for all would depend on how many trials it had
        proposed.
        """
        (seed,) = np.random.SeedSequence([self._seed, number]).generate_state(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns of experimental options
            self._study.sampler = TPESampler(seed=int(seed), constant_liar=True)

        trial = self._study.ask({**self._space})
        self._asked.append(trial)
        return trial.params

    def tell(self, number: int, score: float | None) -> None:
        """Keep a trial's score, None if it failed, until Optuna may know it."""
        self._scores[number] = score


def importance(
    trials: Sequence[TrialResult], space: Space, objective: Objective
) -> dict[str, float]:
    """Return parameter -> share of the scores' variance, by Optuna; empty for few or equal scores.

    All trials are inside the space.
    """
    if len(trials) < MIN_TRIALS or len({trial.score for trial in trials}) == 1:
        return {}

    study = optuna.create_study(direction=_direction(objective))
    for trial in trials:
        params = {name: trial.params[name] for name in space}
        study.add_trial(
            optuna.create_trial(params=params, distributions=dict(space), value=trial.score)
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def _direction(objective: Objective) -> Literal["maximize", "minimize"]:
    if objective.maximize:
        return "maximize"
    return "minimize"
