"""`tipcast train --multirun`: a training for each configuration, on one cluster, below one run with
a leaderboard.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from tipcast.compute.base import Session
from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema import MultirunConfig, TrainConfig
from tipcast.evaluation import evaluator, report
from tipcast.jobs import say
from tipcast.jobs.repeat import REPEATS, Original, original
from tipcast.jobs.run_context import previous_run, run_context, run_names, without_keys
from tipcast.jobs.train import train
from tipcast.jobs.train_plan import Plan, Splits, check_model, make_plan, read
from tipcast.jobs.train_record import Record, params, planned_params
from tipcast.measure.progress import progress
from tipcast.tasks.kinds import named_by
from tipcast.tracking.children import children_of
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")

SHARED = ("backend", "cluster", "print", "debug", "resume", "tracking.uri", "tracking.experiment")
"""Parts of the configuration that all trainings have in common."""
IDENTITY = "multirun.training"
"""Tag of a child: digest of what it trains, by which a resumed run knows it."""
JOB = "multirun"


@dataclass
class Training:
    """One of the configurations, and what came of it."""

    config: MultirunConfig  # below a parent, which records the system's metrics and has the name
    name: str  # what tells it apart
    command: str  # what repeats it alone
    plan: Plan
    original: Original | None  # the run that it repeats
    run_id: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    status: str = "not run"  # how it ended, in one line

    @property
    def identity(self) -> str:
        """Digest of all that decides what comes of it."""
        config = to_plain(self.config)
        return self.plan.identity(
            {name: config[name] for name in ("data", "task", "model", "seed")}
        )


def run(many: Sequence[tuple[MultirunConfig, str]], command: str) -> Mapping[str, Any]:
    """Run all trainings, each with the command that repeats it alone, one after another; return
    what the job says.

    C003 for configurations that differ in what is shared, S003 for ``resume`` of what is no
    multirun; the first error that a training ended with is raised after the others have run.
    """
    first = many[0][0]
    command = without_keys(command, "resume")
    with progress("list"):
        trainings = _planned(many)
    problems: list[Exception] = []
    held: dict[str, Splits] = {}

    def read_once(workers: Session, config: TrainConfig, plan: Plan) -> Splits:
        """Return the rows of the last training where this one has the same."""
        if (key := _rows(config, plan)) not in held:
            held.clear()  # before others take their memory
            held[key] = read(workers, config, plan)
        return held[key]

    with ExitStack() as stack:
        previous = None
        if first.resume is not None:
            previous, _ = stack.enter_context(previous_run(first.tracking, first.resume, JOB))
            _find_done(previous, children_of(previous), trainings)
        name = f"{len(trainings)} trainings"
        planned = [planned_params(training.plan) for training in trainings]
        shared = {
            key: value
            for key, value in planned[0].items()
            if all(one.get(key) == value for one in planned)
        }
        opened = run_context(
            first, command, job=JOB, name=name, params=shared, resume=previous, lease=True
        )
        context = stack.enter_context(opened)
        missing = [training for training in trainings if training.run_id is None]
        groups = list(
            dict.fromkeys(_rows(training.config, training.plan) for training in trainings)
        )
        missing.sort(key=lambda training: groups.index(_rows(training.config, training.plan)))
        if missing:
            workers = context.start_workers()
        else:
            LOG.info("all %d trainings are done: there is nothing left to run", len(trainings))
        for number, training in enumerate(missing, len(trainings) - len(missing) + 1):
            LOG.info("%-9s%d of %d: %s", "training", number, len(trainings), training.name)
            config = training.config
            repeated = training.original
            facts = {**params(config), **planned_params(training.plan), **workers.devices}
            tags = ({REPEATS: repeated.run_id} if repeated else {}) | {IDENTITY: training.identity}
            try:
                with run_context(
                    config,
                    training.command,
                    job="train",
                    name=training.name,
                    params=facts,
                    tags=tags,
                    parent=context.run,
                ) as child:
                    training.run_id = child.run.id
                    train(
                        workers, Record(child, config, training.plan, original=repeated), read_once
                    )
                training.metrics = child.run.store.get_run(child.run.id).data.metrics
                training.status = "FINISHED"
            except Exception as problem:  # also of a library: the others may end well
                held.clear()  # the rows may have gone with a worker
                kind = "" if isinstance(problem, TipcastError) else f"{type(problem).__name__}: "
                training.status = " ".join(f"{kind}{problem}".split())
                LOG.warning("%s: %s", training.name, training.status)
                problems.append(problem)
                if workers.client.status != "running":
                    break
        board = leaderboard(trainings)
        metrics: dict[str, float] = next((row["metrics"] for row in board if row["metrics"]), {})
        for remark in (remarks := alike(trainings)):
            LOG.warning("%s", remark)
        values = dict.fromkeys(name for row in board for name in row["metrics"])
        flat = [
            {name: value for name, value in (row | row["metrics"]).items() if name != "metrics"}
            for row in board
        ]
        table = context.table(flat, "tables/leaderboard.json", ["name", "rank", *values, "status"])
        context.run.log_metrics(metrics)
        context.run.note("\n\n".join([table, *remarks, report.repeat(command)]))
        if problems and not isinstance(problems[0], TipcastError):
            raise problems[0]  # what closes the workers says what it means
    result = context.result(trainings=board, metrics=metrics)
    lines: dict[str, Any] = {
        f"{row['rank'] or '-'} {row['name']}": row["metrics"] or row["status"] for row in board
    }
    lines |= {name: value for name, value in result.items() if name != "trainings"}
    return say(result, first.print, lines=lines, problem=next(iter(problems), None))


def _planned(many: Sequence[tuple[MultirunConfig, str]]) -> list[Training]:
    """Plan all trainings, and name them by what tells them apart."""
    configs = [config for config, _ in many]
    commands = [without_keys(command, "resume") for _, command in many]
    for name in SHARED:
        if any(value != attrgetter(name)(configs[0]) for value in map(attrgetter(name), configs)):
            what = "differs between the configurations, which share one cluster and one run"
            raise TipcastError(
                "C003", name, what, "give it one value, or run the command once for each"
            )

    names = run_names(
        [(config.model.name, command) for config, command in zip(configs, commands, strict=True)]
    )
    trainings = []
    for config, name, command in zip(configs, names, commands, strict=True):
        check_model(config, named_by(config.task.kind))
        plan = make_plan(config)
        tracking = dataclasses.replace(config.tracking, run_name=None, system_metrics=False)
        alone = dataclasses.replace(config, tracking=tracking, resume=None)
        trainings.append(Training(alone, name, command, plan, original(config, plan)))

    return trainings


def _rows(config: TrainConfig, plan: Plan) -> str:
    """Return a text that is the same for trainings on the same rows."""
    drawn = plan.recipe.draw is not None or plan.test_recipe.draw is not None
    return repr([to_plain(config.data), to_plain(config.task), config.seed if drawn else None])


def _find_done(parent: Run, children: Sequence[Any], trainings: Sequence[Training]) -> None:
    """Find the trainings that a child of a resumed run has ended well; close children that are left
    open.

    S003 where the run has trained, and nothing of what is asked for.
    """
    asked = {training.identity: training for training in trainings}
    begun = {child.data.tags.get(IDENTITY) for child in children}
    if begun and not begun & asked.keys():
        what = "did not run these trainings: it was of other data, tasks, models or seeds"
        raise TipcastError(
            "S003", f"run {parent.id}", what, "repeat its words, or leave resume out"
        )

    for child in children:
        if child.info.status in ("RUNNING", "SCHEDULED"):
            parent.store.set_tag(
                child.info.run_id, "error.message", "the process of its multirun was gone"
            )
            parent.store.set_terminated(child.info.run_id, "KILLED")
        training = asked.get(child.data.tags.get(IDENTITY, ""))
        if child.info.status == "FINISHED" and training:
            training.run_id = child.info.run_id
            training.metrics = dict(child.data.metrics)
            training.status = "FINISHED"


def leaderboard(trainings: Sequence[Training]) -> list[dict[str, Any]]:
    """Return a row of each training: those of one kind of task by their headline on validation
    rows, best first.

    Where one of the kind has no validation rows all are ranked by that on test rows.
    """
    rows: list[dict[str, Any]] = []
    for kind in dict.fromkeys(training.plan.task.kind for training in trainings):
        headline = evaluator(kind).headline
        same = [one for one in trainings if one.plan.task.kind == kind]
        sides = [f"{side}/{headline.name}" for side in ("validation", "test")]
        ended = [training for training in same if sides[1] in training.metrics]
        by = sides[not all(sides[0] in training.metrics for training in ended)]
        ended.sort(key=lambda training: training.metrics[by], reverse=headline.maximize)
        for rank, one in enumerate(
            [*ended, *(one for one in same if sides[1] not in one.metrics)], 1
        ):
            place = {
                "name": one.name,
                "rank": rank if rank <= len(ended) else None,
                "kind": kind.name,
            }
            metrics = {name: one.metrics[name] for name in sides if name in one.metrics}
            rows.append(
                {
                    **place,
                    "metrics": metrics,
                    "status": one.status,
                    "run_id": one.run_id,
                    "command": one.command,
                }
            )

    return rows


def alike(trainings: Sequence[Training]) -> list[str]:
    """Return a line for trainings whose metrics are the same to the last bit, as those of two seeds
    without effect.
    """
    names: dict[tuple[Any, ...], list[str]] = {}
    for training in trainings:
        if tested := {
            name: value for name, value in training.metrics.items() if name.startswith("test/")
        }:
            names.setdefault(tuple(sorted(tested.items())), []).append(training.name)
    what = "the same test metrics to the last bit, so what they differ in has no effect here"
    return [f"{', '.join(same)}: {what}" for same in names.values() if len(same) > 1]
