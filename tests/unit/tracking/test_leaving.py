"""A server that goes away at an unlucky moment, or from a job that cannot keep its results."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from mlflow import MlflowClient

from tipcast import cli
from tipcast.config.errors import TipcastError
from tipcast.config.schema import Output, TrackingSpec
from tipcast.jobs import end_job
from tipcast.tracking import lasting_client, lifecycle, patience, store
from tipcast.tracking.lasting_client import LastingClient
from tipcast.tracking.lifecycle import open_run
from tipcast.tracking.patience import Patience


def _refuse(*_arguments: object, **_keywords: object) -> None:
    raise requests.ConnectionError("connection refused")


class LeavingClient(MlflowClient):  # type: ignore[misc]  # MLflow's class has no types
    """MLflow's client of a store that no call reaches once it is ``gone``."""

    gone = False

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name == "gone" or not self.gone or name.startswith("_") or not callable(attribute):
            return attribute
        return _refuse


@pytest.fixture
def leaving(
    spec: TrackingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[LeavingClient, LastingClient]:
    """The client that will find its store gone, and the one that jobs get of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(patience, "LOOK_S", 0.01)
    client = LeavingClient(store.open_store(spec).tracking_uri)
    connect = functools.partial(store._connect_offline, 5.0)
    lasting = LastingClient(client, Patience(lambda: True, 0.0), connect)
    monkeypatch.setattr(lifecycle, "open_store", lambda _: lasting)
    return client, lasting


def _open(spec: TrackingSpec) -> Any:
    return open_run(spec, name="n", tags={}, params={})


def test_an_interruption_leaves_a_whole_offline_store(
    spec: TrackingSpec, leaving: tuple[LeavingClient, LastingClient]
) -> None:
    """Ctrl-C while the store is made: the call that closes the run makes it."""
    client, lasting = leaving
    connect: Callable[[Path], MlflowClient] = lasting._connect
    files: list[Path] = []

    def interrupted(file: Path) -> MlflowClient:
        made = connect(file)
        files.append(file)
        if len(files) == 1:
            raise KeyboardInterrupt
        return made

    lasting._connect = interrupted
    with pytest.raises(KeyboardInterrupt), _open(spec) as run:
        client.gone = True
        run.set_tags({"a": "b"})

    assert [file.parent for file in files[1:]] == list(Path.cwd().glob("tipcast-offline-*"))
    assert MlflowClient(f"sqlite:///{files[1]}").get_run(run.id).info.status == "KILLED"


def test_another_error_names_the_offline_store_all_the_same(
    spec: TrackingSpec,
    leaving: tuple[LeavingClient, LastingClient],
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, lasting = leaving
    with pytest.raises(ValueError, match="other"), _open(spec) as run:
        client.gone = True
        run.set_tags({"a": "b"})
        raise ValueError("other")

    assert lasting.offline_file is not None
    assert f"tipcast replay {lasting.offline_file.relative_to(Path.cwd())}" in caplog.text


def test_an_error_after_the_run_names_the_offline_store_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As that of a scoring which refused some files."""
    refused = TipcastError("S010", "input", "1 of 2 files were refused", "mend it")
    with pytest.raises(TipcastError, match="S010"):
        end_job({"offline": "folder/mlflow.db"}, Output.none, problem=refused)
    assert "tipcast replay folder/mlflow.db" in caplog.text


def test_jobs_that_are_not_run_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tipcast.commands.ComposedJob.run", lambda _: {"offline": "o/mlflow.db"})
    words = ["score", "-m", "model_uri=models:/a/1", "input=x", "output=y,z,w"]
    assert cli.main(words) == 5
    said = capsys.readouterr().err
    assert "not run" in said
    assert "output=z" in said
    assert "output=w" in said
    assert "error[T011]" in said


def test_a_job_that_could_make_no_offline_store_says_so_when_it_begins(
    spec: TrackingSpec,
    leaving: tuple[LeavingClient, LastingClient],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lasting_client, "is_writable", lambda _: False)  # root may write everywhere
    with _open(spec):
        assert "no local copy of the run can be kept" in caplog.text


def test_a_version_is_made_after_the_server_had_its_name(
    spec: TrackingSpec, leaving: tuple[LeavingClient, LastingClient]
) -> None:
    """The server goes away between the two calls that register a model."""
    client, lasting = leaving
    with _open(spec) as run:
        model = run.store.create_logged_model(run.experiment_id, "m", run.id)
        run.store.create_registered_model("tips")
        client.gone = True
        run.store.create_model_version("tips", f"models:/{model.model_id}", run.id)

    offline = MlflowClient(f"sqlite:///{lasting.offline_file}")
    assert [version.name for version in offline.search_model_versions()] == ["tips"]
