"""`tipcast train --multirun`: a training for each configuration, on one cluster, below one run with a leaderboard."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tipcast.compute.base import Session
from tipcast.compute.session import check as check_session
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import MultirunConfig, TrainConfig
from tipcast.config.plain import to_plain
from tipcast.config.schema import Output, TrackingSpec
from tipcast.evaluation import report
from tipcast.evaluation.base import evaluator
from tipcast.jobs import closing
from tipcast.jobs.opening import opened, run_names
from tipcast.jobs.repeat import Original, original
from tipcast.jobs.train import Plan, Splits, check_model, finish, make_plan, read, start
from tipcast.jobs.train_record import DIGEST, Record, params
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.tracking.children import children_of, clear_problem, sweep_run
from tipcast.tracking.facts import find_run
from tipcast.tracking.lease import leased
from tipcast.tracking.run import Run, set_tags
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")

SHARED = ("backend", "cluster", "print", "debug", "resume", "fail_fast")
"""Parts of the configuration that all trainings have in common."""
OWN = ("register", "run_name", "tags", "system_metrics")
"""Keys of ``tracking`` that each training may have a value of its own for."""
IDENTITY = "multirun.training"
"""Tag of a child: digest of what it trains, by which a resumed run knows it."""
JOB = "multirun"
TABLE = "tables/leaderboard.json"


@dataclass(frozen=True)
class Training:
    """One of the configurations."""

    config: MultirunConfig
    name: str
    """What tells it apart."""
    command: str
    """What repeats it alone."""
    plan: Plan
    original: Original | None = None
    """The run that it repeats."""

    @property
    def rows(self) -> str:
        """Text that is the same for trainings on the same rows."""
        drawn = self.plan.recipe.draw is not None or self.plan.test_recipe.draw is not None
        return repr([to_plain(self.config.data), to_plain(self.config.task), self.config.seed if drawn else None])

    @property
    def identity(self) -> str:
        """Digest of all that decides what comes of it."""
        config, plan = to_plain(self.config), self.plan
        facts = {name: config[name] for name in ("data", "task", "model", "seed")}
        text = json.dumps([facts, plan.train.digest, plan.test.digest], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]

    @property
    def own(self) -> MultirunConfig:
        """Its configuration below a parent, which records the system's metrics and has the name."""
        tracking = dataclasses.replace(self.config.tracking, run_name=None, system_metrics=False)
        return dataclasses.replace(self.config, tracking=tracking, resume=None)


