"""`tipcast train`: read two periods of trips, fit on the first, test on the second, log and register the model."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tipcast.backends.base import Session
from tipcast.backends.cluster import recorded
from tipcast.backends.session import session
from tipcast.config.schema import TrainConfig
from tipcast.data import rows, split, validate
from tipcast.data.fragments import Listing
from tipcast.data.prepare import Recipe
from tipcast.data.sources import list_fragments
from tipcast.estimators.base import Fitted
from tipcast.estimators.build import build, check
from tipcast.estimators.predict import predict
from tipcast.evaluation.metrics import Auc, auc, evaluate
from tipcast.evaluation.result import Evaluation
from tipcast.jobs import closing
from tipcast.measure.clock import Clock
from tipcast.measure.memory import peaks
from tipcast.measure.progress import progress


LOG = logging.getLogger("tipcast")


@dataclass(frozen=True)
class Plan:
    """What will be read, known before any worker starts."""

    train: Listing
    test: Listing
    recipe: Recipe
    test_recipe: Recipe


@dataclass(frozen=True)
class Data:
    """The three splits on the workers."""

    train: rows.Rows
    validation: rows.Rows | None
    test: rows.Rows


@dataclass(frozen=True)
class Outcome:
    """How well the model does."""

    validation: Evaluation | None
    test: Evaluation
    card: Auc | None
    """On test rows paid by card."""


def run(config: TrainConfig, command: str) -> None:
    """Run the job."""
    check(config.model, config.backend.name)
    clock = Clock()
    with clock.phase("list"):
        plan = make_plan(config)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tipcast-")))
        tracked = stack.enter_context(train_log.opened(config, plan, command))
        with clock.phase("cluster"):
            workers = stack.enter_context(session(config.backend, config.cluster))
        with ExitStack() as report:
            if config.cluster.performance_report:
                report.enter_context(recorded(workers.client, folder / "dask.html"))
            with clock.phase("read"):
                data = read(workers, config, plan)
            with clock.phase("fit"):
                fitted = fit(workers, config, data)
            with clock.phase("evaluate"):
                outcome = measure(workers, config, fitted, data)
        memory = peaks(workers.client)
        with clock.phase("log"):
            result = train_log.write(tracked, config, plan, data, fitted, outcome, workers, folder, command)
        train_log.finish(tracked, result, clock.seconds, memory)
    closing.say(result.summary | {"phases": clock.seconds, "command": command}, config.print)


def make_plan(config: TrainConfig) -> Plan:
    """List the files of both periods and decide the split; every mistake that footers show ends here."""
    recipe = Recipe(features=tuple(config.task.features), threshold=config.task.threshold)
    test_recipe = dataclasses.replace(recipe, card=True)
    train = list_fragments(config.data, "train", recipe.columns)
    test = list_fragments(config.data, "test", test_recipe.columns)
    for note in dict.fromkeys((*train.notes, *test.notes)):
        LOG.warning(note)
    cutoff = split.cutoff(train.period, test.period, config.task.validation)
    return Plan(train, test, dataclasses.replace(recipe, cutoff=cutoff), test_recipe)


def read(workers: Session, config: TrainConfig, plan: Plan) -> Data:
    """Read and prepare all rows on the workers, and refuse what cannot be trained on."""
    train = rows.start(workers, plan.train, plan.recipe)
    test = rows.start(workers, plan.test, plan.test_recipe)
    with progress("read", [*train, *test]):
        loaded = rows.collect(workers, plan.train, train)
        tested = rows.collect(workers, plan.test, test)
    for listing, found in ((plan.train, loaded), (plan.test, tested)):
        validate.check_counts(listing, found.per_file, config.data.limits)
    validation = loaded.splits[1] if len(loaded.splits) > 1 else None
    for name, part in (("data.train", loaded.splits[0]), ("data.train (validation)", validation), ("data.test", tested.splits[0])):
        if part is not None:
            validate.check_split(name, part.counts.rows, part.counts.positives, config.data.limits)
    return Data(loaded.splits[0], validation, tested.splits[0])


def fit(workers: Session, config: TrainConfig, data: Data) -> Fitted:
    """Fit the model over all workers."""
    estimator = build(config.model, workers.device, "distributed", config.task.categorical)
    held_out = (data.validation.x, data.validation.y) if data.validation else None
    with progress(f"fit {config.model.name}"):
        fitted: Fitted = estimator.fit(workers.client, data.train.x, data.train.y, held_out, config.seed)
    return fitted


def measure(workers: Session, config: TrainConfig, fitted: Fitted, data: Data) -> Outcome:
    """Choose the threshold on validation rows and measure on test rows."""
    client = workers.client
    validation = None
    with progress("evaluate"):
        if data.validation:
            scores = predict(client, fitted.scorer, data.validation.x)
            validation = evaluate(client, scores, data.validation.y, threshold=None, where="data.train (validation)")
        scores = predict(client, fitted.scorer, data.test.x)
        threshold = validation.threshold if validation else 0.5
        test = evaluate(client, scores, data.test.y, threshold=threshold, where="data.test")
        card = auc(client, scores, data.test.y, data.test.card, where="data.test, paid by card")
    return Outcome(validation, test, card)
