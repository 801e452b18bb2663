"""`tipcast ladder`: train the same on one core, on all cores, on one GPU and on several; compare
time and result.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy.special  # noqa: F401 - early, see train

from tipcast.compute import gpus
from tipcast.compute.base import Session, count
from tipcast.compute.cluster import CORES_PER_PROCESS, cores
from tipcast.compute.session import check as check_session
from tipcast.config.arguments import given, with_given
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError, must_be
from tipcast.config.plain import to_plain
from tipcast.config.schema import (
    BackendSpec,
    ClusterSpec,
    LadderConfig,
    LocalCluster,
    LocalCudaCluster,
)
from tipcast.datasets.base import Tabular
from tipcast.datasets.prepare import held_out_rows
from tipcast.evaluation import evaluator, plots, report
from tipcast.evaluation.sums import Floats, Ints
from tipcast.jobs import say
from tipcast.jobs.run_context import RunContext, run_context, run_names, without_keys
from tipcast.jobs.train import evaluate, train
from tipcast.jobs.train_plan import Plan, make_plan, read
from tipcast.jobs.train_record import SECTIONS, Record, params, planned_params
from tipcast.models import native
from tipcast.models.build import build, build_for_task
from tipcast.models.fit import fit
from tipcast.tasks.kinds import Kind
from tipcast.tracking import models
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")

TIMED = ("read", "fit", "evaluate")
"""Phases that a speed-up is of; a cluster's start and what is logged stand beside them."""
SHARED_ROWS = 5000
"""Test rows that the rungs' clusters are compared on."""
NOT_HERE = {"C002", "C010", "K006", "K007"}
"""Errors of a rung that this machine or this model does not have; other mistakes are every
rung's.
"""


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
        return count(self.size, "core" if self.device == "cpu" else "GPU")


SharedRows = tuple[Floats, Ints]
"""(rows, features) of test rows that the rungs' clusters are compared on, and (rows,) the groups
they were made of.
"""


