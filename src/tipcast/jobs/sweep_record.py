"""The record of a sweep: a child run and a line of the log for each trial, and the page of all
trials at the end.
"""

import contextlib
import dataclasses
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from tipcast.config.errors import TipcastError
from tipcast.evaluation import report
from tipcast.evaluation.folds import FoldMetrics, better_folds
from tipcast.jobs.run_context import RunContext, resume_command
from tipcast.jobs.sweep_pictures import pictures
from tipcast.jobs.sweep_plan import SweepPlan
from tipcast.search.proposals import Params
from tipcast.search.trial import Proposal, TrialEvent, TrialFailed, TrialResult, TrialStarted
from tipcast.tracking.children import ATTEMPT, NUMBER, PROPOSED, Children
from tipcast.tracking.portable_model import TRIAL_TAG, kept_version
from tipcast.tracking.run import BEST, ROC_CURVE, Run, error_tags, steps_in_percent

if TYPE_CHECKING:
    from tipcast.tracking.mlflow_types import MlflowRun

LOG = logging.getLogger("tipcast")

LEADERBOARD_ROWS = 10
"""Most trials in the note's leaderboard."""
LAST_FIT = "### The last fit"
"""Heading in a sweep's note, before the note of the last fit."""
Row = dict[str, Any]
"""Column of the leaderboard -> value for a trial."""


