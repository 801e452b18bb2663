"""What a ladder records: the time of each rung, whether all agree, and their clusters on the same rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import LadderConfig
from tipcast.config.schema import ClusterSpec
from tipcast.datasets.rows import held_out_rows
from tipcast.evaluation import plots, report
from tipcast.evaluation.base import evaluator
from tipcast.evaluation.sums import Floats, Ints
from tipcast.jobs.run_context import RunContext
from tipcast.jobs.train_plan import Plan
from tipcast.models import native
from tipcast.tracking import models

TIMED = ("read", "fit", "evaluate")
"""Phases that a speed-up is of; a cluster's start and what is logged stand beside them."""
PICTURE, CENTROIDS = "plots/ladder.png", "plots/centroids.png"
SHARED_ROWS = 5000
"""Test rows that the rungs' clusters are compared on."""


@dataclass(frozen=True)
class Rung:
    """Where one of the trainings runs."""

    device: str
    """``cpu`` or ``gpu``."""
    size: int
    """Cores or GPUs."""
    cluster: ClusterSpec

    @property
    def name(self) -> str:
        """As ``2 cores``."""
        return f"{self.size} {'core' if self.device == 'cpu' else 'GPU'}{'s' * (self.size > 1)}"

    @property
    def key(self) -> str:
        """As ``cores_2``, of metrics."""
        return f"{'cores' if self.device == 'cpu' else 'gpus'}_{self.size}"


@dataclass(frozen=True)
class LadderResult:
    """A training that has run."""

    rung: Rung
    run_id: str
    seconds: Mapping[str, float]
    headline: float
    """Of the test rows."""
    labels: Ints | None = None
    """(rows,) clusters of ``SharedRows``."""
    adjusted_rand: float | None = None
    """Of these labels and the groups that the rows were made of."""

    @property
    def job_s(self) -> float:
        """Seconds of reading, fitting and evaluating."""
        return sum(self.seconds[name] for name in TIMED)


@dataclass(frozen=True)
class SharedRows:
    """Test rows that the rungs' clusters are compared on."""

    x: Floats
    """(rows, features)"""
    groups: Ints | None
    """(rows,) of the groups that rows were made of; None where nothing is known of such."""

    def clusters(self, client: Any, model_uri: str) -> tuple[Ints, float | None]:
        """Return a model's clusters (rows,), and their adjusted Rand index with the groups, where these are known."""
        with temporary_folder() as folder:
            fetched = models.fetch(client, model_uri, folder, parse=False)
            scores = native.load(fetched.path, fetched.format).score(self.x.astype(np.float32))
        labels = scores[:, 0].astype(np.int64)
        if self.groups is None:
            return labels, None
        from sklearn.metrics import adjusted_rand_score  # of clusterings only

        return labels, float(adjusted_rand_score(self.groups, labels))

    def draw(self, results: Sequence[LadderResult], subtitle: str) -> bytes:
        """Draw the rows and each rung's centroids on two principal components."""
        from sklearn.decomposition import PCA  # of clusterings only
        from sklearn.preprocessing import StandardScaler

        z = StandardScaler().fit_transform(self.x)
        components = PCA(min(2, *z.shape), random_state=0).fit(z)
        lacking = 2 - components.n_components_  # of one feature the second component is nothing
        shares = np.pad(np.nan_to_num(components.explained_variance_ratio_), (0, lacking))

        def placed(points: Floats) -> Floats:
            found: Floats = np.pad(components.transform(points), ((0, 0), (0, lacking)))
            return found

        centres = {
            each.rung.name: placed(np.stack([z[each.labels == label].mean(axis=0) for label in np.unique(each.labels)]))
            for each in results
            if each.labels is not None
        }
        groups = None if self.groups is None else self.groups.tolist()
        return plots.centroids(placed(z), groups, centres, shares.tolist(), subtitle)


def shared_rows(plan: Plan) -> SharedRows:
    """Read the first test rows, with the groups that they were made of where the dataset tells."""
    group = None
    with suppress(TipcastError):  # a table's or trips' columns are what they are
        group = plan.dataset.target_column(None, None).name
    task = plan.task if group is None else dataclasses.replace(plan.task, columns=(group,))
    recipe = dataclasses.replace(plan.test_recipe, task=task)
    columns, _ = held_out_rows(plan.test.fragments[0], recipe, plan.train.facts, SHARED_ROWS)
    x = plan.dataset.compute(columns, plan.task.features, np)
    return SharedRows(np.asarray(x, dtype=np.float64), None if group is None else columns[group].astype(np.int64))


