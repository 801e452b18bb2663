"""What is tried, in which order: Optuna proposes on the driver, and no worker has any influence on it."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SearchSpec
from tipcast.search.space import MOST, WHOLE, Axis, Space, inside
from tipcast.search.trial import TREES, Objective, Proposal, Trial, Work

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Params = Mapping[str, Any]
Known = Mapping[int, Trial]
"""Trials that ended in an earlier run of the sweep, by number."""
Recorded = Mapping[int, Params]
"""Parameters that an earlier run of the sweep proposed, whatever came of them, by number."""


# Trials that are known beforehand


def grid(
    spec: SearchSpec, space: Space, seed: int = 0, recorded: Recorded | None = None, baseline: Params | None = None
) -> list[Proposal]:
    """Return every combination of lists and of some points of ranges, the last parameter changing fastest.

    Optuna's GridSampler shuffles them, which is of use only to a search that ends before the grid does. C003 for more
    combinations than ``search.trials`` or than anyone waits for.
    """
    points = [axis.points(spec.points) for axis in space.values()]
    number, most = math.prod(map(len, points)), spec.trials or MOST
    if number > most:
        what = f"the grid has {number:,} points, more than {most:,}"
        fix = "search fewer parameters or values, or use search=random"
        raise TipcastError("C003", "search.trials", what, fix)
    return [Proposal(at, dict(zip(space, values, strict=True))) for at, values in enumerate(itertools.product(*points))]


def random(
    spec: SearchSpec, space: Space, seed: int, recorded: Recorded | None = None, baseline: Params | None = None
) -> list[Proposal]:
    """Return draws of which no two are alike; a longer search begins with the trials of a shorter one.

    The first is the baseline, where there is one, also outside the space. Trials that are recorded keep the parameters
    that they have.
    """
    wanted, recorded = spec.trials or MOST, {**({} if baseline is None else {0: baseline}), **(recorded or {})}
    sizes = [axis.size for axis in space.values()]
    possible = math.inf if None in sizes else math.prod(size or 0 for size in sizes)
    draws = _drawn(space, seed, possible)
    possible += baseline is not None and not inside(space, recorded[0])
    if possible < wanted:
        logging.getLogger("tipcast").warning("there are %d points to try only: as many trials", possible)
    seen = {repr(dict(params)) for params in recorded.values()}
    found: list[Proposal] = []
    for number in range(int(min(wanted, possible))):
        params = recorded[number] if number in recorded else _unlike(draws, seen)
        if params is None:
            break
        found.append(Proposal(number, params))
    return found


LISTED: Mapping[str, Callable[..., list[Proposal]]] = {"grid": grid, "random": random, "halving": random}
"""Searches whose trials are known beforehand."""


def _unlike(draws: Iterator[Params], seen: set[str]) -> Params | None:
    """Return the next draw that was not there before; None where so many in a row were."""
    for params in itertools.islice(draws, MOST):
        if repr(params) not in seen:
            seen.add(repr(params))
            return params
    return None


def _drawn(space: Space, seed: int, possible: float) -> Iterator[Params]:
    """Draw from a space: each point of a small one once, in an order that the seed decides."""
    import optuna  # takes a second, which no start of another job should

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed)
    if possible <= MOST:
        every = {
            name: range(len(axis.values)) if axis.kind == "list" else axis.points(MOST) for name, axis in space.items()
        }
        sampler = optuna.samplers.GridSampler(every, seed)
    study, searched = optuna.create_study(sampler=sampler), distributions(space)
    for _ in itertools.count() if possible > MOST else range(int(possible)):
        yield _values(space, study.ask(searched).params)


@final
class Listed:
    """Trials that are known beforehand, in their order."""

    def __init__(self, proposals: Sequence[Proposal], known: Known, *, cuts: bool) -> None:
        self.total = len(proposals)
        missing = [proposal for proposal in proposals if proposal.number not in known]
        self._works = deque(grouped(missing) if cuts else [Work((proposal,)) for proposal in missing])

    def next(self) -> Work | None:
        """Return the next trial, or the next group of trials that one fit answers."""
        return self._works.popleft() if self._works else None

    def tell(self, trial: Trial) -> None:
        """Nothing: later trials do not depend on earlier ones."""

    def fail(self, number: int) -> None:
        """Nothing: see ``tell``."""


def grouped(proposals: Iterable[Proposal]) -> list[Work]:
    """Join trials that differ in their number of trees alone; a group comes where its first trial does."""
    groups: dict[str, list[Proposal]] = {}
    for proposal in proposals:
        rest = {name: value for name, value in proposal.params.items() if name != TREES}
        groups.setdefault(repr((rest, TREES in proposal.params)), []).append(proposal)
    return [
        Work(tuple(group), sizes=tuple(each.params[TREES] for each in group)) if len(group) > 1 else Work(tuple(group))
        for group in groups.values()
    ]


# Trials that depend on the results of others


@final
class Tpe:
    """Optuna's tree-structured Parzen estimator, asked and told in the order of the trials.

    A trial is proposed when all but the ``max_concurrent`` - 1 trials before it have ended, and by these alone; the
    others count as poor, so that it spreads out. It draws by a seed of its own. So a proposal depends neither on the
    number of workers nor on which trial ends first, and is the same when a sweep is resumed. The first is the baseline,
    where there is one; of its parameters the estimator knows those that are inside the space.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        objective: Objective,
        total: int,
        max_concurrent: int,
        known: Known,
        recorded: Recorded,
        baseline: Params | None = None,
    ) -> None:
        import optuna  # takes a second

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.total = total
        self._space, self._distributions, self._seed, self._most = space, distributions(space), seed, max_concurrent
        self._known, self._recorded = set(known), {**({} if baseline is None else {0: baseline}), **recorded}
        self._scores: dict[int, float | None] = {number: trial.score for number, trial in known.items()}
        self._study = optuna.create_study(direction=direction(objective))
        self._asked: list[optuna.Trial] = []
        self._told = 0

    def next(self) -> Work | None:
        """Ask for one more, past those that an earlier run has ended."""
        while (number := len(self._asked)) < self.total:
            if number in self._recorded:
                params = self._recorded[number]
                there = {name: axis for name, axis in self._space.items() if inside({name: axis}, params)}
                self._study.enqueue_trial({name: as_optuna(axis, params[name]) for name, axis in there.items()})
                self._asked.append(self._study.ask({name: self._distributions[name] for name in there}))
                if number in self._known:
                    continue
                return Work((Proposal(number, params),))
            if not self._tell_until(number - self._most):
                return None
            self._asked.append(self._ask(number))
            return Work((Proposal(number, _values(self._space, self._asked[number].params)),))
        return None

    def tell(self, trial: Trial) -> None:
        """Keep it until its turn comes."""
        self._scores[trial.number] = trial.score

    def fail(self, number: int) -> None:
        """Keep it until its turn comes."""
        self._scores[number] = None

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


