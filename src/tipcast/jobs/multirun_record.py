"""The record of a multirun: a leaderboard of its trainings for each kind of task."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from dask.utils import format_bytes

from tipcast.config.arguments import command_words
from tipcast.evaluation import evaluator_of, report
from tipcast.jobs import aligned
from tipcast.jobs.multirun_plan import Training, TrainingResult
from tipcast.jobs.run_context import RunContext
from tipcast.jobs.train_record import MODEL_BYTES
from tipcast.tasks.kinds import Kind

LOG = logging.getLogger("tipcast")

Row = dict[str, Any]
"""Column of the leaderboard -> value for a training; the metrics are a mapping."""


def in_order(
    trainings: Sequence[Training], results: Sequence[TrainingResult]
) -> list[TrainingResult]:
    """Return a result for each training, also for those that were not run."""
    by_name = {result.training.name: result for result in results}
    return [by_name.get(training.name, TrainingResult(training)) for training in trainings]


def leaderboard(results: Sequence[TrainingResult]) -> list[Row]:
    """Return a row for each training: those of one kind of task by their headline on validation
    rows, best first.

    If a training of the kind has no validation rows, all are ranked by their headline on test rows.
    """
    rows: list[Row] = []
    for kind in dict.fromkeys(result.training.plan.task.kind for result in results):
        same_kind = [result for result in results if result.training.plan.task.kind == kind]
        rows += rank_results(kind, same_kind)
    return rows


def rank_results(kind: Kind, results: Sequence[TrainingResult]) -> list[Row]:
    """Return the rows of the trainings of one kind, those that did not end well last."""
    headline_metric = evaluator_of(kind).headline_metric
    validation = f"validation/{headline_metric.name}"
    test = f"test/{headline_metric.name}"

    ended = [result for result in results if test in result.metrics]
    ranked_by = test
    if all(validation in result.metrics for result in ended):
        ranked_by = validation
    ended.sort(key=lambda result: result.metrics[ranked_by], reverse=headline_metric.maximize)

    unranked = [result for result in results if test not in result.metrics]
    rows = [_row(result, rank, (validation, test)) for rank, result in enumerate(ended, 1)]
    return rows + [_row(result, None, (validation, test)) for result in unranked]


def _row(result: TrainingResult, rank: int | None, names: Sequence[str]) -> Row:
    """Return the row of a training, with those metrics of ``names`` that it has.

    Its interval, if any, is that of the last of them; its standard error, if it has folds, that of
    the first.
    """
    training = result.training
    metrics = result.metrics
    size = metrics.get(MODEL_BYTES)
    return {
        "name": training.name,
        "rank": rank,
        "kind": training.plan.task.kind.name,
        "metrics": {name: metrics[name] for name in names if name in metrics},
        "low": metrics.get(f"{names[-1]}_low"),
        "high": metrics.get(f"{names[-1]}_high"),
        "se": metrics.get(f"{names[0]}_se"),
        "fit_s": metrics.get("seconds/fit"),
        "model_bytes": size and int(size),
        "status": result.status,
        "run_id": result.run_id,
        "command": training.command,
    }


def best_metrics(board: Sequence[Row]) -> dict[str, float]:
    """Return the metrics of the leaderboard's first row that has any."""
    return next((row["metrics"] for row in board if row["metrics"]), {})


def record(context: RunContext, results: Sequence[TrainingResult], board: Sequence[Row]) -> None:
    """Record the leaderboard, its best metrics and the note in the parent run."""
    remarks = same_metrics(results)
    for remark in remarks:
        LOG.warning("%s", remark)

    names = dict.fromkeys(name for row in board for name in row["metrics"])
    rows = [
        {name: value for name, value in (row | row["metrics"]).items() if name != "metrics"}
        for row in board
    ]
    errors = ["se"] if any(row["se"] is not None for row in board) else []
    columns = ["name", "rank", *names, *errors, "low", "high", "fit_s", "model_bytes", "status"]
    table = context.table(rows, "tables/leaderboard.json", columns)

    context.run.log_metrics(best_metrics(board))
    context.run.note("\n\n".join([table, *remarks, report.repeat(context.command)]))


def same_metrics(results: Sequence[TrainingResult]) -> list[str]:
    """Return a line for trainings whose metrics are the same to the last bit, as with two seeds
    that have no effect.
    """
    names: dict[tuple[tuple[str, float], ...], list[str]] = {}
    for result in results:
        tested = [item for item in result.metrics.items() if item[0].startswith("test/")]
        if tested:
            names.setdefault(tuple(sorted(tested)), []).append(result.training.name)

    what = "identical test metrics, so the settings that differ have no effect here"
    return [f"{', '.join(same)}: {what}" for same in names.values() if len(same) > 1]


def result_lines(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the job prints for people: the leaderboard as a table, then all else."""
    board: Sequence[Row] = result["trainings"]
    metrics = list(dict.fromkeys(name for row in board for name in row["metrics"]))
    table = [["", *metrics, "95 % interval", "fit", "model", ""]]
    for row, words in zip(board, differences(board), strict=True):
        cells = [
            f"{row['rank'] or '-'} {words}",
            *(_score(row, name) for name in metrics),
            _interval(row["low"], row["high"]),
            _seconds(row["fit_s"]),
            _size(row["model_bytes"]),
            "" if row["rank"] else row["status"],
        ]
        table.append(cells)

    names = [name for name, *_ in table]
    lines = dict(zip(names, aligned([cells for _, *cells in table], ">"), strict=True))
    return lines | {name: value for name, value in result.items() if name != "trainings"}


def differences(board: Sequence[Row]) -> list[str]:
    """Return the words of each training's command that not all trainings have."""
    commands = [command_words(row["command"]) for row in board]
    shared = set(commands[0]).intersection(*commands)
    if len(commands) == 1:
        return [board[0]["name"]]
    return [" ".join(word for word in words if word not in shared) for words in commands]


def _interval(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f"{report.number(low)} to {report.number(high)}"


def _score(row: Row, name: str) -> str:
    """Return a metric of a training; the mean of folds with its standard error."""
    value = row["metrics"].get(name)
    if value is None:
        return ""
    if row["se"] is None or not name.startswith("validation/"):
        return report.number(value)
    return f"{report.number(value)} ± {report.number(row['se'])}"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} s"


def _size(value: int | None) -> str:
    if value is None:
        return ""
    return format_bytes(value)