def run(config: LadderConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says, or raise the first error of a rung after all have run."""
    plan = make_plan(config)
    steps, missing = rungs(config, plan.task.kind)
    shared = None if plan.task.has_target else shared_rows(plan)
    climbed: list[dict[str, Any]] = []
    failed: list[TipcastError] = []
    shown = params(config, [name for name in SECTIONS if name not in ("backend", "cluster")])
    shown |= planned_params(plan)
    (name,) = run_names([(config.model.name, command)], "ladder of ")

    with run_context(config, command, job="ladder", name=name, params=shown) as context:
        for step in steps:
            LOG.info("%-9s%s", "rung", step.name)
            try:
                climbed.append(climb(step, config, plan, command, context.run, shared))
            except TipcastError as problem:
                LOG.warning("%s: %s", step.name, problem)
                failed.append(problem)
                missing[step.name] = str(problem)
        if not climbed:
            raise failed[0]
        rows = record(context, config, plan, climbed, missing, shared)

    speedup = {
        f"speedup/{one['key']}": row["speed_up"] for one, row in zip(climbed, rows, strict=True)
    }
    result = context.result(rungs=rows, not_run=missing, metrics=speedup)
    words = {
        row["rung"]: f"{row['job_s']:.2f} s, {row['speed_up']:.2f} x, {row['verdict']}"
        for row in rows
    }
    return say(
        result, config.print, lines={**result, "rungs": words}, problem=next(iter(failed), None)
    )


def rungs(config: LadderConfig, kind: Kind) -> tuple[list[Rung], dict[str, str]]:
    """Return the rungs to run, by default one and all of this machine's cores and GPUs, and why
    others cannot run.
    """
    if not isinstance(config.cluster, LocalCluster | LocalCudaCluster):
        what = f"a ladder runs on this machine, not on cluster={config.cluster.kind}"
        raise TipcastError(
            "C003", "cluster.kind", what, "leave cluster out, or use train on that cluster"
        )

    here = cores()
    gpus_here = len(gpus.visible())
    wanted = [
        ("cpu", size) for size in sorted({1, here} if config.cores is None else set(config.cores))
    ]
    wanted += [
        ("gpu", size)
        for size in sorted({1, max(gpus_here, 2)} if config.gpus is None else set(config.gpus))
    ]
    steps: list[Rung] = []
    missing: dict[str, str] = {}

    for device, size in wanted:
        name, most = ("cores", here) if device == "cpu" else ("gpus", gpus_here)
        if size < 1:
            raise must_be(name, "at least 1", size)

        step = Rung(device, size, _cluster(config.cluster, device, size))
        if size > most:
            missing[step.name] = f"the machine has {most} {name}"
            continue

        try:
            check_session(BackendSpec(device), step.cluster)
            build(config.model, device, config.task.categorical, kind).check()
            steps.append(step)
        except TipcastError as problem:
            if problem.code not in NOT_HERE:
                raise
            missing[step.name] = problem.what

    if not steps:
        what = f"nothing to run: {next(iter(missing.values()), 'both are empty')}"
        raise TipcastError(
            "C003", "cores, gpus", what, "name what this machine has, as cores=[1,2] or gpus=[1]"
        )

    return steps, missing


def _cluster(given: ClusterSpec, device: str, size: int) -> ClusterSpec:
    """Return the cluster of some cores or GPUs: one process for a core, several that train together
    for more.
    """
    if device == "gpu":
        spec = given if isinstance(given, LocalCudaCluster) else LocalCudaCluster("local_cuda")
        return dataclasses.replace(spec, n_workers=size)
    local = given if isinstance(given, LocalCluster) else LocalCluster("local")
    even = (many for many in range(min(size, 2), size + 1) if size % many == 0)
    workers = next(many for many in even if size // many <= CORES_PER_PROCESS)
    return dataclasses.replace(
        local, n_workers=workers, threads_per_worker=size // workers, processes=True
    )


def climb(
    step: Rung,
    config: LadderConfig,
    plan: Plan,
    command: str,
    parent: Run,
    shared: SharedRows | None,
) -> dict[str, Any]:
    """Train on a rung, as a child run of the parent, whose command trains on this rung alone.

    Returns the rung, its seconds, the headline of the test rows and, where rows are shared,
    ``centres``: (clusters, features) means of their clusters, and the ``adjusted_rand`` index of
    these and the rows' groups.
    """
    tracking = dataclasses.replace(config.tracking, run_name=None, register=None)
    own = dataclasses.replace(
        config, backend=BackendSpec(step.device), cluster=step.cluster, tracking=tracking
    )
    words = given(without_keys(command, "cores", "gpus", "tolerance"))
    cluster = to_plain(step.cluster)
    words += [f"cluster={step.cluster.kind}", f"backend={step.device}"]
    words += [
        f"cluster.{name}={cluster[name]}"
        for name in ("n_workers", "threads_per_worker")
        if name in cluster
    ]
    alone = with_given(command.replace("ladder", "train", 1), words)
    facts = params(own) | planned_params(plan)
    with run_context(
        own, alone, job="train", name=step.name, params=facts, parent=parent
    ) as context:
        record = Record(context, own, plan)
        workers = context.start_workers()
        warm_up(workers, own, plan)
        result = train(workers, record)
    name = record.judge.headline.name
    seconds = context.clock.seconds
    key = f"{'cores' if step.device == 'cpu' else 'gpus'}_{step.size}"  # in metrics
    climbed = {
        "rung": step.name,
        "key": key,
        "device": step.device,
        "size": step.size,
        "run": context.run.id,
    }
    climbed |= {f"{phase}_s": seconds[phase] for phase in ("cluster", *TIMED)}
    climbed[name] = result["metrics"][f"test/{name}"]
    if shared is None:
        return climbed
    from sklearn.metrics import adjusted_rand_score  # of clusterings only

    x, groups = shared
    with temporary_folder() as folder:
        fetched = models.fetch(context.run.client, result["model_uri"], folder, parse=False)
        labels = native.load(fetched.path, fetched.format).score(x.astype(np.float32))[:, 0]
    centres = np.stack([x[labels == label].mean(axis=0) for label in np.unique(labels)])
    return {
        **climbed,
        "centres": centres,
        "adjusted_rand": float(adjusted_rand_score(groups, labels)),
    }


def warm_up(workers: Session, config: LadderConfig, plan: Plan) -> None:
    """Train a tiny model on a part of the rows for each worker, so that libraries load and kernels
    compile untimed.
    """
    train, test = (
        dataclasses.replace(side, fragments=side.fragments[: workers.n_workers])
        for side in (plan.train, plan.test)
    )
    recipe = dataclasses.replace(plan.recipe, cutoff=None)  # which may lie behind these parts
    few = dataclasses.replace(plan, train=train, test=test, recipe=recipe)
    spec = config.model
    task = plan.task
    tiny = dataclasses.replace(spec, params={**spec.params, **spec.tiny})

    try:
        splits = read(workers, config, few)
        estimator = build_for_task(tiny, workers.device, task)
        fitted = fit(
            workers.client, estimator, splits["train"], splits.get("validation"), config.seed
        )
        evaluate(workers.client, few, fitted, splits)
    # such as a part that lacks a class, or rounds that so few trees do not fill
    except TipcastError as problem:
        LOG.warning("not warmed up, so the first phases take longer: %s", problem)


def shared_rows(plan: Plan) -> SharedRows | None:
    """Read the first test rows, with the groups that they were made of; None where the dataset does
    not tell these.
    """
    if not isinstance(plan.dataset, Tabular):
        return None
    try:
        group = plan.dataset.target_column(None, None).name
    except TipcastError:  # a table's columns are what they are
        return None

    recipe = dataclasses.replace(
        plan.test_recipe, task=dataclasses.replace(plan.task, columns=(group,))
    )
    columns, _ = held_out_rows(plan.test.fragments[0], recipe, plan.train.info, SHARED_ROWS)
    x = plan.dataset.compute(columns, plan.task.features, np)
    return np.asarray(x, dtype=np.float64), columns[group].astype(np.int64)


def compared(
    climbed: Sequence[Mapping[str, Any]], headline: str, tolerance: float
) -> list[dict[str, Any]]:
    """Return a row of each rung: seconds, speed-up, efficiency, and whether it agrees with the
    first one.

    Two agree where their headlines do and, of clusters of rows made of known groups, their adjusted
    Rand indices. Speed-up is against the first rung that ran; efficiency is that against the first
    of the same device, by size.
    """
    table = pd.DataFrame(climbed)
    times = [f"{name}_s" for name in TIMED]
    table["job_s"] = table[times].sum(axis="columns")
    table["work"] = table["job_s"] * table["size"]  # seconds of all cores or GPUs together
    first = table.iloc[0]
    table["speed_up"] = first["job_s"] / table["job_s"]
    table["efficiency"] = table.groupby("device")["work"].transform("first") / table["work"]
    table["difference"] = (table[headline] - first[headline]).abs() / (abs(first[headline]) or 1.0)
    apart = table["difference"]
    scores = [headline]
    if "adjusted_rand" in table:
        scores.append("adjusted_rand")
        apart = np.maximum(apart, (table["adjusted_rand"] - first["adjusted_rand"]).abs())

    table["verdict"] = np.where(apart <= tolerance, "equal", "NOT equal")
    names = [
        "rung",
        "cluster_s",
        *times,
        "job_s",
        "speed_up",
        "efficiency",
        *scores,
        "difference",
        "verdict",
        "run",
    ]
    return [dict(zip(names, row, strict=True)) for row in table[names].itertuples(index=False)]


def record(
    context: RunContext,
    config: LadderConfig,
    plan: Plan,
    climbed: Sequence[Mapping[str, Any]],
    missing: Mapping[str, str],
    shared: SharedRows | None,
) -> list[dict[str, Any]]:
    """Record what the rungs took and whether they agree; return the rows of ``compared``."""
    run = context.run
    rows = compared(climbed, evaluator(plan.task.kind).headline.name, config.tolerance)
    names = {
        "speed_up": "speedup",
        **{name: name for name in ("efficiency", "difference", "adjusted_rand")},
    }
    keyed = [(one["key"], row) for one, row in zip(climbed, rows, strict=True)]
    run.log_metrics(
        {f"{names[name]}/{key}": row[name] for key, row in keyed for name in names if name in row}
    )
    verdict = "equal" if all(row["verdict"] == "equal" for row in rows) else "NOT equal"
    run.set_tags({"ladder.verdict": verdict})
    seconds = {row["rung"]: {name: row[f"{name}_s"] for name in TIMED} for row in rows}
    pictures = {
        "plots/ladder.png": plots.ladder(seconds, f"{config.model.name}, {plan.train.name}")
    }

    if shared is not None:
        subtitle = f"{config.model.name}, {len(shared[0]):,} of the {plan.test.name} to test on"
        centres = {one["rung"]: one["centres"] for one in climbed}
        drawn = plots.centroids("Centroids of every rung", shared[0], shared[1], centres, subtitle)
        pictures["plots/centroids.png"] = drawn

    for path, picture in pictures.items():
        run.log_bytes(picture, path)

    parts = [
        context.table(rows, "tables/ladder.json", [name for name in rows[0] if name != "run"]),
        f"**{verdict}** within {config.tolerance:g}. What speed-up, efficiency and agreement "
        "are: docs/ladder.md.",
        "\n".join(f"- {name} not run: {why}" for name, why in missing.items()),
        *(report.plot(run.id, path) for path in pictures),
        report.repeat(context.command),
    ]
    run.note("\n\n".join(parts))
    return rows
