"""A server that makes what it is asked for, and goes away before it answers."""

from pathlib import Path
from typing import Any, cast

import pytest
import requests
from mlflow import MlflowClient

from tipcast.config.schema import TrackingSpec
from tipcast.tracking import patience
from tipcast.tracking.lasting_client import LastingClient
from tipcast.tracking.patience import Patience
from tipcast.tracking.portable_model import create_version
from tipcast.tracking.run import Run
from tipcast.tracking.store import open_store


class LosingClient(MlflowClient):  # type: ignore[misc]  # MLflow's class has no types
    """MLflow's client of a store whose first answer to each method that makes something is lost."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.lost: set[str] = set()

    def create_run(self, *arguments: Any, **keywords: Any) -> Any:
        return self._lose("create_run", super().create_run(*arguments, **keywords))

    def create_logged_model(self, *arguments: Any, **keywords: Any) -> Any:
        model = super().create_logged_model(*arguments, **keywords)
        return self._lose("create_logged_model", model)

    def create_registered_model(self, *arguments: Any, **keywords: Any) -> Any:
        model = super().create_registered_model(*arguments, **keywords)
        return self._lose("create_registered_model", model)

    def create_model_version(self, *arguments: Any, **keywords: Any) -> Any:
        version = super().create_model_version(*arguments, **keywords)
        return self._lose("create_model_version", version)

    def _lose(self, method: str, answer: Any) -> Any:
        if method in self.lost:
            return answer
        self.lost.add(method)
        raise requests.ConnectionError("connection reset by peer")


@pytest.fixture
def store(
    spec: TrackingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[MlflowClient, str]:
    """A client whose calls are repeated, and the id of an experiment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(patience, "LOOK_S", 0.01)
    plain = open_store(spec)
    waiting = Patience(lambda: True, 60.0)
    client = LosingClient(plain.tracking_uri)
    lasting = LastingClient(client, waiting, lambda file: MlflowClient(f"sqlite:///{file}"))
    return cast("MlflowClient", lasting), plain.create_experiment("taxi")


def test_a_run_is_made_once(store: tuple[MlflowClient, str]) -> None:
    client, experiment = store
    run = client.create_run(experiment, tags={"job": "train"}, run_name="n")
    assert [made.info.run_id for made in client.search_runs([experiment])] == [run.info.run_id]
    assert (run.info.run_name, run.data.tags["job"]) == ("n", "train")


def test_a_second_run_is_another_one(store: tuple[MlflowClient, str]) -> None:
    client, experiment = store
    assert client.create_run(experiment).info.run_id != client.create_run(experiment).info.run_id


def test_a_logged_model_is_made_once(store: tuple[MlflowClient, str]) -> None:
    client, experiment = store
    run = client.create_run(experiment)
    model = client.create_logged_model(experiment, "m", run.info.run_id, tags={"a": "b"})
    assert [made.model_id for made in client.search_logged_models([experiment])] == [model.model_id]
    assert model.tags["a"] == "b"


def test_a_version_is_made_once(store: tuple[MlflowClient, str]) -> None:
    client, experiment = store
    run = Run(client.create_run(experiment).info.run_id, experiment, client)
    model = client.create_logged_model(experiment, "m", run.id)
    version = create_version(run, model.model_id, "tips", {"a": "b"}, "text")
    assert [made.version for made in client.search_model_versions()] == [version.version]
