"""Which experiment runs belong to: of the configuration, of MLflow's variables, or tipcast's own."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.facts import find_run
from tipcast.tracking.run import open_run
from tipcast.tracking.store import open_store


@pytest.fixture
def client(spec: TrackingSpec) -> Any:
    """A store with experiments ``team``, of id 1, and ``gone``, of id 2, which was deleted."""
    spec.experiment = None
    found = open_store(spec)
    assert found.create_experiment("team") == "1"
    found.delete_experiment(found.create_experiment("gone"))
    return found


@pytest.mark.parametrize(
    ("configured", "name", "number", "expected"),
    [
        (None, None, None, "tipcast"),
        (None, "", "", "tipcast"),
        (None, "new", None, "new"),
        (None, None, "1", "team"),
        (None, "team", "1", "team"),
        ("mine", "other", "77", "mine"),
    ],
)
def test_the_experiment_of_a_run(
    client: Any,
    spec: TrackingSpec,
    monkeypatch: pytest.MonkeyPatch,
    configured: str | None,
    name: str | None,
    number: str | None,
    expected: str,
) -> None:
    spec.experiment = configured
    for variable, value in (("MLFLOW_EXPERIMENT_NAME", name), ("MLFLOW_EXPERIMENT_ID", number)):
        if value is not None:
            monkeypatch.setenv(variable, value)
    with open_run(spec, name="n", tags={"job": "train"}, params={}) as run:
        pass
    assert client.get_experiment(run.experiment_id).name == expected
    assert find_run(client, "last", spec) == run.id


@pytest.mark.parametrize(
    ("name", "number", "code", "said"),
    [
        (None, "77", "T004", "MLFLOW_EXPERIMENT_ID 77: is not there"),
        (None, "team", "T004", "MLFLOW_EXPERIMENT_ID team: is not there"),
        (None, "2", "T004", "experiment gone: was deleted"),
        ("other", "1", "C003", "MLFLOW_EXPERIMENT_ID 1: is of experiment team, and MLFLOW_EXPERIMENT_NAME is other"),
    ],
)
def test_an_experiment_that_cannot_be(
    client: Any,
    spec: TrackingSpec,
    monkeypatch: pytest.MonkeyPatch,
    name: str | None,
    number: str,
    code: str,
    said: str,
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", number)
    if name:
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", name)
    with pytest.raises(TipcastError) as caught, open_run(spec, name="n", tags={}, params={}):
        raise AssertionError("not reached")
    assert caught.value.code == code
    assert said in str(caught.value)


def test_a_child_is_in_the_experiment_of_the_launchers_run(
    client: Any, spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", client.create_run("1").info.run_id)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "1")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "another")
    with (
        open_run(spec, name="all", tags={}, params={}) as parent,
        open_run(spec, name="one", tags={}, params={}, parent=parent) as child,
    ):
        pass
    assert (parent.experiment_id, child.experiment_id) == ("1", "1")
    assert client.get_run(child.id).data.tags["mlflow.parentRunId"] == parent.id


def test_the_launchers_id_means_nothing_in_another_store(
    client: Any, spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with open_run(spec, name="n", tags={}, params={}) as run:
        pass
    assert client.get_experiment(run.experiment_id).name == "tipcast"
    assert "MLFLOW_EXPERIMENT_ID" not in os.environ
