"""`tipcast train --multirun`: a training for each configuration, on one cluster, as child runs of
one run with a leaderboard.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

from tipcast.compute.base import Session
from tipcast.config.arguments import EVERY_MODEL, command_words
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrainConfig, TrainJobConfig
from tipcast.jobs import end_job
from tipcast.jobs.multirun_plan import (
    IDENTITY,
    JOB,
    Training,
    TrainingResult,
    find_finished,
    plan_trainings,
    previous_multirun,
    rows_key,
)
from tipcast.jobs.multirun_record import best_metrics, in_order, leaderboard, record, result_lines
from tipcast.jobs.repeat import REPEATS
from tipcast.jobs.run_context import RunContext, run_context, run_params, without_keys
from tipcast.jobs.train import train
from tipcast.jobs.train_plan import Plan, Splits, read_rows
from tipcast.jobs.train_record import Record, planned_params
from tipcast.measure.progress import progress
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")


def run(many: Sequence[tuple[TrainJobConfig, str]], command: str) -> Mapping[str, Any]:
    """Run all trainings, one after another; return what the job says.

    ``many`` are configurations, each with the command that repeats its training alone. Raises C003
    for configurations that differ in what is shared, S003 if ``resume`` names a run that is not a
    multirun; the first error of a training is raised after the others have run.
    """
    first, _ = many[0]
    command = without_keys(command, "resume")
    with progress("list"):
        every_model = EVERY_MODEL in command_words(command)
        trainings = plan_trainings(many, every_model=every_model)

    with previous_multirun(first) as previous:
        finished = find_finished(previous, trainings)

        with open_multirun(first, command, trainings, previous) as context:
            trained = train_missing(context, trainings, finished)
            results = in_order(trainings, [*finished, *trained])
            board = leaderboard(results)
            record(context, results, board)

            result = context.result(trainings=board, metrics=best_metrics(board))
            problem = next((ended.problem for ended in trained if ended.problem), None)
            if problem and not isinstance(problem, TipcastError):
                end_job(result, first.print, lines=result_lines(result))
                raise problem  # the session's end turns it into one line

    return end_job(result, first.print, lines=result_lines(result), problem=problem)


def open_multirun(
    config: TrainJobConfig, command: str, trainings: Sequence[Training], previous: Run | None
) -> AbstractContextManager[RunContext]:
    """Open the parent run of the trainings, with the parameters that they have in common."""
    planned = [planned_params(training.plan) for training in trainings]
    shared = {
        name: value
        for name, value in planned[0].items()
        if all(params.get(name) == value for params in planned)
    }
    name = f"{len(trainings)} trainings"
    return run_context(
        config, command, job=JOB, name=name, params=shared, resume=previous, lease=True
    )


def train_missing(
    context: RunContext, trainings: Sequence[Training], finished: Sequence[TrainingResult]
) -> list[TrainingResult]:
    """Run the trainings that have not finished, those on the same rows in succession; return their
    results in the order in which they ended.

    If the workers are lost, the remaining trainings are not run.
    """
    missing = in_order_of_rows(trainings, [result.training.name for result in finished])
    if not missing:
        LOG.info("all %d trainings are done; nothing left to run", len(trainings))
        return []

    session = context.start_workers()
    last_rows = LastRows()
    results = []
    for number, training in enumerate(missing, len(trainings) - len(missing) + 1):
        LOG.info("%-9s%d of %d: %s", "training", number, len(trainings), training.name)
        result = train_child(context.run, session, training, last_rows)
        results.append(result)
        if result.problem and session.client.status != "running":
            break

    return results


def in_order_of_rows(trainings: Sequence[Training], finished: Collection[str]) -> list[Training]:
    """Return the trainings that have not finished, grouped by their rows."""
    groups = list(dict.fromkeys(training.rows_key for training in trainings))
    missing = [training for training in trainings if training.name not in finished]
    return sorted(missing, key=lambda training: groups.index(training.rows_key))


@final
class LastRows:
    """The rows of the last training, for the next one if it has the same."""

    def __init__(self) -> None:
        self._splits: dict[tuple[str, int | None, bool], Splits] = {}

    def read(
        self,
        session: Session,
        config: TrainConfig,
        plan: Plan,
        meanwhile: Callable[[], object],
    ) -> Splits:
        """Return the rows of a training, as ``train_plan.read_rows`` does."""
        key = (rows_key(config, plan), session.homes, session.frames.rows_on_host)
        if key in self._splits:
            meanwhile()
        else:
            self.drop()  # before others take their memory
            self._splits[key] = read_rows(session, config, plan, meanwhile)
        return self._splits[key]

    def drop(self) -> None:
        """Free the rows."""
        self._splits.clear()


def train_child(
    parent: Run, session: Session, training: Training, last_rows: LastRows
) -> TrainingResult:
    """Run a training as a child run; an error is its result, as other trainings may end well."""
    run_id = None
    try:
        with open_child(parent, session, training) as context:
            run_id = context.run.id
            record = Record(context, training.config, training.plan, original=training.original)
            train(session, record, last_rows.read)

        metrics = context.run.mlflow_run().data.metrics
        return TrainingResult(training, run_id, metrics, "FINISHED")
    except Exception as problem:  # also a library's own error
        last_rows.drop()  # the rows may have gone with a worker
        status = in_one_line(problem)
        LOG.warning("%s: %s", training.name, status)
        return TrainingResult(training, run_id, status=status, problem=problem)


def open_child(
    parent: Run, session: Session, training: Training
) -> AbstractContextManager[RunContext]:
    """Open the run of a training below its parent."""
    tags = {IDENTITY: training.identity}
    if training.original:
        tags[REPEATS] = training.original.run_id

    return run_context(
        training.config,
        training.command,
        job="train",
        name=training.name,
        params={**run_params(training.config), **planned_params(training.plan), **session.devices},
        tags=tags,
        parent=parent,
    )


def in_one_line(problem: Exception) -> str:
    """Return an error's text on one line; a library's error begins with its type."""
    text = str(problem)
    if not isinstance(problem, TipcastError):
        text = f"{type(problem).__name__}: {text}"
    return " ".join(text.split())
