"""What a sweep chooses among and by: another metric, the defaults, several models, and what was tried in time."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import yaml
from tests.jobs.conftest import QUICK as JOB
from tests.jobs.conftest import QUICK_TRAIN, children

from tipcast.api import compose_jobs, joined
from tipcast.config.errors import TipcastError
from tipcast.evaluation import base
from tipcast.jobs import sweep_plan

QUICK = ("data.rows=4000", "model.params.n_estimators=6")
MODELS = ("-m", "model=xgboost,random_forest", "data.rows=3000", "model.params.n_estimators=4")


@pytest.fixture(scope="module")
def client(store: str) -> Any:
    return mlflow.MlflowClient(store)


def artifact(client: Any, run: Any, path: str) -> str:
    return Path(client.download_artifacts(run.info.run_id, path)).read_text(encoding="utf-8")


def leaderboard(client: Any, run: Any) -> list[dict[str, Any]]:
    table = json.loads(artifact(client, run, "sweep/leaderboard.json"))
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def swept(store: str, *words: str) -> tuple[dict[str, Any], Any, list[Any]]:
    """Run a sweep as the command line has it; return what it said, its run and its children."""
    arguments = [*words, *JOB, *QUICK_TRAIN, f"tracking.uri={store}"]
    (one,) = joined(compose_jobs("sweep", arguments), arguments)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        one.run()
    said = json.loads(out.getvalue().splitlines()[-1])
    client = mlflow.MlflowClient(store)
    run = client.get_run(said["run_id"])
    return said, run, children(client, run)


# Another metric


def test_trials_are_ranked_by_another_metric(store: str, client: Any) -> None:
    said, parent, runs = swept(store, *QUICK, "search.trials=3", "search.metric=log_loss")
    key = "validation/log_loss"
    scores = [run.data.metrics[key] for run in runs]
    best = runs[scores.index(min(scores))]
    assert said["best"]["trial"] == int(best.data.tags["trial.number"])
    assert said["best"][key] == min(scores) == parent.data.metrics["sweep/best_validation_log_loss"]
    assert parent.data.metrics[key] == pytest.approx(min(scores), rel=1e-6), "the refit is the trial's"
    assert parent.data.params["search.metric"] == "log_loss"
    assert "log_loss" in said["charts"]
    assert "orderByAsc=true" in said["charts"]
    assert [row[key] for row in leaderboard(client, parent)] == sorted(scores)
    note = parent.data.tags["mlflow.note.content"]
    assert f"Best by {key}" in note
    assert f"{key} (95 % interval)" not in note, "it has none"
    with pytest.raises(TipcastError, match="keeps it"):
        swept(store, f"resume={said['run_id']}", "search.metric=auc")
    again, _, later = swept(store, f"resume={said['run_id'][:8]}", "search.trials=4")
    assert min(run.data.metrics[key] for run in later) == again["best"][key]
    assert len(later) == 4


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (["search.metric=rmse"], "auc, average_precision, log_loss"),
        (["task=tip_amount", "search.metric=bias"], "rmse, mae, r2, max_error"),
    ],
)
def test_an_unknown_metric_is_refused_before_a_run(store: str, client: Any, words: list[str], there: str) -> None:
    before = len(client.search_runs([each.experiment_id for each in client.search_experiments()]))
    with pytest.raises(TipcastError, match=there) as problem:
        swept(store, *QUICK, *words)
    assert (problem.value.code, problem.value.where) == ("C003", "search.metric")
    assert len(client.search_runs([each.experiment_id for each in client.search_experiments()])) == before


def test_a_metric_of_a_users_own(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_OWN", {kind: {} for kind in base.KINDS})

    @base.metric("classification", maximize=False)
    def cost(target: Any, prediction: Any) -> Any:
        return np.where(target == 1, 3 * (1 - prediction), prediction)

    said, _, runs = swept(store, *QUICK, "search.trials=4", "search.metric=cost")
    assert said["best"]["validation/cost"] == min(run.data.metrics["validation/cost"] for run in runs)


# The defaults


@pytest.mark.parametrize("search", ["random", pytest.param("tpe", marks=pytest.mark.long), "halving"])
def test_the_first_trial_has_the_defaults(store: str, client: Any, search: str) -> None:
    said, parent, runs = swept(
        store, *QUICK, f"search={search}", "search.trials=4", "model.fit.early_stopping_rounds=null"
    )
    assert {name: runs[0].data.params[f"model.params.{name}"] for name in ("max_depth", "learning_rate", "gamma")} == {
        "max_depth": "6", "learning_rate": "0.1", "gamma": "0.0",
    }  # fmt: skip
    score = runs[0].data.metrics["validation/auc"]
    assert said["defaults"] == {"trial": 0, "validation/auc": score}
    assert said["best"]["validation/auc"] >= score
    assert [row["trial"] for row in leaderboard(client, parent) if row["defaults"]] == [0]
    assert "as they are configured" in parent.data.tags["mlflow.note.content"]
    if search == "halving":
        assert runs[0].data.tags["trial.rounds"] == "6", "else it might be better than the best"


def test_a_sweep_from_before_there_was_a_baseline(store: str, client: Any, tmp_path: Path) -> None:
    _, parent, runs = swept(store, *QUICK, "search.trials=5", "search.baseline=false")
    for run in runs[3:]:
        client.delete_run(run.info.run_id)
    config = yaml.safe_load(artifact(client, parent, "config.yaml"))
    for name in ("baseline", "metric", "timeout_s"):
        del config["search"][name]
    config["search"]["trials"] = 3
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    client.log_artifact(parent.info.run_id, str(tmp_path / "config.yaml"))
    said, _, later = swept(store, f"resume={parent.info.run_id}", "search.trials=5")
    assert "defaults" not in said or not said["defaults"]
    assert [run.info.run_id for run in later[:3]] == [run.info.run_id for run in runs[:3]]
    assert [run.data.params for run in later] == [run.data.params for run in runs], "it proposes what it did"


def test_defaults_outside_the_space(store: str, client: Any) -> None:
    said, parent, runs = swept(
        store, "model=random_forest", "data.rows=3000", "model.params.n_estimators=4", "search.trials=3"
    )
    assert runs[0].data.params["model.params.max_features"] == "sqrt"
    assert runs[1].data.params["model.params.max_features"] != "sqrt"
    assert said["trials"]["finished"] == 3
    assert {row["max_features"] for row in leaderboard(client, parent)} > {"sqrt"}


# In time


def test_a_sweep_that_ends_in_time_and_goes_on(store: str) -> None:
    said, parent, runs = swept(store, *QUICK, "search.trials=14", "search.timeout_s=1e-9")  # over as the first begins
    trials = said["trials"]
    assert trials["failed"] == 0
    assert trials["not_tried"] == 14 - trials["finished"] > 0
    assert len(runs) == trials["finished"] == 1
    assert {run.info.status for run in (parent, *runs)} == {"FINISHED"}, "what runs is finished, the best is fitted"
    assert "test/auc" in said["metrics"]
    note = parent.data.tags["mlflow.note.content"]
    assert f"{trials['not_tried']} of 14 trials were not tried" in note
    assert f"resume={said['run_id']}" in note
    more, _, later = swept(store, "resume=last", "search.timeout_s=null", f"tracking.experiment={name(store, parent)}")
    assert more["run_id"] == said["run_id"]
    assert more["trials"] == {"finished": 14, "failed": 0, "all": 14}
    assert [run.info.run_id for run in later[: len(runs)]] == [run.info.run_id for run in runs]


def name(store: str, run: Any) -> str:
    return str(mlflow.MlflowClient(store).get_experiment(run.info.experiment_id).name)


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["search.timeout_s=0"], "search.timeout_s"),
        (["search=grid", "search.baseline=true"], "search.baseline"),
        ([*MODELS, "search.space.learning_rate=[0.1]"], "search.space.learning_rate"),
    ],
)
def test_what_cannot_be(store: str, words: list[str], where: str) -> None:
    with pytest.raises(TipcastError) as problem:
        swept(store, *words)
    assert problem.value.where == where


# Several models


def test_several_models_are_one_sweep(store: str, client: Any) -> None:
    said, parent, runs = swept(store, *MODELS, "search.trials=2", "tracking.register=several")
    models = [run.data.params["model.name"] for run in runs]
    assert models == ["xgboost", "random_forest"] * 2
    assert said["trials"] == {"finished": 4, "failed": 0, "all": 4}
    rows = leaderboard(client, parent)
    assert [row["rank"] for row in rows] == list(range(1, 5))
    assert [row["validation/auc"] for row in rows] == sorted((row["validation/auc"] for row in rows), reverse=True)
    assert sorted(row["trial"] for row in rows if row["defaults"]) == [0, 1]
    best = runs[rows[0]["trial"]]
    assert said["best"]["model"] == rows[0]["model"] == best.data.params["model.name"]
    assert said["best"]["validation/auc"] == rows[0]["validation/auc"]
    assert parent.data.metrics["validation/auc"] == pytest.approx(rows[0]["validation/auc"], abs=1e-6)
    assert "model.name" not in parent.data.params
    assert "search of xgboost, random_forest: 4 trials" in parent.data.tags["mlflow.note.content"]
    pictures = {entry.path for entry in client.list_artifacts(parent.info.run_id, "sweep")}
    assert pictures >= {"sweep/roc.png", "sweep/parallel_xgboost.png", "sweep/parallel_random_forest.png"}
    config = artifact(client, parent, "config.yaml")
    assert [model["name"] for model in yaml.safe_load(config)["models"]] == ["xgboost", "random_forest"]
    assert yaml.safe_load(config)["model"]["name"] == rows[0]["model"], "what a training of the best would have"
    words = shlex.split(said["command"])[2:]
    (composed,) = joined(compose_jobs("sweep", words), words)
    assert [model.name for model in composed.config.models] == ["xgboost", "random_forest"], "the command repeats it"
    more, _, later = swept(store, f"resume={said['run_id'][:8]}", "search.trials=3")
    assert more["trials"]["finished"] == 6
    assert [run.info.run_id for run in later[:4]] == [run.info.run_id for run in runs]
    assert [run.data.params["model.name"] for run in later[4:]] == ["xgboost", "random_forest"]
    _, _, alone = swept(store, "model=random_forest", *MODELS[2:], "search.trials=3")
    for name in ("max_depth", "max_features"):
        tried = [run.data.params[f"model.params.{name}"] for run in alone]
        assert tried == [run.data.params[f"model.params.{name}"] for run in later[1::2]], "as it would have alone"
    assert [run.data.metrics["validation/auc"] for run in alone] == [
        run.data.metrics["validation/auc"] for run in later[1::2]
    ]
    trained = client.get_run(said["run_id"]).data.tags
    assert not [key for key in trained if key.startswith("sweep.best.") and key[11:] not in more["best"]]


def test_sweeps_that_differ_in_more_are_separate() -> None:
    words = ["-m", "model=xgboost,svc", "seed=1,2"]
    assert len(joined(compose_jobs("sweep", words), words)) == 4
    words = ["multirun=model=xgboost,logistic search=tpe"]  # as `mlflow run -P multirun=` passes it
    (one,) = joined(compose_jobs("sweep", words), words)
    assert one.command == "tipcast sweep --multirun model=xgboost,logistic search=tpe"
    fixed = sweep_plan.without_fixed(one.config, "tipcast sweep model.params.max_depth=7")
    assert "max_depth" not in fixed.models[0].space
    assert fixed.model is fixed.models[0]
