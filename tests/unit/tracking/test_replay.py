"""What a replay brings to a server that has gone away at an unlucky moment."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelStatus
from mlflow.entities import Run as MlflowRun
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from tipcast.config.schema import TrackingSpec
from tipcast.tracking.offline import OfflineClient, OfflineStore
from tipcast.tracking.replay import replay
from tipcast.tracking.store import open_store


@pytest.fixture
def on_server(
    spec: TrackingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[MlflowClient, MlflowRun, LoggedModel]:
    """A run with a logged model, and the store that has them; the working folder is a new one."""
    monkeypatch.chdir(tmp_path)
    server = open_store(spec)
    run = server.create_run(server.create_experiment("taxi"))
    model = server.create_logged_model(run.info.experiment_id, "xgboost", run.info.run_id)
    return server, run, model


def test_a_model_gets_the_version_that_the_server_made_as_it_went_away(
    on_server: tuple[MlflowClient, MlflowRun, LoggedModel],
) -> None:
    server, run, model = on_server
    model = server.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    server.create_registered_model("tips")
    address = f"models:/{model.model_id}"
    server.create_model_version("tips", address, run.info.run_id, model_id=model.model_id)

    offline = _offline_store_of(server, run.info.run_id, model.model_id)
    replay(offline, server)

    tags = server.get_logged_model(model.model_id).tags
    assert [str(entry["version"]) for entry in json.loads(tags[MLFLOW_MODEL_VERSIONS])] == ["1"]


def test_a_run_that_had_ended_before_stays_so(
    on_server: tuple[MlflowClient, MlflowRun, LoggedModel],
) -> None:
    """As a finished trial of a sweep that was resumed."""
    server, run, model = on_server
    server.set_terminated(run.info.run_id, "FINISHED", 1_700_000_000_000)

    replay(_offline_store_of(server, run.info.run_id, model.model_id), server)

    info = server.get_run(run.info.run_id).info
    assert (info.status, info.end_time) == ("FINISHED", 1_700_000_000_000)


def _offline_store_of(server: MlflowClient, run_id: str, model_id: str) -> OfflineClient:
    """Make an offline store of a run and its model that the server has."""
    run = server.get_run(run_id)
    store = OfflineStore(Path("offline.db").absolute())
    store.add_experiment(server.get_experiment(run.info.experiment_id))
    store.add_run(run)
    store.add_model(server.get_logged_model(model_id))
    return OfflineClient(f"sqlite:///{Path('offline.db').absolute()}")
