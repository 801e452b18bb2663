"""Successive halving: all trials with few trees, then the best of them with more.

A rung's survivors are chosen when all trials of the rung have ended, by their scores alone. So the
choice depends neither on the number of workers nor on which trial ends first, and a resumed sweep
makes it again from the scores in its record.

A fit of the next rung goes on with the trees of the rung before, which the worker that grew them
has kept in memory; the pool sends it there if a slot is free. On another worker, after a worker's
death and in a resumed sweep, the trees are grown again from the first one. This needs no storage
and no transfer, and loses nothing but time: both ways end with the same trees.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, final

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SearchSpec
from tipcast.search import TREES
from tipcast.search.trial import Objective, Proposal, Rungs, Searcher, TrialResult


def plan_rungs(spec: SearchSpec, trees: int) -> Rungs:
    """Return the rungs of a search whose last rung has a model's full number of trees.

    Each rung has ``search.factor`` times the trees of the rung before and as small a part of its
    trials, until one is left. The first rung has ``search.min_trees`` or more; C003 if that leaves
    one rung alone.
    """
    trials = spec.trials or 0
    rungs = [trees]
    while trials >= spec.factor and rungs[0] // spec.factor >= spec.min_trees:
        rungs.insert(0, rungs[0] // spec.factor)
        trials //= spec.factor

    if len(rungs) > 1:
        return Rungs(spec.trials or 0, spec.factor, tuple(rungs))
    what = f"{spec.trials} trials of {trees} trees make only one rung"
    fix = "lower it, raise search.trials or the model's trees, or use search=random"
    raise TipcastError("C003", "search.min_trees", what, fix)


@final
class Halving:
    """The trials of another search in the first rung, and in each later one the best of the rung
    before.

    Trials that failed are not promoted.
    """

    def __init__(
        self,
        proposer: Searcher,
        objective: Objective,
        rungs: Rungs,
        finished: Mapping[int, TrialResult],
    ) -> None:
        self.total = sum(rungs.sizes(proposer.total))
        self._proposer = proposer
        self._objective = objective
        self._rungs = rungs
        self._params = {number: trial.params for number, trial in finished.items()}
        self._scores: dict[int, float | None] = {
            number: trial.score for number, trial in finished.items()
        }

        self._rung = 0
        self._numbers = list(range(proposer.total))
        """Trials of the current rung."""
        self._missing: deque[int] = deque()
        """Those of a later rung that are still to be proposed."""

    def next(self) -> Proposal | None:
        """Return the next trial; None as long as a rung's last trials run, and after the last."""
        proposal = self._proposer.next()
        if proposal is not None:
            return self._proposal(proposal.number, proposal.params)

        while not self._missing:
            if not self._can_promote():
                return None
            self._promote()
        number = self._missing.popleft()
        return self._proposal(number, self._params[number - self._rungs.trials])

    def _proposal(self, number: int, params: Mapping[str, Any]) -> Proposal:
        """Return a trial with the trees of the current rung."""
        self._params[number] = {**params, TREES: self._rungs.trees[self._rung]}
        return Proposal(number, self._params[number])

    def _can_promote(self) -> bool:
        """Tell whether all trials of the rung have ended, and there is another rung."""
        return not self._rungs.is_last(self._rung) and self._scores.keys() >= set(self._numbers)

    def _promote(self) -> None:
        """Go to the next rung, with the best trials of this one."""
        ranked = [
            self._objective.order(number, score)
            for number in self._numbers
            if (score := self._scores[number]) is not None
        ]
        survivors = sorted(ranked)[: self._rungs.survivors(len(self._numbers))]

        self._rung += 1
        self._numbers = [number + self._rungs.trials for *_, number in survivors]
        self._missing.extend(number for number in self._numbers if number not in self._scores)

    def tell(self, number: int, score: float | None) -> None:
        """Keep a trial's score, None if it failed."""
        self._scores[number] = score
        if number < self._rungs.trials:
            self._proposer.tell(number, score)
