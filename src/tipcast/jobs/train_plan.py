"""The data of a training: files and split, decided before any worker starts, and the rows on the
workers.
"""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tipcast.compute.base import Session
from tipcast.config.data_schema import Limits
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrainConfig
from tipcast.datasets import periods, rows
from tipcast.datasets.base import Dataset, Tabular, check_names, group_of, test_share_of
from tipcast.datasets.find_files import identical
from tipcast.datasets.group_split import GroupDraw
from tipcast.datasets.limits import check_counts, check_split
from tipcast.datasets.listing import Listing
from tipcast.datasets.parts import Period, timed
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.random_split import Draw
from tipcast.datasets.registry import open_dataset
from tipcast.datasets.rows import Rows
from tipcast.datasets.shares import in_equal_shares
from tipcast.datasets.table.column_types import LEFT_OUT
from tipcast.evaluation import evaluator_of
from tipcast.measure.progress import progress
from tipcast.models.build import build, build_for_task, check_weights
from tipcast.tasks.base import Task
from tipcast.tasks.kinds import Kind
from tipcast.tasks.make import make_task

LOG = logging.getLogger("tipcast")

DIGEST = 16
"""Characters of a digest that tags show; the datasets and the model's manifest have all."""
WHERE = {"train": "data.train", "validation": "data.train (validation)", "test": "data.test"}
"""Split -> what messages call its rows."""

Splits = dict[str, Rows]
"""``train``, ``validation`` if there is one, ``test`` -> rows on the workers."""


@dataclass(frozen=True)
class Plan:
    """The files and how they are read, decided before any worker starts."""

    train: Listing
    test: Listing
    recipe: Recipe
    """Of the training side: it gives training and validation rows."""
    test_recipe: Recipe
    """The same dataset and task; with a draw if test rows are drawn from the training files."""

    @property
    def task(self) -> Task:
        """The task: what is predicted from what."""
        return self.recipe.task

    @property
    def dataset(self) -> Dataset:
        """The dataset that gives the columns their meaning."""
        return self.recipe.dataset

    @property
    def target_in_words(self) -> str:
        """The target: its column, or the function's result in words; empty for clustering."""
        task = self.task
        if not task.has_target:
            return ""
        return task.description or ", ".join(task.columns)

    @property
    def left_out(self) -> dict[str, str]:
        """Columns and features that the model does not get -> why.

        The target's columns, the weights and the time of a split are not among them.
        """
        task = self.task
        dataset = self.dataset
        used = {*task.features, *task.columns, task.weight, dataset.time}
        reasons = {name: "not in task.features" for name in dataset.features if name not in used}
        if not isinstance(dataset, Tabular):
            return reasons

        for row in dataset.report:
            if row["taken as"] == LEFT_OUT and row["column"] not in used:
                reasons[row["column"]] = row["note"]
        return reasons

    @property
    def periods(self) -> dict[str, str]:
        """Split -> its period in words, or its share if rows have no time."""
        train = self.train.period
        test = self.test.period
        cutoff = self.recipe.cutoff

        if train is None or test is None or self.recipe.draw is not None:
            return self._drawn_shares()

        spans = {"train": train, "test": test}
        if cutoff is not None:
            spans = {"train": (train[0], cutoff), "validation": (cutoff, train[1]), "test": test}
        return {name: periods.describe(span) for name, span in spans.items()}

    def _drawn_shares(self) -> dict[str, str]:
        """Return split -> its share of the rows in words, for rows without a time."""
        described = {"train": "all rows", "test": "all rows"}
        for draw in (self.recipe.draw, self.test_recipe.draw):
            if draw is None:
                continue

            left = 1 - draw.test
            shares = {
                "train": left * (1 - draw.validation),
                "validation": left * draw.validation,
                "test": draw.test,
            }
            described |= {name: f"{shares[name]:.0%} at random" for name in draw.splits}

        return described

    @property
    def notes(self) -> list[str]:
        """What may surprise in the files of both sides, a line each."""
        parts = (*self.train.parts, *self.test.parts)
        return list(dict.fromkeys((*self.train.notes, *self.test.notes, *identical(parts))))

    def identity(self, settings: Mapping[str, object]) -> str:
        """Return a digest of the data and of settings that decide the result."""
        text = json.dumps(
            [settings, self.train.digest, self.test.digest], sort_keys=True, default=str
        )
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


def check_model(config: TrainConfig, kind: Kind | None) -> None:
    """Refuse a model that cannot be fitted; does nothing if only the data determine the kind of
    task.
    """
    if kind is None:
        return

    check_folds(config, kind)
    check_row_weights(config, config.backend.name, kind)
    build(config.model, config.backend.name, config.task.categorical, kind).check()


