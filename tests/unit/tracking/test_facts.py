"""Runs as people name them, and the experiment they belong to: configured, of MLflow's variables, or tipcast's."""

import contextlib
import sqlite3
from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.children import Children
from tipcast.tracking.run import find_run, open_run
from tipcast.tracking.store import open_store


@pytest.fixture
def runs(spec: TrackingSpec) -> tuple[Any, dict[str, str]]:
    """A store with a sweep and its trial, a training, and another sweep; name -> id."""
    ids: dict[str, str] = {}
    for name, job in (("first", "sweep"), ("train", "train"), ("second", "sweep")):
        with open_run(spec, name=name, tags={"job": job}, params={}) as run:
            ids[name] = run.id
            if name == "second":
                children = Children(run)
                ids["trial"] = children.begin(0, "key", 1, {})
                children.end(ids["trial"], "FINISHED")
    return open_store(spec), ids


def test_an_id_its_beginning_and_the_newest_run(runs: tuple[Any, dict[str, str]], spec: TrackingSpec) -> None:
    client, ids = runs
    for run_id in ids.values():
        for name in (run_id, run_id[:12]):
            assert find_run(client, name).info.run_id == run_id
    assert find_run(client, "last", spec, "sweep").info.run_id == ids["second"]
    assert find_run(client, "last", spec, "train").info.run_id == ids["train"]
    assert find_run(client, "last", spec).info.run_id == ids["second"], "a trial is not meant"
    client.delete_run(ids["second"])
    assert find_run(client, "last", spec, "sweep").info.run_id == ids["first"]
    with pytest.raises(TipcastError, match="is not there"):
        find_run(client, ids["second"][:12])


def test_no_run_or_several(runs: tuple[Any, dict[str, str]], spec: TrackingSpec) -> None:
    client, ids = runs
    with contextlib.closing(sqlite3.connect(str(spec.uri).removeprefix("sqlite:///"))) as database, database:
        for number, name in enumerate(("first", "train")):  # ids that chance seldom gives
            database.execute("UPDATE runs SET run_uuid = ? WHERE run_uuid = ?", (f"abcd{number:028}", ids[name]))
    for name, experiment, job, says in (
        ("last", "taxi", "ladder", "experiment taxi has no ladder"),
        ("last", "nothing", None, "experiment nothing has no run"),
        ("last", None, None, "is not there"),
        ("abc", "taxi", None, "its first 4 characters or more"),
        ("xgboost", "taxi", None, "is not there"),
        ("%", "taxi", None, "is not there"),
        ("0000000", "taxi", None, "is not there"),
        ("0" * 32, "taxi", None, "is not there"),
        ("abcd", "taxi", None, r"2 runs, as abcd0+1 \(train\), abcd0+ \(first\)"),
    ):
        with pytest.raises(TipcastError, match=f"T004.*{says}"):
            find_run(client, name, experiment and TrackingSpec(experiment=experiment), job)


@pytest.fixture
def client(spec: TrackingSpec) -> Any:
    """A store with experiments ``team``, of id 1, and ``gone``, of id 2, which was deleted."""
    spec.experiment = None
    store = open_store(spec)
    assert store.create_experiment("team") == "1"
    store.delete_experiment(store.create_experiment("gone"))
    return store


@pytest.mark.parametrize(
    ("configured", "name", "number", "expected"),
    [
        (None, None, None, "tipcast"),
        (None, "", "", "tipcast"),
        (None, "new", None, "new"),
        (None, "other", "1", "team"),
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
    assert find_run(client, "last", spec).info.run_id == run.id


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("77", "MLFLOW_EXPERIMENT_ID 77: is not there"),
        ("team", "MLFLOW_EXPERIMENT_ID team: is not there"),
        ("2", "experiment gone: was deleted"),
    ],
)
def test_an_experiment_that_cannot_be(
    client: Any, spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch, number: str, said: str
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", number)
    with pytest.raises(TipcastError, match=f"T004. {said}") as caught, open_run(spec, name="n", tags={}, params={}):
        raise AssertionError("not reached")
    assert "mlflow experiments restore" in caught.value.fix or number != "2"


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
