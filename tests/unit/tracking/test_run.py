"""The life of a run: its experiment, every ending, what is written, its process, and runs as people
name them.
"""

import contextlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlflow
import psutil
import pytest
from mlflow.utils.validation import path_not_unique, validate_param_and_metric_name
from sqlalchemy import event
from sqlalchemy.engine import Engine
from tests.waiting import WATCHDOG_S, wait_until

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import run_lease
from tipcast.tracking.batches import MAX_NAME, storable_name
from tipcast.tracking.children import Children
from tipcast.tracking.failures import store_errors
from tipcast.tracking.lifecycle import KILLED, check_store, mark_launched, open_run
from tipcast.tracking.run import Run
from tipcast.tracking.run_lookup import find_run, tracking_in_experiment_of
from tipcast.tracking.store import open_store


@pytest.fixture
def client(spec: TrackingSpec) -> Any:
    """The store's."""
    return open_store(spec)


def _training_run(spec: TrackingSpec, **more: Any) -> Any:
    return open_run(
        spec, **{"name": "xgboost", "tags": {"job": "train"}, "params": {"seed": 0}, **more}
    )


def _runs(spec: TrackingSpec) -> list[Any]:
    client = open_store(spec)
    return list(
        client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    )


def _only_run(spec: TrackingSpec) -> Any:
    (run,) = _runs(spec)
    return run


def test_a_run_that_ends_well(spec: TrackingSpec) -> None:
    """Of tags and metrics tests/jobs tell."""
    spec.run_name = "mine"
    spec.system_metrics = True
    with _training_run(spec) as run:
        secret = "s3://key:s3cret@trips/2018.parquet?versionId=s3cret"
        run.log_dataset(secret, "d" * 36, "yellow 2018", "train", {"rows": 10})
        run.log_dataset(
            "sample://yellow?seed=0", "e" * 64, "sample", "test", {"rows": 20, "positive_rate": 0.5}
        )
        assert run.store.get_run(run.id).info.status == "RUNNING"
        wait_until(
            lambda: run.store.get_metric_history(run.id, "system/system_memory_usage_megabytes")
        )
    ended = _only_run(spec)
    assert (ended.info.status, ended.info.run_name, ended.data.params) == (
        "FINISHED",
        "mine",
        {"seed": "0"},
    )
    inputs = {item.tags[0].value: item.dataset for item in ended.inputs.dataset_inputs}
    train = inputs["train"]
    test = inputs["test"]
    assert (train.name, train.digest, train.profile) == ("yellow 2018", "d" * 36, '{"rows": 10}')
    assert test.digest == "e" * 36
    assert "s3://trips/2018.parquet" in train.source
    assert "s3cret" not in train.source


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        (TipcastError("D014", "data.train", "too few rows", "use more"), "FAILED", "D014"),
        (ZeroDivisionError("division by zero"), "FAILED", "ZeroDivisionError"),
        (FileNotFoundError(2, "No such file", "trips.parquet"), "FAILED", "FileNotFoundError"),
        (KeyboardInterrupt(), "KILLED", None),
        (SystemExit(143), "KILLED", None),
    ],
)
def test_a_run_that_ends_otherwise(
    spec: TrackingSpec, problem: BaseException, status: str, code: str | None
) -> None:
    with pytest.raises(type(problem)) as caught, _training_run(spec):
        raise problem
    assert caught.value is problem
    assert getattr(problem, "__notes__", []) == ([KILLED] if status == "KILLED" else [])
    ended = _only_run(spec)
    message = str(problem) if code else None
    tags = ended.data.tags
    assert (ended.info.status, tags.get("error.code"), tags.get("error.message")) == (
        status,
        code,
        message,
    )