def check_folds(config: TrainConfig, kind: Kind) -> None:
    """Refuse (C003) folds of rows that have no target."""
    if config.task.folds and not kind.has_target:
        raise TipcastError("C003", "task.folds", f"{kind} predicts no target", "leave it out")


def check_row_weights(config: TrainConfig, device: str, kind: Kind) -> None:
    """Refuse (C003) weights that the model does not take, and class weights without classes.

    ``device`` is as for ``models.build.build``.
    """
    if config.task.class_weight is not None and not kind.has_classes:
        what = f"{kind} has no classes"
        raise TipcastError("C003", "task.class_weight", what, "leave it out")

    for key in ("weight", "class_weight"):
        if getattr(config.task, key) is not None:
            check_weights(config.model, device, kind, f"task.{key}")


def fixed_threshold(config: TrainConfig, kind: Kind) -> float | None:
    """Return the threshold of two classes that count the same in the fit; None if the most accurate
    one is chosen.

    That one would undo ``task.class_weight``: if positives are rare, it calls hardly any row
    positive.
    """
    if config.task.class_weight is None:
        return None
    return evaluator_of(kind).threshold


def make_plan(config: TrainConfig) -> Plan:
    """List the files of both sides and decide the split; all errors that footers show are raised
    here.
    """
    plan = plan_of(config, open_dataset(config.data))
    for note in plan.notes:
        LOG.warning("%s", note)
    return plan


def plan_of(config: TrainConfig, dataset: Dataset) -> Plan:
    """Return the plan of a training on the dataset of ``config.data``; see ``make_plan``."""
    recipe = make_recipe(config, dataset)
    train = recipe.dataset.scan("train", recipe.columns, recipe.optional)
    test = recipe.dataset.scan("test", recipe.columns, recipe.optional)

    if train.period is not None and test.period is not None:
        trained = (timed(part.period) for part in train.parts)
        return Plan(train, test, split_by_time(recipe, list(trained), test.period), recipe)

    return plan_draw(config, recipe, train, test)


def split_by_time(recipe: Recipe, trained: Sequence[Period], tested: Period) -> Recipe:
    """Return the recipe of the training side, with the time from which rows are validated on, or
    from which each fold tests.

    The time of the training files is divided into equal parts, one more than there are folds: the
    first is tested by no fold.
    """
    folds = recipe.task.folds
    if not folds:
        cutoff = periods.cutoff(trained, tested, recipe.task.validation)
        return dataclasses.replace(recipe, cutoff=cutoff)

    cuts = [periods.cutoff(trained, tested, (folds - fold) / (folds + 1)) for fold in range(folds)]
    return dataclasses.replace(recipe, cuts=tuple(cut for cut in cuts if cut is not None))


def make_recipe(config: TrainConfig, dataset: Dataset) -> Recipe:
    """Make the task, and decide how the model gets categories and missing values."""
    task = make_task(config.task, dataset)
    check_weight(dataset, task)
    if config.task.kind is None:
        check_model(config, task.kind)

    if task.kind.has_positive and task.function is None:
        LOG.info("target   %s: %s is the positive class", task.columns[0], task.classes[1])

    if isinstance(dataset, Tabular):
        return encode(config, dataset, task)

    check_learns_task(config, task)
    return Recipe(dataset, task)


def check_weight(dataset: Dataset, task: Task) -> None:
    """Refuse (C003) a column of weights that the data do not have, or that holds no numbers."""
    if task.weight is None:
        return
    if isinstance(dataset, Tabular):
        dataset.check_number(task.weight, "task.weight")
    check_names(dataset, {task.weight: ""}, "task.weight")


def check_learns_task(config: TrainConfig, task: Task) -> None:
    """Refuse (C003) a model that does not learn the task's kind, or takes no categories."""
    build_for_task(config.model, config.backend.name, task)  # for its errors alone


def encode(config: TrainConfig, table: Tabular, task: Task) -> Recipe:
    """Return the table and the task with features as the model needs them; C003 for features that
    it cannot take.
    """
    table.check_categories(task.categorical)
    model = build_for_task(config.model, config.backend.name, task)
    encoded, task = table.encoded(task, takes_missing=model.takes_missing, one_hot=model.one_hot)
    model.check_width(encoded.known_values(task.categorical))
    return Recipe(encoded, task)