@final
class SweepRecord:
    """A sweep's runs in MLflow, written as its trials end."""

    def __init__(self, context: RunContext, plan: SweepPlan) -> None:
        self.context = context
        self.plan = plan
        self.metric = f"validation/{plan.objective.metric}"
        self.total = 0
        """Number of trials of the whole sweep, 0 until they are proposed."""

        self.trials: dict[int, TrialResult] = {}
        """Trials that ended well, by number."""
        self.failed: dict[int, TipcastError] = {}
        self.runs: dict[int, str] = {}
        """Trial -> id of the child run of its latest attempt."""
        self._attempts: dict[int, int] = {}
        """Trial -> how often it was begun, also by earlier processes."""
        self._children = Children(context.run)

    @property
    def run(self) -> Run:
        """The sweep's open run."""
        return self.context.run

    def resume(self) -> None:
        """Close child runs that earlier processes have left open, and load their trials."""
        self._children.close_open("the sweep's process had ended")

        for run in self._children.runs():
            number = int(run.data.tags[NUMBER])
            self._attempts[number] = int(run.data.tags[ATTEMPT])
            if run.info.status == "FINISHED":
                self.trials[number] = stored_trial(run, self.plan.objective.metric)
                self.runs[number] = run.info.run_id

        LOG.info("resumed  trials done: %d", len(self.trials))

    @contextlib.contextmanager
    def closing_children(self) -> Iterator[None]:
        """If the sweep is stopped, also in its last fit, close the child runs that are open, and
        print how to go on.
        """
        try:
            with self._children.closing_open("the sweep was stopped"):
                yield
        except BaseException:
            print(self.how_to_go_on(), file=sys.stderr)
            raise

    def how_to_go_on(self) -> str:
        """Return a line with the command that resumes the sweep."""
        done = f"{len(self.trials)} of {self.total or 'the'} trials are done"
        command = resume_command("sweep", self.run, self.plan.config.tracking)
        return f"{done}; continue with: {command}"

    @property
    def cut_off(self) -> bool:
        """Whether an earlier process has left the sweep open, maybe in its last fit."""
        previous = self.plan.previous
        return previous is not None and previous.mlflow_run.info.status != "FINISHED"

    # As trials go on

    def record_event(self, event: TrialEvent) -> None:
        """Record an event of a trial in the store, and log it."""
        match event:
            case TrialStarted(Proposal(number, proposed)):
                self._begin(number, proposed)
            case TrialFailed(retried=True):
                self._retry(event)
            case TrialFailed():
                self._fail(event)
            case TrialResult():
                self._finish(event)

    def _begin(self, number: int, proposed: Params) -> None:
        attempt = self._attempts.get(number, 0) + 1
        self._attempts[number] = attempt

        key = self.plan.objective.key(number)
        self.runs[number] = self._children.begin(number, key, attempt, proposed)
        LOG.debug("trial %d begins, attempt %d: %s", number, attempt, proposed)

    def _retry(self, failed: TrialFailed) -> None:
        reason = failed.problem.what
        self._children.end(self.runs[failed.number], "KILLED", tags={"error.message": reason})
        LOG.info("trial %d is retried: %s", failed.number, reason)

    def _fail(self, failed: TrialFailed) -> None:
        number = failed.number
        problem = failed.problem
        self._children.end(
            self.runs[number],
            "FAILED",
            tags=error_tags(problem),
            params=model_params(failed.params),
        )
        self.failed[number] = problem

        place = f"{self.done}/{self.total}"
        LOG.warning("trial %d failed (%s): [%s] %s", number, place, problem.code, problem.what)

    def _finish(self, trial: TrialResult) -> None:
        number = trial.number
        self._children.end(
            self.runs[number],
            "FINISHED",
            params=trial_params(trial),
            curves=trial_curves(trial, self.metric),
        )

        leader = None
        if self.trials:
            leader = self.best
        # Of all processes: a worker reports the attempt of this process.
        self.trials[number] = dataclasses.replace(trial, attempt=self._attempts[number])
        if self.best is not leader:
            self._log_best()

        self._show_trial(trial)

    def _log_best(self) -> None:
        """Log the best score so far; its step is the number of trials that have ended."""
        name = f"sweep/best_validation_{self.plan.objective.metric}"
        self.run.log_curves({name: {self.done: self.best.score}})

    def _show_trial(self, trial: TrialResult) -> None:
        """Log a line: the trial, how many have ended, its score, the best score, its seconds."""
        best = self.best
        width = len(str(self.total))
        place = f"trial {trial.number:>{width}} ({self.done:>{width}}/{self.total})"
        leader = f"best {best.score:.4f} (trial {best.number})"

        LOG.info("%s  %s %.4f  %s  %.1f s", place, self.metric, trial.score, leader, trial.seconds)
        LOG.debug("trial %d ran on %s", trial.number, trial.worker)

    @property
    def done(self) -> int:
        """Number of trials that have ended, well or not."""
        return len(self.trials) + len(self.failed)

    # All trials

    @property
    def best(self) -> TrialResult:
        """The best trial on the validation rows, the first of equals; S004 if none ended well."""
        if self.trials:
            return min(self.trials.values(), key=self.plan.objective.rank)

        what = f"none of the {self.total} trials succeeded"
        first = next(iter(self.failed.values()), None)
        if first is not None:
            what += f": {first.what}"
        raise TipcastError("S004", self.run.id, what, "look at the failed trials")

    def kept_best(self) -> dict[str, Any] | None:
        """Return the result of the best trial's last fit if its model is registered already, as by
        a process that was killed after that; None if it is to be fitted.
        """
        name = self.plan.config.tracking.register
        if self.plan.previous is None or not name:
            return None

        version = kept_version(self.run, name, self.plan.objective.key(self.best.number))
        if version is None:
            return None

        LOG.info("version %s of %s is the best trial's and is kept", version.version, name)
        metrics = self.run.mlflow_run().data.metrics
        return self.context.result(
            model_uri=f"models:/{name}/{version.version}",
            metrics={key: value for key, value in metrics.items() if key.startswith("test/")},
            phases=self.context.clock.seconds,
        )

    def finish_page(self) -> dict[str, Any]:
        """Record totals, leaderboard and plots, and put them at the beginning of the run's note.

        Returns the search's part of the job's result.
        """
        self._log_totals()
        ranked = sorted(self.trials.values(), key=self.plan.objective.rank)
        leaderboard = [self._leaderboard_row(rank, trial) for rank, trial in enumerate(ranked, 1)]
        drawn = self._log_pictures(ranked)

        searched = [f"model.params.{name}" for name in self.plan.varied]
        charts = self._children.charts(self.metric, searched, maximize=self.plan.objective.maximize)
        self.run.note(self._note(leaderboard, charts, drawn))
        return self._summary(charts)

    def _log_totals(self) -> None:
        """Log how many trials there are, and the best one.

        The parameters of the best trial are a tag: a resumed sweep may find a better trial, and
        parameters of a run cannot change.
        """
        best = self.best
        counts = {"trials": self.total, **self._counts()}
        self.run.log_metrics({f"sweep/{name}": number for name, number in counts.items()})
        self._log_best()

        key = self.plan.objective.key(best.number)
        self.run.set_tags({TRIAL_TAG: key, BEST: json.dumps(dict(best.params))})

    def _counts(self) -> dict[str, int]:
        return {"finished": len(self.trials), "failed": len(self.failed)}

    def _leaderboard_row(self, rank: int, trial: TrialResult) -> Row:
        """Return a trial's row: its score with the interval, if any, parameters and seconds."""
        bounds = [f"{self.plan.objective.metric}_{end}" for end in ("low", "high", "se")]
        interval = {
            f"validation/{name}": trial.metrics[name] for name in bounds if name in trial.metrics
        }
        return {
            "rank": rank,
            "trial": trial.number,
            self.metric: trial.score,
            **interval,
            **{name: trial.params.get(name) for name in self.plan.varied},
            "seconds": round(trial.seconds, 3),
            "attempt": trial.attempt,
            "run_id": self.runs[trial.number],
        }

    def _log_pictures(self, ranked: Sequence[TrialResult]) -> list[str]:
        """Log the pictures of all trials, the best trial first; return their paths."""
        paths = []
        for path, picture in pictures(self.plan, self.metric, ranked):
            self.run.log_bytes(picture, path)
            paths.append(path)
        return paths

    def _note(self, leaderboard: Sequence[Row], charts: str, drawn: Sequence[str]) -> str:
        """Write the note: the best trial, the leaderboard, the pictures that were drawn, and then
        the note of the last fit.
        """
        config = self.plan.config
        columns = [name for name in leaderboard[0] if name not in ("rank", "attempt", "run_id")]

        parts = [
            f"### {config.search.name} search of {config.model.name}: {len(leaderboard)} trials",
            self._best_in_words(),
            f"[Compare all trials as charts]({charts})",
            self.context.table(leaderboard, "sweep/leaderboard.json", columns, LEADERBOARD_ROWS),
            " ".join(report.plot(self.run.id, path) for path in drawn),
        ]
        if len(self.trials) != self.total:
            parts.append(f"{self.how_to_go_on()}.")

        # The page of an earlier process may lie before the note of the last fit.
        last_fit = self.run.note_text().rpartition(LAST_FIT)[2]
        return "\n\n".join([*parts, LAST_FIT, last_fit.strip()])

    def _best_in_words(self) -> str:
        """Say which trial is the best, its parameters, and what the configured ones score."""
        best = self.best
        page = self.run.page(self.runs[best.number])
        params = ", ".join(f"`{name}` {_short(value)}" for name, value in best.params.items())
        text = (
            f"Best by {self.metric}: [trial {best.number}]({page}), **{best.score:.4f}**, with "
            f"{params}. It was refitted on all workers and tested; the model below is this "
            "one."
        )
        # By halving, trial 0 has fewer trees than the best.
        if not self.plan.config.search.baseline or self.plan.objective.rungs is not None:
            return text

        baseline = self.trials.get(0, best)
        if baseline is not best:
            text += f" The configured parameters, trial 0, score {baseline.score:.4f}."
            text += self._better_folds(best, baseline)
        return text

    def _better_folds(self, best: TrialResult, baseline: TrialResult) -> str:
        """Say in how many folds the best trial beats the configured parameters; empty without
        folds.
        """
        if not self.plan.data.task.folds:
            return ""

        chosen = self._fold_scores(best)
        configured = self._fold_scores(baseline)
        number = better_folds(chosen, configured, maximize=self.plan.objective.maximize)
        return f" The best trial beats them in {number} of {len(chosen)} folds."

    def _fold_scores(self, trial: TrialResult) -> list[float]:
        """Return a trial's score in each fold, as its child run has them."""
        key = f"folds/{self.plan.objective.metric}"
        points = self.run.store.get_metric_history(self.runs[trial.number], key)
        return [point.value for point in sorted(points, key=lambda point: point.step)]

    def _summary(self, charts: str) -> dict[str, Any]:
        """Return the search's part of the job's result."""
        best = self.best
        trials = {**self._counts(), "all": self.total}
        if self.done < self.total:
            trials["not_tried"] = self.total - self.done

        return {
            "trials": trials,
            "best": {"trial": best.number, self.metric: best.score, **best.params},
            "charts": self.run.address(charts),
        }

    def tag_problem(self) -> TipcastError | None:
        """Return the error about failed trials (S001), if any, and add it to the run's tags."""
        if not self.failed:
            return None

        number, first = next(iter(self.failed.items()))
        failed = f"{len(self.failed)} of {self.total} trials failed"
        what = f"{failed}, the first (trial {number}): {first.what}"
        fix = f"see their runs; tipcast sweep resume={self.run.id} tries them again"
        problem = TipcastError("S001", self.run.id, what, fix)
        self.run.set_tags(error_tags(problem))
        return problem