def ladder(most: int, eta: int, least: int | None) -> tuple[int, ...]:
    """Return the rungs: trees from the least to the most, each eta times those of the one before.

    Without a least the first is most / (2 eta), so that the second rung is half the way.
    """
    rungs = [min(least or max(most // (2 * eta), 1), most)]
    while rungs[-1] < most:
        rungs.append(min(rungs[-1] * eta, most))
    if len(rungs) > 2 and rungs[-1] < rungs[-2] * (1 + eta) / 2:  # a last step too small to be one of its own
        del rungs[-2]
    return tuple(rungs)


@final
class Halving:
    """Begins every trial, then promotes whatever belongs to the best of its rung by now, the lowest rung first.

    Li et al. (2020), A System for Massively Parallel Hyperparameter Tuning, MLSys, algorithm 2, which has no end and so
    promotes from the highest rung first and before it begins anything. Where the number of trials is known, that order
    gives most trees to trials of which better ones had only not begun yet. With a ``baseline`` trial 0 gets all its
    trees whatever its rank, so that the chosen trial is never worse.
    """

    def __init__(
        self,
        proposals: Sequence[Proposal],
        rungs: Sequence[int],
        eta: int,
        known: Known,
        objective: Objective,
        *,
        baseline: bool = False,
    ) -> None:
        self.total = len(proposals)
        self._always = {0} if baseline else set[int]()
        self._rungs, self._eta, self._objective = tuple(rungs), eta, objective
        self._proposals = {proposal.number: proposal for proposal in proposals}
        self._new = deque(proposal for proposal in proposals if proposal.number not in known)
        self._results: list[dict[int, Trial]] = [{} for _ in rungs]
        self._promoted: list[set[int]] = [set() for _ in rungs]
        self._running: set[int] = set()
        for trial in sorted(known.values(), key=lambda each: each.number):
            for trees, score in trial.rungs:
                self.tell(dataclasses.replace(trial, rounds=trees, score=score))
            self.tell(trial)

    def next(self) -> Work | None:
        """Return a new trial, or a promotion from the lowest rung that has one."""
        work = self._next()
        if work:
            self._running |= set(work.numbers)
        return work

    def _next(self) -> Work | None:
        if self._new:
            return Work((self._new.popleft(),), rounds=self._rungs[0])
        while (found := self._candidate()) is not None:
            rung, trial = found
            self._promoted[rung].add(trial.number)
            if not trial.over:
                proposal, stops = self._proposals[trial.number], self._rungs[: rung + 1]
                return Work((proposal,), rounds=self._rungs[rung + 1], stops=stops, worker=trial.worker)
            self._results[rung + 1][trial.number] = trial  # more trees would not be used: nothing to fit
        return None

    def tell(self, trial: Trial) -> None:
        """Enter a trial at the rung that it has reached, and so at those below."""
        self._running.discard(trial.number)
        reached = max(at for at, trees in enumerate(self._rungs) if trees <= (trial.rounds or self._rungs[0]))
        for rung in range(reached):
            self._results[rung].setdefault(trial.number, trial)
            self._promoted[rung].add(trial.number)
        self._results[reached][trial.number] = trial

    def fail(self, number: int) -> None:
        """A failed trial takes no place in any rung."""
        self._running.discard(number)
        for results in self._results:
            results.pop(number, None)

    def _candidate(self) -> tuple[int, Trial] | None:
        for rung in range(len(self._rungs) - 1):
            ranked = sorted(self._results[rung].values(), key=self._objective.rank)
            above = self._results[rung + 1].keys() - self._always
            least = 0 if self._running or above else 1  # one at least comes to the top
            for at, trial in enumerate(ranked):
                chosen = at < max(len(ranked) // self._eta, least) or trial.number in self._always
                if chosen and trial.number not in self._promoted[rung]:
                    return rung, trial
        return None


@final
class InTurn:
    """Searches of several models: a trial of each in turn, of n models trial k is number k // n of search k % n."""

    def __init__(self, searches: Sequence[Listed | Tpe | Halving]) -> None:
        self.total = sum(search.total for search in searches)
        self._searches, self._turn = searches, 0

    def next(self) -> Work | None:
        """Return what the next of the searches that has something proposes."""
        number = len(self._searches)
        for turn in (at % number for at in range(self._turn, self._turn + number)):
            if work := self._searches[turn].next():
                self._turn = turn + 1
                own = (dataclasses.replace(each, number=each.number * number + turn) for each in work.proposals)
                return dataclasses.replace(work, proposals=tuple(own))
        return None

    def tell(self, trial: Trial) -> None:
        """Pass it on to its search."""
        own, turn = divmod(trial.number, len(self._searches))
        self._searches[turn].tell(dataclasses.replace(trial, number=own))

    def fail(self, number: int) -> None:
        """Pass it on to its search."""
        own, turn = divmod(number, len(self._searches))
        self._searches[turn].fail(own)


Searcher = Listed | Tpe | Halving | InTurn
"""Decides on the driver what is tried; called in the order of the trials' ends."""


# A space as Optuna has it: a list by the places of its values, which may be of any type


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return a space as Optuna's distributions."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    def distribution(axis: Axis) -> BaseDistribution:
        if axis.kind == "list":
            return CategoricalDistribution(range(len(axis.values)))
        if axis.kind in WHOLE:
            return IntDistribution(int(axis.low), int(axis.high), log=axis.kind == "int_log")
        return FloatDistribution(axis.low, axis.high, log=axis.kind == "log")

    return {name: distribution(axis) for name, axis in space.items()}


def direction(objective: Objective) -> Literal["maximize", "minimize"]:
    """Return which way is better."""
    return "maximize" if objective.maximize else "minimize"


def _values(space: Space, params: Params) -> dict[str, Any]:
    return {name: axis.values[params[name]] if axis.kind == "list" else params[name] for name, axis in space.items()}


def as_optuna(axis: Axis, value: Any) -> Any:
    """Return a value of an axis."""
    return list(map(repr, axis.values)).index(repr(value)) if axis.kind == "list" else value
