"""`tipcast train --multirun`: a training for each configuration, on one cluster, below one run with a leaderboard."""

from __future__ import annotations

import dataclasses
import logging
import math
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
from tipcast.config.schema import Output
from tipcast.evaluation import report
from tipcast.evaluation.base import evaluator
from tipcast.jobs import closing
from tipcast.jobs.opening import opened, told_apart
from tipcast.jobs.train import Plan, Splits, check_model, finish, make_plan, read, start
from tipcast.jobs.train_record import DIGEST, Record, params
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.tracking.children import children_of, clear_problem, sweep_run
from tipcast.tracking.lease import leased
from tipcast.tracking.run import Run
from tipcast.tracking.store import open_store

LOG = logging.getLogger("tipcast")

SHARED = ("backend", "cluster", "print", "debug", "resume", "fail_fast")
"""Parts of the configuration that all trainings have in common."""
JOB = "multirun"
TABLE = "tables/leaderboard.json"


@dataclass(frozen=True)
class Training:
    """One of the configurations."""

    config: MultirunConfig
    command: str
    """What repeats it alone."""
    plan: Plan

    @property
    def name(self) -> str:
        """What tells it apart."""
        return told_apart(self.config.model.name, self.command)

    @property
    def rows(self) -> str:
        """Text that is the same for trainings on the same rows."""
        drawn = self.plan.recipe.draw is not None or self.plan.test_recipe.draw is not None
        return repr([to_plain(self.config.data), to_plain(self.config.task), self.config.seed if drawn else None])

    @property
    def own(self) -> MultirunConfig:
        """Its configuration below a parent, which records the system's metrics and has the name."""
        tracking = dataclasses.replace(self.config.tracking, run_name=None, system_metrics=False)
        return dataclasses.replace(self.config, tracking=tracking, resume=None)


def run(many: Sequence[tuple[MultirunConfig, str]], command: str) -> Mapping[str, Any]:
    """Run all trainings, one after another; return what the job says.

    Parameters
    ----------
    many
        Configurations, each with the command that repeats it alone.
    command
        What repeats all of them.

    Raises
    ------
    TipcastError
        C003 for configurations that differ in what is shared, S003 for ``resume`` of what is no multirun; the first
        that a training ended with, after the others have run or, with ``fail_fast``, at once.

    """
    first = many[0][0]
    _check_shared([config for config, _ in many])
    check_session(first.backend, first.cluster)
    with progress("list"):
        trainings = [Training(config, _alone(own), _planned(config)) for config, own in many]
    results: dict[int, dict[str, Any]] = {}
    failed: dict[int, TipcastError] = {}
    with ExitStack() as stack:
        if first.resume is not None:
            client = open_store(first.tracking)
            sweep_run(client, first.resume, JOB)
            stack.enter_context(leased(client, first.resume))
        shown = dataclasses.replace(first, tracking=dataclasses.replace(first.tracking, register=None))
        named = f"{len(trainings)} trainings"
        parent = stack.enter_context(opened(shown, command, job=JOB, name=named, params={}, resume=first.resume))
        if first.resume is not None:
            clear_problem(parent.client, parent.id)
            results |= _done(parent, trainings)
            LOG.info("%-9s%d of %d trainings are done", "resume", len(results), len(trainings))
        else:
            stack.enter_context(leased(parent.client, parent.id))
        folder = stack.enter_context(temporary_folder())
        missing = [at for at in range(len(trainings)) if at not in results]
        if missing:
            record = Record(parent, shown, trainings[missing[0]].plan, command, folder)
            workers = start(stack, record, Clock())
        held: dict[str, Splits] = {}
        for place, at in enumerate(missing):
            training = trainings[at]
            LOG.info("%-9s%d of %d: %s", "training", at + 1, len(trainings), training.name)
            try:
                results[at] = _train(training, parent, workers, held)
            except TipcastError as problem:
                held.pop(training.rows, None)  # they may have gone with a worker
                failed[at] = problem
                LOG.warning("%s: %s", training.name, problem)
                if first.fail_fast:
                    break
            if training.rows not in {trainings[other].rows for other in missing[place + 1 :]}:
                held.pop(training.rows, None)
        board = leaderboard(trainings, results, failed)
        _record(parent, board, command)
    result: dict[str, Any] = {
        "run_id": parent.id,
        "experiment_id": parent.experiment_id,
        "run": parent.link,
        "trainings": board,
        "metrics": next((row["metrics"] for row in board if row["metrics"]), {}),
        "command": command,
    }
    lines = {f"{row['rank'] or '-'} {row['name']}": row["status"] for row in board}
    told = {name: value for name, value in result.items() if name != "trainings"}
    closing.say(result if first.print is Output.json else lines | told, first.print)
    if failed:
        raise next(iter(failed.values()))
    return result


