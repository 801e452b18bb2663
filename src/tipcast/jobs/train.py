"""`tipcast train`: read two sides of the data, fit on the first, test on the second, log and register the model."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special  # noqa: F401 - see below

from tipcast.compute.base import Session
from tipcast.compute.session import check as check_session
from tipcast.compute.session import recorded, session
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import MultirunConfig, TrainConfig
from tipcast.config.schema import Limits
from tipcast.datasets import rows, split
from tipcast.datasets.base import Dataset, Listing, timed
from tipcast.datasets.listing import identical
from tipcast.datasets.registry import open_dataset
from tipcast.datasets.rows import Recipe, Rows, held_out_rows
from tipcast.evaluation.base import Evaluation, evaluator, judged_by
from tipcast.evaluation.sums import even
from tipcast.jobs import closing
from tipcast.jobs.opening import opened, run_names
from tipcast.jobs.repeat import original
from tipcast.jobs.train_record import Record, params
from tipcast.jobs.warm_up import warm_up
from tipcast.measure.clock import Clock
from tipcast.measure.memory import peaks
from tipcast.measure.progress import progress
from tipcast.models import contributions
from tipcast.models.base import Fitted, NativeFile
from tipcast.models.build import check
from tipcast.models.fit import every_way, hold, hold_saved, predict
from tipcast.models.fit import fit as fit_model
from tipcast.tasks.base import Task, make_task

LOG = logging.getLogger("tipcast")

# SciPy is loaded before Dask and MLflow: skops, when it is imported, looks for each of SciPy's functions in all modules
# in their order, which takes seconds where SciPy comes after thousands of others. Workers do without.

CHECK_ROWS = 1000
"""Held-out rows that the portable model must score as the estimator does."""
COUNTED = ("rounds", "trees", "iterations", "rows")
"""What a fit says of its length."""
WHERE = {"train": "data.train", "validation": "data.train (validation)", "test": "data.test"}
"""Split -> what messages call its rows."""

Splits = Mapping[str, Rows]
"""``train``, ``validation`` if there is one, ``test`` -> rows on the workers."""
Reading = Callable[[Session, TrainConfig, "Plan"], Splits]
"""See ``read``."""


def run(config: MultirunConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    if config.resume is not None:
        raise TipcastError("C003", "resume", "goes with --multirun alone", "add --multirun, or leave resume out")
    check_session(config.backend, config.cluster)
    clock = Clock()
    check_model(config, config.task.kind)
    with clock.phase("list"), progress("list"):
        plan = make_plan(config)
    first = original(config, plan)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        (name,), tags = run_names([(config.model.name, command)]), first.tags if first else {}
        run = opened(config, command, job="train", name=name, params=params(config), tags=tags)
        record = Record(stack.enter_context(run), config, plan, command, folder, original=first)
        workers = start(stack, record, clock)
        said = finish(workers, record, clock)
    return closing.say(said, config.print)


def check_model(config: TrainConfig, kind: str | None) -> None:
    """Refuse a model that cannot be fitted; nothing where only the data tell the kind of the task."""
    if kind is not None:
        check(config.model, config.backend.name, categorical=config.task.categorical, kind=kind)


def start(stack: ExitStack, record: Record, clock: Clock, *, always_warm: bool = False) -> Session:
    """Open the workers until a stack is left, and warm up those that compile what they compute with, or all."""
    config = record.config
    with clock.phase("cluster") as facts, progress("cluster"):
        workers = stack.enter_context(session(config.backend, config.cluster))
        if workers.device == "cuda" or always_warm:  # kernels are compiled on first use, which is not to be timed
            warm_up(workers, config, record.plan)
        facts.append(workers.size)
    record.run.set_tags(workers.tags)
    return workers


def finish(workers: Session, record: Record, clock: Clock, reading: Reading | None = None) -> dict[str, Any]:
    """Read, fit, test and record, on workers that are up, in a run that is open; return what the job says of it.

    ``reading`` takes the place of ``read`` where others have read the rows.
    """
    config, plan, folder = record.config, record.plan, record.folder
    with recorded(workers.client, folder / "dask.html", config.cluster.performance_report):
        with clock.phase("read") as facts:
            splits = (reading or read)(workers, config, plan)
            facts += [f"{part.counts.rows:,} {name} rows" for name, part in splits.items()]
        with clock.phase("fit") as facts:
            fitted = fit(workers, config, plan.task, splits)
            facts += [config.model.name, *(f"{fitted.info[key]:,} {key}" for key in COUNTED if key in fitted.info)]
        with clock.phase("evaluate") as facts:
            outcome = measure(workers, plan, fitted, splits)
            facts.append(f"test/{record.judge.headline.name} {outcome.test.headline:.4f}")
    with clock.phase("log") as facts, progress("log"):
        record.data(splits)
        record.metrics(outcome)
        record.figures(outcome)
        saved = fitted.save(folder)
        if saved.format in contributions.FORMATS:
            record.contributions(explained(workers, fitted, saved, splits["test"]), outcome)
        columns, raw = held_out(workers, plan)
        rows_held_out = plan.dataset.compute(columns, plan.task.features, np)
        scores = every_way(workers.client, fitted.scorer, saved, rows_held_out)
        logged, difference = record.model(saved, outcome, raw, scores, device=workers.device)
        facts.append(logged.uri)
    record.close(outcome, clock.seconds, peaks(workers.client))
    registered = record.register(logged, difference, outcome)  # last: its run is whole
    return {
        "run_id": record.run.id,
        "experiment_id": record.run.experiment_id,
        "run": record.run.link,
        "model_uri": registered.registered or registered.uri,
        "metrics": record.headlines(outcome),
        "phases": clock.seconds,
        **({"repeats": record.original.run_id, "differs": record.original.differs} if record.original else {}),
        "command": record.command,
    }


@dataclass(frozen=True)
class Plan:
    """What will be read, known before any worker starts."""

    train: Listing
    test: Listing
    recipe: Recipe
    test_recipe: Recipe

    @property
    def task(self) -> Task:
        """What is predicted."""
        return self.recipe.task

    @property
    def dataset(self) -> Dataset:
        """What the columns mean."""
        return self.recipe.dataset

    @property
    def periods(self) -> dict[str, str]:
        """Split -> its period in words, or its share where rows have no time."""
        train, test, cutoff, draw = self.train.period, self.test.period, self.recipe.cutoff, self.recipe.draw
        if train is not None and test is not None and draw is None:
            spans = {"train": train if cutoff is None else (train[0], cutoff)}
            if cutoff is not None:
                spans["validation"] = (cutoff, train[1])
            return {name: split.describe(span) for name, span in (spans | {"test": test}).items()}
        shares = {} if draw is None else dict(zip(("train", "validation"), draw.shares, strict=False))
        if self.test_recipe.draw is not None:
            (shares["test"],) = self.test_recipe.draw.shares
        return {
            name: f"{high - low:.0%} at random" if name in shares else "all rows"
            for name, (low, high) in ({"train": (0.0, 1.0), "test": (0.0, 1.0)} | shares).items()
        }


def make_plan(config: TrainConfig) -> Plan:
    """List the files of both sides and decide the split; every mistake that footers show ends here."""
    dataset = open_dataset(config.data)
    task = make_task(config.task, dataset)
    if task.kind not in config.model.kinds:
        what = f"{task.kind} is not what {config.model.name} does"
        raise TipcastError("C003", "task.kind", what, f"use a model of kind {task.kind}")
    if config.task.kind is None:
        check_model(config, task.kind)
    if task.kind == "classification" and task.function is None:
        LOG.info("target   %s: %s is the positive class", task.columns[0], task.classes[1])
    recipe, test_recipe = Recipe(dataset, task), Recipe(dataset, task, own_counts=True)
    train, test = recipe.scan("train"), test_recipe.scan("test")
    for note in dict.fromkeys((*train.notes, *test.notes, *identical((*train.fragments, *test.fragments)))):
        LOG.warning(note)
    if train.period is not None and test.period is not None:
        cutoff = split.cutoff((timed(each.period) for each in train.fragments), test.period, task.validation)
        return Plan(train, test, dataclasses.replace(recipe, cutoff=cutoff), test_recipe)
    held_out = dataset.test_share
    test_recipe = dataclasses.replace(test_recipe, draw=split.held_out(held_out, config.seed))
    if held_out or task.validation:
        first = (1 - held_out) * (1 - task.validation)
        shares = ((0.0, first), (first, 1 - held_out)) if task.validation else ((0.0, 1 - held_out),)
        recipe = dataclasses.replace(recipe, draw=split.Draw(config.seed, shares))
    return Plan(train, test, recipe, test_recipe)


def read(workers: Session, config: TrainConfig, plan: Plan) -> Splits:
    """Read and prepare all rows on the workers, and refuse what cannot be trained on."""
    limits, names = config.data.limits, ("train", "validation") if plan.task.validation else ("train",)
    drawn = plan.test_recipe.draw
    if drawn is not None and plan.recipe.draw is not None:  # all are rows of the same files: one reading
        shares = (*plan.recipe.draw.shares, *drawn.shares)
        recipe = dataclasses.replace(plan.test_recipe, draw=split.Draw(config.seed, shares))
        reading = rows.start(workers, plan.test, recipe)
        with progress("read", reading):
            splits = collect(workers, plan.test, recipe, reading, limits, (*names, "test"))
    else:
        train = rows.start(workers, plan.train, plan.recipe)
        test = rows.start(workers, plan.test, plan.test_recipe)
        with progress("read", [*train, *test]):
            splits = collect(workers, plan.train, plan.recipe, train, limits, names)
            splits |= collect(workers, plan.test, plan.test_recipe, test, limits, ("test",))
    if config.cluster.partition_per_worker:
        splits = {name: rows.on_each_worker(workers.client, part) for name, part in splits.items()}
    if "validation" in splits:
        held_out = splits["validation"].counts.rows
        if line := split.uneven(splits["train"].counts.rows, held_out, plan.task.validation):
            LOG.warning(line)
    return splits


def collect(
    workers: Session, listing: Listing, recipe: Recipe, prepared: Sequence[Any], limits: Limits, names: Sequence[str]
) -> dict[str, Rows]:
    """Wait for a listing's rows, refuse what nothing can be learnt from or measured on, and return them by split."""
    loaded = rows.collect(workers, listing, recipe, prepared)
    rows.check_counts(listing, loaded.per_file, recipe, limits)
    splits = dict(zip(names, loaded.splits, strict=False))
    for name, part in splits.items():
        rows.check_split(WHERE[name], part.counts, recipe.task, limits)
    return splits


