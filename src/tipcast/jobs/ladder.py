"""`tipcast ladder`: run the same training on one core, on all cores, on one GPU and on several;
compare time and result.
"""

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import scipy.special  # noqa: F401 - early, see train

from tipcast.compute.base import Session
from tipcast.config.arguments import command_words, with_words
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema import BackendSpec, LadderConfig
from tipcast.evaluation import evaluator_of
from tipcast.jobs import end_job
from tipcast.jobs.ladder_plan import LadderPlan, Rung, SharedRows, plan_ladder
from tipcast.jobs.ladder_record import (
    TIMED,
    Clusters,
    LadderResult,
    RungResult,
    compare_rungs,
    lines_of,
    record,
    speed_ups,
)
from tipcast.jobs.run_context import (
    SECTIONS,
    RunContext,
    run_context,
    run_names,
    run_params,
    without_keys,
)
from tipcast.jobs.train import evaluate, train
from tipcast.jobs.train_plan import Plan, read_rows
from tipcast.jobs.train_record import Record, planned_params
from tipcast.models import native
from tipcast.models.build import build_for_task
from tipcast.models.fit import fit
from tipcast.tracking import model_fetch
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")


def run(config: LadderConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says, or raise the first error of a rung after all have run."""
    plan = plan_ladder(config, command)

    with open_ladder(plan) as context:
        ladder = climb_rungs(plan, context.run)
        rows = compare_rungs(plan, ladder.results)
        record(context, plan, ladder, rows)

    result = context.result(
        rungs=rows, not_run=ladder.not_run, metrics=speed_ups(ladder.results, rows)
    )
    problem = next(iter(ladder.failures.values()), None)
    return end_job(result, config.print, lines=lines_of(result), problem=problem)


def open_ladder(plan: LadderPlan) -> AbstractContextManager[RunContext]:
    """Open the parent run of the rungs, with the parameters that they have in common."""
    config = plan.config
    (name,) = run_names([(config.model.name, plan.command)], "ladder of ")
    sections = [section for section in SECTIONS if section not in ("backend", "cluster")]
    shared = run_params(config, sections) | planned_params(plan.data)
    return run_context(config, plan.command, job="ladder", name=name, params=shared)


def climb_rungs(plan: LadderPlan, parent: Run) -> LadderResult:
    """Train on each rung; raise the first error if all have failed."""
    results: list[RungResult] = []
    failures: dict[str, TipcastError] = {}

    for rung in plan.rungs:
        LOG.info("%-9s%s", "rung", rung.name)
        try:
            results.append(climb(rung, plan, parent))
        except TipcastError as problem:
            LOG.warning("%s: %s", rung.name, problem)
            failures[rung.name] = problem

    if not results:
        raise next(iter(failures.values()))

    not_run = {**plan.missing, **{name: str(problem) for name, problem in failures.items()}}
    return LadderResult(results, failures, not_run)


def climb(rung: Rung, plan: LadderPlan, parent: Run) -> RungResult:
    """Train on a rung, as a child run; the child's command trains on this rung alone."""
    config = rung_config(rung, plan.config)

    with open_rung(rung, config, plan, parent) as context:
        session = context.start_workers()
        warm_up(session, config, plan.data)
        result = train(session, Record(context, config, plan.data))

    headline_metric = evaluator_of(plan.data.task.kind).headline_metric
    seconds = {phase: context.clock.seconds[phase] for phase in ("cluster", *TIMED)}
    score = result["metrics"][f"test/{headline_metric.name}"]
    clusters = None
    if plan.shared is not None:
        clusters = find_clusters(context.run, result["model_uri"], plan.shared)

    return RungResult(rung, context.run.id, seconds, score, clusters)


def rung_config(rung: Rung, config: LadderConfig) -> LadderConfig:
    """Return the configuration of a rung; its model is not registered."""
    return dataclasses.replace(
        config,
        backend=BackendSpec(rung.device),
        cluster=rung.cluster,
        tracking=dataclasses.replace(config.tracking, run_name=None, register=None),
    )


def open_rung(
    rung: Rung, config: LadderConfig, plan: LadderPlan, parent: Run
) -> AbstractContextManager[RunContext]:
    """Open the run of a rung below its parent."""
    return run_context(
        config,
        rung_command(rung, plan.command),
        job="train",
        name=rung.name,
        params=run_params(config) | planned_params(plan.data),
        parent=parent,
    )


def rung_command(rung: Rung, command: str) -> str:
    """Return the command that trains on a rung alone."""
    cluster = to_plain(rung.cluster)
    words = command_words(without_keys(command, "cores", "gpus", "tolerance"))
    words += [f"cluster={rung.cluster.kind}", f"backend={rung.device}"]
    for name in ("n_workers", "threads_per_worker"):
        if name in cluster:
            words.append(f"cluster.{name}={cluster[name]}")
    return with_words(command.replace("ladder", "train", 1), words)


def warm_up(session: Session, config: LadderConfig, data: Plan) -> None:
    """Train a tiny model on a part of the rows for each worker, so that libraries load and kernels
    compile untimed.
    """
    train_side, test_side = (
        dataclasses.replace(side, parts=side.parts[: session.n_workers])
        for side in (data.train, data.test)
    )
    # The cutoff may lie behind these few parts.
    recipe = dataclasses.replace(data.recipe, cutoff=None)
    small_plan = dataclasses.replace(data, train=train_side, test=test_side, recipe=recipe)
    tiny = dataclasses.replace(config.model, params={**config.model.params, **config.model.tiny})

    try:
        splits = read_rows(session, config, small_plan)
        estimator = build_for_task(tiny, session.device, data.task)
        validation = splits.get("validation")
        fitted = fit(session.client, estimator, splits["train"], validation, config.seed)
        evaluate(session.client, small_plan, fitted, splits)
    # A part may lack a class, or so few trees may not fill the rounds.
    except TipcastError as problem:
        LOG.warning("no warm-up, so the first phases take longer: %s", problem)


def find_clusters(run: Run, model_uri: str, shared: SharedRows) -> Clusters:
    """Let a rung's saved model assign the shared rows to its clusters."""
    from sklearn.metrics import adjusted_rand_score  # needed by clusterings only

    x = shared.features
    with temporary_folder() as folder:
        fetched = model_fetch.fetch(run.store, model_uri, folder, parse=False)
        scorer = native.load(fetched.path, fetched.format)
        labels = scorer.score(x.astype(np.float32))[:, 0]

    centres = np.stack([x[labels == label].mean(axis=0) for label in np.unique(labels)])
    return Clusters(centres, float(adjusted_rand_score(shared.groups, labels)))
