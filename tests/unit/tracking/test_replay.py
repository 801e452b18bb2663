"""What a replay brings to a server that has gone away at an unlucky moment."""

import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelStatus
from mlflow.entities import Run as MlflowRun
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.lasting_client import SERVER
from tipcast.tracking.offline import OfflineClient, OfflineStore
from tipcast.tracking.replay import replay
from tipcast.tracking.store import open_store
from tipcast.tracking.views import VIEW, charts_view


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


def test_a_server_that_has_not_seen_the_run_gets_what_there_is(
    on_server: tuple[MlflowClient, MlflowRun, LoggedModel],
    tables: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, run, model = on_server
    server.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    offline = _offline_store_of(server, run.info.run_id, model.model_id)
    offline.set_experiment_tag(run.info.experiment_id, SERVER, "http://gone:5000")
    other = open_store(TrackingSpec(uri=f"sqlite:///{shutil.copy(tables, tmp_path / 'other.db')}"))

    replay(offline, other)

    assert "it gets only the last points of metrics that http://gone:5000 had" in caplog.text
    assert "becomes FAILED: its files exist only where it was logged" in caplog.text


def test_a_server_that_has_the_run_gets_no_warning(
    on_server: tuple[MlflowClient, MlflowRun, LoggedModel], caplog: pytest.LogCaptureFixture
) -> None:
    server, run, model = on_server
    offline = _offline_store_of(server, run.info.run_id, model.model_id)
    offline.set_experiment_tag(run.info.experiment_id, SERVER, "http://gone:5000")
    replay(offline, server)
    assert "last points" not in caplog.text


def test_a_run_that_was_deleted_on_the_server(
    on_server: tuple[MlflowClient, MlflowRun, LoggedModel],
) -> None:
    server, run, model = on_server
    offline = _offline_store_of(server, run.info.run_id, model.model_id)
    server.delete_run(run.info.run_id)
    with pytest.raises(TipcastError, match="T004.*deleted.*mlflow runs restore --run-id"):
        replay(offline, server)


def test_an_experiment_that_was_deleted_on_the_server(
    on_server: tuple[MlflowClient, MlflowRun, LoggedModel],
) -> None:
    server, run, model = on_server
    offline = _offline_store_of(server, run.info.run_id, model.model_id)
    server.delete_experiment(run.info.experiment_id)
    with pytest.raises(TipcastError, match="T004.*experiment taxi.*mlflow experiments restore -x"):
        replay(offline, server)


def test_an_experiment_that_was_deleted_from_another_server(
    on_server: tuple[MlflowClient, MlflowRun, LoggedModel], tables: Path, tmp_path: Path
) -> None:
    server, run, model = on_server
    offline = _offline_store_of(server, run.info.run_id, model.model_id)
    other = open_store(TrackingSpec(uri=f"sqlite:///{shutil.copy(tables, tmp_path / 'other.db')}"))
    other.delete_experiment(other.create_experiment("taxi"))
    with pytest.raises(TipcastError, match="T004.*experiment taxi.*deleted on the server"):
        replay(offline, other)


def test_an_experiment_called_default_that_is_not_mlflow_s(
    on_server: tuple[MlflowClient, MlflowRun, LoggedModel],
) -> None:
    """Names are unique in a store, and MLflow makes an experiment of this name in each."""
    server, run, model = on_server
    server.rename_experiment("0", "first")
    server.rename_experiment(run.info.experiment_id, "Default")
    offline = _offline_store_of(server, run.info.run_id, model.model_id)
    assert offline.get_experiment_by_name("Default").experiment_id == run.info.experiment_id


def test_the_charts_of_a_sweep_open_on_another_server(
    on_server: tuple[MlflowClient, MlflowRun, LoggedModel], tables: Path, tmp_path: Path
) -> None:
    server, run, model = on_server
    offline = _offline_store_of(server, run.info.run_id, model.model_id)
    view = charts_view(f"parent = '{run.info.run_id}'", "auc", ["depth"], maximize=True)
    offline.set_experiment_tag(run.info.experiment_id, VIEW + run.info.run_id, view)
    other = open_store(TrackingSpec(uri=f"sqlite:///{shutil.copy(tables, tmp_path / 'other.db')}"))

    (run_id,) = replay(offline, other).runs

    tags = other.get_experiment(other.get_run(run_id).info.experiment_id).tags
    assert json.loads(tags[VIEW + run_id])["searchFilter"] == f"parent = '{run_id}'"


def _offline_store_of(server: MlflowClient, run_id: str, model_id: str) -> OfflineClient:
    """Make an offline store of a run and its model that the server has."""
    run = server.get_run(run_id)
    store = OfflineStore(Path("offline.db").absolute())
    store.add_experiment(server.get_experiment(run.info.experiment_id))
    store.add_run(run)
    store.add_model(server.get_logged_model(model_id))
    return OfflineClient(f"sqlite:///{Path('offline.db').absolute()}")
