"""`tipcast train resume=RUN`: the same run goes on, nothing is logged twice, and what would change
the training is refused.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
import yaml
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS
from tests.jobs.conftest import Ended, run_job

from tipcast.config.errors import TipcastError
from tipcast.config.plain import flatten
from tipcast.config.schema import TrainConfig
from tipcast.jobs import train
from tipcast.jobs.train_plan import Plan, make_plan

SMALL = ("data.rows=3000", "model.params.n_estimators=12", "model.fit.early_stopping_rounds=null")
Job = Callable[..., Ended]


def status(store: str, run_id: str) -> str:
    return str(mlflow.MlflowClient(store).get_run(run_id).info.status)


def points(store: str, run_id: str) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each metric that is of the model."""
    client = mlflow.MlflowClient(store)
    names = [
        name
        for name in client.get_run(run_id).data.metrics
        if name.startswith(("test/", "history/", "roc/", "baseline/", "parity/"))
    ]
    return {
        name: [(point.step, point.value) for point in client.get_metric_history(run_id, name)]
        for name in names
    }


@dataclasses.dataclass(frozen=True)
class Resumed:
    """A training that was killed when nearly all was logged, and went on."""

    run_id: str
    before: dict[str, list[tuple[int, float]]]
    result: Ended


@pytest.fixture(scope="module")
def resumed(store: str) -> Resumed:
    whole = run_job(store, "train", *SMALL)
    run_id = whole.said["run_id"]
    before = points(store, run_id)
    mlflow.MlflowClient(store).set_terminated(run_id, "KILLED")
    return Resumed(run_id, before, run_job(store, "train", f"resume={run_id[:10]}"))


def test_the_same_run_ends(resumed: Resumed, store: str) -> None:
    assert resumed.result.said["run_id"] == resumed.run_id
    assert status(store, resumed.run_id) == "FINISHED"


def test_no_point_is_logged_twice(resumed: Resumed, store: str) -> None:
    assert points(store, resumed.run_id) == resumed.before
    assert any(len(steps) == 12 for steps in resumed.before.values())


def test_the_killed_process_leaves_no_second_model(resumed: Resumed, store: str) -> None:
    experiment = resumed.result.run.info.experiment_id
    models = mlflow.MlflowClient(store).search_logged_models(
        [experiment], filter_string=f"source_run_id='{resumed.run_id}'"
    )
    ready = [model.model_id for model in models if model.status == "READY"]
    assert [f"models:/{model_id}" for model_id in ready] == [resumed.result.said["model_uri"]]


def test_a_finished_training_says_its_result_again(
    resumed: Resumed, store: str, job: Job, logged: list[str]
) -> None:
    again = job("train", f"resume={resumed.run_id}")
    assert f"run {resumed.run_id} has finished already; nothing is left to do" in logged
    assert again.said["model_uri"] == resumed.result.said["model_uri"]
    assert again.auc == resumed.result.auc
    assert points(store, resumed.run_id) == resumed.before


@pytest.mark.parametrize(
    ("word", "has"),
    [
        ("model.params.max_depth=9", "6"),
        ("seed=3", "0"),
        ("model=logistic", "xgboost"),
        ("data.rows=5000", "3000"),
    ],
)
def test_a_word_that_would_change_it_is_refused(
    resumed: Resumed, store: str, job: Job, word: str, has: str
) -> None:
    key = word.partition("=")[0]
    with pytest.raises(TipcastError, match=rf"C003\] {key}: the run has {has}, and a resumed run"):
        job("train", f"resume={resumed.run_id}", word)
    assert status(store, resumed.run_id) == "FINISHED"


@pytest.mark.parametrize("word", ["experiment=categorical_zones", "from=last"])
def test_a_word_for_a_new_training_is_refused(resumed: Resumed, job: Job, word: str) -> None:
    with pytest.raises(TipcastError, match="C003.*cannot be combined with resume"):
        job("train", f"resume={resumed.run_id}", word)


def everything(store: str, run_id: str) -> Any:
    """Return all that the store has of a run, and its models with their status."""
    client = mlflow.MlflowClient(store)
    run = client.get_run(run_id)
    models = client.search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id='{run_id}'"
    )
    return run.to_dictionary(), [(model.model_id, model.status) for model in models]