def test_stopped_in_a_transaction(spec: TrackingSpec) -> None:
    """What the call that was cut off has locked is free when the run is closed."""
    spec.wait_s = 2.0
    written: list[str] = []

    def stop(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if written and statement.startswith("SELECT"):  # its rows are not fetched yet
            raise KeyboardInterrupt
        written.extend([statement] if statement.startswith("INSERT INTO metrics") else [])

    with pytest.raises(KeyboardInterrupt), _training_run(spec) as run:
        run.store.log_metric(run.id, "a", 1.0)
        event.listen(Engine, "after_cursor_execute", stop)
        try:
            run.store.log_metric(run.id, "a", 2.0)
        finally:
            event.remove(Engine, "after_cursor_execute", stop)
    assert written
    ended = _only_run(spec)
    assert (ended.info.status, ended.data.metrics) == ("KILLED", {"a": 1.0})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_metric_that_is_not_finite_fails_the_run(spec: TrackingSpec, value: float) -> None:
    with pytest.raises(TipcastError, match="M010. test/log_loss: "), _training_run(spec) as run:
        with pytest.raises(TipcastError, match="M010. history/train_logloss: "):
            run.log_curves({"history/train_logloss": {0: 0.5, 1: value}})
        run.log_metrics({"test/auc": 0.5, "test/log_loss": value})
    ended = _only_run(spec)
    assert (ended.info.status, ended.data.tags["error.code"], ended.data.metrics) == (
        "FAILED",
        "M010",
        {},
    )


def test_a_lock_that_does_not_end(
    spec: TrackingSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is waited for as long as configured."""
    spec.wait_s = 0.3
    locked = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    with (
        pytest.raises(TipcastError, match="T002.*keeps the database locked"),
        _training_run(spec) as run,
    ):
        children = Children(run)
        with pytest.raises(KeyboardInterrupt), children.closing_open("the sweep was stopped"):
            trials = [
                children.begin(number, f"key{number}", 1, {"max_depth": number})
                for number in range(3)
            ]
            locked.execute("BEGIN IMMEDIATE")
            raise KeyboardInterrupt
        run.log_metrics({"test/auc": 0.5})
    locked.close()
    what = "the next train, sweep, score or promote on this machine does"
    assert caplog.messages == [f"run {run.id} could not be closed: {what}"]
    client = open_store(spec)
    for run_id in (run.id, *trials):
        left = client.get_run(run_id)
        assert left.info.status == "RUNNING"
        # as if that process had ended
        gone = json.loads(left.data.tags[run_lease.PROCESS]) | {"start": "1"}
        client.set_tag(run_id, run_lease.PROCESS, json.dumps(gone))
    with _training_run(spec):
        pass
    assert {client.get_run(run_id).info.status for run_id in (run.id, *trials)} == {"KILLED"}


@dataclass(frozen=True)
class Served:
    """A run on a server below a path, while it is up."""

    url: str
    """Of the server, without the path."""
    store_check: str
    """What the check of the store says."""
    run: Run
    said: str
    """What was written to the standard output."""

    def text(self, address: str) -> bytes:
        with urllib.request.urlopen(address, timeout=WATCHDOG_S) as answer:
            return bytes(answer.read())


SERVER = (
    "server",
    "--host",
    "127.0.0.1",
    "--port",
    "0",
    "--workers",
    "1",
    "--static-prefix",
    "/mlflow",
    "--backend-store-uri",
    "sqlite:///served.db",
)


@pytest.fixture(scope="module")
def served(
    serving: Any, tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    shutil.copy(tables, folder / "served.db")
    command = [*SERVER, "--artifacts-destination", str(folder / "artifacts")]
    alone = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with serving(command, "http://127.0.0.1:0", folder, "mlflow/health", **alone) as url:
        spec = TrackingSpec(uri=f"{url}/mlflow/", experiment="taxi", system_metrics=False)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            check = check_store(spec)
            with _training_run(spec) as run:
                run.log_metrics({"test/auc": 0.5})
                run.log_curves({"history/train_logloss": {0: 0.7, 1: 0.6}})
                run.log_text("seed: 0\n", "plots/config.yaml")
                run.log_dataset(
                    "s3://trips/2018.parquet", "d" * 36, "yellow 2018", "train", {"rows": 10}
                )
        yield Served(url, check, run, out.getvalue())


def test_a_server_below_a_path_takes_runs(served: Served) -> None:
    assert " takes runs" in served.store_check


def test_a_run_on_a_server_below_a_path(served: Served) -> None:
    run = served.run
    (finished,) = run.store.search_runs([run.experiment_id])
    assert finished.info.status == "FINISHED"
    assert finished.data.metrics == {"test/auc": 0.5, "history/train_logloss": 0.6}
    assert finished.inputs.dataset_inputs[0].dataset.digest == "d" * 36
    assert served.said == "", "MLflow prints of its own where a run is"


def test_the_link_of_a_run_leads_below_the_path(served: Served) -> None:
    run = served.run
    page = run.link.partition("#")[0]
    assert run.link.startswith(
        f"{served.url}/mlflow/#/experiments/{run.experiment_id}/runs/{run.id}"
    )
    assert b"<title>MLflow" in served.text(page)


def test_the_server_gives_artifacts_by_the_address_that_notes_use(served: Served) -> None:
    words = f"path=plots/config.yaml&run_uuid={served.run.id}"
    assert served.text(f"{served.url}/mlflow/get-artifact?{words}") == b"seed: 0\n"


def test_a_link_has_no_password() -> None:
    link = Run("abc", "1", mlflow.MlflowClient("https://ada:s3cret@host.example/mlflow/")).link
    page = "https://host.example/mlflow/#/experiments/1/runs/abc"
    assert link == f"{page}?workflowType=machine_learning"


def test_a_link_of_a_local_store_tells_how_to_open_it(spec: TrackingSpec) -> None:
    link = Run("abc", "1", open_store(spec)).link
    assert link.endswith(f" after `mlflow ui --backend-store-uri {spec.uri}`")


def test_a_server_that_is_gone_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, closed_port: int, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = f"http://127.0.0.1:{closed_port}"
    with pytest.raises(TipcastError, match=r"^error\[T001[^\n]*$"), store_errors(uri):
        Run("0" * 32, "1", mlflow.MlflowClient(uri)).log_metrics({"test/auc": 0.5})
    mistake = TipcastError("C001", "model.depth", "no such key", "use model.params.max_depth")
    mark_launched(problem=mistake)
    assert list(tmp_path.iterdir()) == [], "no store is opened where no run was launched"
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mark_launched(problem=mistake)


USUAL = ("test/auc", "km/h", "a:b c", "Größe", "x" * MAX_NAME)
ODD = (
    "petal length (cm)",
    "petal length [cm]",
    "a//b",
    "/a",
    "a/",
    "..",
    "..x",
    "a/../b",
    "",
    ".",
    "x\n",
    "$",
    "(",
    "x" * 251,
    "x" * 252,
    "(" * 300,
)
"""Names that MLflow refuses."""


def test_names_that_mlflow_takes_stay() -> None:
    assert tuple(storable_name(name) for name in USUAL) == USUAL


STORABLE = tuple(storable_name(name) for name in (*USUAL, *ODD))


def test_odd_names_become_names_that_mlflow_takes() -> None:
    assert all(validate_param_and_metric_name(name) for name in STORABLE)
    assert not [name for name in STORABLE if path_not_unique(name)]


def test_a_long_name_is_cut_to_what_mlflow_takes() -> None:
    assert max(map(len, STORABLE)) == MAX_NAME


def test_two_names_do_not_become_one() -> None:
    assert len(set(STORABLE)) == len(STORABLE)


def test_a_name_that_was_made_is_left_as_it_is() -> None:
    assert tuple(storable_name(name) for name in STORABLE) == STORABLE


def test_a_dataset_that_another_run_adds_at_the_same_moment(spec: TrackingSpec) -> None:
    """MLflow looks for the dataset and then adds it: the other run adds it in between."""
    dataset = ("made://x", "d" * 36, "blobs", "train", {"rows": 10})
    to_add = [dataset]
    with _training_run(spec) as other, _training_run(spec) as run:

        def add_first(_: Any, __: Any, statement: str, *rest: Any) -> None:
            if statement.startswith("INSERT INTO datasets") and to_add:
                other.log_dataset(*to_add.pop())

        event.listen(Engine, "before_cursor_execute", add_first)
        try:
            run.log_dataset(*dataset)
        finally:
            event.remove(Engine, "before_cursor_execute", add_first)

    for finished in _runs(spec):
        (used,) = finished.inputs.dataset_inputs
        assert (used.dataset.digest, finished.info.status) == ("d" * 36, "FINISHED")


def test_thousands_of_odd_names_are_metrics_of_one_run(spec: TrackingSpec) -> None:
    names = [*ODD, *(f"ENSG{at}(x)" for at in range(3000))]
    values = {f"unscored/{name}": float(at) for at, name in enumerate(names)}
    with open_run(spec, name="n", tags={}, params={}) as run:
        run.log_metrics(values)
    ended = _only_run(spec)
    assert ended.info.status == "FINISHED"
    assert sorted(ended.data.metrics.values()) == sorted(values.values())


def test_texts_of_megabytes_are_cut_to_what_mlflow_takes(spec: TrackingSpec) -> None:
    huge = "x" * 3_000_000
    params = {"data.columns.a (b)": huge, "c": huge[:6000]}
    with open_run(spec, name="n", tags={"a (b)": huge}, params=params) as run:
        run.log_dataset("made://x", "d", huge, "train", {})
        run.log_params({"data.columns.a (b)": "another"})
    ended = _only_run(spec)
    assert ended.info.status == "FINISHED"
    assert ended.data.tags[storable_name("a (b)")] == "x" * 7999 + "…"
    assert ended.data.params == {
        storable_name("data.columns.a (b)"): "x" * 5999 + "…",
        "c": "x" * 6000,
    }


def _named_runs(spec: TrackingSpec) -> dict[str, str]:
    """Open and close two sweeps, the second of which has a trial, and a training between them:
    name -> id.
    """
    ids: dict[str, str] = {}
    for name, job in (("first", "sweep"), ("train", "train"), ("second", "sweep")):
        with open_run(spec, name=name, tags={"job": job}, params={}) as run:
            ids[name] = run.id
            if name == "second":
                children = Children(run)
                ids["trial"] = children.begin(0, "key", 1, {})
                children.end(ids["trial"], "FINISHED")
    return ids


@pytest.fixture(scope="module")
def named_store(
    tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrackingSpec, dict[str, str]]:
    """A store of four runs, and their ids by name."""
    folder = tmp_path_factory.mktemp("named")
    uri = f"sqlite:///{shutil.copy(tables, folder / 'mlflow.db')}"
    spec = TrackingSpec(uri=uri, experiment="taxi", system_metrics=False)
    with contextlib.chdir(folder):
        return spec, _named_runs(spec)


Find = Callable[..., str]


@pytest.fixture
def find(named_store: tuple[TrackingSpec, dict[str, str]]) -> Find:
    """Return the name of the run that is found."""
    spec, ids = named_store
    client = open_store(spec)
    names = {run_id: name for name, run_id in ids.items()}

    def find_name(name: str, *where: Any) -> str:
        return names[find_run(client, name, *where).info.run_id]

    return find_name


@pytest.fixture
def ids(named_store: tuple[TrackingSpec, dict[str, str]]) -> dict[str, str]:
    """Ids of the runs by name."""
    return named_store[1]


@pytest.fixture
def second_is_deleted(named_store: tuple[TrackingSpec, dict[str, str]]) -> Iterator[None]:
    spec, ids = named_store
    client = open_store(spec)
    client.delete_run(ids["second"])
    yield
    client.restore_run(ids["second"])


TAXI = TrackingSpec(experiment="taxi")
RUNS = ("first", "train", "second", "trial")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_found_by_its_id(find: Find, ids: dict[str, str], name: str) -> None:
    assert find(ids[name]) == name


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_found_by_the_beginning_of_its_id(
    find: Find, ids: dict[str, str], name: str
) -> None:
    assert find(ids[name][:12]) == name


@pytest.mark.parametrize(("job", "name"), [("sweep", "second"), ("train", "train")])
def test_last_is_the_newest_run_of_a_job(find: Find, job: str, name: str) -> None:
    assert find("last", TAXI, job) == name


def test_last_is_no_trial(find: Find) -> None:
    assert find("last", TAXI) == "second"


@pytest.mark.usefixtures("second_is_deleted")
def test_last_is_no_deleted_run(find: Find) -> None:
    assert find("last", TAXI, "sweep") == "first"


@pytest.mark.usefixtures("second_is_deleted")
def test_a_deleted_run_is_not_found_by_the_beginning_of_its_id(
    find: Find, ids: dict[str, str]
) -> None:
    with pytest.raises(TipcastError, match="T004.*is not there"):
        find(ids["second"][:12], TAXI, "ladder")


@pytest.mark.parametrize(
    ("name", "spec", "says"),
    [
        ("last", TAXI, "experiment taxi has no ladder"),
        ("last", None, "is not there"),
        ("abc", TAXI, "its first 4 or more characters"),
        ("%", TAXI, "is not there"),
    ],
)
def test_a_name_of_no_run_is_refused(
    find: Find, name: str, spec: TrackingSpec | None, says: str
) -> None:
    with pytest.raises(TipcastError, match=f"T004.*{says}"):
        find(name, spec, "ladder")


def test_a_beginning_of_two_ids_is_refused_with_both(spec: TrackingSpec, tmp_path: Path) -> None:
    ids = _named_runs(spec)
    open_store(spec).delete_run(ids["second"])
    begun = f"{0xFFFF - int(ids['trial'][:4], 16):04x}"  # as the trial's id does not begin
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        for number, name in enumerate(("first", "train")):
            database.execute(
                "UPDATE runs SET run_uuid = ? WHERE run_uuid = ?",
                (f"{begun}{number:028}", ids[name]),
            )
    both = rf"2 runs, such as {begun}0+1 \(train\), {begun}0+ \(first\)"
    with pytest.raises(TipcastError, match=f"T004.*{both}"):
        find_run(open_store(spec), begun, TAXI, "ladder")


@pytest.fixture(scope="module")
def store_without_runs(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a store with the experiment `team`, and `gone` that was deleted."""
    folder = tmp_path_factory.mktemp("without")
    uri = f"sqlite:///{shutil.copy(tables, folder / 'mlflow.db')}"
    with contextlib.chdir(folder):
        client = open_store(TrackingSpec(uri=uri))
        client.create_experiment("team")
        client.delete_experiment(client.create_experiment("gone"))
    return uri


@pytest.fixture(
    params=[
        ("MLFLOW_EXPERIMENT_ID", "77", "MLFLOW_EXPERIMENT_ID 77: is not there"),
        ("MLFLOW_EXPERIMENT_ID", "team", "MLFLOW_EXPERIMENT_ID team: is not there"),
        ("MLFLOW_EXPERIMENT_ID", "2", "experiment gone: was deleted.*mlflow experiments restore"),
        ("MLFLOW_RUN_ID", "0" * 32, ".*is not there.*unset MLFLOW_RUN_ID"),
    ],
    ids=["unknown_id", "name_for_id", "deleted", "run"],
)
def misled(
    request: pytest.FixtureRequest, store_without_runs: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[TrackingSpec, str, str]:
    """Set a variable that names what is not there: the store, the variable, what the error says."""
    variable, value, says = request.param
    monkeypatch.setenv(variable, value)
    return TrackingSpec(uri=store_without_runs, system_metrics=False), variable, says


def test_a_variable_that_names_a_missing_run_or_experiment_is_refused(
    misled: tuple[TrackingSpec, str, str],
) -> None:
    spec, _, says = misled
    _refuse_run(spec, says)


def _refuse_run(spec: TrackingSpec, says: str) -> None:
    """Begin a run that a variable of the environment makes impossible."""
    with pytest.raises(TipcastError, match=f"T004. {says}"), _training_run(spec):
        raise AssertionError("not reached")


def test_a_refused_variable_stays_set(
    misled: tuple[TrackingSpec, str, str],
) -> None:
    """The command line tags the launcher's run by it."""
    spec, variable, says = misled
    _refuse_run(spec, says)
    assert variable in os.environ


def test_a_refused_variable_leaves_no_run(
    misled: tuple[TrackingSpec, str, str],
) -> None:
    spec, _, says = misled
    _refuse_run(spec, says)
    assert _runs(spec) == []


def test_the_experiment_of_a_run(
    client: Any, spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.create_experiment("team") == "1"
    for configured, name, number, expected in (
        (None, None, None, "tipcast"),
        (None, "", "", "tipcast"),
        (None, "new", None, "new"),
        (None, "other", "1", "team"),
        ("mine", "other", "77", "mine"),
    ):
        spec.experiment = configured
        for variable, value in (("MLFLOW_EXPERIMENT_NAME", name), ("MLFLOW_EXPERIMENT_ID", number)):
            monkeypatch.delenv(variable, raising=False) if value is None else monkeypatch.setenv(
                variable, value
            )
        with _training_run(spec) as run:
            pass
        assert client.get_experiment(run.experiment_id).name == expected
        assert find_run(client, "last", spec).info.run_id == run.id


def test_what_uses_a_model_is_recorded_beside_its_training(
    client: Any, spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec.experiment = "trained"
    with _training_run(spec) as trained:
        pass
    assert tracking_in_experiment_of(client, spec, "unused") is spec, (
        "tracking.experiment says another"
    )
    spec.experiment = None
    assert tracking_in_experiment_of(client, spec, trained.id).experiment == "trained"
    assert tracking_in_experiment_of(client, spec, None) is spec, "nobody knows the run"
    assert tracking_in_experiment_of(client, spec, "0" * 32) is spec, "the run is not there"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert tracking_in_experiment_of(client, spec, trained.id) is spec, "the variable says another"
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    client.delete_experiment(trained.experiment_id)
    assert tracking_in_experiment_of(client, spec, trained.id) is spec, "the experiment was deleted"


def test_the_launchers_run_is_joined_once(
    client: Any, spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = client.create_experiment("by the launcher")
    launched = client.create_run(experiment, run_name="gentle-ox-12").info.run_id
    client.log_param(launched, "seed", "'0'")
    monkeypatch.setenv("MLFLOW_RUN_ID", launched)
    with (
        _training_run(spec, params={"seed": 0, "rows": 5}) as parent,
        _training_run(spec, parent=parent) as child,
    ):
        assert "MLFLOW_RUN_ID" not in os.environ
    assert (parent.id, parent.experiment_id, child.experiment_id) == (
        launched,
        experiment,
        experiment,
    )
    assert client.get_run(child.id).data.tags["mlflow.parentRunId"] == parent.id
    joined = client.get_run(launched)
    assert (joined.info.status, joined.info.run_name) == ("FINISHED", "xgboost")
    assert joined.data.params == {"seed": "'0'", "rows": "5"}


# Which process writes a run, and runs that nobody will close

STORE = "postgresql://host/mlflow"
"""A store that many machines may use."""


@pytest.fixture
def leave_run(client: Any) -> Callable[..., str]:
    """Leave a run open whose process differs from this one; by default by a start that is long
    ago.
    """

    def leave(**identity: Any) -> str:
        return str(
            client.create_run("0", tags=process_tags(**identity or {"start": "1"})).info.run_id
        )

    return leave


def process_tags(**changes: Any) -> dict[str, str]:
    """Return this process's tags with some of what identifies it changed."""
    tags = run_lease.tags()
    return tags | {run_lease.PROCESS: json.dumps(json.loads(tags[run_lease.PROCESS]) | changes)}


def test_a_process_that_runs_has_not_ended() -> None:
    assert not run_lease.has_exited(process_tags(), STORE)


def test_a_process_whose_number_another_has_now_has_ended() -> None:
    assert run_lease.has_exited(process_tags(start="1"), STORE)


@pytest.fixture
def zombie() -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process that has ended, of which this process takes no notice yet."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child
    child.wait()


def test_a_process_whose_parent_takes_no_notice_has_ended(
    zombie: subprocess.Popen[bytes],
) -> None:
    assert run_lease.has_exited(process_tags(pid=zombie.pid), STORE)


def test_a_process_whose_parent_has_taken_notice_has_ended(
    zombie: subprocess.Popen[bytes],
) -> None:
    zombie.wait()
    assert run_lease.has_exited(process_tags(pid=zombie.pid), STORE)


def test_a_run_that_names_no_process_is_not_taken_for_ended() -> None:
    assert not run_lease.has_exited({}, STORE)
    huge = [process_tags(pid=pid)[run_lease.PROCESS] for pid in (float("inf"), 10**20)]
    for text in ("", "7", "[]", "{}", '{"pid": "x"}', "null", *huge):
        assert not run_lease.has_exited({run_lease.PROCESS: text}, STORE), text


def test_a_process_before_a_start_of_the_machine_has_ended_where_the_store_is_its_own() -> None:
    earlier = process_tags(boot="earlier", start="1")
    assert not run_lease.has_exited(earlier, STORE), "it may be of another machine of this name"
    assert run_lease.has_exited(earlier, "sqlite:///mlflow.db")


@pytest.mark.parametrize("problem", [psutil.NoSuchProcess, psutil.AccessDenied])
def test_a_process_that_cannot_be_seen_is_not_taken_for_ended(
    monkeypatch: pytest.MonkeyPatch, problem: type[psutil.Error]
) -> None:
    """As /proc hides those of others."""
    before = process_tags(start="1")
    monkeypatch.setattr(run_lease.psutil, "Process", Mock(side_effect=problem(1)))
    assert not run_lease.has_exited(before, STORE)


def test_a_lease(client: Any, leave_run: Callable[..., str]) -> None:
    run_id = leave_run(pid=os.getpid())
    with pytest.raises(KeyboardInterrupt), run_lease.leased(client, run_id):
        with (
            pytest.raises(TipcastError, match=f"S002.*process {os.getpid()} on "),
            run_lease.leased(client, run_id),
        ):
            raise AssertionError("not reached")
        raise KeyboardInterrupt
    with run_lease.leased(client, run_id):
        pass
    # of another temporary folder
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run_id = leave_run(pid=other.pid, start=run_lease.started(other.pid))
    elsewhere = leave_run(pid=1, host="elsewhere")
    for held, holder in (
        (run_id, f"process {other.pid} on "),
        (elsewhere, "process 1 on elsewhere is working on this run"),
    ):
        with pytest.raises(TipcastError, match=f"S002.*{holder}"):
            run_lease.leased(client, held).__enter__()
    other.communicate()
    client.set_terminated(elsewhere, "KILLED")
    for free in (run_id, elsewhere):
        with run_lease.leased(client, free):
            pass


def _status(client: Any, run_id: str) -> str:
    return str(client.get_run(run_id).info.status)


def test_a_run_whose_process_was_killed_is_closed_by_the_next_one(
    spec: TrackingSpec, client: Any, leave_run: Callable[..., str]
) -> None:
    killed = leave_run()
    with _training_run(spec):
        pass
    assert _status(client, killed) == "KILLED"


def test_runs_that_may_still_be_written_stay_open(
    spec: TrackingSpec, client: Any, leave_run: Callable[..., str]
) -> None:
    """Those of this process, of other machines and containers, and of other programs."""
    others = [
        leave_run(pid=os.getpid()),
        leave_run(start="1", host="elsewhere"),
        leave_run(start="1", pid_namespace=1),
        client.create_run("0").info.run_id,
    ]
    for _ in range(2):
        with _training_run(spec):
            pass
    assert {_status(client, run_id) for run_id in others} == {"RUNNING"}


def test_a_killed_run_that_cannot_be_closed_stops_no_other(
    spec: TrackingSpec, client: Any, leave_run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of this process are tagged in batches."""
    killed = leave_run()
    refused = Mock(side_effect=PermissionError(1, "not permitted"))
    monkeypatch.setattr(type(client), "set_tag", refused)
    with _training_run(spec) as run, _training_run(spec):
        pass
    assert (_status(client, run.id), _status(client, killed)) == ("FINISHED", "RUNNING")


@pytest.mark.parametrize("way", ["resume", "MLFLOW_RUN_ID"])
def test_a_killed_run_that_is_resumed_belongs_to_this_process(
    spec: TrackingSpec,
    client: Any,
    leave_run: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    killed = leave_run()
    if way == "MLFLOW_RUN_ID":
        monkeypatch.setenv(way, killed)
    resumed = Run(killed, client.get_run(killed).info.experiment_id, client)
    with _training_run(spec, **({"resume": resumed} if way == "resume" else {})) as run:
        assert run.id == killed
        assert not run_lease.has_exited(client.get_run(killed).data.tags, STORE)


def test_a_killed_run_that_another_process_takes_meanwhile_stays_open(
    spec: TrackingSpec, client: Any, leave_run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = leave_run()

    def taken_up(*_: Any) -> bool:
        client.set_tag(run_id, run_lease.PROCESS, run_lease.tags()[run_lease.PROCESS])
        return True

    monkeypatch.setattr(run_lease, "has_exited", taken_up)
    run_lease.close_abandoned(client)
    assert _status(client, run_id) == "RUNNING"


def test_a_lock_that_ends_while_the_run_is_closed(
    spec: TrackingSpec, tmp_path: Path, monkeypatch: Any
) -> None:
    spec.wait_s = 0.3
    locked = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    with (
        pytest.raises(TipcastError, match="T002.*keeps the database locked"),
        _training_run(spec) as run,
    ):
        locked.execute("BEGIN IMMEDIATE")
        ended = run.store.set_terminated
        monkeypatch.setattr(
            run.store,
            "set_terminated",
            lambda *given: locked.execute("ROLLBACK") and ended(*given),
        )
        run.log_metrics({"test/auc": 0.5})
    locked.close()
    assert (_only_run(spec).info.status, _only_run(spec).data.tags["error.code"]) == (
        "FAILED",
        "T002",
    )
