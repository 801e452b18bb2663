"""`tipcast sweep`: try many parameters in parallel, fit the best over all workers, test it, log and register it."""

from __future__ import annotations

import dataclasses
import logging
from contextlib import ExitStack

from tipcast.backends.base import Session
from tipcast.backends.session import check as check_session
from tipcast.backends.session import session
from tipcast.config.schema_sweep import SweepConfig
from tipcast.config.temporary import temporary_folder
from tipcast.data import rows
from tipcast.estimators.build import check as check_model
from tipcast.jobs import closing, sweep_account, sweep_plan, sweep_progress
from tipcast.jobs.rehearsal import rehearse
from tipcast.jobs.sweep_again import gone_on, grown
from tipcast.jobs.sweep_record import SweepRecord
from tipcast.jobs.sweep_resume import Earlier, taken_up
from tipcast.jobs.train import finish, make_plan, summary
from tipcast.jobs.train_record import opened
from tipcast.jobs.training import Plan
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.search.hosts import Hosts
from tipcast.search.pool import Pool
from tipcast.search.space import Space
from tipcast.tracking.children import clear_problem
from tipcast.tracking.lease import leased

LOG = logging.getLogger("tipcast")

TPE_SHARE = 4
"""With more than one in so many of its trials running at once, TPE learns little."""


def run(config: SweepConfig, command: str) -> None:
    """Run the job."""
    check_session(config.backend, config.cluster)
    clock = Clock()
    with ExitStack() as stack:
        earlier = stack.enter_context(taken_up(config)) if config.resume is not None else None
        config = gone_on(config, earlier.config, command) if earlier else config
        check_model(config.model, config.backend.name, categorical=config.task.categorical)
        space = sweep_plan.check(config)
        with clock.phase("list"), progress("list"):
            plan = make_plan(config)
        identity = sweep_plan.identity(config, plan, space)
        if earlier:
            earlier.check(identity)
            resumed_by, command = command, earlier.command or command
            if config.search.trials != earlier.config.search.trials:
                command = grown(command, config.search.trials)
        folder = stack.enter_context(temporary_folder())
        name = f"{config.search.name} search of {config.model.name}"
        later = ["search.trials", *(f"model.params.{name}" for name in space)]
        record = stack.enter_context(
            opened(config, plan, command, folder, job="sweep", name=name, later=later, resume=config.resume)
        )
        record.run.set_tags({"sweep.study": identity})
        if earlier:
            record.run.set_tags({"sweep.resumed_by": resumed_by})  # parameters tell of the first cluster alone
            clear_problem(record.run.client, record.run.id)
        lease = earlier.lease if earlier else stack.enter_context(leased(record.run.client, record.run.id))
        sweep = SweepRecord(record, config, space, identity, lease)
        if earlier:
            sweep.take_over(earlier)
        with sweep.closed():
            with clock.phase("cluster") as facts, progress("cluster"):
                workers = stack.enter_context(session(config.backend, config.cluster))
                rehearse(workers, config, plan)
                facts.append(workers.size)
            record.run.set_tags(workers.tags)
            _search(config, plan, space, workers, sweep, earlier, clock)
            best = sweep.best
            model = dataclasses.replace(config.model, params={**config.model.params, **best.params})
            refit = dataclasses.replace(record, config=dataclasses.replace(config, model=model), trial=best.key)
            outcome, logged = finish(workers, refit, clock)
            with progress("leaderboard"):
                sweep.close()
                sweep_account.write(sweep)
        said = {**summary(record, outcome, logged, clock.seconds), **sweep.said()}
        problem = sweep.problem()
        if problem:
            record.run.set_tags({"error.code": problem.code, "error.message": problem})
    closing.say(said, config.print)
    if problem:
        raise problem


def _search(
    config: SweepConfig,
    plan: Plan,
    space: Space,
    workers: Session,
    sweep: SweepRecord,
    earlier: Earlier | None,
    clock: Clock,
) -> None:
    """Run the trials that are missing."""
    if config.search.through == "joblib":
        from tipcast.jobs import sweep_joblib  # imports scikit-learn, which takes a second

        sweep_joblib.search(config, plan, space, workers, sweep, earlier, clock)
        return
    known = earlier.known if earlier else {}
    searcher = sweep_plan.searcher(config, space, known, earlier.begun if earlier else [])
    study = sweep_plan.study(config, plan, space, workers)
    spec = config.search
    hosts = Hosts(workers.client, study, spec.trials_per_gpu, config.cluster.wait_s)
    sweep.total = searcher.total
    with hosts.opened():
        with clock.phase("load") as facts, progress("read"):
            facts += _check_rows(config, plan, hosts)
        slots = sum(hosts.slots.values())
        if spec.name == "tpe" and slots > searcher.total / TPE_SHARE:
            LOG.warning(
                "%d of %d trials run at once: TPE learns from those that have ended, and draws the others nearly at "
                "random; use fewer workers or more trials",
                slots,
                searcher.total,
            )
        with clock.phase("search") as facts, sweep.timed(), progress(f"{spec.name} search") as told:
            for event in Pool(hosts, spec.attempts, spec.trial_timeout_s).events(searcher):
                sweep.take(event)
                sweep_progress.tell(sweep, event, hosts.slots, told)
            facts.append(sweep_progress.summary(sweep))


def _check_rows(config: SweepConfig, plan: Plan, hosts: Hosts) -> list[str]:
    """Have the rows read, and refuse what cannot be trained on before any trial begins; return what was read."""
    counts = hosts.load(config.search.attempts)
    rows.check_counts(plan.train, rows.per_file(hosts.study.fragments, counts), plan.recipe, config.data.limits)
    read: list[str] = []
    for side, name in enumerate(("data.train", "data.train (validation)")):
        found = rows.total([parts[side] for parts in counts])
        rows.check_split(name, found, plan.task, config.data.limits)
        read.append(f"{found.rows:,} {'validation' if side else 'train'} rows")
    return read
