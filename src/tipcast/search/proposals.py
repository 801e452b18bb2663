"""The space that is searched, and what is tried of it in which order: Optuna proposes, on the
driver alone.
"""

import dataclasses
import itertools
import logging
import math
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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
from tipcast.search.trial import Objective, Proposal, Trial
from tipcast.tasks.kinds import Kind

optuna.logging.set_verbosity(optuna.logging.ERROR)  # it would log every trial beside our line

RANGES = ("int", "int_log", "float", "log")
WHOLE = ("int", "int_log")
LOGARITHMIC = ("log", "int_log")
FORMS = "{int: [4, 12]}, {int_log: [50, 800]}, {float: [0.5, 1]}, {log: [0.01, 0.3]} or a list"
INSIDE = 0.382
"""Where between a range's bounds a value is tried out beforehand that is seldom a whole number."""
FEWEST = 8
"""Trials below which nothing can be said of the importance of parameters."""


Axis = CategoricalDistribution | FloatDistribution | IntDistribution
"""The values that one parameter may take."""
Space = Mapping[str, Axis]
Params = Mapping[str, Any]
Known = Mapping[int, Trial]
"""Trials that ended in an earlier run of the sweep, by number."""


def points(axis: Axis, number: int) -> tuple[Any, ...]:
    """Return a list's values, or so many of a range with both ends."""
    if isinstance(axis, CategoricalDistribution):
        return axis.choices
    whole = isinstance(axis, IntDistribution)
    if isinstance(axis, IntDistribution) and axis.high - axis.low < number:
        return tuple(range(axis.low, axis.high + 1))
    spaced = (np.geomspace if axis.log else np.linspace)(axis.low, axis.high, number)
    # Eight digits are enough to search by, and to type again.
    inner = [round(value) if whole else float(f"{value:.8g}") for value in spaced.tolist()[1:-1]]
    return tuple(dict.fromkeys((axis.low, *inner, axis.high)))


def _size(axis: Axis) -> float:
    """Return how many values an axis has."""
    if isinstance(axis, FloatDistribution):
        return 1 if axis.low == axis.high else math.inf
    return (
        len(axis.choices) if isinstance(axis, CategoricalDistribution) else axis.high - axis.low + 1
    )


def tried(space: Space) -> list[tuple[str, Any]]:
    """Return what is tried out beforehand: each value of a list; of a range its bounds, and of
    numbers one between.
    """
    values: list[tuple[str, Any]] = []
    for name, axis in space.items():
        if isinstance(axis, CategoricalDistribution):
            values += [(name, value) for value in axis.choices]
        else:
            between = (
                []
                if isinstance(axis, IntDistribution)
                else [axis.low + INSIDE * (axis.high - axis.low)]
            )
            values += [(name, value) for value in (axis.low, axis.high, *between)]

    return values


def inside(space: Space, params: Mapping[str, Any]) -> bool:
    """Tell whether parameters are a point of a space; those of a model as it is configured need not
    be.
    """

    def contains(axis: Axis, value: Any) -> bool:
        if isinstance(axis, CategoricalDistribution):
            return value in axis.choices
        number = type(value) in (int, float) and axis.low <= value <= axis.high
        return number and (isinstance(axis, FloatDistribution) or value == int(value))

    return all(name in params and contains(axis, params[name]) for name, axis in space.items())


def parse_space(space: Mapping[str, Any]) -> dict[str, Axis]:
    """Read a space as yaml has it, sorted by name: parameter -> one of ``FORMS``; null leaves the
    parameter out.

    C003 for a form that is none of these, an empty list, a value twice, bounds that are reversed or
    cannot be.
    """
    return {name: _axis(name, space[name]) for name in sorted(space) if space[name] is not None}


def merged_space(model: ModelSpec, own: Mapping[str, Any], *, alone: bool) -> dict[str, Axis]:
    """Return a model's space with one's own axes in place of the model's, or one's own alone where
    there are any.
    """
    base: Mapping[str, Any] = {} if alone and own else model.space
    return parse_space({**base, **own})


def check_space(
    model: ModelSpec,
    space: Space,
    device: str,
    categorical: Sequence[str],
    kind: Kind | None = None,
) -> None:
    """Let the estimator judge what is tried out of each axis.

    C001 a parameter that the model does not have, C003 a value that it refuses or nothing to
    search.
    """
    if not space:
        raise TipcastError(
            "C003", "search.space", "nothing is searched", f"name a parameter, as {FORMS}"
        )

    for name, value in tried(space):
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
        unlike = not any(one == other for one, other in itertools.combinations(form, 2))
        if form and unlike and not any(isinstance(value, Mapping) for value in form):
            with warnings.catch_warnings():
                # of values that Optuna could not write to a database
                warnings.simplefilter("ignore")
                return CategoricalDistribution(form)
    elif isinstance(form, Mapping) and len(form) == 1:
        ((kind, bounds),) = form.items()
        numbers = bounds if isinstance(bounds, list | tuple) else []
        finite = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        if kind in RANGES and finite and len(numbers) == 2:
            low, high = numbers
            whole = kind not in WHOLE or (low == int(low) and high == int(high))
            if low <= high and whole and (low > 0 or kind not in LOGARITHMIC):
                distribution = IntDistribution if kind in WHOLE else FloatDistribution
                return distribution(low, high, log=kind in LOGARITHMIC)

    fix = f"write {FORMS}, each value once, bounds in order, those of logarithms above 0"
    raise TipcastError("C003", f"search.space.{name}", f"cannot be searched: {form}", fix)


