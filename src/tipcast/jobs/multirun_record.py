"""What a multirun records and shows of its trainings: a leaderboard of each kind of task."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tipcast.evaluation import evaluator, report
from tipcast.jobs.multirun_plan import Training, TrainingResult
from tipcast.jobs.run_context import RunContext
from tipcast.tasks.kinds import Kind

LOG = logging.getLogger("tipcast")


def in_order(
    trainings: Sequence[Training], results: Sequence[TrainingResult]
) -> list[TrainingResult]:
    """Return a result of each training, of those that were not run too."""
    by_name = {result.training.name: result for result in results}
    return [by_name.get(training.name, TrainingResult(training)) for training in trainings]


def leaderboard(results: Sequence[TrainingResult]) -> list[dict[str, Any]]:
    """Return a row of each training: those of one kind of task by their headline on validation
    rows, best first.

    Where one of the kind has no validation rows all are ranked by that on test rows.
    """
    rows: list[dict[str, Any]] = []
    for kind in dict.fromkeys(result.training.plan.task.kind for result in results):
        same_kind = [result for result in results if result.training.plan.task.kind == kind]
        rows += rank_results(kind, same_kind)
    return rows


def rank_results(kind: Kind, results: Sequence[TrainingResult]) -> list[dict[str, Any]]:
    """Return the rows of the trainings of one kind, those that did not end well last."""
    headline = evaluator(kind).headline
    validation = f"validation/{headline.name}"
    test = f"test/{headline.name}"

    ended = [result for result in results if test in result.metrics]
    validated = all(validation in result.metrics for result in ended)
    ranked_by = validation if validated else test
    ended.sort(key=lambda result: result.metrics[ranked_by], reverse=headline.maximize)

    rows = []
    unranked = [result for result in results if test not in result.metrics]
    for rank, result in enumerate([*ended, *unranked], 1):
        metrics = {
            name: result.metrics[name] for name in (validation, test) if name in result.metrics
        }
        rows.append(
            {
                "name": result.training.name,
                "rank": rank if rank <= len(ended) else None,
                "kind": kind.name,
                "metrics": metrics,
                "status": result.status,
                "run_id": result.run_id,
                "command": result.training.command,
            }
        )
    return rows


def best_metrics(board: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of the leaderboard's first row that has any."""
    return next((row["metrics"] for row in board if row["metrics"]), {})


def record(
    context: RunContext, results: Sequence[TrainingResult], board: Sequence[Mapping[str, Any]]
) -> None:
    """Record the leaderboard, its best metrics and the note in the run that all are below."""
    remarks = alike(results)
    for remark in remarks:
        LOG.warning("%s", remark)

    names = dict.fromkeys(name for row in board for name in row["metrics"])
    rows = [
        {name: value for name, value in (row | row["metrics"]).items() if name != "metrics"}
        for row in board
    ]
    columns = ["name", "rank", *names, "status"]
    table = context.table(rows, "tables/leaderboard.json", columns)

    context.run.log_metrics(best_metrics(board))
    context.run.note("\n\n".join([table, *remarks, report.repeat(context.command)]))


def alike(results: Sequence[TrainingResult]) -> list[str]:
    """Return a line for trainings whose metrics are the same to the last bit, as those of two seeds
    without effect.
    """
    names: dict[tuple[tuple[str, float], ...], list[str]] = {}
    for result in results:
        tested = [item for item in result.metrics.items() if item[0].startswith("test/")]
        if tested:
            names.setdefault(tuple(sorted(tested)), []).append(result.training.name)

    what = "the same test metrics to the last bit, so what they differ in has no effect here"
    return [f"{', '.join(same)}: {what}" for same in names.values() if len(same) > 1]


def lines_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the job prints for people: a line of each training, then all else."""
    lines = {
        f"{row['rank'] or '-'} {row['name']}": row["metrics"] or row["status"]
        for row in result["trainings"]
    }
    return lines | {name: value for name, value in result.items() if name != "trainings"}