def test_a_finished_training_is_not_trained_again_for_another_name(
    store: str, job: Job, logged: list[str]
) -> None:
    run_id = job("train", *SMALL).said["run_id"]
    before = everything(store, run_id)
    what = "is finished, but its model is not registered as later"
    fix = f"Fix: start a new run: tipcast train from={run_id} tracking.register=later"
    with pytest.raises(TipcastError, match=f"S003.*{what}. {fix}"):
        job("train", f"resume={run_id}", "tracking.register=later")
    assert everything(store, run_id) == before


@pytest.mark.parametrize(
    "word", ["tracking.run_name=other", "cluster.n_workers=2", "tracking.tags.a=b"]
)
def test_nothing_of_a_finished_run_changes(
    resumed: Resumed, store: str, job: Job, word: str
) -> None:
    before = everything(store, resumed.run_id)
    job("train", f"resume={resumed.run_id}", word)
    assert everything(store, resumed.run_id) == before


def test_a_finished_training_whose_model_is_gone_is_refused(store: str, job: Job) -> None:
    done = job("train", *SMALL)
    mlflow.MlflowClient(store).delete_logged_model(done.said["model_uri"].removeprefix("models:/"))
    with pytest.raises(TipcastError, match="S003.*is finished, but its model is missing"):
        job("train", f"resume={done.said['run_id']}")


