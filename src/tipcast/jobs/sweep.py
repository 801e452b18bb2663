"""`tipcast sweep`: try many parameters in parallel, fit the best over all workers, test it, log and register it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import scipy.special  # noqa: F401 - early, see train

from tipcast.compute.base import Session
from tipcast.compute.session import check as check_session
from tipcast.config.job_schemas import SweepConfig
from tipcast.config.plain import to_plain
from tipcast.datasets import rows
from tipcast.evaluation.base import ranking
from tipcast.jobs import closing, preflight, sweep_plan
from tipcast.jobs.run_context import run_context
from tipcast.jobs.sweep_record import SweepRecord
from tipcast.jobs.sweep_report import write_report
from tipcast.jobs.sweep_resume import STUDY, apply_overrides, load_previous_sweep
from tipcast.jobs.train import train
from tipcast.jobs.train_plan import WHERE, check_model, make_plan
from tipcast.jobs.train_record import Record, params
from tipcast.jobs.warm_up import warm_up
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.search.pool import Pool
from tipcast.search.proposals import searcher
from tipcast.search.trial import Objective, Study
from tipcast.search.workers import TrialWorkers

LOG = logging.getLogger("tipcast")


def run(config: SweepConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    check_session(config.backend, config.cluster)
    clock = Clock()
    with ExitStack() as stack:
        previous = stack.enter_context(load_previous_sweep(config)) if config.resume is not None else None
        if previous:
            config = apply_overrides(config, previous.config, command)
        else:
            config = sweep_plan.without_fixed(config, command)
        check_model(config, config.task.kind)
        preflight.check_search(config)
        with clock.phase("list"), progress("list"):
            plan = make_plan(config)
        space = sweep_plan.check(config, plan.task.kind)
        metric = ranking(plan.task.kind, config.search.metric, "search.metric")
        if previous:  # parameters tell of the first cluster alone
            study, tags = previous.study(plan), {"sweep.resumed_by": command}
            command = previous.command(config, command)
        else:
            study = sweep_plan.identity(to_plain(config), plan)
            tags = {STUDY: study}
        context = stack.enter_context(
            run_context(
                config,
                command,
                job="sweep",
                name=f"{config.search.name} search of {config.model.name}",
                params=params(config, later=["search.trials", *(f"model.params.{name}" for name in space)]),
                tags=tags,
                clock=clock,
                resume=previous.previous if previous else None,
                lease=True,
            )
        )
        objective = Objective(study, metric.name, metric.maximize)
        sweep = SweepRecord(context, config, plan, space, objective)
        if previous:
            sweep.resume(previous)
        with sweep.closed():
            workers = context.start_workers(lambda workers: warm_up(workers, config, plan))
            search(sweep, workers, clock)
            best = sweep.best
            model = dataclasses.replace(config.model, params={**config.model.params, **best.params})
            refit = Record(context, dataclasses.replace(config, model=model), plan, trial=best.key)
            result = train(workers, refit)
            with progress("leaderboard"):
                sweep.close()
                write_report(sweep)
        result |= sweep.result()
        problem = sweep.problem()
        if problem:
            context.run.set_tags({"error.code": problem.code, "error.message": problem})
    return closing.say(result, config.print, problem=problem)


def search(sweep: SweepRecord, session: Session, clock: Clock) -> None:
    """Run the trials that are missing."""
    config, spec, plan, space = sweep.config, sweep.config.search, sweep.plan, sweep.space
    configured = {name: config.model.params[name] for name in space if name in config.model.params}
    first = configured if spec.baseline else None  # parameters of trial 0
    proposed = searcher(spec, space, config.seed, sweep.objective, sweep.trials, first)
    sweep.total = proposed.total
    study = sweep_plan.study(config, plan, space, sweep.objective, session)
    workers = TrialWorkers(session.client, study, spec.trials_per_gpu, config.cluster.wait_s)
    with workers.opened():
        with clock.phase("load") as facts, progress("read"):
            facts += _check_rows(sweep, study, workers)
        slots = sum(workers.slots.values())
        if spec.name == "tpe" and slots > spec.max_concurrent:
            LOG.warning(
                "%d slots, of which TPE uses %d: with more at once (search.max_concurrent) it learns less from each",
                slots,
                spec.max_concurrent,
            )
        pool = Pool(workers, spec.attempts, spec.trial_timeout_s, spec.timeout_s)
        with clock.phase("search") as facts, progress(f"{spec.name} search") as bar:
            for event in pool.events(proposed):
                sweep.take(event, workers.slots, bar)
            facts.append(sweep.pace())
    if pool.timed_out:
        what = f"{sweep.total - sweep.done} of {sweep.total} trials were not tried"
        goes_on = f"tipcast sweep resume={sweep.run.id} goes on"
        sweep.remark = f"After search.timeout_s={spec.timeout_s:g} s {what}; {goes_on}."
        LOG.info(sweep.remark)


def _check_rows(sweep: SweepRecord, study: Study, workers: TrialWorkers) -> list[str]:
    """Have the rows read, and refuse what cannot be trained on before any trial begins; return what was read."""
    config, plan = sweep.config, sweep.plan
    counts = workers.load(config.search.attempts)
    rows.check_counts(plan.train, rows.per_file(study.fragments, counts), plan.recipe, config.data.limits)
    read: list[str] = []
    for side, name in enumerate(("train", "validation")):
        found = rows.total([parts[side] for parts in counts])
        rows.check_split(WHERE[name], found, plan.task, config.data.limits)
        read.append(f"{found.rows:,} {name} rows")
    return read