def searcher(
    spec: SearchSpec,
    space: Space,
    seed: int,
    objective: Objective,
    known: Known,
    baseline: Params | None,
) -> "Searcher":
    """Return what decides on the next trial; trial 0 has the parameters of the baseline, where
    there is one.
    """
    if spec.name == "tpe":
        return Tpe(space, seed, objective, spec, known, baseline)

    return Listed(
        grid(spec, space) if spec.name == "grid" else random(spec, space, seed, baseline), known
    )


def grid(spec: SearchSpec, space: Space) -> list[Proposal]:
    """Return every combination of lists and of some points of ranges, the last parameter changing
    fastest.

    C003 for more combinations than ``search.trials`` or than anyone waits for.
    """
    axes = [points(axis, spec.points) for axis in space.values()]
    number = math.prod(map(len, axes))
    most = spec.trials or MAX_TRIALS
    if number > most:
        what = f"the grid has {number:,} points, more than {most:,}"
        fix = "search fewer parameters or values, or use search=random"
        raise TipcastError("C003", "search.trials", what, fix)
    return [Proposal(at, params) for at, params in enumerate(_every(space, axes))]


def random(
    spec: SearchSpec, space: Space, seed: int, baseline: Params | None = None
) -> list[Proposal]:
    """Return the baseline, if any, and unlike draws; a longer search begins with the trials of a
    shorter one.
    """
    wanted = spec.trials or MAX_TRIALS
    if math.prod(map(_size, space.values())) <= MAX_TRIALS:
        # Each point of a small space once, in an order that the seed decides.
        every = list(_every(space, [points(axis, MAX_TRIALS + 1) for axis in space.values()]))
        draws: Iterable[Params] = [
            every[at] for at in np.random.default_rng(seed).permutation(len(every))
        ]
    else:
        # asked and never told: draws are independent
        study = optuna.create_study(sampler=RandomSampler(seed))
        draws = (study.ask({**space}).params for _ in itertools.count())

    chosen = {} if baseline is None else {repr(dict(baseline)): baseline}
    for params in draws:
        if len(chosen) == wanted:
            break
        chosen.setdefault(repr(params), params)

    if len(chosen) < wanted:
        logging.getLogger("tipcast").warning(
            "there are %d points to try only: as many trials", len(chosen)
        )

    return [Proposal(number, params) for number, params in enumerate(chosen.values())]


def _every(space: Space, axes: Sequence[Sequence[Any]]) -> Iterable[Params]:
    """Return every combination of the values of each axis, the last one's changing fastest."""
    return (dict(zip(space, values, strict=True)) for values in itertools.product(*axes))


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

    A trial is proposed when all but the ``max_concurrent`` - 1 trials before it have ended, and by
    these alone; the others count as poor, so that it spreads out. It draws by a seed of its own. So
    a proposal depends neither on the number of workers nor on which trial ends first, and is the
    same when a sweep is resumed. Of the baseline, trial 0, the estimator knows the parameters that
    are inside the space.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        objective: Objective,
        spec: SearchSpec,
        known: Known,
        baseline: Params | None,
    ) -> None:
        self.total = spec.trials or 0
        self._space = dict(space)
        self._seed = seed
        self._most = spec.max_concurrent
        self._known = set(known)
        self._fixed = ({} if baseline is None else {0: baseline}) | {
            at: trial.params for at, trial in known.items()
        }
        self._scores: dict[int, float | None] = {
            number: trial.score for number, trial in known.items()
        }
        self._study = optuna.create_study(direction=_direction(objective))
        self._asked: list[optuna.Trial] = []
        self._told = 0

    def next(self) -> Proposal | None:
        """Ask for one more, past those that an earlier run has ended; None as long as those before
        it run.
        """
        while (number := len(self._asked)) < self.total:
            if (params := self._fixed.get(number)) is not None:
                there = {
                    name: axis for name, axis in self._space.items() if inside({name: axis}, params)
                }
                # ``ask`` takes these
                self._study.enqueue_trial({name: params[name] for name in there})
                self._asked.append(self._study.ask({**there}))
                if number not in self._known:
                    return Proposal(number, params)
                continue

            while (told := self._told) <= number - self._most:
                if told not in self._scores:
                    return None
                score = self._scores[told]
                self._study.tell(
                    self._asked[told],
                    score,
                    TrialState.FAIL if score is None else TrialState.COMPLETE,
                )
                self._told += 1

            # A seed of its own: a sampler that goes on drawing would depend on how many it had
            # proposed.
            (seed,) = np.random.SeedSequence([self._seed, number]).generate_state(1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of options that are experimental
                self._study.sampler = TPESampler(seed=int(seed), constant_liar=True)

            self._asked.append(self._study.ask({**self._space}))
            return Proposal(number, self._asked[number].params)

        return None

    def tell(self, number: int, score: float | None) -> None:
        """Keep a trial's score, None of one that failed, until its turn comes."""
        self._scores[number] = score


Searcher = Listed | Tpe
"""Decides on the driver what is tried; called in the order of the trials' ends."""


def importance(trials: Sequence[Trial], space: Space, objective: Objective) -> dict[str, float]:
    """Return parameter -> share of the variance of the scores, by Optuna; empty for too few trials,
    all inside.
    """
    if len(trials) < FEWEST or len({trial.score for trial in trials}) == 1:
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
    return "maximize" if objective.maximize else "minimize"
