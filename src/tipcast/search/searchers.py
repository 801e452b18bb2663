"""Searchers: what is tried next, of trials known beforehand, of those that Optuna proposes, or by halving."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, final

from tipcast.search.proposals import Proposal
from tipcast.search.trial import TREES, Trial, Work

if TYPE_CHECKING:
    from tipcast.search.tpe import Tpe  # imports Optuna, which takes a second

Known = Mapping[int, Trial]
"""Trials that ended in an earlier run of the sweep, by number."""


class Searcher(Protocol):
    """Decides on the driver what is tried; called in the order of the trials' ends."""

    @property
    def total(self) -> int:
        """Trials in all."""
        ...

    def next(self) -> Work | None:
        """Return what to do next; None: nothing at the moment, and nothing any more when no work is under way."""
        ...

    def tell(self, trial: Trial) -> None:
        """Take note of what came of a trial."""
        ...

    def fail(self, number: int) -> None:
        """Take note of a trial that failed for good."""
        ...


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


def grouped(proposals: Sequence[Proposal]) -> list[Work]:
    """Join trials that differ in their number of trees alone; a group comes where its first trial does."""
    groups: dict[str, list[Proposal]] = {}
    for proposal in proposals:
        rest = {name: value for name, value in proposal.params.items() if name != TREES}
        groups.setdefault(repr(rest), []).append(proposal)
    return [
        Work(tuple(group), sizes=tuple(each.params[TREES] for each in group)) if len(group) > 1 else Work(tuple(group))
        for group in groups.values()
    ]


@final
class Asked:
    """Trials that are proposed by what is known when a worker is free."""

    def __init__(self, tpe: Tpe, total: int, known: Known, begun: Sequence[Proposal]) -> None:
        self.total = total
        self._tpe = tpe
        self._known = set(known)
        for number in sorted(known):
            tpe.add(known[number].params, known[number].score)
        self._begun = deque(proposal for proposal in begun if proposal.number not in known)
        self._asked = max((*known, *(proposal.number for proposal in self._begun), -1)) + 1

    def next(self) -> Work | None:
        """Ask for one more."""
        if self._begun:
            proposal = self._begun.popleft()
            self._tpe.again(proposal.number, proposal.params)
            return Work((proposal,))
        if self._asked >= self.total:
            return None
        self._asked += 1
        return Work((self._tpe.ask(self._asked - 1),))

    def tell(self, trial: Trial) -> None:
        """Pass it on."""
        self._tpe.tell(trial.number, trial.score)

    def fail(self, number: int) -> None:
        """Pass it on."""
        self._tpe.tell(number, None)
