"""The trainings of `tipcast train --multirun`, planned before their run is opened or any worker
starts; and those of a resumed run that have ended well.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema import TrainConfig, TrainJobConfig
from tipcast.datasets.base import Dataset, raw_columns
from tipcast.datasets.registry import open_dataset
from tipcast.jobs.repeat import Original, original
from tipcast.jobs.run_context import previous_run, run_names, without_keys
from tipcast.jobs.train_plan import Plan, check_model, plan_of
from tipcast.models.library_class import ALLOWED as LIBRARIES
from tipcast.tasks.kinds import named_by
from tipcast.tracking.children import children_of
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")

SHARED = ("backend", "cluster", "print", "debug", "resume", "tracking.uri", "tracking.experiment")
"""Parts of the configuration that all trainings have in common."""
OF_MODEL = (
    "model",
    "task.kind",
    "task.categorical",
    "task.folds",
    "task.weight",
    "task.class_weight",
    *LIBRARIES,
)
"""Beginnings of what errors name that say that a model does not suit the data, the task or this
machine.
"""
IDENTITY = "multirun.training"
"""Tag of a child run: digest of what it trains, by which a resumed run finds it."""
JOB = "multirun"


@dataclass(frozen=True)
class Training:
    """One of the configurations, as it will be trained."""

    config: TrainJobConfig
    """Its configuration, without the name and the system's metrics, which the parent run has."""
    name: str
    """How its configuration differs from the others; no two names are the same."""
    command: str
    """Command that repeats this training alone."""
    plan: Plan
    original: Original | None
    """The run that it repeats."""

    @property
    def identity(self) -> str:
        """Digest of all that decides the result."""
        config = to_plain(self.config)
        return self.plan.identity(
            {name: config[name] for name in ("data", "task", "model", "seed")}
        )

    @property
    def rows_key(self) -> str:
        """A text that is the same for trainings on the same rows."""
        return rows_key(self.config, self.plan)


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training."""

    training: Training
    run_id: str | None = None
    """Its child run; None if none was opened."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics as MLflow has them; empty if the training did not end well."""
    status: str = "not run"
    """How it ended, in one line."""
    problem: Exception | None = None


def plan_trainings(
    many: Sequence[tuple[TrainJobConfig, str]], *, every_model: bool = False
) -> list[Training]:
    """Plan all trainings, and name them by their differences.

    With ``every_model``, those of models that do not suit the data, the task or this machine are
    left out, and clusterings where others predict a target; the first error is raised if none
    remains.
    """
    configs = [config for config, _ in many]
    commands = [without_keys(command, "resume") for _, command in many]
    check_shared(configs)

    models = [config.model.name for config in configs]
    names = run_names(list(zip(models, commands, strict=True)))
    trainings = []
    unsuited: dict[str, TipcastError] = {}
    datasets: dict[str, Dataset] = {}
    for config, name, command in zip(configs, names, commands, strict=True):
        try:
            trainings.append(plan_training(config, name, command, datasets))
        except TipcastError as problem:
            if not (every_model and problem.where.startswith(OF_MODEL)):
                raise
            unsuited[name] = problem

    if not trainings:
        raise next(iter(unsuited.values()))
    left_out = {name: problem.what for name, problem in unsuited.items()}
    if every_model:
        left_out |= clusterings_beside_targets(trainings)

    log_plans(trainings, left_out)
    return [training for training in trainings if training.name not in left_out]


def clusterings_beside_targets(trainings: Sequence[Training]) -> dict[str, str]:
    """Return the names of trainings without a target -> why they are left out, if others have
    one.
    """
    without = [training.name for training in trainings if not training.plan.task.has_target]
    if len(without) == len(trainings):
        return {}
    return dict.fromkeys(without, "predicts no target")


def log_plans(trainings: Sequence[Training], left_out: Mapping[str, str]) -> None:
    """Log what may surprise in the files, once for all trainings, and the trainings left out."""
    notes = dict.fromkeys(note for training in trainings for note in training.plan.notes)
    for note in notes:
        LOG.warning("%s", note)
    for name, reason in left_out.items():
        LOG.info("left out  %s: %s", name, reason)


def plan_training(
    config: TrainJobConfig, name: str, command: str, datasets: dict[str, Dataset]
) -> Training:
    """Plan one training, whose child run has a name.

    ``datasets`` has those that earlier trainings have opened, by their configuration: a table looks
    into all of its files.
    """
    check_model(config, named_by(config.task.kind))
    key = repr(to_plain(config.data))
    if key not in datasets:
        datasets[key] = open_dataset(config.data)
    plan = plan_of(config, datasets[key])

    tracking = dataclasses.replace(config.tracking, run_name=None, system_metrics=False)
    child_config = dataclasses.replace(config, tracking=tracking, resume=None)
    return Training(child_config, name, command, plan, original(config, plan))


def check_shared(configs: Sequence[TrainJobConfig]) -> None:
    """Refuse configurations that differ in what one cluster or one run has only once; C003."""
    for name in SHARED:
        value = attrgetter(name)
        if any(value(config) != value(configs[0]) for config in configs):
            what = "differs between the configurations, which share one cluster and one run"
            fix = "give it one value, or run the command once for each value"
            raise TipcastError("C003", name, what, fix)


def rows_key(config: TrainConfig, plan: Plan) -> str:
    """Return a text that is the same for trainings on the same rows.

    Of a table each model gets other ones: with missing values or filled, with indicators or not.
    """
    seed = None
    if plan.recipe.draw is not None or plan.test_recipe.draw is not None:
        seed = config.seed

    features = plan.task.features
    columns = raw_columns(plan.dataset, features, plan.train.info)
    return repr([to_plain(config.data), to_plain(config.task), features, columns, seed])


@contextlib.contextmanager
def previous_multirun(config: TrainJobConfig) -> Iterator[Run | None]:
    """Hold the run that is resumed, see ``previous_run``; None for a new multirun."""
    if config.resume is None:
        yield None
        return

    with previous_run(config.tracking, config.resume, JOB) as (run, _):
        yield run


def find_finished(parent: Run | None, trainings: Sequence[Training]) -> list[TrainingResult]:
    """Return the results of child runs of a resumed run that have ended well; close child runs that
    were left open.

    Raises S003 if the run has trained, but none of these trainings.
    """
    if parent is None:
        return []

    children = children_of(parent)
    by_identity = {training.identity: training for training in trainings}
    begun = {child.data.tags.get(IDENTITY) for child in children}
    if begun and not begun & by_identity.keys():
        what = "did not run these trainings: it had other data, tasks, models or seeds"
        fix = "repeat its arguments, or leave resume out"
        raise TipcastError("S003", f"run {parent.id}", what, fix)

    finished: dict[str, TrainingResult] = {}
    for child in children:
        if child.info.status in ("RUNNING", "SCHEDULED"):
            close_child(parent, child.info.run_id)

        training = by_identity.get(child.data.tags.get(IDENTITY, ""))
        if child.info.status == "FINISHED" and training:
            metrics = dict(child.data.metrics)
            result = TrainingResult(training, child.info.run_id, metrics, "FINISHED")
            finished[training.name] = result

    return list(finished.values())


def close_child(parent: Run, run_id: str) -> None:
    """Close a child run that an earlier process has left open, as KILLED."""
    store = parent.store
    store.set_tag(run_id, "error.message", "the process of its multirun had ended")
    store.set_terminated(run_id, "KILLED")
