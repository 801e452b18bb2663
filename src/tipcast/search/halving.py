"""Asynchronous successive halving: every trial gets a few trees, the best of those so far get more, nobody waits."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import final

from tipcast.search.proposals import Known
from tipcast.search.trial import Objective, Proposal, Trial, Work


def ladder(most: int, eta: int, least: int | None) -> tuple[int, ...]:
    """Return the rungs: trees from the least to the most, each eta times those of the one before.

    Parameters
    ----------
    most
        Trees of the last rung.
    eta
        Factor between two rungs.
    least
        Trees of the first rung; None: most / (2 eta), so that the second rung is half the way.

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
    gives most trees to trials of which better ones had only not begun yet.
    """

    def __init__(
        self, proposals: Sequence[Proposal], rungs: Sequence[int], eta: int, known: Known, objective: Objective
    ) -> None:
        self.total = len(proposals)
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
            least = 0 if self._running or self._results[rung + 1] else 1  # one at least comes to the top
            for trial in ranked[: max(len(ranked) // self._eta, least)]:
                if trial.number not in self._promoted[rung]:
                    return rung, trial
        return None
