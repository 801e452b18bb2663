"""`tipcast ladder`: train the same on one core, on all cores, on one GPU and on several; compare time and result."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Mapping
from typing import Any

import scipy.special  # noqa: F401 - early, see train

from tipcast.compute import gpus
from tipcast.compute.cluster import CORES_PER_PROCESS, cores
from tipcast.compute.session import check as check_session
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import LadderConfig
from tipcast.config.plain import to_plain
from tipcast.config.schema import BackendSpec, ClusterSpec, LocalCluster, LocalCudaCluster
from tipcast.evaluation.base import evaluator
from tipcast.jobs import closing
from tipcast.jobs.ladder_record import LadderResult, Rung, SharedRows, compared, record, shared_rows
from tipcast.jobs.run_context import run_context, without_keys
from tipcast.jobs.train import train
from tipcast.jobs.train_plan import Plan, make_plan
from tipcast.jobs.train_record import SECTIONS, Record, params
from tipcast.jobs.warm_up import warm_up
from tipcast.models.build import check as check_model
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")


def run(config: LadderConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says, or raise the first error of a rung after all have run."""
    plan = make_plan(config)
    steps, missing = rungs(config, plan.task.kind)
    known = params(config, [name for name in SECTIONS if name not in ("backend", "cluster")])
    shown = shared_rows(plan) if plan.task.kind == "clustering" else None
    results: list[LadderResult] = []
    failed: dict[str, TipcastError] = {}
    name = f"ladder of {config.model.name}"
    with run_context(config, command, job="ladder", name=name, params=known) as context:
        context.run.set_tags({"data.digest": plan.train.digest, "data.test_digest": plan.test.digest})
        for step in steps:
            LOG.info("%-9s%s", "rung", step.name)
            try:
                results.append(climb(step, config, plan, command, context.run, shown))
            except TipcastError as problem:
                LOG.warning("%s: %s", step.name, problem)
                failed[step.name] = problem
        if not results:
            raise next(iter(failed.values()))
        missing |= {name: str(problem) for name, problem in failed.items()}
        rows = compared(results, evaluator(plan.task.kind).headline.name, config.tolerance)
        record(context, config, plan, results, rows, missing, shown)
    metrics = {f"speedup/{each.rung.key}": row["speed_up"] for each, row in zip(results, rows, strict=True)}
    result = context.result(rungs=rows, not_run=missing, metrics=metrics)
    words = {row["rung"]: f"{row['job_s']:.2f} s, {row['speed_up']:.2f} x, {row['verdict']}" for row in rows}
    first = next(iter(failed.values()), None)
    return closing.say(result, config.print, lines={**result, "rungs": words}, problem=first)


def rungs(config: LadderConfig, kind: str) -> tuple[list[Rung], dict[str, str]]:
    """Return what is asked for, by default one and all of this machine's cores and GPUs, and why others cannot run."""
    if not isinstance(config.cluster, LocalCluster | LocalCudaCluster):
        what = f"a ladder runs on this machine, not on cluster={config.cluster.kind}"
        raise TipcastError("C003", "cluster.kind", what, "leave cluster out, or use train on that cluster")
    there = len(gpus.visible())
    steps: list[Rung] = []
    missing: dict[str, str] = {}
    for device, name, given, usual in (
        ("cpu", "cores", config.cores, {1, cores()}),
        ("gpu", "gpus", config.gpus, {1, max(there, 2)}),
    ):
        for size in sorted(set(usual if given is None else given)):
            if size < 1:
                raise TipcastError("C003", name, f"must be at least 1, got {size}", "use 1 or more")
            step = Rung(device, size, _cluster(config.cluster, device, size))
            if lack := _lack(config, kind, step, there):
                missing[step.name] = lack
            else:
                steps.append(step)
    if not steps and missing:
        what = f"nothing to run: {next(iter(missing.values()))}"
        raise TipcastError("C003", "cores, gpus", what, "name what this machine has")
    if not steps:
        raise TipcastError("C003", "cores, gpus", "no rung is asked for", "use cores=[1,2] or gpus=[1]")
    return steps, missing


def _cluster(given: ClusterSpec, device: str, size: int) -> ClusterSpec:
    """Return the cluster of some cores or GPUs: one process for a core, several that train together for more."""
    if device == "gpu":
        spec = given if isinstance(given, LocalCudaCluster) else LocalCudaCluster("local_cuda")
        return dataclasses.replace(spec, n_workers=size)
    local = given if isinstance(given, LocalCluster) else LocalCluster("local")
    even = (many for many in range(min(size, 2), size + 1) if size % many == 0)
    workers = next(many for many in even if size // many <= CORES_PER_PROCESS)
    return dataclasses.replace(local, n_workers=workers, threads_per_worker=size // workers, processes=True)


def _lack(config: LadderConfig, kind: str, step: Rung, there: int) -> str:
    """Return why a rung cannot run on this machine or with this model; empty where it can."""
    if step.device == "cpu" and step.size > cores():
        return f"the machine has {cores()} cores"
    if step.device == "gpu" and step.size > there:
        return f"the machine has {there or 'no'} GPU{'s' * (there > 1)}"
    try:
        check_session(BackendSpec(step.device), step.cluster)
        check_model(config.model, step.device, categorical=config.task.categorical, kind=kind)
    except TipcastError as problem:
        if problem.code in {"C002", "C010", "K006", "K007"}:  # there is none such; other mistakes are every rung's
            return problem.what
        raise
    return ""


def climb(
    step: Rung, config: LadderConfig, plan: Plan, command: str, parent: Run, shown: SharedRows | None
) -> LadderResult:
    """Train on a rung, as a child run of the parent."""
    tracking = dataclasses.replace(config.tracking, run_name=None, register=None)
    own = dataclasses.replace(config, backend=BackendSpec(step.device), cluster=step.cluster, tracking=tracking)
    repeat = _repeat(command, step)
    with run_context(own, repeat, job="train", name=step.name, params=params(own), parent=parent) as context:
        record = Record(context, own, plan)
        # All are warmed up: libraries load before the clock runs.
        workers = context.start_workers(lambda workers: warm_up(workers, own, plan), always=True)
        result = train(workers, record)
    headline = result["metrics"][f"test/{record.judge.headline.name}"]
    labels, adjusted_rand = (None, None) if shown is None else shown.clusters(context.run.client, result["model_uri"])
    return LadderResult(step, context.run.id, dict(context.clock.seconds), headline, labels, adjusted_rand)


def _repeat(command: str, step: Rung) -> str:
    """Return the command that trains on a rung alone."""
    words = shlex.split(without_keys(command, "cores", "gpus", "tolerance"))[2:]
    cluster = to_plain(step.cluster)
    sizes = [f"cluster.{name}={cluster[name]}" for name in ("n_workers", "threads_per_worker") if name in cluster]
    return shlex.join(["tipcast", "train", *words, f"cluster={step.cluster.kind}", f"backend={step.device}", *sizes])