def test_a_run_is_not_opened_before_its_data_are_listed(
    resumed: Resumed, store: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume that is refused leaves nothing of the run changed, not even for a moment."""
    client = mlflow.MlflowClient(store)
    client.set_terminated(resumed.run_id, "KILLED")
    before = everything(store, resumed.run_id)
    seen = []

    def listing(*_: object) -> None:
        seen.append(everything(store, resumed.run_id))
        raise TipcastError("D001", "data.train", "is not there", "name another")

    monkeypatch.setattr(train, "make_plan", listing)
    with pytest.raises(TipcastError, match="D001"):
        job("train", f"resume={resumed.run_id}")
    assert [*seen, everything(store, resumed.run_id)] == [before, before]
    client.set_terminated(resumed.run_id, "FINISHED")


def test_a_run_that_another_machine_opens_meanwhile_is_left_to_it(
    store: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = job("train", *SMALL).said["run_id"]
    client = mlflow.MlflowClient(store)
    client.set_terminated(run_id, "KILLED")

    def listing(config: TrainConfig) -> Plan:
        client.set_tag(run_id, "tipcast.process", '{"host": "elsewhere", "pid": 1}')
        client.update_run(run_id, status="RUNNING")
        return make_plan(config)

    monkeypatch.setattr(train, "make_plan", listing)
    with pytest.raises(TipcastError, match="S002.*process 1 on elsewhere is working on this run"):
        job("train", f"resume={run_id}")
    assert status(store, run_id) == "RUNNING"


def test_a_run_that_repeats_another_goes_on_repeating_it(store: str, job: Job) -> None:
    first = job("train", *SMALL)
    repeated = job("train", f"from={first.said['run_id']}")
    run_id = repeated.said["run_id"]
    mlflow.MlflowClient(store).set_terminated(run_id, "KILLED")
    again = job("train", f"resume={run_id}")
    assert again.said["repeats"] == first.said["run_id"]


def test_a_word_that_it_has_is_taken(resumed: Resumed, job: Job) -> None:
    assert job("train", f"resume={resumed.run_id}", "data.rows=3000").auc == resumed.result.auc


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("train",), True),
        (("train", "--multirun"), False),
        (("sweep", "search.trials=1", "search.baseline=false"), False),
    ],
)
def test_only_a_run_that_can_be_resumed_keeps_checkpoints(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], kept: bool
) -> None:
    """A sweep fits its best again, and a multirun begins the training of a child anew."""
    passed = tmp_path / "passed"
    monkeypatch.setenv("TIPCAST_GATE", f":{passed}")
    job(*words, *SMALL, "model.params.n_estimators=60", "model.fit.checkpoint_s=0.0001")
    points = {line.split()[0] for line in passed.read_text().splitlines()}
    assert "checkpoint" in points, "for a worker that may be lost"
    assert ("kept" in points) == kept


def differing(run: Any) -> set[str]:
    """Return the keys of a run's ``config.yaml`` whose parameters have another value."""
    text = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/config.yaml")
    whole = yaml.safe_load(text)
    parts = {name: whole[name] for name in ("backend", "cluster", "data", "model", "seed")}
    flat = flatten(parts)
    params = run.data.params
    return {name for name in params if name in flat and params[name] != str(flat[name])}


@pytest.mark.parametrize(
    ("words", "resumed_with"),
    [
        ((), "the same backend and cluster"),
        (("cluster.threads_per_worker=1",), "cluster.threads_per_worker=1"),
        (("cluster.threads_per_worker=null",), "cluster.threads_per_worker=null"),
    ],
)
def test_parameters_and_configuration_differ_as_the_tag_says(
    store: str, job: Job, words: tuple[str, ...], resumed_with: str
) -> None:
    """MLflow keeps the parameters of the first process; config.yaml is that of the last one."""
    run_id = job("train", *SMALL).said["run_id"]
    client = mlflow.MlflowClient(store)
    client.set_terminated(run_id, "KILLED")
    run = job("train", f"resume={run_id}", *words).run
    assert run.data.tags["resumed.with"] == resumed_with
    assert differing(run) <= {word.partition("=")[0] for word in words}


def test_a_run_of_another_job_is_refused(store: str, job: Job, tmp_path: Path) -> None:
    swept = job("sweep", "search.trials=1", "search.baseline=false", "data.rows=2000")
    with pytest.raises(TipcastError, match="S003.*is not a run of train"):
        job("train", f"resume={swept.said['run_id']}")


def test_a_training_killed_after_it_was_registered_is_whole(store: str, job: Job) -> None:
    """It is closed: neither a second model nor a second version is made."""
    whole = job("train", *SMALL, "tracking.register=resumed")
    run_id = whole.said["run_id"]
    client = mlflow.MlflowClient(store)
    before = everything(store, run_id)
    ((model_id, _),) = before[1]
    tags = client.get_logged_model(model_id).tags
    description = client.get_model_version("resumed", "1").description

    # Its process was killed between the version and what names it.
    client.delete_logged_model_tag(model_id, MLFLOW_MODEL_VERSIONS)
    unnamed = description.replace("models:/resumed/1", f"models:/{model_id}")
    client.update_model_version("resumed", "1", unnamed)
    client.log_text(run_id, "left by the killed process", "checkpoint/0123-0")
    client.set_terminated(run_id, "KILLED")
    again = job("train", f"resume={run_id}")

    assert again.said["model_uri"] == whole.said["model_uri"] == "models:/resumed/1"
    assert status(store, run_id) == "FINISHED"
    assert len(client.search_model_versions("name='resumed'")) == 1
    assert everything(store, run_id)[1] == before[1]
    assert client.get_logged_model(model_id).tags == tags
    assert client.get_model_version("resumed", "1").description == description != unnamed
    assert client.list_artifacts(run_id, "checkpoint") == []


def test_a_training_killed_after_it_was_registered_takes_another_name(store: str, job: Job) -> None:
    """Its one model gets a version of that name too."""
    run_id = job("train", *SMALL, "tracking.register=first_name").said["run_id"]
    client = mlflow.MlflowClient(store)
    models = everything(store, run_id)[1]
    client.set_terminated(run_id, "KILLED")
    again = job("train", f"resume={run_id}", "tracking.register=second_name")

    assert again.said["model_uri"] == "models:/second_name/1"
    description = client.get_model_version("second_name", "1").description
    assert 'load_model("models:/second_name/1")' in description
    assert everything(store, run_id)[1] == models
    assert status(store, run_id) == "FINISHED"


def test_a_model_that_somebody_has_registered_is_not_given_up(store: str, job: Job) -> None:
    killed = job("train", *SMALL)
    run_id, model_uri = killed.said["run_id"], killed.said["model_uri"]
    client = mlflow.MlflowClient(store)
    client.create_registered_model("by_hand")
    client.create_model_version("by_hand", model_uri, run_id)
    client.set_terminated(run_id, "KILLED")
    job("train", f"resume={run_id}")
    assert client.get_logged_model(model_uri.removeprefix("models:/")).status == "READY"


def test_other_data_are_refused(store: str, job: Job, tmp_path: Path, monkeypatch: Any) -> None:
    """Where a checkpoint is left, which is of the data that were."""
    monkeypatch.chdir(tmp_path)
    rows = pd.DataFrame({"size": range(600), "big": [str(at > 300) for at in range(600)]})
    rows.to_csv("sizes.csv", index=False)
    words = ("data=table", "data.train=sizes.csv", "task.target=big")
    whole = job("train", *words, "model.params.n_estimators=3")
    client = mlflow.MlflowClient(store)
    run_id = whole.said["run_id"]
    client.set_terminated(run_id, "KILLED")
    client.log_text(run_id, "of the data before", "checkpoint/0123-0")
    with pytest.raises(TipcastError, match="S003.*its data or configuration have changed"):
        job("train", f"resume={run_id}")
    assert status(store, run_id) == "KILLED"
