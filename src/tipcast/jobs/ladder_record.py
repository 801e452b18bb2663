"""The record of a ladder: seconds, speed-up and efficiency of rungs, and whether they agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tipcast.config.errors import TipcastError
from tipcast.evaluation import evaluator_of, plots, report
from tipcast.evaluation.sums import Floats
from tipcast.jobs.ladder_plan import LadderPlan, Rung
from tipcast.jobs.run_context import RunContext

TIMED = ("read", "fit", "evaluate")
"""Phases that count for the speed-up; the start of a cluster and the logging do not."""
METRICS = {
    "speed_up": "speedup",
    "efficiency": "efficiency",
    "difference": "difference",
    "adjusted_rand": "adjusted_rand",
}
"""Column of the table -> metric, which ends with the rung's key."""

Row = dict[str, Any]
"""Column of the table -> value for a rung."""


@dataclass(frozen=True)
class Clusters:
    """A rung's clusters of the shared rows."""

    centres: Floats
    """(clusters, features) means of their rows."""
    adjusted_rand: float
    """Index of the clusters and the groups that the rows were made of; 1: they are the same."""


@dataclass(frozen=True)
class RungResult:
    """Seconds and result of the training on a rung."""

    rung: Rung
    run_id: str
    seconds: Mapping[str, float]
    """Seconds of the phases ``cluster``, ``read``, ``fit`` and ``evaluate``."""
    score: float
    """The headline of the test rows."""
    clusters: Clusters | None = None


@dataclass(frozen=True)
class LadderResult:
    """Results of all rungs."""

    results: Sequence[RungResult]
    """Results of the rungs that were climbed, at least one."""
    failures: Mapping[str, TipcastError]
    """Rung -> error that its training ended with."""
    not_run: Mapping[str, str]
    """Rung -> why it has no result."""


def compare_rungs(plan: LadderPlan, results: Sequence[RungResult]) -> list[Row]:
    """Return a row for each rung: seconds, speed-up, efficiency, and whether it agrees with the
    first one; see ``compare_results``.
    """
    headline_name = evaluator_of(plan.data.task.kind).headline_metric.name
    return compare_results(results, headline_name, plan.config.tolerance)


def compare_results(
    results: Sequence[RungResult], headline_name: str, tolerance: float
) -> list[Row]:
    """Return a row for each result; the headline is a column of that name.

    Two rungs agree if their headlines do and, for clusters of rows from known groups, their
    adjusted Rand indices. Speed-up is relative to the first rung that ran; efficiency is the
    speed-up relative to the first rung of the same device, divided by the ratio of sizes.
    """
    table = pd.DataFrame([_table_row(result, headline_name) for result in results])
    times = [f"{phase}_s" for phase in TIMED]
    table["job_s"] = table[times].sum(axis="columns")
    table["work"] = table["job_s"] * table["size"]  # seconds of all cores or GPUs together

    first = table.iloc[0]
    table["speed_up"] = first["job_s"] / table["job_s"]
    table["efficiency"] = table.groupby("device")["work"].transform("first") / table["work"]
    table["difference"] = (table[headline_name] - first[headline_name]).abs() / (
        abs(first[headline_name]) or 1.0
    )

    scores = [headline_name]
    difference = table["difference"]
    if "adjusted_rand" in table:
        scores.append("adjusted_rand")
        difference = np.maximum(difference, (table["adjusted_rand"] - first["adjusted_rand"]).abs())
    table["verdict"] = np.where(difference <= tolerance, "equal", "NOT equal")

    seconds = ["cluster_s", *times, "job_s"]
    columns = ["rung", *seconds, "speed_up", "efficiency", *scores, "difference", "verdict", "run"]
    return [dict(zip(columns, row, strict=True)) for row in table[columns].itertuples(index=False)]


def _table_row(result: RungResult, headline_name: str) -> Row:
    row: Row = {
        "rung": result.rung.name,
        "device": result.rung.device,
        "size": result.rung.size,
        "run": result.run_id,
        **{f"{phase}_s": seconds for phase, seconds in result.seconds.items()},
        headline_name: result.score,
    }
    if result.clusters is not None:
        row["adjusted_rand"] = result.clusters.adjusted_rand
    return row


def record(
    context: RunContext,
    plan: LadderPlan,
    ladder: LadderResult,
    rows: Sequence[Row],
) -> None:
    """Record what the rungs took and whether they agree: metrics, pictures and the note."""
    run = context.run
    verdict = "NOT equal"
    if all(row["verdict"] == "equal" for row in rows):
        verdict = "equal"

    metrics = {
        f"{metric}/{result.rung.key}": row[column]
        for result, row in zip(ladder.results, rows, strict=True)
        for column, metric in METRICS.items()
        if column in row
    }
    run.log_metrics(metrics)
    run.set_tags({"ladder.verdict": verdict})

    pictures = draw_rungs(plan, ladder.results)
    for path, picture in pictures.items():
        run.log_bytes(picture, path)

    columns = [name for name in rows[0] if name != "run"]
    parts = [
        context.table(rows, "tables/ladder.json", columns),
        f"**{verdict}** within {plan.config.tolerance:g}. What speed-up, efficiency and agreement "
        "are: docs/ladder.md.",
        "\n".join(f"- {name} not run: {why}" for name, why in ladder.not_run.items()),
        *(report.plot(run.id, path) for path in pictures),
        report.repeat(context.command),
    ]
    run.note("\n\n".join(parts))


def draw_rungs(plan: LadderPlan, results: Sequence[RungResult]) -> dict[str, bytes]:
    """Draw the seconds of each rung and, on shared rows, the centroids of its clusters; return
    artifact path -> PNG.
    """
    model = plan.config.model.name
    seconds = {
        result.rung.name: {phase: result.seconds[phase] for phase in TIMED} for result in results
    }
    pictures = {"plots/ladder.png": plots.ladder(seconds, f"{model}, {plan.data.train.name}")}
    if plan.shared is None:
        return pictures

    x = plan.shared.features
    subtitle = f"{model}, {len(x):,} of the {plan.data.test.name} (test)"
    centres = {result.rung.name: result.clusters.centres for result in results if result.clusters}
    pictures["plots/centroids.png"] = plots.centroids(
        "Centroids of each rung", x, plan.shared.groups, centres, subtitle
    )
    return pictures


def speed_ups(results: Sequence[RungResult], rows: Sequence[Row]) -> dict[str, float]:
    """Return the metrics that the job prints: the speed-up of each rung."""
    return {
        f"speedup/{result.rung.key}": row["speed_up"]
        for result, row in zip(results, rows, strict=True)
    }


def lines_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the job prints for people, with a line in place of each rung's row."""
    rungs = {
        row["rung"]: f"{row['job_s']:.2f} s, {row['speed_up']:.2f} x, {row['verdict']}"
        for row in result["rungs"]
    }
    return {**result, "rungs": rungs}
