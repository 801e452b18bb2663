"""A sweep's trials by scikit-learn's GridSearchCV over joblib's Dask backend, on a sample of the rows."""

from __future__ import annotations

import logging

from tipcast.backends.base import Session
from tipcast.config.schema_sweep import SweepConfig
from tipcast.data import rows
from tipcast.estimators import sampling, scikit_learn
from tipcast.estimators.build import build
from tipcast.estimators.sharing import Split
from tipcast.jobs import sweep_plan, sweep_progress
from tipcast.jobs.sweep_record import SweepRecord
from tipcast.jobs.sweep_resume import Earlier
from tipcast.jobs.training import Plan
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.search.grid_cv import GridCv
from tipcast.search.proposals import LISTED
from tipcast.search.space import Space

LOG = logging.getLogger("tipcast")


def search(
    config: SweepConfig,
    plan: Plan,
    space: Space,
    workers: Session,
    sweep: SweepRecord,
    earlier: Earlier | None,
    clock: Clock,
) -> None:
    """Run the trials that are missing."""
    proposals = LISTED[config.search.name](config.search, space, config.seed)
    sweep.total = len(proposals)
    missing = [proposal for proposal in proposals if proposal.number not in sweep.trials]
    if not missing:
        return
    with clock.phase("load") as facts:
        sample = _sample(config, plan, workers, sweep)
        facts.append(f"a sample of {len(sample.y):,} train rows")
    local = build(config.model, workers.device, "local", config.task.categorical)
    study = sweep_plan.study(config, plan, space, workers)
    trials = GridCv(workers.client, study, scikit_learn.own(local, config.seed), sample).events(missing)
    slots = dict(workers.client.nthreads())
    with clock.phase("search") as facts, sweep.timed(), progress("grid search by joblib") as told:
        for event in trials:
            sweep.take(event)
            sweep_progress.tell(sweep, event, slots, told)
        facts.append(sweep_progress.summary(sweep))


def _sample(config: SweepConfig, plan: Plan, workers: Session, sweep: SweepRecord) -> Split:
    """Read the training period on the workers, refuse what cannot be trained on, and bring a sample home."""
    reading = rows.start(workers, plan.train, plan.recipe)
    with progress("read", reading):
        loaded = rows.collect(workers, plan.train, plan.recipe, reading)
    rows.check_counts(plan.train, loaded.per_file, plan.recipe, config.data.limits)
    most = config.search.rows
    found, said = [], []
    for name, part, limit in (
        ("training", loaded.splits[0], min(most, int(config.model.fit.get("rows") or most))),
        ("validation", loaded.splits[1], most),
    ):
        where = "data.train" if name == "training" else "data.train (validation)"
        rows.check_split(where, part.counts, plan.task, config.data.limits)
        parts, every = sampling.start(workers.client, part.x, part.y, limit, config.seed)
        found.append(sampling.joined(workers.client.gather(parts)))
        said.append(f"{len(found[-1][1]):,} of {every:,} {name} rows")
        sweep.record.run.log_metrics({f"sweep/{name}_rows": len(found[-1][1])})
    remark = f"Trials are fitted on {said[0]} and judged on {said[1]}, by scikit-learn's GridSearchCV."
    LOG.info(remark)
    sweep.remarks.append(remark)
    return Split(*found[0], found[1])