def fit(workers: Session, config: TrainConfig, task: Task, splits: Splits) -> Fitted:
    """Fit the model where the rows lie."""
    with progress(f"fit {config.model.name}") as told:
        return fit_model(
            workers.client,
            config.model,
            workers.device,
            splits["train"],
            splits.get("validation"),
            config.seed,
            categorical=task.categorical,
            kind=task.kind,
            classes=len(task.classes),
            progress=told,
        )


@dataclass(frozen=True)
class Outcome:
    """A fitted model and how well it does."""

    splits: Splits
    fitted: Fitted
    validation: Evaluation | None
    test: Evaluation


def measure(workers: Session, plan: Plan, fitted: Fitted, splits: Splits) -> Outcome:
    """Measure on validation rows, where a threshold is chosen, and then on test rows."""
    client, judge = workers.client, evaluator(plan.task.kind)
    validation, threshold = None, judge.threshold
    with progress("evaluate"):
        held = hold(client, fitted.scorer)
        if held_out := splits.get("validation"):
            predictions = predict(client, held, held_out.x)
            validation = judge.evaluate(client, predictions, judged_by(held_out), where=WHERE["validation"])
            threshold = validation.threshold
        predictions, truth = predict(client, held, splits["test"].x), judged_by(splits["test"])
        test = judge.evaluate(client, predictions, truth, threshold=threshold, where=WHERE["test"])
    return Outcome(splits, fitted, validation, test)


def explained(workers: Session, fitted: Fitted, saved: NativeFile, test: Rows) -> contributions.Rows:
    """Return some test rows, at even distances, and what each feature contributes to their predictions."""
    step, starts = even(test.parts, contributions.drawn_rows(fitted.model))
    held = hold_saved(workers.client, saved, workers.device)
    return contributions.of_sample(workers.client, held, test.x, starts, step)


def held_out(workers: Session, plan: Plan) -> tuple[Any, Any]:
    """Return some raw rows of the test side, as canonical columns and under their raw names."""
    for fragment in plan.test.fragments:
        found: tuple[Any, Any] = workers.client.submit(
            held_out_rows, fragment, plan.test_recipe, plan.train.facts, CHECK_ROWS, pure=False
        ).result()
        if len(found[1]):
            return found
    raise TipcastError("M011", "data.test", "has no clean row to hold the model against", "test on other rows")
