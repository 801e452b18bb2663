"""What a sweep records and shows: a run and a line for each trial as it goes on, and the page of
all at the end.
"""

import contextlib
import dataclasses
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any, final

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SweepConfig
from tipcast.evaluation import plots
from tipcast.jobs.run_context import RunContext, result_of
from tipcast.jobs.train_plan import Plan
from tipcast.jobs.train_record import CURVE, stepped
from tipcast.search.proposals import Space, importance, inside
from tipcast.search.trial import Event, Failed, Objective, Proposal, Trial
from tipcast.tracking.children import ATTEMPT, NUMBER, PROPOSED, Children
from tipcast.tracking.locating import logged_of
from tipcast.tracking.portable import TRIAL_TAG
from tipcast.tracking.run import BEST, Run, error_tags

LOG = logging.getLogger("tipcast")

SHOWN = 10
"""Trials of the leaderboard in the note."""


@final
class SweepRecord:
    """A sweep's runs in MLflow, written as its trials end."""

    def __init__(
        self,
        context: RunContext,
        config: SweepConfig,
        plan: Plan,
        space: Space,
        objective: Objective,
    ) -> None:
        self.context = context
        self.run = context.run
        self.config = config
        self.plan = plan
        self.space = space
        self.objective = objective
        self.metric = f"validation/{objective.metric}"
        self.children = Children(context.run)
        self.trials: dict[int, Trial] = {}
        """Trials that ended well, by number."""
        self.failed: dict[int, TipcastError] = {}
        self.runs: dict[int, str] = {}
        """Trial -> child run of its latest attempt."""
        self.total = 0
        self._attempts: dict[int, int] = {}

    def resume(self) -> None:
        """Close what earlier processes have left open, and count what they have done."""
        self.children.close_open("the sweep's process was gone")
        for run in self.children.runs():
            number = int(run.data.tags[NUMBER])
            self._attempts[number] = int(run.data.tags[ATTEMPT])
            if run.info.status == "FINISHED":
                self.trials[number], self.runs[number] = (
                    _trial(run, self.objective.metric),
                    run.info.run_id,
                )
        LOG.info("resumed  trials done: %d", len(self.trials))

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Close the children that are open when the sweep is stopped, also in its last fit, and say
        how to go on.
        """
        try:
            with self.children.closed("the sweep was stopped"):
                yield
        except BaseException:
            print(self.how_to_go_on(), file=sys.stderr)
            raise

    def how_to_go_on(self) -> str:
        """Return one line."""
        done = f"{len(self.trials)} of {self.total or 'the'} trials are done"
        return f"{done}; go on with: tipcast sweep resume={self.run.id}"

    # As trials go on

    def take(self, event: Event) -> None:
        """Write to the store what has happened, and log it."""
        match event:
            case Proposal(number, proposed):
                # also of earlier processes
                count = self._attempts[number] = self._attempts.get(number, 0) + 1
                self.runs[number] = self.children.begin(
                    number, self.objective.key(number), count, proposed
                )
                LOG.debug("trial %d begins, attempt %d: %s", number, count, proposed)
            case Failed(number, problem, retried=True):
                self.children.end(self.runs[number], "KILLED", tags={"error.message": problem.what})
                LOG.info("trial %d is retried: %s", number, problem.what)
            case Failed(number, problem):
                self.children.end(self.runs[number], "FAILED", tags=error_tags(problem))
                self.failed[number] = problem
                place = f"{self.done}/{self.total}"
                LOG.warning(
                    "trial %d failed (%s): [%s] %s", number, place, problem.code, problem.what
                )
            case Trial(number):
                self._ended(event)

    def _ended(self, trial: Trial) -> None:
        number = trial.number
        facts = trial.facts
        numbers = {
            name: float(value) for name, value in facts.items() if isinstance(value, int | float)
        }
        self.children.end(
            self.runs[number],
            "FINISHED",
            params={
                **{f"model.params.{name}": value for name, value in trial.params.items()},
                **{f"fit.{name}": facts[name] for name in facts.keys() - numbers.keys()},
            },
            curves={
                self.metric: {0: trial.score},  # the first one is what MLflow compares by
                **{f"validation/{name}": {0: value} for name, value in trial.metrics.items()},
                **{f"seconds/{name}": {0: value} for name, value in trial.phases.items()},
                **{f"fit/{name}": {0: value} for name, value in numbers.items()},
                CURVE: stepped(trial.curve),
            },
        )
        leading = self.best if self.trials else None
        self.trials[number] = dataclasses.replace(trial, attempt=self._attempts[number])
        best = self.best
        if best is not leading:
            self._log_best()

        place = (
            f"trial {number:>{(width := len(str(self.total)))}} ({self.done:>{width}}/{self.total})"
        )
        leader = f"best {best.score:.4f} (trial {best.number})"
        LOG.info("%s  %s %.4f  %s  %.1f s", place, self.metric, trial.score, leader, trial.seconds)
        LOG.debug("trial %d ran on %s", number, trial.worker)

    def _log_best(self) -> None:
        """Log the best score so far, its step the number of trials that have ended."""
        self.run.log_curves(
            {f"sweep/best_validation_{self.objective.metric}": {self.done: self.best.score}}
        )

    @property
    def done(self) -> int:
        """Trials that have ended, well or not."""
        return len(self.trials) + len(self.failed)

    # Of all trials

    @property
    def best(self) -> Trial:
        """The best trial by the validation rows, of equals the first; S004 when none ended well."""
        if not self.trials:
            first = next(iter(self.failed.values()), None)
            what = f"no trial of {self.total} ended well" + (f": {first.what}" if first else "")
            raise TipcastError("S004", self.run.id, what, "look at the failed trials")
        return min(self.trials.values(), key=self.objective.rank)

    def problem(self) -> TipcastError | None:
        """Return what is to be told of trials that failed."""
        if not self.failed:
            return None
        number, first = next(iter(self.failed.items()))
        what = (
            f"{len(self.failed)} of {self.total} trials failed, the first ({number}): {first.what}"
        )
        fix = f"look at their runs; tipcast sweep resume={self.run.id} tries them again"
        return TipcastError("S001", self.run.id, what, fix)

    def close(self) -> dict[str, Any]:
        """Record the sums over all trials, leaderboard and plots, and put them before what the note
        says of the fit.

        Returns what the job's last lines say of the search.
        """
        run = self.run
        best = self.best
        spec = self.config.search
        model = self.config.model.name
        counts = {"finished": len(self.trials), "failed": len(self.failed)}
        run.log_metrics(
            {f"sweep/{name}": number for name, number in {"trials": self.total, **counts}.items()}
        )
        self._log_best()
        # As a tag, for a parameter of a run cannot change: a resumed sweep may find a better trial.
        run.set_tags(
            {TRIAL_TAG: self.objective.key(best.number), BEST: json.dumps(dict(best.params))}
        )
        ranked = sorted(self.trials.values(), key=self.objective.rank)
        interval = [f"{self.objective.metric}_{end}" for end in ("low", "high")]
        rows = [
            {
                "rank": rank,
                "trial": trial.number,
                self.metric: trial.score,
                **{
                    f"validation/{name}": trial.metrics[name]
                    for name in interval
                    if name in trial.metrics
                },
                **{name: trial.params.get(name) for name in self.space},
                "seconds": round(trial.seconds, 3),
                "attempt": trial.attempt,
                "run_id": self.runs[trial.number],
            }
            for rank, trial in enumerate(ranked, 1)
        ]
        # which the baseline need not be
        own = [trial for trial in ranked if inside(self.space, trial.params)]

        if own and (shares := importance(own, self.space, self.objective)):
            about = f"{model}, {spec.name} search, {len(own)} trials"
            picture = plots.importance(
                shares, about, kind="variance of the score", title="Parameter importance"
            )
            run.log_bytes(picture, "sweep/parameter_importance.png")

        charts = self.children.charts(self.metric, maximize=self.objective.maximize)
        values = {
            name: f"{value:.4g}" if isinstance(value, float) else value
            for name, value in best.params.items()
        }
        params = ", ".join(f"`{name}` {value}" for name, value in values.items())
        shown = [name for name in rows[0] if name not in ("rank", "attempt", "run_id")]
        usual = self.trials.get(0, best) if spec.baseline else best
        gain = "" if usual is best else f" The default parameters, trial 0, have {usual.score:.4f}."
        parts = [
            f"### {spec.name} search of {model}: {len(rows)} trials",
            f"Best by {self.metric}: [trial {best.number}]({run.page(self.runs[best.number])}), "
            f"**{best.score:.4f}**, with {params}. It was fitted again over all workers and "
            f"tested; the model below is that one.{gain}",
            f"[Compare all trials as charts]({charts})",
            self.context.table(rows, "sweep/leaderboard.json", shown, SHOWN),
            *([] if len(self.trials) == self.total else [f"{self.how_to_go_on()}."]),
            run.store.get_run(run.id).data.tags.get("mlflow.note.content", ""),
        ]
        run.note("\n\n".join(parts))
        not_tried = {"not_tried": self.total - self.done} if self.done < self.total else {}

        return {
            "trials": {**counts, "all": self.total, **not_tried},
            "best": {"trial": best.number, self.metric: best.score, **best.params},
            "charts": run.address(charts),
        }


def whole_result(
    run: Run, stored: Any, config: SweepConfig, trials: int | None, metric: str, command: str
) -> dict[str, Any] | None:
    """Return what a sweep's last lines said, from its run in the store; None of one that is not
    done.

    It is where as many ``trials`` were asked for as now, all ended well, and its model has the name
    to register. A space of few points has fewer trials than were asked for. ``metric`` ranked them.
    """
    metrics = stored.data.metrics
    tags = stored.data.tags
    register = config.tracking.register
    finished = metrics.get("sweep/finished")
    done = (
        finished is not None
        and finished == metrics["sweep/trials"]
        and stored.info.status == "FINISHED"
    )
    if not done or config.search.trials != trials:
        return None

    versions = run.store.search_model_versions(f"run_id = '{run.id}'") if register else []
    if register and register not in [version.name for version in versions]:
        return None

    score = {f"validation/{metric}": metrics[f"sweep/best_validation_{metric}"]}
    return result_of(
        run,
        command,
        model_uri=f"models:/{logged_of(run.store, stored)[0].model_id}",
        metrics={name: value for name, value in metrics.items() if name.startswith("test/")},
        trials={"finished": int(finished), "failed": 0, "all": int(finished)},
        best={"trial": int(tags[TRIAL_TAG].rpartition("-")[2]), **score, **json.loads(tags[BEST])},
    )


def _trial(run: Any, metric: str) -> Trial:
    """Return a trial as its child run tells it."""
    metrics, phases = (
        {
            name.removeprefix(side): value
            for name, value in run.data.metrics.items()
            if name.startswith(side)
        }
        for side in ("validation/", "seconds/")
    )
    tags = run.data.tags
    params = json.loads(tags[PROPOSED])
    attempt = int(tags[ATTEMPT])

    return Trial(
        int(tags[NUMBER]), params, metrics[metric], metrics, phases, worker="", attempt=attempt
    )