def run(many: Sequence[tuple[MultirunConfig, str]], command: str) -> Mapping[str, Any]:
    """Run all trainings, each with the command that repeats it alone, one after another; return what the job says.

    C003 for configurations that differ in what is shared, S003 for ``resume`` of what is no multirun; the first error
    that a training ended with is raised after the others have run or, with ``fail_fast``, at once.
    """
    first = many[0][0]
    _check_shared([config for config, _ in many])
    check_session(first.backend, first.cluster)
    with progress("list"):
        commands = [_without(own, "resume", "fail_fast") for _, own in many]
        names = run_names([(config.model.name, own) for (config, _), own in zip(many, commands, strict=True)])
        trainings = [_planned(*of) for of in zip((config for config, _ in many), names, commands, strict=True)]
    results: dict[int, dict[str, Any]] = {}
    failed: dict[int, Exception] = {}
    whole = _without(command, "resume")
    with ExitStack() as stack:
        resumed: str | None = None
        if first.resume is not None:
            client = open_store(first.tracking)
            with failures(resolve(first.tracking)):
                resumed = find_run(client, first.resume, first.tracking, JOB)
            sweep_run(client, resumed, JOB)
            check_lease = stack.enter_context(leased(client, resumed))
        shown = dataclasses.replace(first, tracking=dataclasses.replace(first.tracking, register=None))
        named = f"{len(trainings)} trainings"
        parent = stack.enter_context(opened(shown, whole, job=JOB, name=named, params={}, resume=resumed))
        if resumed is not None:
            clear_problem(parent.client, parent.id)
            results |= _done(parent, trainings)
            LOG.info("%-9s%d of %d trainings are done", "resume", len(results), len(trainings))
        else:
            check_lease = stack.enter_context(leased(parent.client, parent.id))
        folder = stack.enter_context(temporary_folder())
        missing = [at for at in _grouped(trainings) if at not in results]
        if missing:
            record = Record(parent, shown, trainings[missing[0]].plan, whole, folder)
            workers = start(stack, record, Clock())
        held: dict[str, Splits] = {}
        for at in missing:
            check_lease()
            training = trainings[at]
            LOG.info("%-9s%d of %d: %s", "training", len(results) + 1, len(trainings), training.name)
            if training.rows not in held:
                held.clear()
            results[at] = {}
            try:
                _train(training, parent, workers, held, results[at])
            except Exception as problem:  # also of a library: the others may end well
                held.clear()  # the rows may have gone with a worker
                failed[at] = problem
                LOG.warning("%s: %s", training.name, told(problem))
                if first.fail_fast:
                    break
        board = leaderboard(trainings, results, failed)
        _record(parent, board, whole)
    result: dict[str, Any] = {
        "run_id": parent.id,
        "experiment_id": parent.experiment_id,
        "run": parent.link,
        "trainings": board,
        "metrics": next((row["metrics"] for row in board if row["metrics"]), {}),
        "command": whole,
    }
    lines = {f"{row['rank'] or '-'} {row['name']}": row["status"] for row in board}
    others = {name: value for name, value in result.items() if name != "trainings"}
    closing.say(result if first.print is Output.json else lines | others, first.print)
    if failed:
        raise next(iter(failed.values()))
    return result


def _check_shared(configs: Sequence[MultirunConfig]) -> None:
    for name in SHARED:
        if any(getattr(config, name) != getattr(configs[0], name) for config in configs[1:]):
            what = "differs between the configurations, which share one cluster and one run"
            raise TipcastError("C003", name, what, "give it one value, or run the command once for each")
    for name in {each.name for each in dataclasses.fields(TrackingSpec)} - set(OWN):
        if any(getattr(each.tracking, name) != getattr(configs[0].tracking, name) for each in configs[1:]):
            what = "differs between the configurations, whose runs lie below one"
            raise TipcastError("C003", f"tracking.{name}", what, "give it one value")


def _planned(config: MultirunConfig, name: str, command: str) -> Training:
    check_model(config, config.task.kind)
    plan = make_plan(config)
    return Training(config, name, command, plan, original(config, plan))


def _without(command: str, *keys: str) -> str:
    """Return a command without some of its keys."""
    return shlex.join(word for word in shlex.split(command) if word.lstrip("+").partition("=")[0] not in keys)


def _grouped(trainings: Sequence[Training]) -> list[int]:
    """Return the trainings' places, those on the same rows side by side: no more than these are held at a time."""
    groups = list(dict.fromkeys(training.rows for training in trainings))
    return sorted(range(len(trainings)), key=lambda at: groups.index(trainings[at].rows))


def _done(parent: Run, trainings: Sequence[Training]) -> dict[int, dict[str, Any]]:
    """Return what the children of a resumed run say that have ended well, by the training's place.

    Those that its process left open are closed.
    """
    places = {training.identity: at for at, training in enumerate(trainings)}
    found: dict[int, dict[str, Any]] = {}
    for child in children_of(parent.client, parent.client.get_run(parent.id)):
        if child.info.status in ("RUNNING", "SCHEDULED"):
            set_tags(parent.client, child.info.run_id, {"error.message": "the process of its multirun was gone"})
            parent.client.set_terminated(child.info.run_id, "KILLED")
        at = places.get(child.data.tags.get(IDENTITY, ""))
        if child.info.status == "FINISHED" and at is not None:
            found[at] = {"run_id": child.info.run_id, "metrics": dict(child.data.metrics)}
    return found


