"""What a sweep records and shows: a run and a line for each trial as it goes on, and the sums of all at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import yaml

from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import SweepConfig
from tipcast.config.plain import to_plain
from tipcast.config.schema import ModelSpec
from tipcast.jobs.sweep_resume import PreviousSweep
from tipcast.jobs.train_record import CURVE, Record, stepped
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.search.space import Space
from tipcast.search.trial import Begun, Ended, Event, Failed, Lost, Objective, Proposal, Trial
from tipcast.tracking.children import KEY, Child, Children
from tipcast.tracking.facts import CONFIG

LOG = logging.getLogger("tipcast")

ROUNDS, OVER, WORKER, RUNGS = "trial.rounds", "trial.over", "trial.worker", "trial.rungs"
"""Tags of a child; its rungs are the results that it had when it was given more trees."""
TRACKING = "sweep/tracking_seconds"


@final
class SweepRecord:
    """A sweep's runs in MLflow, written as its trials end."""

    def __init__(
        self,
        record: Record,
        config: SweepConfig,
        spaces: Sequence[Space],
        objective: Objective,
        check_lease: Callable[[], None],
    ) -> None:
        self.record, self.config, self.spaces, self.objective = record, config, spaces, objective
        """The spaces are those of the models, see ``model``."""
        self._check_lease = check_lease
        self.metric = f"validation/{objective.metric}"
        self.children = Children(record.run)
        self.trials: dict[int, Trial] = {}
        """Trials that ended well, by number."""
        self.failed: dict[int, TipcastError] = {}
        self.runs: dict[int, str] = {}
        """Trial -> child run of its latest attempt."""
        self.recorded: dict[int, Mapping[str, Any]] = {}
        """Parameters that an earlier run of the sweep proposed, whatever came of them."""
        self.total = 0
        self.rounds = 0
        """Trees that were grown, where trials are given up early."""
        self.busy: dict[str, float] = {}
        """Worker -> seconds of trials."""
        self.ended_here: set[int] = set()
        """Trials that ended in this process."""
        self.slots: dict[str, int] = {}
        """Worker -> trials at once."""
        self.search_s = 0.0
        """Seconds of the search."""
        self.tracking_s = 0.0
        self.timed_out = False
        """Whether it ended at ``search.timeout_s``, with more to try."""
        self.remarks: list[str] = []
        """What else the note says of the search."""
        self._attempts: dict[int, int] = {}
        self._earlier_tracking_s = 0.0
        self._started = time.monotonic()

    def resume(self, previous: PreviousSweep) -> None:
        """Count what an earlier run of the sweep has done."""
        done = previous.done
        LOG.info("resumed  trials done: %d", len(done))
        self.trials = {number: _trial(child, self.objective.metric) for number, child in done.items()}
        self.runs = {number: child.run_id for number, child in done.items()}
        self.recorded = {child.number: child.params for child in previous.children}
        self._attempts = {child.number: child.attempt for child in previous.children}
        self.rounds = sum(trial.rounds or 0 for trial in self.trials.values())
        self._earlier_tracking_s = previous.metrics.get(TRACKING, 0.0)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Close the children that are open when the sweep is stopped, also in its last fit, and say how to go on."""
        try:
            with self.children.closed("the sweep was stopped"):
                yield
        except BaseException:
            print(
                f"{len(self.trials)} of {self.total or 'the'} trials are done; go on with: "
                f"tipcast sweep resume={self.record.run.id}",
                file=sys.stderr,
            )
            raise

    # As trials go on

    def follow(self, title: str, told: Iterable[tuple[Event, Mapping[str, int]]], clock: Clock) -> None:
        """Record a search: its events, each with how many trials each worker takes at once."""
        with clock.phase("search") as facts, progress(title) as bar:
            self._started = time.monotonic()
            for event, slots in told:
                self._check_lease()
                self.take(event, slots, bar)
            self.search_s = max(time.monotonic() - self._started, 1e-9)
            facts.append(self.pace())

    def take(self, event: Event, slots: Mapping[str, int], bar: Callable[..., None]) -> None:
        """Write to the store what has happened, log it, and update the progress bar (``measure.progress``)."""
        self.slots |= slots
        start = time.perf_counter()
        match event:
            case Begun(work, attempt):
                for proposal in work.proposals:
                    self._begun(proposal)
                    LOG.debug("trial %d begins, attempt %d: %s", proposal.number, attempt, proposal.params)
            case Ended(_, trials):
                for trial in trials:
                    self._ended(trial)
            case Lost(work, reason):
                for number in work.numbers:
                    if number not in self.trials:
                        self.children.kill(self.runs[number], reason)
                    LOG.info("trial %d is retried: %s", number, reason)
            case Failed(work, problem):
                for number in work.numbers:
                    self._failed(number, problem)
        self.tracking_s += time.perf_counter() - start
        bar(self.done, self.total, self.pace())

    def _begun(self, proposal: Proposal) -> None:
        number = proposal.number
        if number in self.trials:  # given more trees: its run stays as it is until it has them
            return
        self._attempts[number] = self._attempts.get(number, 0) + 1
        key = self.objective.key(number)
        self.runs[number] = self.children.begin(number, key, self._attempts[number], proposal.params)

    def _failed(self, number: int, problem: TipcastError) -> None:
        self.children.fail(self.runs[number], problem.code, problem)
        self.trials.pop(number, None)
        self.failed[number] = problem
        LOG.warning("trial %d failed (%d/%d): [%s] %s", number, self.done, self.total, problem.code, problem.what)

    def _ended(self, trial: Trial) -> None:
        self.busy[trial.worker] = self.busy.get(trial.worker, 0.0) + trial.seconds
        before = self.trials.get(trial.number)
        if before:  # given more trees: seconds and rungs are those of the whole trial
            phases = {name: value + before.phases.get(name, 0.0) for name, value in trial.phases.items()}
            rungs = (*before.rungs, (before.rounds or 0, before.score))
            trial = dataclasses.replace(trial, phases=phases, rungs=rungs)
        tags: dict[str, object] = {WORKER: trial.worker}
        tags |= {f"fit.{name}": value for name, value in trial.facts.items() if isinstance(value, str)}
        metrics = {self.metric: trial.score}  # the first one is what MLflow compares by
        metrics |= {f"validation/{name}": value for name, value in trial.metrics.items() if name != "rows"}
        metrics |= {f"seconds/{name}": value for name, value in trial.phases.items()}
        metrics |= {
            f"fit/{name}": float(value) for name, value in trial.facts.items() if isinstance(value, int | float)
        }
        if trial.rounds is not None:
            judged = [*trial.rungs, (trial.rounds, trial.score)]
            tags |= {ROUNDS: trial.rounds, OVER: str(trial.over).lower(), RUNGS: json.dumps(judged)}
            metrics |= {"rounds": trial.rounds}
            self.rounds += trial.grown
        params = {f"model.params.{name}": value for name, value in trial.params.items()}
        self.children.end(
            self.runs[trial.number],
            params=({"model.name": self.model(trial).name} if len(self.spaces) > 1 else {}) | params,
            metrics=metrics,
            tags=tags,
            curves={CURVE: stepped(trial.curve)},
            step=trial.rounds or 0,
        )
        self.trials[trial.number] = dataclasses.replace(trial, attempt=self._attempts.get(trial.number, 1))
        self.ended_here.add(trial.number)
        width = len(str(self.total))
        place = f"trial {trial.number:>{width}} ({self.done:>{width}}/{self.total})"
        place += f"  {self.model(trial).name}" if len(self.spaces) > 1 else ""
        trees = f"  {trial.rounds} trees" if trial.rounds is not None else ""
        LOG.info("%s%s  %s %.4f  %s  %.1f s", place, trees, self.metric, trial.score, self._best(), trial.seconds)
        LOG.debug("trial %d ran on %s", trial.number, trial.worker)

    def pace(self) -> str:
        """Return the best trial so far, the pace, and how busy the workers were; empty before a trial has ended."""
        if not self.trials:
            return ""
        if not self.ended_here:
            return self._best()
        elapsed = max(time.monotonic() - self._started, 1e-9)
        share = sum(self.busy.values()) / (elapsed * max(sum(self.slots.values()), 1))
        return f"{self._best()}, {60 * len(self.ended_here) / elapsed:.0f} trials/min, {100 * share:.0f} % busy"

    def _best(self) -> str:
        return f"best {self.best.score:.4f} (trial {self.best.number})"

    @property
    def done(self) -> int:
        """Trials that have ended, well or not."""
        return len(self.trials) + len(self.failed)

    # Of all trials

    def model(self, trial: Trial) -> ModelSpec:
        """Return the model whose parameters a trial has; those of several models take turns."""
        return self.config.searched[trial.number % len(self.spaces)]

    @property
    def names(self) -> list[str]:
        """The parameters that are searched."""
        return list(dict.fromkeys(name for space in self.spaces for name in space))

    def has_defaults(self, trial: Trial) -> bool:
        """Tell whether a trial has a model's parameters as they are configured."""
        return self.config.search.baseline and trial.number < len(self.spaces)

    @property
    def best(self) -> Trial:
        """The best trial by the validation rows, of equals the first; S004 when none ended well."""
        if not self.trials:
            first = next(iter(self.failed.values()), None)
            what = f"no trial of {self.total} ended well" + (f": {first.what}" if first else "")
            raise TipcastError("S004", self.record.run.id, what, "look at the failed trials")
        return self.ranked[0]

    @property
    def ranked(self) -> list[Trial]:
        """The trials that ended well, the best first; those that were given up early come after all others.

        The best is fitted again with all its trees: one that led with fewer is another model by then.
        """
        most: dict[int, int] = {}
        for number, trial in self.trials.items():
            turn = number % len(self.spaces)
            most[turn] = max(trial.rounds or 0, most.get(turn, 0))

        def place(trial: Trial) -> tuple[bool, tuple[float, int]]:
            early = not trial.over and (trial.rounds or 0) < most[trial.number % len(self.spaces)]
            return early, self.objective.rank(trial)

        return sorted(self.trials.values(), key=place)

    def close(self) -> None:
        """Record the sums over all trials."""
        found = {
            "sweep/trials": self.total,
            "sweep/finished": len(self.trials),
            "sweep/failed": len(self.failed),
            f"sweep/best_validation_{self.objective.metric}": self.best.score,
            TRACKING: self._earlier_tracking_s + self.tracking_s,
            "sweep/busy_seconds": sum(trial.seconds for trial in self.trials.values()),
        }
        if self.rounds:
            found["sweep/rounds"] = self.rounds
        self.record.run.log_metrics(found)
        # As tags, for a parameter of a run cannot change: a resumed sweep may find a better trial.
        found_best = {f"sweep.best.{name}": value for name, value in self.best.params.items()}
        client, run_id = self.record.run.client, self.record.run.id
        for name in client.get_run(run_id).data.tags.keys() - found_best.keys():
            if name.startswith("sweep.best."):  # of another model, which was the best before
                client.delete_tag(run_id, name)
        self.record.run.set_tags({"sweep.best": self.objective.key(self.best.number), **found_best})
        if len(self.spaces) > 1:  # as a training of the best would have it
            config = dataclasses.replace(self.config, model=self.model(self.best))
            self.record.run.log_text(yaml.safe_dump(to_plain(config), sort_keys=False), CONFIG)

    def problem(self) -> TipcastError | None:
        """Return what is to be told of trials that failed."""
        if not self.failed:
            return None
        number, first = next(iter(self.failed.items()))
        return TipcastError(
            "S001",
            self.record.run.id,
            f"{len(self.failed)} of {self.total} trials failed, the first ({number}): {first.what}",
            f"look at their runs; tipcast sweep resume={self.record.run.id} tries them again",
        )

    def said(self) -> dict[str, Any]:
        """Return what the job's last lines say of the search."""
        trials = {"finished": len(self.trials), "failed": len(self.failed), "all": self.total}
        best: dict[str, Any] = {"trial": self.best.number, self.metric: self.best.score}
        best |= {"model": self.model(self.best).name} if len(self.spaces) > 1 else {}
        best |= self.best.params
        defaults = next(filter(self.has_defaults, self.ranked), None)
        return {
            "study": self.objective.study,
            "trials": trials | ({"not_tried": self.total - self.done} if self.timed_out else {}),
            "best": best,
            "defaults": {"trial": defaults.number, self.metric: defaults.score} if defaults else {},
            "charts": self.record.run.address(self.children.charts(self.metric, maximize=self.objective.maximize)),
        }


def _trial(child: Child, metric: str) -> Trial:
    """Return a trial as its child run tells it."""
    metrics, tags = child.metrics, child.tags
    rungs = [(int(trees), float(score)) for trees, score in json.loads(tags.get(RUNGS, "[]"))]
    measured = _below("validation/", metrics)
    if rungs:  # the process may have been killed after it had written the next score and before this tag
        measured[metric] = rungs[-1][1]
    return Trial(
        key=tags[KEY],
        number=child.number,
        params=child.params,
        score=measured[metric],
        metrics=measured,
        phases=_below("seconds/", metrics),
        worker=tags.get(WORKER, ""),
        attempt=child.attempt,
        rounds=rungs[-1][0] if rungs else None,
        rungs=rungs[:-1],
        over=tags.get(OVER) == "true",
    )


def _below(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