def plan_draw(config: TrainConfig, recipe: Recipe, train: Listing, test: Listing) -> Plan:
    """Plan a random split of rows without a time; warn if the model is tested on training rows."""
    task = recipe.task
    dataset = recipe.dataset
    splits = training_splits(task)
    draw = make_draw(dataset, config.seed, splits, task.validation, task.folds)
    if isinstance(draw, GroupDraw) and not (draw.test or draw.validation or draw.folds):
        what = "has no effect: the test rows come from data.test, and no others are held out"
        raise TipcastError("C003", "data.group", what, "leave it out, or add task.folds=5")

    if isinstance(dataset, Tabular) and draw.test:
        table = dataset.without_texts_of_test_rows(train.parts, task, draw)
        test_draw = dataclasses.replace(draw, splits=("test",))
        return Plan(
            train, test, Recipe(table, task, draw=draw), Recipe(table, task, draw=test_draw)
        )

    if _digests(train) & _digests(test):
        LOG.warning(
            "data.test has files of data.train: the model is tested on rows that it was trained on"
        )

    train_recipe = recipe
    if draw.validation or draw.folds:
        train_recipe = dataclasses.replace(recipe, draw=draw)

    return Plan(train, test, train_recipe, recipe)


def make_draw(
    dataset: Dataset,
    seed: int,
    splits: tuple[str, ...],
    validation: float = 0.0,
    folds: int = 0,
) -> Draw | GroupDraw:
    """Return the random split of rows without a time, whole groups of them if they have groups.

    Which rows are tested on depends on neither ``validation`` nor ``folds``.
    """
    test = test_share_of(dataset)
    group = group_of(dataset)
    if group is None:
        return Draw(seed, test, validation, folds, splits)
    return GroupDraw(seed, test, validation, folds, splits, column=group)


def training_splits(task: Task) -> tuple[str, ...]:
    """Return the names of the splits of the training side."""
    if task.validation:
        return ("train", "validation")
    return ("train",)


def _digests(listing: Listing) -> set[str]:
    return {part.digest for part in listing.parts}


ReadRows = Callable[[Session, TrainConfig, Plan, Callable[[], object]], Splits]
"""Returns a training's rows, and calls its last argument in the driver once workers read."""


def read_rows(
    session: Session,
    config: TrainConfig,
    plan: Plan,
    meanwhile: Callable[[], object] = lambda: None,
) -> Splits:
    """Read and prepare all rows on the workers, and refuse what cannot be trained on.

    ``meanwhile`` is called in the driver once the workers read.
    """
    planned = planned_readings(plan)
    started = [rows.start(session, listing, recipe) for listing, recipe, _ in planned]
    splits = dict[str, Rows]()

    with progress("read", [task for reading in started for task in reading.tasks]):
        meanwhile()
        for (listing, recipe, names), reading in zip(planned, started, strict=True):
            splits |= collect_splits(session, listing, recipe, reading, config.data.limits, names)

    if config.cluster.partition_per_worker:
        return {name: rows.on_each_worker(session.client, part) for name, part in splits.items()}
    if session.n_workers > 1:
        return {name: in_equal_shares(session, part) for name, part in splits.items()}
    return splits


def planned_readings(plan: Plan) -> list[tuple[Listing, Recipe, tuple[str, ...]]]:
    """Return each listing that is read, with its recipe and the splits that the recipe divides its
    rows into, in that order.
    """
    train_splits = training_splits(plan.task)
    draw = plan.recipe.draw
    if draw is None and plan.recipe.cutoff is None:  # the few rows that a ladder warms up on
        train_splits = ("train",)
    if draw is None or plan.test_recipe.draw is None:
        return [(plan.train, plan.recipe, train_splits), (plan.test, plan.test_recipe, ("test",))]

    # Test rows are drawn from the training files: one reading of these gives all splits.
    all_splits = (*train_splits, "test")
    joint_draw = dataclasses.replace(draw, splits=all_splits)
    return [(plan.train, dataclasses.replace(plan.recipe, draw=joint_draw), all_splits)]


def collect_splits(
    session: Session,
    listing: Listing,
    recipe: Recipe,
    reading: rows.Reading,
    limits: Limits,
    names: Sequence[str],
) -> dict[str, Rows]:
    """Wait for a listing's rows and return them by split, of which ``names`` has as many as the
    recipe divides them into; refuse rows from which nothing can be learnt or measured.
    """
    loaded, per_file = rows.collect(session, listing, recipe, reading)
    check_counts(listing, per_file, recipe, limits)
    splits = dict(zip(names, loaded, strict=True))
    for name, part in splits.items():
        check_split(WHERE[name], part.counts, recipe.task, limits)

    return splits
