"""`tipcast train --multirun`: trainings that share a run, a cluster and rows."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from tests.jobs.conftest import console_lines, run_job

from tipcast.commands import compose_jobs
from tipcast.config.errors import TipcastError
from tipcast.jobs import train_record
from tipcast.jobs.multirun_plan import Training, plan_trainings

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


@dataclass(frozen=True)
class Multirun:
    """What a multirun has left."""

    said: dict[str, Any]
    run: Any
    children: list[Any]
    lines: list[str]
    """What the console was told."""


@pytest.fixture(scope="module")
def four(store: str, tmp_path_factory: pytest.TempPathFactory) -> Multirun:
    """Two models of each of two tasks, a class and a value."""
    words = ("-m", "model=xgboost,random_forest", "task=high_tip,tip_amount", *FEW)
    with contextlib.chdir(tmp_path_factory.mktemp("four")), console_lines() as lines:
        ended = run_job(store, "train", *words)
    return Multirun(ended.said, ended.run, below(store, ended.run.info.run_id), lines)


def test_each_training_is_a_run_below_the_multirun(four: Multirun) -> None:
    tasks = [child.data.params["task.name"] for child in four.children]
    names = {child.info.run_name for child in four.children}
    assert [child.info.status for child in four.children] == ["FINISHED"] * 4
    assert tasks == ["high_tip"] * 2 + ["tip_amount"] * 2
    assert "xgboost task=tip_amount rows=3000 n_estimators=3" in names
    assert all(name in four.run.data.tags["mlflow.note.content"] for name in names)


def test_trainings_share_rows_that_are_read_once(four: Multirun) -> None:
    """By the two trainings of a task, each side."""
    assert sum("not used: no_target" in line for line in four.lines) == 2


def test_trainings_share_one_cluster(four: Multirun) -> None:
    assert sum(line.startswith("cluster") for line in four.lines) == 1


def test_kinds_are_ranked_apart(four: Multirun) -> None:
    board = four.said["trainings"]
    assert len({row["name"] for row in board}) == 4
    assert [(row["kind"], row["rank"]) for row in board] == [
        ("classification", 1),
        ("classification", 2),
        ("regression", 1),
        ("regression", 2),
    ]


def test_trainings_are_ranked_by_validation_score(four: Multirun) -> None:
    scores = [row["metrics"]["validation/auc"] for row in four.said["trainings"][:2]]
    assert scores == sorted(scores, reverse=True)


def test_the_score_of_a_multirun_is_that_of_its_best_training(four: Multirun) -> None:
    best = four.said["trainings"][0]["metrics"]["validation/auc"]
    assert four.run.data.metrics["validation/auc"] == best


def test_a_multirun_is_a_run_that_ends(four: Multirun) -> None:
    assert four.run.info.status == "FINISHED"


def test_the_leaderboard_is_a_table_of_the_multirun(four: Multirun, store: str) -> None:
    client = mlflow.MlflowClient(store)
    path = client.download_artifacts(four.run.info.run_id, "tables/leaderboard.json")
    table = json.loads(Path(path).read_text("utf-8"))
    assert len(table["data"]) == 4
    assert {"name", "rank", "kind", "low", "high", "fit_s", "model_bytes", "status"} <= {
        *table["columns"]
    }


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


@dataclass(frozen=True)
class Resumed:
    """A multirun of two trainings, that was killed in the second and resumed."""

    finished: str
    """The run that had ended."""
    killed: Any
    """The run that was left open, as it is afterwards."""
    trainings: set[str]
    """Runs that the leaderboard names in the end."""
    parent: Any


@pytest.fixture(scope="module")
def resumed(store: str, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    client = mlflow.MlflowClient(store)
    with contextlib.chdir(tmp_path_factory.mktemp("resumed")):
        first = run_job(store, "train", "-m", "seed=1,2", *FEW)
        finished, left_open = (row["run_id"] for row in first.said["trainings"])
        parent = first.run.info.run_id
        for run_id in (left_open, parent):  # as after SIGKILL: nobody closes them
            client.update_run(run_id, status="RUNNING")
        again = run_job(store, "train", "-m", "seed=1,2", *FEW, f"resume={parent}")
    trainings = {row["run_id"] for row in again.said["trainings"]}
    return Resumed(finished, client.get_run(left_open), trainings, client.get_run(parent))


def test_a_training_that_a_killed_multirun_left_open_is_closed(resumed: Resumed) -> None:
    assert resumed.killed.info.status == "KILLED"
    message = resumed.killed.data.tags["error.message"]
    assert message == "the process of its multirun had ended"


def test_a_training_that_a_killed_multirun_left_open_is_run_again(
    resumed: Resumed, store: str
) -> None:
    assert len(below(store, resumed.parent.info.run_id)) == 3
    assert resumed.killed.info.run_id not in resumed.trainings


def test_a_training_that_had_ended_when_its_multirun_was_killed_stays(resumed: Resumed) -> None:
    assert resumed.finished in resumed.trainings


def test_a_multirun_that_is_resumed_ends(resumed: Resumed) -> None:
    assert resumed.parent.info.status == "FINISHED"


SAME = (
    "-m",
    "model=linear",
    "data=regression",
    "data.seed=3",
    "task.validation=0",
    "seed=1,2",
    FEW[0],
)
"""Trainings whose seed decides nothing."""


@pytest.fixture(scope="module")
def same(store: str, tmp_path_factory: pytest.TempPathFactory) -> Multirun:
    with contextlib.chdir(tmp_path_factory.mktemp("same")), console_lines() as lines:
        ended = run_job(store, "train", *SAME)
    return Multirun(ended.said, ended.run, below(store, ended.run.info.run_id), lines)


def test_trainings_that_differ_in_nothing_are_named(same: Multirun) -> None:
    names = ", ".join(row["name"] for row in same.said["trainings"])
    remark = f"{names}: identical test metrics"
    assert remark in same.run.data.tags["mlflow.note.content"]
    assert any(line.startswith(remark) for line in same.lines)


def test_a_multirun_that_is_whole_runs_nothing_when_it_is_resumed(
    same: Multirun, store: str, job: Job, logged: list[str]
) -> None:
    again = job("train", *SAME, f"resume={same.run.info.run_id}")
    assert again.said["trainings"] == same.said["trainings"]
    assert "all 2 trainings are done; nothing left to run" in logged
    assert len(below(store, same.run.info.run_id)) == 2


def test_a_multirun_is_not_resumed_with_other_trainings(
    same: Multirun, store: str, job: Job
) -> None:
    with pytest.raises(TipcastError, match="S003.*did not run these trainings"):
        job("train", "-m", "seed=1,2", f"resume={same.run.info.run_id}")
    assert len(below(store, same.run.info.run_id)) == 2


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


@pytest.fixture(scope="module")
def every_model(store: str, tmp_path_factory: pytest.TempPathFactory) -> Multirun:
    """Every model, on a small table of three classes."""
    rows = np.random.default_rng(0)
    size = rows.uniform(0, 30, 240)
    kinds = np.array(["ash", "elm", "oak"])[(size // 10).astype(int)]
    noise = rows.normal(size=240)
    noise[::7] = np.nan  # some models learn from missing numbers, others need them filled
    table = pd.DataFrame({"size": size, "noise": noise, "day": "2020-02-28", "tree": kinds})

    with contextlib.chdir(tmp_path_factory.mktemp("every")), console_lines() as lines:
        table.to_csv("trees.csv", index=False)
        words = ("data=table", "data.train=trees.csv", "task.target=tree")
        ended = run_job(store, "train", "-m", "model=all", *words)
    return Multirun(ended.said, ended.run, below(store, ended.run.info.run_id), lines)


def test_every_model_that_learns_several_classes_is_trained(every_model: Multirun) -> None:
    models = {child.data.params["model.name"] for child in every_model.children}
    assert models == {
        "extra_trees",
        "hist_gradient_boosting",
        "incremental",
        "knn",
        "logistic",
        "random_forest",
        "svc",
        "xgboost",
        "xgboost_forest",
    }


def test_a_model_that_does_not_fit_the_data_is_named(every_model: Multirun) -> None:
    (line,) = (line for line in every_model.lines if line.startswith("left out  ridge "))
    assert line.endswith(": ridge does not support multiclass")


def test_what_may_surprise_in_a_table_is_said_once_for_all_models(every_model: Multirun) -> None:
    assert every_model.lines.count("day could be a date: data.types.day=date") == 1


def test_a_clustering_is_named_beside_models_that_predict(every_model: Multirun) -> None:
    (line,) = (line for line in every_model.lines if line.startswith("left out  kmeans "))
    assert line.endswith(": predicts no target")


def test_each_model_gets_missing_numbers_as_it_needs_them(every_model: Multirun) -> None:
    assert {row["status"] for row in every_model.said["trainings"]} == {"FINISHED"}
    features = {
        child.data.params["model.name"]: child.data.params["task.features"]
        for child in every_model.children
    }
    assert "noise is missing" in features["svc"]
    assert "noise is missing" not in features["xgboost"]


def test_the_leaderboard_tells_error_seconds_and_size(every_model: Multirun) -> None:
    for row in every_model.said["trainings"]:
        assert row["low"] <= row["metrics"]["test/log_loss"] <= row["high"]
        assert row["fit_s"] > 0
        assert row["model_bytes"] > 1000


def test_the_best_model_of_all_learns_what_decides_the_class(every_model: Multirun) -> None:
    best, *_ = every_model.said["trainings"]
    assert best["metrics"]["test/log_loss"] < 0.2


def planned_for_every_model(*words: str) -> list[Training]:
    """Return the trainings that are planned for all models that suit the data and these words."""
    (job,) = compose_jobs("train", ["-m", "model=all", "data=table", *words])
    many: Any = [(training.config, training.command) for training in job.trainings]
    return plan_trainings(many, every_model=True)


@pytest.mark.parametrize(
    ("word", "model", "reason"),
    [
        ("task.folds=5", "kmeans", "clustering predicts no target"),
        ("task.class_weight=balanced", "knn", "knn does not support weights"),
        ("task.weight=count", "knn", "knn does not support weights"),
    ],
)
def test_a_model_that_does_not_suit_folds_or_weights_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, model: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {"size": range(60), "count": [1.0] * 60, "tree": ["ash", "elm"] * 30}
    pd.DataFrame(rows).to_csv("trees.csv", index=False)
    with console_lines() as lines:
        trainings = planned_for_every_model("data.train=trees.csv", "task.target=tree", word)
    models = {training.config.model.name for training in trainings}
    assert {"logistic", "random_forest", "xgboost"} <= models
    (line,) = (line for line in lines if line.startswith(f"left out  {model} "))
    assert line.endswith(f": {reason}")


def test_an_unknown_column_of_weights_ends_every_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"size": range(60), "tree": ["ash", "elm"] * 30}).to_csv("trees.csv", index=False)
    words = ("data.train=trees.csv", "task.target=tree", "task.weight=count")
    with pytest.raises(TipcastError, match=r"C003. task.weight: unknown column.*'count'"):
        planned_for_every_model(*words)


def test_every_model_needs_multirun(job: Job) -> None:
    with pytest.raises(TipcastError, match="C002.*--multirun model=all"):
        job("train", "model=all")


def test_an_error_of_the_data_ends_every_model(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"size": range(60), "tree": ["ash", "elm"] * 30}).to_csv("trees.csv", index=False)
    words = ("data=table", "data.train=trees.csv,nothing.csv", "task.target=tree")
    with pytest.raises(TipcastError, match="D001.*nothing.csv"):
        job("train", "-m", "model=all", *words)
