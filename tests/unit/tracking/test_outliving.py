"""A run that outlives its server: written on to an offline store, and replayed when the server is
back.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput, LoggedModelStatus
from mlflow.entities import Run as MlflowRun

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.jobs import replay as replay_job
from tipcast.tracking import patience
from tipcast.tracking.children import Children
from tipcast.tracking.lasting_client import offline_file, server_of
from tipcast.tracking.lifecycle import open_run
from tipcast.tracking.making import REQUEST
from tipcast.tracking.portable_model import create_version, name_version
from tipcast.tracking.replay import replay
from tipcast.tracking.run import Run
from tipcast.tracking.store import open_store
from tipcast.tracking.versions import logged_id

WORDS = ("server", "--host", "127.0.0.1", "--workers", "1", "--backend-store-uri")


@dataclass(frozen=True)
class Outlived:
    """A run whose server went away in the middle, and what became of it."""

    run_id: str
    offline: Path
    server: MlflowClient
    children: list[str]
    """Ids of the first child, which the server knew, and of the second, which it did not."""
    version_offline: str
    alias_error: BaseException
    replayed: Any
    again: Any

    def on_server(self) -> MlflowRun:
        return self.server.get_run(self.run_id)


@pytest.fixture(scope="module")
def outlived(
    serving: Callable[..., Any], tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outlived]:
    folder = tmp_path_factory.mktemp("outlived")
    shutil.copy(tables, folder / "server.db")
    command = [*WORDS, "sqlite:///server.db", "--artifacts-destination", str(folder / "artifacts")]
    alone = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}

    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(patience, "LOOK_S", 0.1)
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        first = stack.enter_context(contextlib.ExitStack())
        url = first.enter_context(
            serving([*command, "--port", "0"], "http://127.0.0.1:0", folder, **alone)
        )
        spec = TrackingSpec(uri=url, experiment="taxi", system_metrics=False, patience_s=0.5)

        with open_run(spec, name="sweep", tags={"job": "sweep"}, params={"seed": 3}) as run:
            children = Children(run)
            run.log_curves({"loss": {0: 0.7, 1: 0.6}})
            run.log_text("first", "notes/first.txt")
            ids = [children.begin(0, "a", 1, {"depth": 4})]
            children.end(ids[0], "FINISHED", params={"depth": 4}, curves={"auc": {0: 0.5}})
            early_id = _log_model(run, folder / "early")
            early = create_version(run, early_id, "early", {}, f"load models:/{early_id}")

            first.close()
            name_version(run, early)
            run.log_curves({"loss": {2: 0.5}})
            run.log_text("second", "notes/second.txt")
            ids.append(children.begin(1, "b", 1, {"depth": 8}))
            children.end(ids[1], "FINISHED", params={"depth": 8}, curves={"auc": {0: 0.6}})
            run.note(f"the best is {ids[1]} of {len(children.runs())}")

            model_id = _log_model(run, folder / "late")
            page = f"by {run.id}, load models:/{model_id}"
            version = create_version(run, model_id, "tipcast", {"format": "x"}, page)
            name_version(run, version)
            number = version.version
            with pytest.raises(Exception, match="is gone") as refused:
                run.store.set_registered_model_alias("tipcast", "champion", number)

        file = offline_file(run.store)
        port = url.rpartition(":")[2]
        stack.enter_context(serving([*command, "--port", port], url, folder, **alone))
        source = open_store(TrackingSpec(uri=f"sqlite:///{file}"))
        server = open_store(spec)
        yield Outlived(
            run.id,
            Path(file or ""),
            server,
            ids,
            number,
            refused.value,
            replay(source, server),
            replay(source, server),
        )


def _log_model(run: Run, folder: Path) -> str:
    """Log a model of one file; return its id."""
    model = run.store.create_logged_model(
        run.experiment_id, "m", run.id, tags={"a": "b"}, params={"p": "1"}
    )
    files = folder / "model"
    files.mkdir(parents=True)
    (files / "MLmodel").write_text(f"model_id: {model.model_id}\n")
    run.store.log_outputs(run.id, [LoggedModelOutput(model.model_id, step=0)])
    run.store.log_model_artifacts(model.model_id, str(files))
    run.store.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return str(model.model_id)


def _text(client: MlflowClient, run_id: str, path: str, folder: Path) -> str:
    return Path(client.download_artifacts(run_id, path, str(folder))).read_text()


def test_the_offline_store_has_the_whole_run(outlived: Outlived, tmp_path: Path) -> None:
    """What was written before the server went away is there too, under the ids of the server."""
    client = MlflowClient(f"sqlite:///{outlived.offline}")
    run = client.get_run(outlived.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"seed": "3"}
    assert run.data.metrics == {"loss": 0.5}
    texts = (outlived.offline.parent / "mlruns").rglob("*.txt")
    assert sorted(path.read_text() for path in texts) == ["first", "second"]
    assert client.get_run(outlived.children[0]).data.metrics == {"auc": 0.5}


def test_the_offline_store_names_the_server(outlived: Outlived) -> None:
    client = MlflowClient(f"sqlite:///{outlived.offline}")
    assert server_of(client) == outlived.server.tracking_uri


def test_the_run_is_whole_on_the_server(outlived: Outlived, tmp_path: Path) -> None:
    run = outlived.on_server()
    assert run.info.status == "FINISHED"
    assert _text(outlived.server, run.info.run_id, "notes/first.txt", tmp_path) == "first"
    assert _text(outlived.server, run.info.run_id, "notes/second.txt", tmp_path) == "second"


def test_each_point_is_on_the_server_once(outlived: Outlived) -> None:
    points = outlived.server.get_metric_history(outlived.run_id, "loss")
    assert sorted((point.step, point.value) for point in points) == [(0, 0.7), (1, 0.6), (2, 0.5)]


def test_a_child_that_the_server_did_not_know_has_an_id_of_the_server(outlived: Outlived) -> None:
    _, child = outlived.children
    below = outlived.server.search_runs(
        [outlived.on_server().info.experiment_id],
        f"tags.`mlflow.parentRunId` = '{outlived.run_id}'",
    )
    assert sorted(run.data.params["depth"] for run in below) == ["4", "8"]
    offline = MlflowClient(f"sqlite:///{outlived.offline}").get_run(child)
    (made,) = [run for run in below if run.data.tags[REQUEST] == offline.data.tags[REQUEST]]
    assert made.info.status == "FINISHED"
    note = outlived.on_server().data.tags["mlflow.note.content"]
    assert note == f"the best is {made.info.run_id} of 2"


def test_a_model_and_its_version_are_on_the_server(outlived: Outlived, tmp_path: Path) -> None:
    version = outlived.server.get_model_version("tipcast", "1")
    assert outlived.replayed.versions == ["models:/tipcast/1"]
    assert version.description == f"by {outlived.run_id}, load models:/tipcast/1"
    model = outlived.server.get_logged_model(logged_id(version))
    assert (model.status, model.params) == (LoggedModelStatus.READY, {"p": "1"})
    mlflow.set_tracking_uri(outlived.server.tracking_uri)
    files = mlflow.artifacts.download_artifacts(f"models:/{model.model_id}", dst_path=str(tmp_path))
    assert (Path(files) / "MLmodel").read_text() == f"model_id: {model.model_id}\n"


def test_a_version_that_the_server_left_undescribed_is_described(outlived: Outlived) -> None:
    """The server went away when it had the version, but not yet its number in the description."""
    (version,) = outlived.server.search_model_versions("name='early'")
    assert version.description == "load models:/early/1"


def test_a_version_is_described_by_its_number_on_another_server(
    outlived: Outlived, spec: TrackingSpec, tmp_path: Path
) -> None:
    """Version 1 of the offline store is the second one there."""
    copied = Path(shutil.copytree(outlived.offline.parent, tmp_path / "copy")) / "mlflow.db"
    source = open_store(TrackingSpec(uri=f"sqlite:///{copied}"))
    target = open_store(spec)
    target.create_registered_model("tipcast")
    target.create_model_version("tipcast", str(tmp_path))

    replayed = replay(source, target)
    assert replayed.versions == ["models:/tipcast/2"]
    description = target.get_model_version("tipcast", "2").description
    assert description == f"by {replayed.runs[0]}, load models:/tipcast/2"


def test_an_alias_is_not_moved_where_nobody_sees_it(outlived: Outlived) -> None:
    assert "tipcast replay" in str(outlived.alias_error)


def test_a_second_replay_does_nothing(outlived: Outlived) -> None:
    assert len(outlived.replayed.runs) == 3
    assert outlived.again.runs == []
    assert outlived.again.versions == []


def test_a_replay_that_was_cut_off_makes_nothing_twice(outlived: Outlived, tmp_path: Path) -> None:
    """As if it had been killed before its last steps, it goes on with what it has made."""
    copied = Path(shutil.copytree(outlived.offline.parent, tmp_path / "copy")) / "mlflow.db"
    source = open_store(TrackingSpec(uri=f"sqlite:///{copied}"))
    source.delete_tag(outlived.run_id, "tipcast.replayed")
    note = outlived.on_server().data.tags["mlflow.note.content"]
    repeated = replay(source, outlived.server)
    assert outlived.on_server().data.tags["mlflow.note.content"] == note
    assert sorted(repeated.runs) == sorted(outlived.replayed.runs)
    assert (repeated.models, repeated.versions) == ([], [])
    test_each_point_is_on_the_server_once(outlived)


def test_a_store_that_was_moved_brings_its_files(
    outlived: Outlived, spec: TrackingSpec, tmp_path: Path
) -> None:
    folder = outlived.offline.parent
    moved = Path(shutil.move(folder, tmp_path / "moved"))
    try:
        source = open_store(TrackingSpec(uri=f"sqlite:///{moved / outlived.offline.name}"))
        target = open_store(spec)
        run_id = replay(source, target).runs[0]
        assert _text(target, run_id, "notes/second.txt", tmp_path) == "second"
    finally:
        shutil.move(moved, folder)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    config = replay_job.ReplayConfig(file=str(tmp_path / "gone.db"), tracking=TrackingSpec())
    with pytest.raises(TipcastError, match="T012.*is not there"):
        replay_job.run(config, "tipcast replay gone.db")


def test_a_store_that_no_server_left(
    spec: TrackingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(spec, name="n", tags={}, params={}):
        pass
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow has set it
    config = replay_job.ReplayConfig(file=str(tmp_path / "mlflow.db"), tracking=TrackingSpec())
    with pytest.raises(TipcastError, match="T012.*names no server"):
        replay_job.run(config, "tipcast replay mlflow.db")
