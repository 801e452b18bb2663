"""Jobs as functions of Python: what they return, and that the process stays as it was."""

import contextlib
import logging
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.dataframe
import mlflow
import numpy as np
import pandas as pd
import pytest
from tests.conftest import python, without_mlflow

import tipcast
from tipcast.config.arguments import overrides_of_settings
from tipcast.config.errors import TipcastError
from tipcast.datasets.dataframe import write_dataframe

pytestmark = pytest.mark.usefixtures("small_pictures")

QUICK: dict[str, Any] = {
    "cluster": {"processes": False, "n_workers": 1, "performance_report": False},
    "model": {"params": {"n_estimators": 4}},
}


@pytest.fixture
def store(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh store, and no variables of MLflow's."""
    without_mlflow(monkeypatch, tmp_path)
    return f"sqlite:///{shutil.copy(tables, tmp_path)}"


def trained(store: str, **settings: Any) -> tipcast.Result:
    tracking = {"uri": store, "system_metrics": False}
    return tipcast.train(**{"data": {"rows": 2000}, "tracking": tracking, **QUICK, **settings})


def state() -> tuple[object, ...]:
    """What a job must leave as it found it."""
    libraries = (
        "distributed",
        "distributed.worker",
        "mlflow",
        "alembic",
        "asyncio",
        "tornado.application",
    )
    loggers = [logging.getLogger(name) for name in (None, "tipcast", *libraries)]
    return (
        dict(os.environ),
        [(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers],
        list(warnings.filters),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        sys.unraisablehook,
    )


def test_the_first_job_of_a_process_leaves_its_variables_alone(tmp_path: Path) -> None:
    code = """
import os, tipcast
before = dict(os.environ)
try:
    tipcast.train(model="none")
except tipcast.TipcastError as error:
    print(error.code, os.environ == before)
"""
    done = python(tmp_path, "-c", code)
    assert done.stdout == "C002 True\n", done.stderr


def test_telemetry_is_off_in_every_job(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    variables = list[str | None]()
    handler = logging.Handler()
    handler.emit = lambda record: variables.append(  # type: ignore[method-assign]
        os.environ.get("MLFLOW_DISABLE_TELEMETRY")
    )
    logger = logging.getLogger("tipcast")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)
    trained(store)
    assert set(variables) == {"true"}
    assert "MLFLOW_DISABLE_TELEMETRY" not in os.environ


@dataclass(frozen=True)
class Threads:
    """Two trainings that were begun by threads at once, and the process around them."""

    store: str
    before: tuple[object, ...]
    """The state of the process."""
    after: tuple[object, ...]
    output: str
    """What was written to the standard output."""
    runs: dict[int, tipcast.Result]
    """Seed -> what its training returned."""


@contextlib.contextmanager
def output_in(file: Path) -> Iterator[None]:
    """Write all of the standard output into a file, also what does not come from Python."""
    terminal = os.dup(1)
    with file.open("w") as out, contextlib.redirect_stdout(out):
        os.dup2(out.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(terminal, 1)
            os.close(terminal)


@pytest.fixture(scope="module")
def threads(
    tables: Path, small_pictures: None, tmp_path_factory: pytest.TempPathFactory
) -> Threads:
    folder = tmp_path_factory.mktemp("threads")
    store = f"sqlite:///{shutil.copy(tables, folder)}"
    runs = dict[int, tipcast.Result]()
    with (
        contextlib.chdir(folder),
        pytest.MonkeyPatch.context() as patch,
        output_in(folder / "stdout"),
    ):
        without_mlflow(patch, folder)
        mlflow.set_tracking_uri(None)
        before = state()
        started = [
            threading.Thread(target=lambda n: runs.update({n: trained(store, seed=n)}), args=(n,))
            for n in (1, 2)
        ]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        after = state()
    return Threads(store, before, after, (folder / "stdout").read_text(), runs)


def test_trainings_of_threads_leave_the_process_alone(threads: Threads) -> None:
    assert threads.after == threads.before
    assert threads.output == ""


@pytest.mark.parametrize("seed", [1, 2])
def test_trainings_of_threads_take_turns(threads: Threads, seed: int) -> None:
    run = threads.runs[seed]
    stored = mlflow.MlflowClient(threads.store).get_run(run.run_id)
    assert run.metrics["test/auc"] > 0.4
    assert (stored.info.status, stored.info.experiment_id) == ("FINISHED", run.experiment_id)
    assert stored.data.params["seed"] == str(seed)
    assert stored.data.tags["command"] == run.command
    assert f"seed={seed}" in run.command.split()


def test_loading_a_result_leaves_the_process_alone(threads: Threads) -> None:
    mlflow.set_tracking_uri(None)
    before = state()
    times = pd.to_datetime(["2019-03-01 08:30:00", "2019-03-02 22:10:00"])
    trips = pd.DataFrame({"tpep_pickup_datetime": times}).assign(
        PULocationID=[132, 48],
        DOLocationID=[230, 68],
        passenger_count=[1.0, 2.0],
        trip_distance=2.5,
    )
    assert len(threads.runs[2].load().predict(trips)) == 2
    assert state() == before


def on(frame: dict[Any, Any], **settings: Any) -> Callable[[], object]:
    """Return a training on a DataFrame."""
    return lambda: tipcast.train(data=pd.DataFrame(frame), **{"target": "a", **settings})


SCHEDULER = {"kind": "scheduler", "address": "tcp://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: tipcast.train(data={"rowz": 1}), "C001"),
        (lambda: tipcast.train(overrides=["--cfg", "job"]), "C005"),
        (lambda: tipcast.train(seed=[1, 2]), "C003"),
        (lambda: tipcast.sweep(model=["xgboost", "svc"]), "C00"),
        (lambda: tipcast.score("models:/a/1", "no.parquet", "s3://bucket"), "C011"),
        (lambda: tipcast.sweep(multirun="seed=1,2"), "C001.*unknown key 'multirun'"),
        (lambda: tipcast.train(target="a"), "C003.*target: can only be used with a DataFrame"),
        (
            on({"a": [1]}, test=[1]),
            "C003.*test: must be a pandas, cuDF or Dask DataFrame, got list",
        ),
        (
            on({"a": [0, 1]}, task={"name": "duration"}),
            "C003.*task: cannot be combined with target",
        ),
        (on({"a": [0, 1]}, cluster=SCHEDULER), "C003.*cannot reach a DataFrame"),
        (on({"a": [1, 2], "x": [1j, 2]}), "D008.*cannot be written as Parquet.*complex.*astype"),
        (on({"a": [1, "b"]}), "D008.*cannot be written as Parquet.*column a"),
        (
            lambda: tipcast.train(data=pd.DataFrame([[1, 2]], columns=["a", "a"])),
            "D008.*Duplicate column.*unique",
        ),
        (on({"a": [1], 0: [2]}), "D008.*must be named by strings, got 0"),
    ],
)
def test_mistakes_are_errors_with_a_code(
    call: Any, line: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    before = state()
    with pytest.raises(TipcastError, match=line):
        call()
    assert state() == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["pandas", "dask"])
def test_a_data_frame(kind: str, store: str, tmp_path: Path) -> None:
    """Intervals and periods become their texts."""

    def of_kind(frame: pd.DataFrame) -> Any:
        return dask.dataframe.from_pandas(frame, npartitions=2) if kind == "dask" else frame

    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(600, 3)), columns=["a", "b", "c"])
    frame["y"] = 3 * frame["a"] - frame["b"] + draw.normal(size=600) / 10 > 0
    run = trained(store, data=of_kind(frame), target="y")
    assert run.metrics["test/auc"] > 0.8
    assert mlflow.MlflowClient(store).get_run(run.run_id).data.tags["command"] == run.command
    assert "data=table" in run.command.split()
    assert "data.train=FRAME" in shlex.split(run.command)
    assert "parquet" not in run.command
    assert len(run.load().predict(frame[["a", "b", "c"]])) == 600
    frame = pd.DataFrame(
        {"age": [20, 40, None, 60], "month": pd.period_range("2019-01", periods=4, freq="M")}
    )
    frame = frame.assign(band=pd.cut(frame["age"], [0, 30, 50, 99]))
    texts = pd.read_parquet(write_dataframe(of_kind(frame), tmp_path / "t.parquet", "train"))
    assert texts["band"].fillna("-").tolist() == ["(0, 30]", "(30, 50]", "-", "(50, 99]"]
    assert texts["month"].tolist() == ["2019-01", "2019-02", "2019-03", "2019-04"]


