"""The space that is searched, and what is tried of it in which order: Optuna proposes, on the driver alone."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.config.schema import ModelSpec, SearchSpec
from tipcast.models.build import build
from tipcast.search import MOST
from tipcast.search.trial import Objective, Proposal, Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

RANGES = ("int", "int_log", "float", "log")
WHOLE = ("int", "int_log")
LOGARITHMIC = ("log", "int_log")
FORMS = "{int: [4, 12]}, {int_log: [50, 800]}, {float: [0.5, 1]}, {log: [0.01, 0.3]} or a list"
INSIDE = 0.382
"""Where between a range's bounds a value is tried out beforehand that is seldom a whole number."""
FEWEST = 8
"""Trials below which nothing can be said of the importance of parameters."""


@dataclass(frozen=True)
class Axis:
    """The values that one parameter may take."""

    kind: str
    """``int`` or ``float``, evenly between bounds; ``int_log`` or ``log``, evenly in the logarithm; ``list``."""
    low: Any = 0
    high: Any = 0
    """Both included; of ``int`` and ``int_log`` integers."""
    values: tuple[Any, ...] = ()
    """Of a list."""

    def points(self, number: int) -> tuple[Any, ...]:
        """Return the list's values, or so many of a range with both ends."""
        if self.values:
            return self.values
        if self.kind in WHOLE and self.high - self.low < number:
            return tuple(range(self.low, self.high + 1))
        spaced = (np.geomspace if self.kind in LOGARITHMIC else np.linspace)(self.low, self.high, number)
        # Eight digits are enough to search by, and to type again.
        inner = [round(value) if self.kind in WHOLE else float(f"{value:.8g}") for value in spaced.tolist()[1:-1]]
        return tuple(dict.fromkeys((self.low, *inner, self.high)))

    @property
    def size(self) -> int | None:
        """How many values there are; None: without end."""
        if self.values or self.low == self.high:
            return len(self.values) or 1
        return int(self.high - self.low + 1) if self.kind in WHOLE else None

    def contains(self, value: Any) -> bool:
        """Tell whether a value is one of them."""
        if self.values:
            return repr(value) in map(repr, self.values)
        number = type(value) in (int, float) and self.low <= value <= self.high
        return number and (self.kind not in WHOLE or value == int(value))

    @property
    def tried(self) -> tuple[Any, ...]:
        """What is tried out beforehand: every value of a list, the bounds of a range."""
        return self.values or (self.low, self.high)


Space = Mapping[str, Axis]
Params = Mapping[str, Any]
Known = Mapping[int, Trial]
"""Trials that ended in an earlier run of the sweep, by number."""


def inside(space: Space, params: Mapping[str, Any]) -> bool:
    """Tell whether parameters are a point of a space; those of a model as it is configured need not be."""
    return all(name in params and axis.contains(params[name]) for name, axis in space.items())


def parse_space(space: Mapping[str, Any]) -> dict[str, Axis]:
    """Read a space as yaml has it, sorted by name: parameter -> one of ``FORMS``; null leaves the parameter out.

    C003 for a form that is none of these, an empty list, a value twice, bounds that are reversed or cannot be.
    """
    return {name: _axis(name, space[name]) for name in sorted(space) if space[name] is not None}


def merged_space(model: ModelSpec, own: Mapping[str, Any], *, alone: bool) -> dict[str, Axis]:
    """Return a model's space with one's own axes in place of the model's, or one's own alone where there are any."""
    base: Mapping[str, Any] = {} if alone and own else model.space
    return parse_space({**base, **own})


def check_space(
    model: ModelSpec, space: Space, device: str, categorical: Sequence[str], kind: str | None = None
) -> None:
    """Let the estimator judge every value of the lists, and of the ranges the bounds and a value between.

    C001 a parameter that the model does not have, C003 a value that it refuses or nothing to search.
    """
    if not space:
        raise TipcastError("C003", "search.space", "nothing is searched", f"name a parameter, as {FORMS}")
    for name, axis in space.items():
        between = () if axis.size is not None else (axis.low + INSIDE * (axis.high - axis.low),)
        for value in (*axis.tried, *between):
            try:
                trial = dataclasses.replace(model, params={**model.params, name: value})
                build(trial, device, categorical, kind).check()
            except TipcastError as problem:
                if not problem.where.startswith("model."):
                    raise
                fix = problem.fix.replace("model.params.", "search.space.")
                raise TipcastError(problem.code, f"search.space.{name}", problem.what, fix) from problem


