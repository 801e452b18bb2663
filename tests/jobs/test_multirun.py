"""`tipcast train --multirun`: trainings that share a run, a cluster and rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest

from tipcast.config.errors import TipcastError
from tipcast.jobs import train_record

Job = Callable[..., Any]
FEW = ("data.rows=3000", "model.params.n_estimators=3")


def runs_of(store: str, wanted: str = "") -> list[Any]:
    """Return runs of all experiments, the first first."""
    client = mlflow.MlflowClient(store)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, wanted, order_by=["attributes.start_time"]))


def below(store: str, parent: str) -> list[Any]:
    """Return the runs below a run."""
    return runs_of(store, f"tags.`mlflow.parentRunId` = '{parent}'")


def test_trainings_are_runs_on_rows_that_are_read_once_and_kinds_are_ranked_apart(
    store: str, job: Job, logged: list[str]
) -> None:
    ended = job("train", "-m", "model=xgboost,random_forest", "task=high_tip,tip_amount", *FEW)
    board = ended.said["trainings"]
    children = below(store, ended.run.info.run_id)
    assert [child.info.status for child in children] == ["FINISHED"] * 4
    assert [child.data.params["task.name"] for child in children] == ["high_tip"] * 2 + [
        "tip_amount"
    ] * 2
    assert "xgboost task=tip_amount rows=3000 n_estimators=3" in {
        child.info.run_name for child in children
    }
    assert sum("not used: no_target" in line for line in logged) == 2, (
        "two trainings have read each side once"
    )
    assert sum(line.startswith("cluster") for line in logged) == 1
    assert len({row["name"] for row in board}) == 4
    ranked = [(row["kind"], row["rank"]) for row in board]
    assert ranked == [
        ("classification", 1),
        ("classification", 2),
        ("regression", 1),
        ("regression", 2),
    ]
    scores = [row["metrics"]["validation/auc"] for row in board[:2]]
    assert scores == sorted(scores, reverse=True)
    assert (ended.run.info.status, ended.run.data.metrics["validation/auc"]) == (
        "FINISHED",
        scores[0],
    )
    artifact = mlflow.MlflowClient(store).download_artifacts(
        ended.run.info.run_id, "tables/leaderboard.json"
    )
    table = json.loads(Path(artifact).read_text("utf-8"))
    assert len(table["data"]) == 4
    assert table["columns"][:6] == ["name", "rank", "kind", "status", "run_id", "command"]
    assert all(
        child.info.run_name in ended.run.data.tags["mlflow.note.content"] for child in children
    )


def test_a_training_that_fails_is_run_again(
    store: str, job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = train_record.Record.model

    def model(record: Any, *arguments: Any, **named: Any) -> Any:
        if record.config.seed == 1:
            raise TipcastError("T008", "the disk", "is full", "make room")
        return save(record, *arguments, **named)

    with monkeypatch.context() as patch, pytest.raises(TipcastError, match="T008"):
        patch.setattr(train_record.Record, "model", model)
        job("train", "-m", "seed=1,2", *FEW)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    ended = {child.info.status: child.info.run_id for child in below(store, said["run_id"])}
    assert [(row["status"][:11], row["run_id"]) for row in said["trainings"]] == [
        ("FINISHED", ended["FINISHED"]),
        ("error[T008]", ended["FAILED"]),
    ]
    assert mlflow.MlflowClient(store).get_run(ended["FAILED"]).data.tags["error.code"] == "T008"
    again = job("train", "-m", "seed=2,1", f"resume={said['run_id'][:12]}", *FEW)
    assert (again.run.info.run_id, again.run.info.status) == (said["run_id"], "FINISHED")
    assert "resume" not in again.run.data.tags["command"]
    done = {child.info.run_id: child.data.params["seed"] for child in below(store, said["run_id"])}
    assert len(done) == 3
    assert done[ended["FINISHED"]] == "2"
    assert {row["run_id"] for row in again.said["trainings"]} == done.keys() - {ended["FAILED"]}


def test_a_training_that_a_killed_multirun_left_open_is_closed_and_run_again(
    store: str, job: Job
) -> None:
    client = mlflow.MlflowClient(store)
    first = job("train", "-m", "seed=1,2", *FEW)
    ended, left = (row["run_id"] for row in first.said["trainings"])
    for run_id in (left, first.run.info.run_id):  # as after SIGKILL: nobody closes them
        client.update_run(run_id, status="RUNNING")
    again = job("train", "-m", "seed=1,2", *FEW, f"resume={first.run.info.run_id}")
    closed = client.get_run(left)
    assert closed.info.status == "KILLED"
    assert closed.data.tags["error.message"] == "the process of its multirun was gone"
    assert len(below(store, first.run.info.run_id)) == 3
    runs = {row["run_id"] for row in again.said["trainings"]}
    assert (ended in runs, left in runs) == (True, False)
    assert client.get_run(first.run.info.run_id).info.status == "FINISHED"


def test_a_seed_without_effect_is_said_and_a_whole_multirun_runs_nothing(
    store: str, job: Job, logged: Any
) -> None:
    words = (
        "-m",
        "model=linear",
        "data=regression",
        "data.seed=3",
        "task.validation=0",
        "seed=1,2",
        FEW[0],
    )
    first = job("train", *words)
    names = ", ".join(row["name"] for row in first.said["trainings"])
    remark = f"{names}: the same test metrics to the last bit"
    assert remark in first.run.data.tags["mlflow.note.content"]
    assert any(line.startswith(remark) for line in logged)
    resume = f"resume={first.run.info.run_id}"
    assert job("train", *words, resume).said["trainings"] == first.said["trainings"]
    assert "all 2 trainings are done: there is nothing left to run" in logged
    with pytest.raises(TipcastError, match="S003.*did not run these trainings"):
        job("train", "-m", "seed=1,2", resume)
    assert len(below(store, first.run.info.run_id)) == 2


def test_trainings_of_which_one_has_no_validation_rows_are_ranked_on_test_rows(
    store: str, job: Job
) -> None:
    ended = job("train", "-m", "task.validation=0,0.2", *FEW)
    scores = [row["metrics"]["test/auc"] for row in ended.said["trainings"]]
    assert scores == sorted(scores, reverse=True)
    (without,) = (
        run
        for run in below(store, ended.run.info.run_id)
        if run.data.params["task.validation"] == "0.0"
    )
    assert without.data.metrics["train/rows"] == pytest.approx(3000, rel=0.02)
    assert not [name for name in without.data.metrics if name.startswith("validation/")]
    assert without.data.metrics["test/threshold"] == 0.5


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("cluster.n_workers=1,2", "C003.*share one cluster"),
        ("tracking.experiment=a,b", "C003.*share one cluster"),
        ("resume=nothing", "T004.*is not there"),
        ("model.params.max_depth=3,-1", "C003.*max_depth"),
    ],
)
def test_mistakes_end_before_anything_is_recorded(
    store: str, job: Job, word: str, line: str
) -> None:
    before = len(runs_of(store))
    with pytest.raises(TipcastError, match=line):
        job("train", "-m", *FEW, word)
    assert len(runs_of(store)) == before
