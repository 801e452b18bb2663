"""`tipcast train`: read two sides of the data, fit on the first, test on the second, log and register the model."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from tipcast.compute.base import Session
from tipcast.compute.session import check as check_session
from tipcast.compute.session import recorded, session
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import TrainConfig
from tipcast.config.temporary import temporary_folder
from tipcast.datasets import rows, split
from tipcast.datasets.base import timed
from tipcast.datasets.listing import identical
from tipcast.datasets.prepare import Recipe, held_out_rows
from tipcast.datasets.registry import open_dataset
from tipcast.evaluation.base import SHOWN, bounds, evaluator, judged_by
from tipcast.evaluation.drift import profile
from tipcast.jobs import closing
from tipcast.jobs.rehearsal import rehearse
from tipcast.jobs.train_record import Record, opened
from tipcast.jobs.training import Data, Outcome, Plan, held_out_draw
from tipcast.measure.clock import Clock
from tipcast.measure.memory import peaks
from tipcast.measure.progress import progress
from tipcast.models.base import Fitted
from tipcast.models.build import check
from tipcast.models.fit import fit as fit_model
from tipcast.models.predict import every_way, predict
from tipcast.tasks.base import Task, make_task
from tipcast.tracking.portable import Logged

LOG = logging.getLogger("tipcast")

CHECK_ROWS = 1000
"""Held-out rows that the portable model must score as the estimator does."""
COUNTED = ("rounds", "trees", "iterations", "rows")
"""What a fit says of its length."""


def run(config: TrainConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    check_session(config.backend, config.cluster)
    check(config.model, config.backend.name, categorical=config.task.categorical, kind=config.task.kind)
    clock = Clock()
    with clock.phase("list"), progress("list"):
        plan = make_plan(config)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        record = stack.enter_context(opened(config, plan, command, folder))
        with clock.phase("cluster") as facts, progress("cluster"):
            workers = stack.enter_context(session(config.backend, config.cluster))
            rehearse(workers, config, plan)
            facts.append(workers.size)
        record.run.set_tags(workers.tags)
        outcome, logged = finish(workers, record, clock)
    return closing.say(summary(record, outcome, logged, clock.seconds), config.print)


def finish(workers: Session, record: Record, clock: Clock) -> tuple[Outcome, Logged]:
    """Read, fit, test and record, on workers that are up, in a run that is open; register where that is asked for."""
    config, plan, folder = record.config, record.plan, record.folder
    with recorded(workers.client, folder / "dask.html", config.cluster.performance_report):
        with clock.phase("read") as facts:
            data = read(workers, config, plan)
            facts += [f"{part.counts.rows:,} {name} rows" for name, part in data.splits.items()]
        with clock.phase("fit") as facts:
            fitted = fit(workers, config, plan.task, data)
            facts += [config.model.name, *(f"{fitted.info[key]:,} {key}" for key in COUNTED if key in fitted.info)]
        with clock.phase("evaluate") as facts:
            outcome = measure(workers, plan, fitted, data)
            facts.append(f"test/{record.judge.headline.name} {outcome.test.headline:.4f}")
    with clock.phase("log") as facts, progress("log"):
        record.data(data)
        record.metrics(data, fitted, outcome)
        record.plots(data, fitted, outcome)
        saved = fitted.save(folder)
        columns, raw = held_out(workers, plan)
        rows_held_out = plan.dataset.compute(columns, plan.task.features, np)
        scores = every_way(workers.client, fitted.scorer, saved, rows_held_out)
        logged, difference = record.model(saved, outcome, raw, scores, device=workers.device)
        facts.append(logged.uri)
    record.close(data, outcome, clock.seconds, peaks(workers.client))
    return outcome, record.register(logged, difference, data, outcome)  # last: its run is whole


def summary(record: Record, outcome: Outcome, logged: Logged, phases: Mapping[str, float]) -> dict[str, Any]:
    """Return what the job says at its end."""
    test = outcome.test
    return {
        "run_id": record.run.id,
        "experiment_id": record.run.experiment_id,
        "run": record.run.link,
        "model_uri": logged.registered or logged.uri,
        "metrics": {f"test/{name}": value for name, value in list(test.shown().items())[:SHOWN]}
        | bounds(test.interval, f"test/{record.judge.headline.name}"),
        "phases": phases,
        "command": record.command,
    }


def make_plan(config: TrainConfig) -> Plan:
    """List the files of both sides and decide the split; every mistake that footers show ends here."""
    if not 0 <= config.seed < 2**31:
        raise TipcastError("C003", "seed", f"{config.seed} is no seed of every library", "use 0 to 2147483647")
    if not config.tracking.experiment.strip():
        raise TipcastError("C003", "tracking.experiment", "is empty", "name an experiment")
    register = config.tracking.register
    if register is not None and (not register or set(register) & set("/:")):
        raise TipcastError(
            "C003", "tracking.register", f"no name of a model: {register!r}", "use a name without / and :"
        )
    dataset = open_dataset(config.data)
    task = make_task(config.task, dataset)
    if task.kind not in config.model.kinds:
        raise TipcastError(
            "C003", "task.kind", f"{task.kind} is not what {config.model.name} does", f"use a model of kind {task.kind}"
        )
    recipe, test_recipe = Recipe(dataset, task), Recipe(dataset, task, subsets=True)
    train = dataset.scan("train", recipe.columns)
    test = dataset.scan("test", test_recipe.columns, optional=test_recipe.optional)
    for note in dict.fromkeys((*train.notes, *test.notes, *identical((*train.fragments, *test.fragments)))):
        LOG.warning(note)
    if train.period is not None and test.period is not None:
        cutoff = split.cutoff((timed(each.period) for each in train.fragments), test.period, task.validation)
        return Plan(train, test, dataclasses.replace(recipe, cutoff=cutoff), test_recipe)
    held_out = dataset.test_share
    test_recipe = dataclasses.replace(test_recipe, draw=held_out_draw(dataset, config.seed))
    if held_out or task.validation:
        first = (1 - held_out) * (1 - task.validation)
        shares = ((0.0, first), (first, 1 - held_out)) if task.validation else ((0.0, 1 - held_out),)
        recipe = dataclasses.replace(recipe, draw=split.Draw(config.seed, shares))
    return Plan(train, test, recipe, test_recipe)


def read(workers: Session, config: TrainConfig, plan: Plan) -> Data:
    """Read and prepare all rows on the workers, and refuse what cannot be trained on."""
    train = rows.start(workers, plan.train, plan.recipe)
    test = rows.start(workers, plan.test, plan.test_recipe)
    with progress("read", [*train, *test]):
        loaded = rows.collect(workers, plan.train, plan.recipe, train)
        tested = rows.collect(workers, plan.test, plan.test_recipe, test)
    limits, task = config.data.limits, plan.task
    rows.check_counts(plan.train, loaded.per_file, plan.recipe, limits)
    rows.check_counts(plan.test, tested.per_file, plan.test_recipe, limits)
    validation = loaded.splits[1] if len(loaded.splits) > 1 else None
    for name, part in (
        ("data.train", loaded.splits[0]),
        ("data.train (validation)", validation),
        ("data.test", tested.splits[0]),
    ):
        if part is not None:
            rows.check_split(name, part.counts, task, limits)
    if validation and (line := split.uneven(loaded.splits[0].counts.rows, validation.counts.rows, task.validation)):
        LOG.warning(line)
    return Data(loaded.splits[0], validation, tested.splits[0])


def fit(workers: Session, config: TrainConfig, task: Task, data: Data) -> Fitted:
    """Fit the model where the rows lie."""
    with progress(f"fit {config.model.name}") as told:
        return fit_model(
            workers.client,
            config.model,
            workers.device,
            data.train,
            data.validation,
            config.seed,
            categorical=task.categorical,
            kind=task.kind,
            classes=len(task.classes),
            progress=told,
        )


def measure(workers: Session, plan: Plan, fitted: Fitted, data: Data) -> Outcome:
    """Measure on validation rows, where a threshold is chosen, and then on test rows."""
    client, judge = workers.client, evaluator(plan.task.kind)
    validation, threshold, subsets = None, judge.threshold, {}
    with progress("evaluate"):
        if data.validation:
            predictions = predict(client, fitted.scorer, data.validation.x)
            where = "data.train (validation)"
            validation = judge.evaluate(client, predictions, judged_by(data.validation), where=where)
            threshold = validation.threshold
        predictions, truth = predict(client, fitted.scorer, data.test.x), judged_by(data.test)
        test = judge.evaluate(client, predictions, truth, threshold=threshold, where="data.test")
        for name, masks in data.test.subsets.items():
            try:
                subsets[name] = judge.estimate(client, predictions, truth, masks, where=f"data.test, {name}")
            except TipcastError as problem:  # it has no rows, or all have one label
                LOG.warning("no %s of test rows of %s: %s", judge.headline.title, name, problem.what)
        score = judge.profile(validation or test, "validation" if validation else "test")
        described = profile(client, data.train.x, data.train.parts, score, plan.task.categorical)
    return Outcome(validation, test, subsets, described)


def held_out(workers: Session, plan: Plan) -> tuple[Any, Any]:
    """Return some raw rows of the test side, as canonical columns and under their raw names."""
    for fragment in plan.test.fragments:
        found: tuple[Any, Any] = workers.client.submit(
            held_out_rows, fragment, plan.test_recipe, plan.train.facts, CHECK_ROWS, pure=False
        ).result()
        if len(found[1]):
            return found
    raise TipcastError("M011", "data.test", "has no clean row to hold the model against", "test on other rows")