def test_parameters_are_judged_for_the_kind_that_the_target_has(store: str) -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(400, 2)), columns=["a", "b"]).assign(
        y=draw.integers(-40, 3, 400)
    )
    forest = {"name": "random_forest", "params": {"criterion": "squared_error", "n_estimators": 5}}
    for rows, task in ((frame, {"kind": "regression"}), (frame.assign(y=frame["y"] / 3), {})):
        assert (
            list(trained(store, data=rows, target="y", model=forest, task=task).metrics)[0]
            == "test/rmse"
        )


def test_keywords_are_overrides() -> None:
    settings = {
        "model": {"name": "random_forest", "params": {"max_depth": 4, "class_weight": None}},
        "data": {"source": "files", "train": ["a b.parquet", Path("it's.csv")]},
        "search": {"space": {"max_depth": {"int": [4, 8]}}},
        "debug": True,
        "tracking": {"wait_s": 1.5},
    }
    said = [
        "model=random_forest",
        "model.params.max_depth=4",
        "model.params.class_weight=null",
        "data=files",
    ]
    said += [
        r"data.train=['a b.parquet', 'it\'s.csv']",
        "search.space.max_depth={int: [4, 8]}",
        "debug=true",
    ]
    assert overrides_of_settings({"task": "high_tip", **settings}) == [
        "task=high_tip",
        *said,
        "tracking.wait_s=1.5",
    ]


def _train_in_a_daemon(store: str, processes: bool | None) -> str:
    cluster = {"processes": processes, "n_workers": 1, "performance_report": False}
    try:
        return str(trained(store, cluster=cluster).run_id)
    except TipcastError as problem:
        return str(problem)


@pytest.mark.parametrize("processes", [None, True])
def test_a_daemonic_process_trains_in_threads_or_says_why_not(
    processes: bool | None, store: str
) -> None:
    """As tasks of Celery and of a Pool are: Python lets them start no processes."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answer = pool.apply(_train_in_a_daemon, (store, processes))
    if processes is None:
        assert mlflow.MlflowClient(store).get_run(answer).info.status == "FINISHED"
    else:
        assert re.match(r"error\[K002\].*daemon.* Fix: set cluster.processes=false", answer)
