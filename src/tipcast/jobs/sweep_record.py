"""What a sweep records and shows: a run and a line for each trial as it goes on, and the sums of all at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import SweepConfig
from tipcast.jobs.run_context import RunContext
from tipcast.jobs.sweep_resume import PreviousSweep
from tipcast.jobs.train_plan import Plan
from tipcast.jobs.train_record import CURVE, stepped
from tipcast.search.space import Space
from tipcast.search.trial import Begun, Ended, Event, Failed, Lost, Objective, Trial
from tipcast.tracking.children import KEY, Child, Children
from tipcast.tracking.facts import BEST

LOG = logging.getLogger("tipcast")

WORKER = "trial.worker"
"""Tag of a child."""
TRACKING = "sweep/tracking_seconds"


@final
class SweepRecord:
    """A sweep's runs in MLflow, written as its trials end."""

    def __init__(
        self, context: RunContext, config: SweepConfig, plan: Plan, space: Space, objective: Objective
    ) -> None:
        self.context, self.run = context, context.run
        self.config, self.plan, self.space, self.objective = config, plan, space, objective
        self.metric = f"validation/{objective.metric}"
        self.children = Children(context.run)
        self.trials: dict[int, Trial] = {}
        """Trials that ended well, by number."""
        self.failed: dict[int, TipcastError] = {}
        self.runs: dict[int, str] = {}
        """Trial -> child run of its latest attempt."""
        self.total = 0
        self.busy: dict[str, float] = {}
        """Worker -> seconds of trials."""
        self.ended_here = 0
        """Trials that ended in this process."""
        self.slots: dict[str, int] = {}
        """Worker -> trials at once."""
        self.search_s = 0.0
        """Seconds of the search."""
        self.tracking_s = 0.0
        self.remark = ""
        """What else the note says of the search: that it ended at ``search.timeout_s``, with more to try."""
        self._attempts: dict[int, int] = {}
        self._earlier_tracking_s = 0.0
        self._started = time.monotonic()

    def resume(self, previous: PreviousSweep) -> None:
        """Count what an earlier run of the sweep has done."""
        done = {child.number: child for child in previous.children if child.status == "FINISHED"}
        LOG.info("resumed  trials done: %d", len(done))
        self.trials = {number: _trial(child, self.objective.metric) for number, child in done.items()}
        self.runs = {number: child.run_id for number, child in done.items()}
        self._attempts = {child.number: child.attempt for child in previous.children}
        self._earlier_tracking_s = previous.previous.metrics.get(TRACKING, 0.0)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Close the children that are open when the sweep is stopped, also in its last fit, and say how to go on."""
        try:
            with self.children.closed("the sweep was stopped"):
                yield
        except BaseException:
            print(
                f"{len(self.trials)} of {self.total or 'the'} trials are done; go on with: "
                f"tipcast sweep resume={self.run.id}",
                file=sys.stderr,
            )
            raise

    # As trials go on

    def take(self, event: Event, slots: Mapping[str, int], bar: Callable[..., None]) -> None:
        """Write to the store what has happened, log it, and update the progress bar (``measure.progress``)."""
        self.slots |= slots
        start = time.monotonic()
        self._started = self._started if self.search_s else start
        match event:
            case Begun(proposal, attempt):
                number, key = proposal.number, self.objective.key(proposal.number)
                count = self._attempts[number] = self._attempts.get(number, 0) + 1  # also of earlier processes
                self.runs[number] = self.children.begin(number, key, count, proposal.params)
                LOG.debug("trial %d begins, attempt %d: %s", number, attempt, proposal.params)
            case Ended(trial):
                self._ended(trial)
            case Lost(number, reason):
                self.children.kill(self.runs[number], reason)
                LOG.info("trial %d is retried: %s", number, reason)
            case Failed(number, problem):
                self.children.fail(self.runs[number], problem.code, problem)
                self.failed[number] = problem
                place = f"{self.done}/{self.total}"
                LOG.warning("trial %d failed (%s): [%s] %s", number, place, problem.code, problem.what)
        now = time.monotonic()
        self.tracking_s += now - start
        self.search_s = max(now - self._started, 1e-9)
        bar(self.done, self.total, self.pace())

    def _ended(self, trial: Trial) -> None:
        number, facts = trial.number, trial.facts
        numbers = {name: value for name, value in facts.items() if isinstance(value, int | float)}
        metrics = {self.metric: trial.score}  # the first one is what MLflow compares by
        metrics |= {f"validation/{name}": value for name, value in trial.metrics.items() if name != "rows"}
        metrics |= {f"seconds/{name}": value for name, value in trial.phases.items()}
        metrics |= {f"fit/{name}": float(value) for name, value in numbers.items()}
        self.children.end(
            self.runs[number],
            params={f"model.params.{name}": value for name, value in trial.params.items()},
            metrics=metrics,
            tags={WORKER: trial.worker, **{f"fit.{name}": facts[name] for name in facts.keys() - numbers.keys()}},
            curves={CURVE: stepped(trial.curve)},
        )
        self.busy[trial.worker] = self.busy.get(trial.worker, 0.0) + trial.seconds
        self.trials[number] = dataclasses.replace(trial, attempt=self._attempts[number])
        self.ended_here += 1
        width = len(str(self.total))
        place = f"trial {number:>{width}} ({self.done:>{width}}/{self.total})"
        LOG.info("%s  %s %.4f  %s  %.1f s", place, self.metric, trial.score, self._best(), trial.seconds)
        LOG.debug("trial %d ran on %s", number, trial.worker)

    def pace(self) -> str:
        """Return the best trial so far, the pace, and how busy the workers were; empty before a trial has ended."""
        if not self.trials:
            return ""
        if not self.ended_here:
            return self._best()
        share = sum(self.busy.values()) / (self.search_s * max(sum(self.slots.values()), 1))
        return f"{self._best()}, {60 * self.ended_here / self.search_s:.0f} trials/min, {100 * share:.0f} % busy"

    def _best(self) -> str:
        return f"best {self.best.score:.4f} (trial {self.best.number})"

    @property
    def done(self) -> int:
        """Trials that have ended, well or not."""
        return len(self.trials) + len(self.failed)

    # Of all trials

    @property
    def defaults(self) -> Trial | None:
        """The trial that has the model's parameters as they are configured."""
        return self.trials.get(0) if self.config.search.baseline else None

    @property
    def ranked(self) -> list[Trial]:
        """The trials that ended well, the best first."""
        return sorted(self.trials.values(), key=self.objective.rank)

    @property
    def best(self) -> Trial:
        """The best trial by the validation rows, of equals the first; S004 when none ended well."""
        if not self.trials:
            first = next(iter(self.failed.values()), None)
            what = f"no trial of {self.total} ended well" + (f": {first.what}" if first else "")
            raise TipcastError("S004", self.run.id, what, "look at the failed trials")
        return min(self.trials.values(), key=self.objective.rank)

    def close(self) -> None:
        """Record the sums over all trials."""
        run, best = self.run, self.best
        run.log_metrics(
            {
                "sweep/trials": self.total,
                "sweep/finished": len(self.trials),
                "sweep/failed": len(self.failed),
                f"sweep/best_validation_{self.objective.metric}": best.score,
                TRACKING: self._earlier_tracking_s + self.tracking_s,
                "sweep/busy_seconds": sum(trial.seconds for trial in self.trials.values()),
            }
        )
        # As tags, for a parameter of a run cannot change: a resumed sweep may find a better trial.
        tags = {f"{BEST}{name}": value for name, value in best.params.items()}
        for name in run.client.get_run(run.id).data.tags.keys() - tags.keys():
            if name.startswith(BEST):  # which the defaults may leave to the library
                run.client.delete_tag(run.id, name)
        run.set_tags({"sweep.best": self.objective.key(best.number), **tags})

    def problem(self) -> TipcastError | None:
        """Return what is to be told of trials that failed."""
        if not self.failed:
            return None
        number, first = next(iter(self.failed.items()))
        what = f"{len(self.failed)} of {self.total} trials failed, the first ({number}): {first.what}"
        fix = f"look at their runs; tipcast sweep resume={self.run.id} tries them again"
        return TipcastError("S001", self.run.id, what, fix)

    def result(self) -> dict[str, Any]:
        """Return what the job's last lines say of the search."""
        trials = {"finished": len(self.trials), "failed": len(self.failed), "all": self.total}
        best, defaults = self.best, self.defaults
        return {
            "study": self.objective.study,
            "trials": trials | ({"not_tried": self.total - self.done} if self.remark else {}),
            "best": {"trial": best.number, self.metric: best.score, **best.params},
            "defaults": {"trial": defaults.number, self.metric: defaults.score} if defaults else {},
            "charts": self.run.address(self.children.charts(self.metric, maximize=self.objective.maximize)),
        }


def _trial(child: Child, metric: str) -> Trial:
    """Return a trial as its child run tells it."""
    measured = _below("validation/", child.metrics)
    return Trial(
        key=child.tags[KEY],
        number=child.number,
        params=child.params,
        score=measured[metric],
        metrics=measured,
        phases=_below("seconds/", child.metrics),
        worker=child.tags.get(WORKER, ""),
        attempt=child.attempt,
    )


def _below(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