def _axis(name: str, form: Any) -> Axis:
    if isinstance(form, list | tuple):
        unlike = len(set(map(repr, form))) == len(form) > 0
        if unlike and not any(isinstance(value, Mapping) for value in form):
            return Axis("list", values=tuple(form))
    elif isinstance(form, Mapping) and len(form) == 1:
        ((kind, bounds),) = form.items()
        numbers = bounds if isinstance(bounds, list | tuple) else []
        finite = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        if kind in RANGES and finite and len(numbers) == 2:
            low, high = numbers
            whole = kind not in WHOLE or (low == int(low) and high == int(high))
            if low <= high and whole and (low > 0 or kind not in LOGARITHMIC):
                return Axis(kind, int(low), int(high)) if kind in WHOLE else Axis(kind, low, high)
    fix = f"write {FORMS}, each value once, bounds in order, those of logarithms above 0"
    raise TipcastError("C003", f"search.space.{name}", f"cannot be searched: {form}", fix)


def searcher(
    spec: SearchSpec, space: Space, seed: int, objective: Objective, known: Known, baseline: Params | None
) -> Searcher:
    """Return what decides on the next trial; trial 0 has the parameters of the baseline, where there is one."""
    if spec.name == "tpe":
        return Tpe(space, seed, objective, spec.trials or 0, spec.max_concurrent, known, baseline)
    return Listed(grid(spec, space) if spec.name == "grid" else random(spec, space, seed, baseline), known)


def grid(spec: SearchSpec, space: Space) -> list[Proposal]:
    """Return every combination of lists and of some points of ranges, the last parameter changing fastest.

    C003 for more combinations than ``search.trials`` or than anyone waits for.
    """
    points = [axis.points(spec.points) for axis in space.values()]
    number, most = math.prod(map(len, points)), spec.trials or MOST
    if number > most:
        what = f"the grid has {number:,} points, more than {most:,}"
        fix = "search fewer parameters or values, or use search=random"
        raise TipcastError("C003", "search.trials", what, fix)
    return [Proposal(at, dict(zip(space, values, strict=True))) for at, values in enumerate(itertools.product(*points))]


def random(spec: SearchSpec, space: Space, seed: int, baseline: Params | None = None) -> list[Proposal]:
    """Return the baseline, if any, and unlike draws; a longer search begins with the trials of a shorter one."""
    wanted, sizes = spec.trials or MOST, [axis.size for axis in space.values()]
    points = math.inf if None in sizes else math.prod(size or 0 for size in sizes)
    possible = points + (baseline is not None and not inside(space, baseline))
    if possible < wanted:
        logging.getLogger("tipcast").warning("there are %d points to try only: as many trials", possible)
    import optuna  # takes a second, which no start of another job should

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed)
    if points <= MOST:  # each point of a small space once, in an order that the seed decides
        every = {name: range(len(axis.values)) or axis.points(MOST) for name, axis in space.items()}
        sampler = optuna.samplers.GridSampler(every, seed)
    study, searched = optuna.create_study(sampler=sampler), _distributions(space)
    draws = {} if baseline is None else {repr(dict(baseline)): baseline}
    while len(draws) < min(wanted, possible):
        params = _values(space, study.ask(searched).params)
        draws.setdefault(repr(params), params)
    return [Proposal(number, params) for number, params in enumerate(draws.values())]


@final
class Listed:
    """Trials that are known beforehand, in their order."""

    def __init__(self, proposals: Sequence[Proposal], known: Known) -> None:
        self.total = len(proposals)
        self._missing = deque(proposal for proposal in proposals if proposal.number not in known)

    def next(self) -> Proposal | None:
        """Return the next trial."""
        return self._missing.popleft() if self._missing else None

    def tell(self, number: int, score: float | None) -> None:
        """Nothing: later trials do not depend on earlier ones."""


