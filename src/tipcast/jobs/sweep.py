"""`tipcast sweep`: try many parameters in parallel, fit the best over all workers, test it, log and
register it.
"""

import dataclasses
import logging
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import scipy.special  # noqa: F401 - early, see train

from tipcast.compute.base import Session
from tipcast.config.arguments import given, with_given
from tipcast.config.errors import TipcastError
from tipcast.config.plain import restored, to_plain
from tipcast.config.schema import SweepConfig
from tipcast.datasets import limits
from tipcast.datasets.counts import per_file
from tipcast.datasets.counts import total as total_counts
from tipcast.datasets.parts import merged
from tipcast.evaluation import ranking
from tipcast.jobs import check_search, measured, say
from tipcast.jobs.run_context import given_keys, previous_run, run_context, run_names, without_keys
from tipcast.jobs.sweep_record import SweepRecord, whole_result
from tipcast.jobs.train import train
from tipcast.jobs.train_plan import WHERE, Plan, check_model, make_plan
from tipcast.jobs.train_record import Record, params, planned_params
from tipcast.measure.progress import Clock, progress
from tipcast.search.pool import Pool, TrialWorkers
from tipcast.search.proposals import check_space, merged_space, searcher, tried
from tipcast.search.trial import Objective, Study
from tipcast.tasks.kinds import named_by
from tipcast.tracking.artifacts import CONFIG, read_artifact
from tipcast.tracking.run import error_tags

LOG = logging.getLogger("tipcast")

STUDY = "sweep.study"
"""Tag that a sweep is resumed by."""
GROWING = ("random", "tpe")
"""Searches of which a longer one begins with the trials of a shorter."""
FREE = ("attempts", "trials_per_gpu", "trial_timeout_s", "timeout_s")
"""Keys of a search that no trial's result depends on."""
KEPT = ("data", "task", "model", "search", "seed")
"""Parts of the configuration that a sweep keeps from its first run."""


