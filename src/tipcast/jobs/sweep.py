"""`tipcast sweep`: try many parameters in parallel; fit the best over all workers, test, log and
register the model.
"""

import dataclasses
import logging
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import scipy.special  # noqa: F401 - early, see train

from tipcast.compute.base import Session
from tipcast.config.errors import TipcastError
from tipcast.config.schema import SweepConfig
from tipcast.datasets.counts import per_file, total
from tipcast.datasets.limits import check_counts, check_split
from tipcast.datasets.parts import merged
from tipcast.jobs import end_job
from tipcast.jobs.run_context import RunContext, run_context, run_names, run_params
from tipcast.jobs.sweep_plan import (
    SWEEP_DIGEST,
    SweepPlan,
    finished_result,
    plan_sweep,
    previous_sweep,
)
from tipcast.jobs.sweep_record import SweepRecord
from tipcast.jobs.train import train
from tipcast.jobs.train_plan import WHERE, training_splits
from tipcast.jobs.train_record import Record, planned_params
from tipcast.measure.progress import Clock, progress
from tipcast.search.pool import Pool
from tipcast.search.proposals import probes, searcher
from tipcast.search.trial import Rungs, SweepSetup
from tipcast.search.trial_workers import TrialWorkers

LOG = logging.getLogger("tipcast")


def run(config: SweepConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says. If trials failed, raise S001 after the best one has been
    tested.
    """
    clock = Clock()
    with previous_sweep(config) as previous:
        plan = plan_sweep(config, command, previous, clock)
        result = finished_result(plan)

        if result is not None:
            LOG.info("the sweep is already complete; nothing to do")
            return end_job(result, plan.config.print)

        result, problem = run_sweep(plan, clock)

    return end_job(result, plan.config.print, problem=problem)


def run_sweep(plan: SweepPlan, clock: Clock) -> tuple[dict[str, Any], TipcastError | None]:
    """Run the trials that are missing, fit the best and test it, all in one run.

    Returns the result, and the error about failed trials, if any.
    """
    with open_sweep(plan, clock) as context:
        sweep = SweepRecord(context, plan)
        if plan.previous is not None:
            sweep.resume()

        with sweep.closing_children():
            session = context.start_workers()
            search(sweep, session)
            tested = sweep.kept_best() or fit_best(sweep, session)
            with progress("leaderboard"):
                result = tested | sweep.finish_page()

        return result, sweep.tag_problem()


def open_sweep(plan: SweepPlan, clock: Clock) -> AbstractContextManager[RunContext]:
    """Open the sweep's run, or that of the sweep that is resumed; see ``run_context``."""
    config = plan.config
    (name,) = run_names([(config.model.name, plan.command)], f"{config.search.name} search of ")
    searched = [f"model.params.{name}" for name in plan.varied]
    resume = None
    if plan.previous is not None:
        resume = plan.previous.run

    return run_context(
        config,
        plan.command,
        job="sweep",
        name=name,
        params=run_params(config, later=["search.trials", *searched]) | planned_params(plan.data),
        tags={SWEEP_DIGEST: plan.objective.sweep_digest},
        clock=clock,
        resume=resume,
        lease=True,
    )


def search(sweep: SweepRecord, session: Session) -> None:
    """Run the trials that are missing on rows that every worker keeps, and record their events."""
    plan = sweep.plan
    clock = sweep.context.clock
    spec = plan.config.search
    proposals = searcher(
        spec, plan.space, plan.config.seed, plan.objective, sweep.trials, plan.baseline
    )
    sweep.total = proposals.total
    log_total(sweep.total, plan.objective.rungs)

    sweep_setup = make_sweep_setup(plan, session)
    trial_workers = TrialWorkers(
        session.client, sweep_setup, spec.trials_per_gpu, plan.config.cluster.wait_s
    )
    pool = Pool(trial_workers, spec.attempts, spec.trial_timeout_s, spec.timeout_s)
    with trial_workers.opened():
        load_rows_on_workers(trial_workers, plan, clock)

        with clock.phase("search") as notes, progress(f"{spec.name} search") as show:
            for event in pool.events(proposals):
                sweep.record_event(event)
                show(sweep.done, sweep.total)
            notes.append(f"{sweep.done} of {sweep.total} trials")

    if pool.timed_out:
        LOG.info("search.timeout_s has elapsed; %s", sweep.how_to_go_on())


def log_total(total: int, rungs: Rungs | None) -> None:
    """Log how many trials there are: a grid of a few parameters may have thousands."""
    if rungs is None:
        LOG.info("%-9s%d in all", "trials", total)
        return

    # Not "trials": those of later rungs have numbers beyond this one.
    LOG.info("%-9s%d in %d rungs", "fits", total, len(rungs.trees))
    LOG.info("%-9s%s trees", "rungs", ", ".join(map(str, rungs.trees)))


def make_sweep_setup(plan: SweepPlan, session: Session) -> SweepSetup:
    """Return what all trials have in common.

    Rows are kept besides their prepared form if another trial may need another form.
    """
    sweep_setup = SweepSetup(
        objective=plan.objective,
        sweep_id=uuid.uuid4().hex[:8],
        parts=merged(
            plan.data.train.parts, session.frames.batch_rows(len(plan.data.recipe.columns))
        ),
        recipe=plan.data.recipe,
        frames=session.frames,
        model=plan.config.model,
        device=session.device,
        seed=plan.config.seed,
        limits=plan.config.data.limits,
        balanced=plan.config.task.class_weight is not None,
    )
    changes: list[dict[str, Any]] = [{}, *({name: value} for name, value in probes(plan.space))]
    preparations = {sweep_setup.estimator(params).sharing for params in changes}
    return dataclasses.replace(sweep_setup, keep_rows=len(preparations) > 1 or None in preparations)


def load_rows_on_workers(trial_workers: TrialWorkers, plan: SweepPlan, clock: Clock) -> None:
    """Have the workers read the rows; D014 and D015 for rows from which nothing can be learnt, and
    for such folds, which the workers check before they prepare them for a fit.
    """
    data = plan.data
    limits = plan.config.data.limits

    with clock.phase("load") as notes, progress("read"):
        # As often as a trial may lose its worker.
        counts = trial_workers.load(max_tries=plan.config.search.attempts)
        counts_per_file = per_file(trial_workers.sweep_setup.parts, counts)
        check_counts(data.train, counts_per_file, data.recipe, limits)

        for side, name in enumerate(training_splits(data.task)):
            side_counts = total([parts[side] for parts in counts])
            check_split(WHERE[name], side_counts, data.task, limits)
            notes.append(f"{side_counts.rows:,} {name} rows")


def fit_best(sweep: SweepRecord, session: Session) -> dict[str, Any]:
    """Fit the best trial's parameters over all workers; test and record as ``train`` does.

    Raises S004 if no trial ended well.
    """
    plan = sweep.plan
    best = sweep.best
    model = plan.config.model
    model = dataclasses.replace(model, params={**model.params, **best.params})

    config = dataclasses.replace(plan.config, model=model)
    trial = plan.objective.key(best.number)
    record = Record(sweep.context, config, plan.data, trial=trial, resumed=sweep.cut_off)
    return train(session, record)