def told(problem: Exception) -> str:
    """Return an error in one line."""
    text = problem if isinstance(problem, TipcastError) else f"{type(problem).__name__}: {problem}"
    return " ".join(str(text).split())


def _train(training: Training, parent: Run, workers: Session, held: dict[str, Splits], found: dict[str, Any]) -> None:
    """Run one training as a child of the parent; ``found`` gets its run, once there is one, and its metrics."""

    def reading(workers: Session, config: TrainConfig, plan: Plan) -> Splits:
        if training.rows not in held:
            held[training.rows] = read(workers, config, plan)
        return held[training.rows]

    clock, own = Clock(), training.own
    with (
        temporary_folder() as folder,
        opened(own, training.command, job="train", name=training.name, params=params(own), parent=parent) as run,
    ):
        found["run_id"] = run.id
        first = training.original
        run.set_tags({**workers.tags, **(first.tags if first else {}), IDENTITY: training.identity})
        record = Record(run, own, training.plan, training.command, folder, original=first)
        found["model_uri"] = finish(workers, record, clock, reading)["model_uri"]
    found["metrics"] = dict(run.client.get_run(run.id).data.metrics)


def leaderboard(
    trainings: Sequence[Training], results: Mapping[int, Mapping[str, Any]], failed: Mapping[int, Exception]
) -> list[dict[str, Any]]:
    """Return a row of each training: those of one kind of task by their headline on validation rows, best first.

    Where one of the kind has no validation rows all are ranked by that on test rows.
    """
    rows: list[dict[str, Any]] = []
    for kind in dict.fromkeys(training.plan.task.kind for training in trainings):
        headline = evaluator(kind).headline
        own: list[dict[str, Any]] = []
        for at, training in enumerate(trainings):
            if training.plan.task.kind != kind:
                continue
            found = results.get(at, {})
            names = [f"{side}/{headline.name}" for side in ("validation", "test")]
            metrics = {name: found["metrics"][name] for name in names if name in found.get("metrics", {})}
            row: dict[str, Any] = {"rank": None, "name": training.name, "kind": kind, "metrics": metrics}
            row["status"] = told(failed[at]) if at in failed else "FINISHED" if found else "not run"
            own.append({**row, "run_id": found.get("run_id"), "command": training.command})
        ended = [row for row in own if row["metrics"]]
        side = "validation" if all(f"validation/{headline.name}" in row["metrics"] for row in ended) else "test"
        ended.sort(key=lambda row: row["metrics"][f"{side}/{headline.name}"], reverse=headline.maximize)
        for rank, row in enumerate(ended, 1):
            row["rank"] = rank
        rows += [*ended, *(row for row in own if not row["metrics"])]
    return rows


def linked(row: Mapping[str, Any], parent: Run) -> str:
    """Return a training's name, as a link where it has a run."""
    return f"[{row['name']}]({parent.page(row['run_id'])})" if row["run_id"] else str(row["name"])


def _record(parent: Run, board: Sequence[Mapping[str, Any]], command: str) -> None:
    """Record the leaderboard, and the metrics of its first row as the parent's own."""
    names = list(dict.fromkeys(name for row in board for name in row["metrics"]))
    table = {key: [row[key] for row in board] for key in ("rank", "name", "kind", "status", "run_id", "command")}
    parent.log_table(table | {name: [row["metrics"].get(name) for row in board] for name in names}, TABLE)
    if board[0]["metrics"]:
        parent.log_metrics(board[0]["metrics"])
        parent.set_tags({"best.run": board[0]["run_id"], "best.name": board[0]["name"]})
    lines = [
        [
            str(row["rank"] or ""),
            linked(row, parent),
            *(report.number(row["metrics"][name]) if name in row["metrics"] else "" for name in names),
            row["status"],
        ]
        for row in board
    ]
    text = report.table(["rank", "training", *names, "status"], lines)
    remark = "Ranked by the first of these metrics that all have. A command in the table repeats each alone."
    parent.note("\n\n".join([text, remark, report.repeat(command)]))
