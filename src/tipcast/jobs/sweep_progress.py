"""What a sweep shows on standard error while it runs: a line a trial in order of completion, and a progress bar."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from tipcast.jobs.sweep_record import SweepRecord
from tipcast.search.events import Begun, Ended, Event, Failed, Lost
from tipcast.search.trial import SCORE, Trial

LOG = logging.getLogger("tipcast")


def tell(sweep: SweepRecord, event: Event, slots: Mapping[str, int], bar: Callable[..., None]) -> None:
    """Log an event that the sweep has recorded, and update the progress bar.

    Parameters
    ----------
    sweep, event
        The sweep, and what has happened.
    slots
        Worker -> trials at once.
    bar
        Takes the steps done, all steps and a note, see ``measure.progress``.

    """
    sweep.slots |= slots
    match event:
        case Begun(work, attempt):
            for proposal in work.proposals:
                LOG.debug("trial %d begins, attempt %d: %s", proposal.number, attempt, proposal.params)
        case Ended(_, trials):
            for left, trial in zip(range(len(trials) - 1, -1, -1), trials, strict=True):
                LOG.info("%s", _line(sweep, trial, sweep.done - left))
                LOG.debug("trial %d ran on %s", trial.number, trial.worker)
        case Lost(work, reason):
            LOG.info("trial %s is retried: %s", ", ".join(map(str, work.numbers)), reason)
        case Failed(work, problem):
            numbers = ", ".join(map(str, work.numbers))
            LOG.warning(
                "trial %s failed (%d/%d): [%s] %s", numbers, sweep.done, sweep.total, problem.code, problem.what
            )
    bar(sweep.done, sweep.total, summary(sweep))


def summary(sweep: SweepRecord) -> str:
    """Return the best trial so far, the pace, and how busy the workers were; empty before a trial has ended."""
    if not sweep.trials:
        return ""
    if not sweep.done_here:
        return _best(sweep)
    share = sum(sweep.busy.values()) / (sweep.elapsed_s * max(sum(sweep.slots.values()), 1))
    pace = f"{60 * sweep.done_here / sweep.elapsed_s:.0f} trials/min"
    return f"{_best(sweep)}, {pace}, {100 * share:.0f} % busy"


def _line(sweep: SweepRecord, trial: Trial, done: int) -> str:
    width = len(str(sweep.total))
    rounds = f"  {trial.rounds} trees" if trial.rounds is not None else ""
    place = f"trial {trial.number:>{width}} ({done:>{width}}/{sweep.total})"
    return f"{place}{rounds}  validation/{SCORE} {trial.score:.4f}  {_best(sweep)}  {trial.seconds:.1f} s"


def _best(sweep: SweepRecord) -> str:
    return f"best {sweep.best.score:.4f} (trial {sweep.best.number})"
