"""`tipcast train`: read two sides of the data, fit on the first, test on the second, log and
register the model.
"""

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from importlib import import_module
from typing import Any

import numpy as np
import scipy.special  # noqa: F401 - see below

from tipcast.compute import forkserver
from tipcast.compute.base import Session
from tipcast.compute.session import peaks, recorded
from tipcast.config.errors import TipcastError
from tipcast.config.schema import MultirunConfig, TrainConfig
from tipcast.datasets.base import raw_columns
from tipcast.datasets.prepare import held_out_rows
from tipcast.datasets.rows import constant_features
from tipcast.datasets.scan import FileInfo
from tipcast.evaluation import evaluator
from tipcast.jobs import say
from tipcast.jobs.repeat import REPEATS, original
from tipcast.jobs.run_context import run_context, run_names
from tipcast.jobs.train_plan import WHERE, Plan, Splits, check_model, make_plan, read
from tipcast.jobs.train_record import Outcome, Record, params, planned_params
from tipcast.measure.progress import Clock, progress
from tipcast.models.base import Estimator, Fitted
from tipcast.models.build import build_for_task
from tipcast.models.fit import drawn_rows, every_way, fit, hold, hold_scorer, predict, truth
from tipcast.tasks.kinds import named_by
from tipcast.tracking import portable

# SciPy is loaded before Dask and MLflow: skops, when it is imported, looks for each of SciPy's
# functions in all modules in their order, which takes seconds where SciPy comes after thousands of
# others. Workers do without.

CHECK_ROWS = 1000
"""Held-out rows that the portable model must score as the estimator does."""
TOGETHER = {**forkserver.TOGETHER, "tipcast.models.forest": "cuml.dask.ensemble"}
"""Module of a model -> what the driver loads for a fit by several GPUs."""
COUNTED = ("rounds", "trees", "iterations", "rows")
"""What a fit says of its length."""


def run(config: MultirunConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    if config.resume is not None:
        raise TipcastError(
            "C003", "resume", "goes with --multirun alone", "add --multirun, or leave resume out"
        )

    clock = Clock()
    check_model(config, named_by(config.task.kind))
    with clock.phase("list"), progress("list"):
        plan = make_plan(config)  # dataset and task

    first = original(config, plan)
    (name,), tags = (
        run_names([(config.model.name, command)]),
        {REPEATS: first.run_id} if first else {},
    )
    facts = params(config) | planned_params(plan)

    with run_context(
        config, command, job="train", name=name, params=facts, tags=tags, clock=clock
    ) as context:
        record = Record(context, config, plan, original=first)
        workers = context.start_workers()
        result = train(workers, record)

    return say(result, config.print)


def train(
    workers: Session, record: Record, read: Callable[[Session, TrainConfig, Plan], Splits] = read
) -> dict[str, Any]:
    """Read, fit, test and record, on workers that are up, in a run that is open; return what the
    job says of it.
    """
    context = record.context
    config = record.config
    plan = record.plan
    task = record.plan.task
    client = workers.client
    clock = context.clock
    estimator = build_for_task(config.model, workers.device, task)
    loaded = _load_ahead(workers, estimator)

    with recorded(client, context.folder / "dask.html", config.cluster.performance_report):
        with clock.phase("read") as facts:
            splits = read(workers, config, plan)
            facts += [f"{part.counts.rows:,} {name} rows" for name, part in splits.items()]

        with clock.phase("fit") as facts, progress(f"fit {config.model.name}") as told:
            # two threads that import may lock each other; what failed the fit raises again
            wait(loaded)
            fitted = fit(
                client, estimator, splits["train"], splits.get("validation"), config.seed, told
            )
            facts += [
                config.model.name,
                *(f"{fitted.info[key]:,} {key}" for key in COUNTED if key in fitted.info),
            ]

        with clock.phase("evaluate") as facts, progress("evaluate"):
            outcome = evaluate(client, plan, fitted, splits)
            constant = constant_features(client, splits["train"].x)
            # where another feature says that the value is missing, the model learns of the column
            columns = raw_columns(plan.dataset, plan.task.features, FileInfo())
            told_apart = {column.name for column in columns if column.indicator}
            outcome = dataclasses.replace(
                outcome, constant=[name for name in constant if name not in told_apart]
            )
            facts.append(f"test/{record.judge.headline.name} {outcome.test.headline:.4f}")

    with clock.phase("log") as facts, progress("log"):
        record.data(splits)
        record.metrics(outcome)
        record.figures(outcome)
        saved = fitted.save(context.folder)
        if fitted.format == "xgboost-ubj":
            held = hold(client, saved, fitted.format, workers.device)
            record.contributions(client, held, drawn_rows(saved), outcome)
        columns, raw = held_out(workers, plan)
        scores = every_way(
            client, fitted, saved, plan.dataset.compute(columns, plan.task.features, np)
        )
        logged, difference = record.model(saved, outcome, raw, scores, device=workers.device)
        facts.append(logged.uri)

    record.close(outcome, clock.seconds, peaks(client))
    registered = record.register(logged, difference, outcome)  # last: its run is whole
    first = record.original
    return context.result(
        model_uri=registered.registered or registered.uri,
        metrics=record.headlines(outcome)
        | {f"baseline/{name}": value for name, value in outcome.baseline.items()},
        phases=clock.seconds,
        **({"repeats": first.run_id} if first else {}),
    )


def _load_ahead(workers: Session, estimator: Estimator) -> list[Future[Any]]:
    """Begin to load what a fit by several GPUs needs, and then what the log needs, on a thread
    while rows are read.
    """
    several = workers.device == "cuda" and workers.n_workers > 1
    module = TOGETHER.get(estimator.__module__)
    thread = ThreadPoolExecutor(1, "load ahead")  # no daemon: a process must not end amid an import
    loaded = [thread.submit(import_module, module)] if several and module else []
    thread.submit(import_module, "tipcast.evaluation.plots")  # Matplotlib
    thread.submit(portable.list_packages)
    thread.shutdown(wait=False)
    return loaded


def evaluate(client: Any, plan: Plan, fitted: Fitted, splits: Splits) -> Outcome:
    """Measure on validation rows, where a threshold is chosen, and then on test rows."""
    judge = evaluator(plan.task.kind)
    held = hold_scorer(client, fitted.scorer)
    validation = None
    threshold = judge.threshold
    if rows := splits.get("validation"):
        predictions = predict(client, held, rows.x)
        validation = judge.evaluate(
            client, predictions, truth(client, held, rows), where=WHERE["validation"]
        )
        threshold = validation.threshold

    predictions = predict(client, held, splits["test"].x)
    answers = truth(client, held, splits["test"])
    test = judge.evaluate(client, predictions, answers, threshold=threshold, where=WHERE["test"])
    baseline = judge.baseline(test, splits["train"].counts, splits["test"].counts)
    return Outcome(splits, fitted, validation, test, baseline)


def held_out(workers: Session, plan: Plan) -> tuple[Any, Any]:
    """Return some raw rows of the test side, as canonical columns and under their raw names."""
    for fragment in plan.test.fragments:
        found: tuple[Any, Any] = workers.client.submit(
            held_out_rows, fragment, plan.test_recipe, plan.train.info, CHECK_ROWS, pure=False
        ).result()
        if len(found[1]):
            return found
    raise TipcastError(
        "M011", "data.test", "has no clean row to hold the model against", "test on other rows"
    )