def compared(results: Sequence[LadderResult], headline: str, tolerance: float) -> list[dict[str, Any]]:
    """Return a row of each rung: seconds, speed-up, efficiency, and whether it agrees with the first one.

    Two agree where their headlines do and, of clusters of rows made of known groups, their adjusted Rand indices.
    Speed-up is against the first rung that ran; efficiency is that against the first of the same device, by size.
    """
    first = results[0]
    rows: list[dict[str, Any]] = []
    for each in results:
        alike = next(other for other in results if other.rung.device == each.rung.device)
        difference = abs(each.headline - first.headline) / (abs(first.headline) or 1.0)
        apart = max(difference, abs((each.adjusted_rand or 0.0) - (first.adjusted_rand or 0.0)))
        rows.append(
            {
                "rung": each.rung.name,
                **{f"{name}_s": each.seconds[name] for name in ("cluster", *TIMED)},
                "job_s": each.job_s,
                "fit_speed_up": first.seconds["fit"] / (each.seconds["fit"] or 1e-9),
                "speed_up": first.job_s / each.job_s,
                "efficiency": alike.job_s * alike.rung.size / (each.job_s * each.rung.size),
                headline: each.headline,
                **({} if each.adjusted_rand is None else {"adjusted_rand": each.adjusted_rand}),
                "difference": difference,
                "verdict": "equal" if apart <= tolerance else "NOT equal",
                "run": each.run_id,
            }
        )
    return rows


def record(
    context: RunContext,
    config: LadderConfig,
    plan: Plan,
    results: Sequence[LadderResult],
    rows: Sequence[Mapping[str, Any]],
    missing: Mapping[str, str],
    shared: SharedRows | None,
) -> None:
    """Record what the rungs took and whether they agree; ``rows`` as of ``compared``."""
    run, headline, metrics = context.run, evaluator(plan.task.kind).headline, dict[str, float]()
    for each, row in zip(results, rows, strict=True):
        metrics |= {f"seconds/{each.rung.key}_{name}": each.seconds[name] for name in TIMED}
        metrics[f"speedup/{each.rung.key}"] = row["speed_up"]
        for name in ("efficiency", "difference", "adjusted_rand"):
            if name in row:
                metrics[f"{name}/{each.rung.key}"] = row[name]
    run.log_metrics(metrics)
    verdict = "equal" if all(row["verdict"] == "equal" for row in rows) else "NOT equal"
    run.set_tags({"ladder.verdict": verdict, **{f"ladder.not_run.{name}": why for name, why in missing.items()}})
    run.log_table({name: [row[name] for row in rows] for name in rows[0]}, "tables/ladder.json")
    subtitle = f"{config.model.name}, {plan.train.name}, {plan.periods['train']}"
    seconds = {row["rung"]: {name: row[f"{name}_s"] for name in TIMED} for row in rows}
    pictures = {PICTURE: plots.ladder(seconds, subtitle)}
    if shared is not None:
        subtitle = f"{config.model.name}, {len(shared.x):,} of the {plan.test.name} to test on"
        pictures[CENTROIDS] = shared.draw(results, subtitle)
    for path, picture in pictures.items():
        report.log_figure(run.log_bytes, picture, path)
    rand = {"adjusted Rand": "{adjusted_rand:.4f}"} if "adjusted_rand" in rows[0] else {}
    columns = {
        "where": "{rung}",
        **{f"{name}, s": f"{{{name}_s:.2f}}" for name in TIMED},
        "speed-up": "{speed_up:.2f} x",
        "efficiency": "{efficiency:.2f}",
        headline.title: "{value}",
        **rand,
        "agreement": "{verdict}",
    }
    values = [{"value": report.number(row[headline.name]), **row} for row in rows]
    lines = [[column.format(**row) for column in columns.values()] for row in values]
    lines += [[name, *[""] * (len(columns) - 2), f"not run: {why}"] for name, why in missing.items()]
    remark = (
        f"**{verdict}**: {headline.title} of the same test rows within {config.tolerance:g} of the first rung's, in "
        f"proportion. Speed-up: {', '.join(TIMED)} of the first rung by those of this one, without the cluster's start "
        "and what is logged. Efficiency: speed-up against the smallest rung of the same device, by cores or GPUs."
    )
    if rand:
        remark += " Adjusted Rand: of clusters and the groups that the rows were made of, within as much too."
    shown = [report.plot(run.id, path) for path in pictures]
    run.note("\n\n".join([report.table(list(columns), lines), remark, *shown, report.repeat(context.command)]))