def run(config: SweepConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    clock = Clock()
    with ExitStack() as stack:
        previous = None
        if config.resume is None:
            config = without_fixed(config, command)  # a resumed one is stored without them
        else:
            previous, stored = stack.enter_context(
                previous_run(config.tracking, config.resume, "sweep")
            )
            text = read_artifact(previous.client, previous.id, CONFIG)
            begun = restored(text, config, f"run {previous.id}")
            config = apply_overrides(config, begun, command)
            trials = begun.search.trials

        check_model(config, named_by(config.task.kind))
        check_search(config)
        with clock.phase("list"), progress("list"):
            plan = make_plan(config)

        space = merged_space(config.model, config.search.space, alone=config.search.name == "grid")
        check_space(
            config.model, space, config.backend.name, config.task.categorical, plan.task.kind
        )
        metric = ranking(plan.task.kind, config.search.metric, "search.metric")
        study = identity(config, plan)
        if previous:
            tags = stored.data.tags
            if study != tags.get(STUDY):
                what = "its data or its configuration are not what they were"
                raise TipcastError(
                    "S003", previous.id, what, "put the data back, or start a new sweep"
                )

            # repeats the whole, which may have more trials now
            first = tags.get("command", command)
            if "search.trials" in given_keys(command):
                words = given(without_keys(first, "search.trials"))
                first = with_given(first, [*words, f"search.trials={config.search.trials}"])

            command = first
            if whole := whole_result(previous, stored, config, trials, metric.name, command):
                LOG.info(
                    "the sweep is whole: all of its trials are done, and nothing is fitted again"
                )
                return say(whole, config.print)

        objective = Objective(study, metric.name, metric.maximize)
        (name,) = run_names([(config.model.name, command)], f"{config.search.name} search of ")
        recorded = params(
            config, later=["search.trials", *(f"model.params.{name}" for name in space)]
        )
        recorded |= planned_params(plan)
        opened = run_context(
            config,
            command,
            job="sweep",
            name=name,
            params=recorded,
            tags={STUDY: study},
            clock=clock,
            resume=previous,
            lease=True,
        )
        context = stack.enter_context(opened)
        sweep = SweepRecord(context, config, plan, space, objective)
        if previous:
            sweep.resume()

        with sweep.closed():
            workers = context.start_workers()
            search(sweep, workers, clock)
            best = sweep.best
            model = dataclasses.replace(config.model, params={**config.model.params, **best.params})
            refit = Record(
                context,
                dataclasses.replace(config, model=model),
                plan,
                trial=objective.key(best.number),
            )
            result = train(workers, refit)
            with progress("leaderboard"):
                result |= sweep.close()

        problem = sweep.problem()
        if problem:
            context.run.set_tags(error_tags(problem))

    return say(result, config.print, problem=problem)


def search(sweep: SweepRecord, session: Session, clock: Clock) -> None:
    """Have the rows read, refuse what cannot be trained on, and run the trials that are missing."""
    config = sweep.config
    spec = sweep.config.search
    plan = sweep.plan
    space = sweep.space
    configured = {name: config.model.params[name] for name in space if name in config.model.params}
    first = configured if spec.baseline else None  # parameters of trial 0
    proposed = searcher(spec, space, config.seed, sweep.objective, sweep.trials, first)
    sweep.total = proposed.total
    # a grid of a few parameters may have thousands
    LOG.info("%-9s%d in all", "trials", sweep.total)
    study = Study(
        objective=sweep.objective,
        sweep=uuid.uuid4().hex[:8],
        fragments=merged(plan.train.fragments, session.frames.batch_rows),
        recipe=plan.recipe,
        frames=session.frames,
        model=config.model,
        device=session.device,
        seed=config.seed,
        measure=partial(measured, plan.task.kind),
    )
    shared = {
        study.estimator(params).sharing
        for params in ({}, *({name: value} for name, value in tried(space)))
    }
    study = dataclasses.replace(study, again=len(shared) > 1 or None in shared)
    workers = TrialWorkers(session.client, study, spec.trials_per_gpu, config.cluster.wait_s)

    with workers.opened():
        with clock.phase("load") as facts, progress("read"):
            counts = workers.load(spec.attempts)
            limits.check_counts(
                plan.train, per_file(study.fragments, counts), plan.recipe, config.data.limits
            )
            for side, name in enumerate(("train", "validation")):
                total = total_counts([parts[side] for parts in counts])
                limits.check_split(WHERE[name], total, plan.task, config.data.limits)
                facts.append(f"{total.rows:,} {name} rows")

        pool = Pool(workers, spec.attempts, spec.trial_timeout_s, spec.timeout_s)
        with clock.phase("search") as facts, progress(f"{spec.name} search") as bar:
            for event in pool.events(proposed):
                sweep.take(event)
                bar(sweep.done, sweep.total)
            facts.append(f"{sweep.done} of {sweep.total} trials")

    if pool.timed_out:
        LOG.info("search.timeout_s is over; %s", sweep.how_to_go_on())


def apply_overrides(wanted: SweepConfig, own: SweepConfig, command: str) -> SweepConfig:
    """Return a sweep's own configuration with what the command line, which composes ``wanted``, may
    change of it.
    """
    changes: dict[str, Any] = {}
    for key in given_keys(command):
        root, _, name = key.partition(".")
        if root not in KEPT or key.startswith("data.storage_options"):
            continue
        value = _at(wanted, key)
        was = _at(own, key)
        more = (
            key == "search.trials" and own.search.name in GROWING and value and value >= (was or 0)
        )
        if more or (root == "search" and name in FREE):
            changes[name] = value
        elif value != was:
            fix = "leave it out, or start a new sweep"
            raise TipcastError("C003", key, f"the sweep has {was}, and a resumed one keeps it", fix)

    return dataclasses.replace(own, search=dataclasses.replace(own.search, **changes))


def _at(config: SweepConfig, key: str) -> Any:
    """Return what a configuration has at a key; of a whole group what it is called."""
    value: Any = to_plain(config)
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return (
        value
        if "." in key or not isinstance(value, Mapping)
        else value.get("name") or value.get("source")
    )


def without_fixed(config: SweepConfig, command: str) -> SweepConfig:
    """Return a sweep whose model's space lacks the parameters that the command line sets."""
    model = config.model
    fixed = {
        key.removeprefix("model.params.")
        for key in given_keys(command)
        if key.startswith("model.params.")
    }
    for name in sorted(fixed):
        if config.search.space.get(name) is not None:
            what = f"is fixed to {model.params.get(name)}, and search.space.{name} searches it"
            raise TipcastError("C003", f"model.params.{name}", what, "leave one of the two out")

    space = {
        name: axis
        for name, axis in model.space.items()
        if name not in fixed or name not in model.params
    }
    return dataclasses.replace(config, model=dataclasses.replace(model, space=space))


def identity(config: SweepConfig, plan: Plan) -> str:
    """Return a digest of the data and of all else that decides what trials are proposed and what
    comes of them.
    """
    plain = to_plain(config)
    search = plain["search"]
    model = plain["model"]
    without_effect = {*FREE, *(("trials",) if search["name"] in GROWING else ())}
    facts = {
        "task": plain["task"],
        "model": [model[name] for name in ("name", "params", "fit", "space")],
        "search": {name: value for name, value in search.items() if name not in without_effect},
        "seed": plain["seed"],
    }

    return plan.identity(facts)[:8]
