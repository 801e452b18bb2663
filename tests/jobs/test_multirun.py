"""`tipcast train --multirun`: trainings that share a run, a cluster and rows."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import mlflow
import pytest
from tests import warm
from tests.waiting import WATCHDOG_S

from tipcast.api import compose_jobs
from tipcast.config.errors import TipcastError
from tipcast.jobs import train_record

FEW = ("data.rows=3000", "model.params.n_estimators=3", "tracking.system_metrics=false", "cluster.processes=false",
       "cluster.performance_report=false", "print=json")  # fmt: skip


def many(store: str, *words: str) -> tuple[dict[str, Any], list[Any]]:
    """Run a multirun; return what it says and its children by name."""
    arguments = [*words, *FEW, f"tracking.uri={store}"]
    (one,) = compose_jobs("train", arguments)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            one.run()
        finally:
            said = json.loads(out.getvalue().splitlines()[-1]) if out.getvalue() else {}
    return said, below(store, said["run_id"])


def below(store: str, parent: str) -> list[Any]:
    """Return the runs below a run, the first first."""
    client = mlflow.MlflowClient(store)
    wanted = f"tags.`mlflow.parentRunId` = '{parent}'"
    experiment = client.get_run(parent).info.experiment_id
    return client.search_runs([experiment], wanted, order_by=["attributes.start_time"])


def runs_of(store: str) -> list[Any]:
    """Return all runs."""
    client = mlflow.MlflowClient(store)
    return list(client.search_runs([each.experiment_id for each in client.search_experiments()]))


def test_each_configuration_is_a_run_on_rows_that_are_read_once(store: str, logged: list[str]) -> None:
    said, children = many(store, "--multirun", "model=xgboost,random_forest", "seed=1,2")
    assert [child.info.status for child in children] == ["FINISHED"] * 4
    assert {child.info.run_name for child in children} >= {"xgboost seed=1 rows=3000 n_estimators=3"}
    assert all(child.data.metrics["test/rows"] == children[0].data.metrics["test/rows"] for child in children)
    assert sum(line.startswith("cluster") for line in logged) == 1
    board = said["trainings"]
    assert len({row["name"] for row in board}) == 4
    scores = [row["metrics"]["validation/auc"] for row in board]
    assert scores == sorted(scores, reverse=True)
    assert [row["rank"] for row in board] == [1, 2, 3, 4]
    client = mlflow.MlflowClient(store)
    parent = client.get_run(said["run_id"])
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["validation/auc"] == scores[0]
    table = json.loads(Path(client.download_artifacts(said["run_id"], "tables/leaderboard.json")).read_text("utf-8"))
    assert len(table["data"]) == 4
    for child in children:
        assert f"{child.info.run_name}" in parent.data.tags["mlflow.note.content"]


def test_a_training_that_fails(store: str, capsys: Any) -> None:
    words = ["-m", "data.limits.min_rows=1000000,10", *FEW, f"tracking.uri={store}"]
    (one,) = compose_jobs("train", words)
    with pytest.raises(TipcastError, match="D014"):
        one.run()
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    children = below(store, said["run_id"])
    assert sum(child.info.status == "FINISHED" for child in children) == 1
    failed = next(child for child in children if child.info.status == "FAILED")
    assert failed.data.tags["error.code"] == "D014"
    row = next(row for row in said["trainings"] if "D014" in row["status"])
    assert row["run_id"] == failed.info.run_id


def test_trainings_on_the_same_rows_follow_each_other_and_kinds_are_ranked_apart(store: str) -> None:
    said, children = many(store, "-m", "model=xgboost,random_forest", "task=high_tip,tip_amount")
    assert [child.data.params["task.name"] for child in children] == ["high_tip"] * 2 + ["tip_amount"] * 2
    ranked = [(row["kind"], row["rank"]) for row in said["trainings"]]
    assert ranked == [("classification", 1), ("classification", 2), ("regression", 1), ("regression", 2)]


def test_a_seed_without_effect_is_said_and_a_whole_multirun_runs_nothing(store: str, logged: list[str]) -> None:
    words = ("-m", "model=linear", "data=regression", "data.seed=3", "task.validation=0", "seed=1,2")
    few = [word for word in FEW if not word.startswith("model.")]
    arguments = [*words, *few, f"tracking.uri={store}"]
    said = compose_jobs("train", arguments)[0].run()
    first, second = (row["name"] for row in said["trainings"])
    remark = f"{first}, {second}: the same test metrics to the last bit"
    assert remark in mlflow.MlflowClient(store).get_run(said["run_id"]).data.tags["mlflow.note.content"]
    assert any(line.startswith(remark) for line in logged)
    arguments.append(f"resume={said['run_id']}")
    again = compose_jobs("train", arguments)[0].run()
    assert again["trainings"] == said["trainings"]
    assert "all 2 trainings are done: there is nothing left to run" in logged
    with pytest.raises(TipcastError, match="S003.*did not run these trainings"):
        many(store, "-m", "seed=1,2", f"resume={said['run_id']}")
    assert len(below(store, said["run_id"])) == 2


def test_trainings_of_which_one_has_no_validation_rows_are_ranked_on_test_rows(store: str) -> None:
    said, _ = many(store, "-m", "task.validation=0,0.2", "model.params.max_depth=1,6")
    scores = [row["metrics"]["test/auc"] for row in said["trainings"]]
    assert scores == sorted(scores, reverse=True)


def killed_in_the_second() -> None:
    """Let the process be killed as the second training saves its model."""
    save = train_record.Record.model

    def model(record: Any, *arguments: Any, **named: Any) -> Any:
        if record.config.seed == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return save(record, *arguments, **named)

    train_record.Record.model = model  # type: ignore[method-assign]


def test_a_killed_multirun_goes_on_where_it_was(tables: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/mlflow.db"
    (tmp_path / "mlflow.db").write_bytes(tables.read_bytes())
    words = ["train", "-m", "seed=1,2,3", *FEW, f"tracking.uri={store}"]
    killed = warm.start(words, tmp_path, warm.environment(), killed_in_the_second)
    assert killed.wait(WATCHDOG_S) == -signal.SIGKILL, (tmp_path / "stderr").read_text()
    (parent,) = (run for run in runs_of(store) if run.data.tags["job"] == "multirun")
    before = {run.info.run_id for run in below(store, parent.info.run_id) if run.info.status == "FINISHED"}
    assert len(before) == 1
    said, children = many(store, "-m", "seed=3,1,2", f"resume={parent.info.run_id[:12]}")
    assert said["run_id"] == parent.info.run_id
    done = [child for child in children if child.info.status == "FINISHED"]
    assert sorted(child.data.params["seed"] for child in done) == ["1", "2", "3"]
    assert before < {child.info.run_id for child in done}
    assert not [run for run in runs_of(store) if run.info.status == "RUNNING"]
    assert "resume" not in mlflow.MlflowClient(store).get_run(said["run_id"]).data.tags["command"]


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["-m", "cluster.n_workers=1,2"], "C003", "share one cluster"),
        (["-m", "tracking.experiment=a,b"], "C003", "share one cluster"),
        (["-m", "resume=nothing"], "T004", "is not there"),
        (["-m", "model.params.max_depth=3,-1"], "C003", "max_depth"),
    ],
)
def test_mistakes_end_before_anything_is_recorded(store: str, words: list[str], code: str, what: str) -> None:
    before = len(runs_of(store))
    arguments = [*words, *FEW, f"tracking.uri={store}"]
    (one,) = compose_jobs("train", arguments)
    with pytest.raises(TipcastError, match=what) as problem:
        one.run()
    assert problem.value.code == code
    assert len(runs_of(store)) == before


def test_mlflow_run_passes_several_overrides_in_one_word() -> None:
    (one,) = compose_jobs("train", ["--multirun", "seed=1,2 model=xgboost,svc"])
    assert [each.config.seed for each in one.many] == [1, 1, 2, 2]
    assert [each.job for each in compose_jobs("train", ["seed=1"])] == ["train"]