@final
class Tpe:
    """Optuna's tree-structured Parzen estimator, asked and told in the order of the trials.

    A trial is proposed when all but the ``max_concurrent`` - 1 trials before it have ended, and by these alone; the
    others count as poor, so that it spreads out. It draws by a seed of its own. So a proposal depends neither on the
    number of workers nor on which trial ends first, and is the same when a sweep is resumed. Of the baseline, trial 0,
    the estimator knows the parameters that are inside the space.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        objective: Objective,
        total: int,
        max_concurrent: int,
        known: Known,
        baseline: Params | None = None,
    ) -> None:
        import optuna  # takes a second

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.total = total
        self._space, self._distributions, self._seed, self._most = space, _distributions(space), seed, max_concurrent
        self._known = set(known)
        self._fixed = ({} if baseline is None else {0: baseline}) | {at: trial.params for at, trial in known.items()}
        self._scores: dict[int, float | None] = {number: trial.score for number, trial in known.items()}
        self._study = optuna.create_study(direction=_direction(objective))
        self._asked: list[optuna.Trial] = []
        self._told = 0

    def next(self) -> Proposal | None:
        """Ask for one more, past those that an earlier run has ended; None as long as those before it run."""
        while (number := len(self._asked)) < self.total:
            if number in self._fixed:
                params = self._fixed[number]
                there = {name: axis for name, axis in self._space.items() if inside({name: axis}, params)}
                self._study.enqueue_trial({name: _as_optuna(axis, params[name]) for name, axis in there.items()})
                self._asked.append(self._study.ask({name: self._distributions[name] for name in there}))
                if number in self._known:
                    continue
                return Proposal(number, params)
            if not self._tell_until(number - self._most):
                return None
            self._asked.append(self._ask(number))
            return Proposal(number, _values(self._space, self._asked[number].params))
        return None

    def tell(self, number: int, score: float | None) -> None:
        """Keep a trial's score, None of one that failed, until its turn comes."""
        self._scores[number] = score

    def _ask(self, number: int) -> Any:
        from optuna.samplers import TPESampler

        (seed,) = np.random.SeedSequence([self._seed, number]).generate_state(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of options that are experimental
            self._study.sampler = TPESampler(seed=int(seed), constant_liar=True)
        return self._study.ask(self._distributions)

    def _tell_until(self, last: int) -> bool:
        """Tell Optuna how the trials ended up to a last one; tell whether all of them have."""
        from optuna.trial import TrialState

        while self._told <= last:
            if self._told not in self._scores:
                return False
            score = self._scores[self._told]
            state = TrialState.FAIL if score is None else TrialState.COMPLETE
            self._study.tell(self._asked[self._told], score, state=state)
            self._told += 1
        return True


Searcher = Listed | Tpe
"""Decides on the driver what is tried; called in the order of the trials' ends."""


def importance(trials: Sequence[Trial], space: Space, objective: Objective) -> dict[str, float]:
    """Return parameter -> share of the variance of the scores, by Optuna; empty for too few trials, all inside."""
    if len(trials) < FEWEST or len({trial.score for trial in trials}) == 1:
        return {}
    import optuna

    searched = _distributions(space)
    study = optuna.create_study(direction=_direction(objective))
    for trial in trials:
        params = {name: _as_optuna(axis, trial.params[name]) for name, axis in space.items()}
        study.add_trial(optuna.create_trial(params=params, distributions=searched, value=trial.score))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return a space as Optuna has it: a list by the places of its values, which may be of any type."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    def distribution(axis: Axis) -> BaseDistribution:
        if axis.values:
            return CategoricalDistribution(range(len(axis.values)))
        kind = IntDistribution if axis.kind in WHOLE else FloatDistribution
        return kind(axis.low, axis.high, log=axis.kind in LOGARITHMIC)

    return {name: distribution(axis) for name, axis in space.items()}


def _direction(objective: Objective) -> Literal["maximize", "minimize"]:
    return "maximize" if objective.maximize else "minimize"


def _values(space: Space, params: Params) -> dict[str, Any]:
    return {name: axis.values[params[name]] if axis.values else params[name] for name, axis in space.items()}


def _as_optuna(axis: Axis, value: Any) -> Any:
    return list(map(repr, axis.values)).index(repr(value)) if axis.values else value