def _check_shared(configs: Sequence[MultirunConfig]) -> None:
    for name in SHARED:
        if any(getattr(config, name) != getattr(configs[0], name) for config in configs[1:]):
            what = "differs between the configurations, which share one cluster and one run"
            raise TipcastError("C003", name, what, "give it one value, or run the command once for each")
    for name in ("uri", "experiment", "artifact_root"):
        if any(getattr(each.tracking, name) != getattr(configs[0].tracking, name) for each in configs[1:]):
            what = "differs between the configurations, whose runs lie below one"
            raise TipcastError("C003", f"tracking.{name}", what, "give it one value")


def _planned(config: MultirunConfig) -> Plan:
    check_model(config, config.task.kind)
    return make_plan(config)


def _alone(command: str) -> str:
    """Return the command of one training without what only all of them have."""
    return shlex.join(word for word in shlex.split(command) if word.partition("=")[0] not in ("resume", "fail_fast"))


def _done(parent: Run, trainings: Sequence[Training]) -> dict[int, dict[str, Any]]:
    """Return what the children of a resumed run say that have ended well, by the training's place."""
    found: dict[int, dict[str, Any]] = {}
    for child in children_of(parent.client, parent.client.get_run(parent.id)):
        if child.info.status in ("RUNNING", "SCHEDULED"):
            parent.client.set_terminated(child.info.run_id, "KILLED")
        for at, training in enumerate(trainings):
            same = child.data.tags.get("data.digest") == training.plan.train.digest[:DIGEST]
            same &= child.data.tags.get("data.test_digest") == training.plan.test.digest[:DIGEST]
            if child.info.status == "FINISHED" and child.data.tags.get("command") == training.command and same:
                found[at] = {"run_id": child.info.run_id, "metrics": dict(child.data.metrics)}
    return found


def _train(training: Training, parent: Run, workers: Session, held: dict[str, Splits]) -> dict[str, Any]:
    """Run one training as a child of the parent; return its run and its metrics."""

    def reading(workers: Session, config: TrainConfig, plan: Plan) -> Splits:
        if training.rows not in held:
            held[training.rows] = read(workers, config, plan)
        return held[training.rows]

    clock, own = Clock(), training.own
    with (
        temporary_folder() as folder,
        opened(own, training.command, job="train", name=training.name, params=params(own)) as run,
    ):
        run.child_of(parent)
        run.set_tags(workers.tags)
        record = Record(run, own, training.plan, training.command, folder)
        said = finish(workers, record, clock, reading)
    metrics = run.client.get_run(run.id).data.metrics
    return {"run_id": run.id, "model_uri": said["model_uri"], "metrics": dict(metrics)}


def leaderboard(
    trainings: Sequence[Training], results: Mapping[int, Mapping[str, Any]], failed: Mapping[int, TipcastError]
) -> list[dict[str, Any]]:
    """Return a row of each training: those of one kind of task by their headline on validation rows, best first.

    Where there are no validation rows they are ranked by that on test rows.
    """
    rows: list[dict[str, Any]] = []
    kinds = list(dict.fromkeys(training.plan.task.kind for training in trainings))
    for kind in kinds:
        headline = evaluator(kind).headline
        own: list[dict[str, Any]] = []
        for at, training in enumerate(trainings):
            if training.plan.task.kind != kind:
                continue
            found = results.get(at, {})
            metrics = {
                f"{side}/{headline.name}": found["metrics"][f"{side}/{headline.name}"]
                for side in ("validation", "test")
                if f"{side}/{headline.name}" in found.get("metrics", {})
            }
            status = "FINISHED" if found else str(failed[at]) if at in failed else "not run"
            row: dict[str, Any] = {
                "rank": None,
                "name": training.name,
                "kind": kind,
                "metrics": metrics,
                "status": status,
            }
            own.append({**row, "run_id": found.get("run_id"), "command": training.command})
        sign = -1 if headline.maximize else 1
        own.sort(key=lambda row: sign * next(iter(row["metrics"].values())) if row["metrics"] else math.inf)
        for rank, row in enumerate((row for row in own if row["metrics"]), 1):
            row["rank"] = rank
        rows += own
    return rows


def linked(row: Mapping[str, Any], parent: Run) -> str:
    """Return a training's name, as a link where it has a run."""
    page = f"#/experiments/{parent.experiment_id}/runs/{row['run_id']}?workflowType=machine_learning"
    return f"[{row['name']}]({page})" if row["run_id"] else str(row["name"])


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
    remark = "Ranked by the first of these metrics that a training has. A command in the table repeats each alone."
    parent.note("\n\n".join([text, remark, report.repeat(command)]))