def _short(value: object) -> object:
    """Return a parameter's value, with four digits if it is a float."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value


# Trials in their child runs


def trial_params(trial: TrialResult) -> dict[str, object]:
    """Return a trial's parameters, and the texts of its fit's info."""
    texts = {
        f"fit.{name}": value
        for name, value in trial.fit_info.items()
        if not isinstance(value, int | float)
    }
    return model_params(trial.params) | texts


def model_params(params: Params) -> dict[str, object]:
    """Return a trial's parameters by their keys in MLflow."""
    return {f"model.params.{name}": value for name, value in params.items()}


def trial_curves(trial: TrialResult, ranked_by: str) -> dict[str, Mapping[int, float]]:
    """Return a trial's metrics, all at step 0, and its curve."""
    metrics = {ranked_by: trial.score}  # MLflow compares by the first one
    metrics |= {f"validation/{name}": value for name, value in trial.metrics.items()}
    metrics |= {f"seconds/{name}": value for name, value in trial.phases.items()}
    metrics |= {
        f"fit/{name}": float(value)
        for name, value in trial.fit_info.items()
        if isinstance(value, int | float)
    }

    curves: dict[str, Mapping[int, float]] = {name: {0: value} for name, value in metrics.items()}
    curves |= FoldMetrics(trial.folds).curves()
    return curves | {ROC_CURVE: steps_in_percent(trial.curve)}


def stored_trial(run: "MlflowRun", metric: str) -> TrialResult:
    """Return a trial from its child run."""
    tags = run.data.tags
    metrics = _metrics_below("validation/", run)

    return TrialResult(
        number=int(tags[NUMBER]),
        params=json.loads(tags[PROPOSED]),
        score=metrics[metric],
        metrics=metrics,
        phases=_metrics_below("seconds/", run),
        worker="",
        attempt=int(tags[ATTEMPT]),
    )


def _metrics_below(prefix: str, run: "MlflowRun") -> dict[str, float]:
    return {
        name.removeprefix(prefix): value
        for name, value in run.data.metrics.items()
        if name.startswith(prefix)
    }
