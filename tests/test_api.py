"""Jobs as functions of Python: what they return, and that the process stays as it was."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe
import mlflow
import numpy as np
import pandas as pd
import pytest
from tests.conftest import python

import tipcast
from tipcast import api
from tipcast.config.arguments import as_overrides
from tipcast.config.errors import TipcastError

pytestmark = pytest.mark.usefixtures("small_pictures")

QUICK = {
    "cluster": {"processes": False, "n_workers": 1, "performance_report": False},
    "model": {"params": {"n_estimators": 4}},
}


@pytest.fixture
def store(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh store, and no variables of MLflow's."""
    for name in [name for name in os.environ if name.startswith("MLFLOW_") and name != "MLFLOW_DISABLE_TELEMETRY"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{shutil.copy(tables, tmp_path)}"


def trained(store: str, **settings: Any) -> tipcast.Result:
    return tipcast.train(data={"rows": 2000}, tracking={"uri": store, "system_metrics": False}, **QUICK, **settings)


def state() -> tuple[object, ...]:
    """What a job must leave as it found it."""
    libraries = ("distributed", "distributed.worker", "mlflow", "alembic", "asyncio", "tornado.application")
    loggers = [logging.getLogger(name) for name in (None, "tipcast", *libraries)]
    return (
        dict(os.environ),
        [(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers],
        list(warnings.filters),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        sys.unraisablehook,
    )


def test_a_training_and_its_model(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    import mlflow

    mlflow.set_tracking_uri(None)
    before = state()
    run = trained(store, seed=3)
    assert state() == before
    assert not capfd.readouterr().out
    assert run.metrics["test/auc"] > 0.4
    found = mlflow.MlflowClient(store).get_run(run.run_id)
    assert found.info.status == "FINISHED"
    assert found.info.experiment_id == run.experiment_id
    assert found.data.params["seed"] == "3"
    assert found.data.tags["command"] == run.command
    assert "seed=3" in run.command.split()
    trips = pd.DataFrame(
        {
            "tpep_pickup_datetime": pd.to_datetime(["2019-03-01 08:30:00", "2019-03-02 22:10:00"]),
            "PULocationID": [132, 48],
            "DOLocationID": [230, 68],
            "passenger_count": [1.0, 2.0],
            "trip_distance": [17.2, 1.1],
        }
    )
    probabilities = run.load().predict(trips)
    assert len(probabilities) == 2
    assert state() == before


def test_from_any_thread_one_after_another(store: str) -> None:
    found: list[tipcast.Result] = []
    threads = [threading.Thread(target=lambda seed: found.append(trained(store, seed=seed)), args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.run_id for run in found}) == 2
    assert {mlflow.MlflowClient(store).get_run(run.run_id).data.params["seed"] for run in found} == {"1", "2"}


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: tipcast.train(data={"rowz": 1}), "C001"),
        (lambda: tipcast.train(model="xgbost"), "C002"),
        (lambda: tipcast.train(overrides=["--cfg", "job"]), "C005"),
        (lambda: tipcast.train(seed=[1, 2]), "C003"),
        (lambda: tipcast.sweep(model=["xgboost", "svc"]), "C00"),
        (lambda: tipcast.score("models:/a/1", "no.parquet", "s3://bucket"), "C011"),
        (lambda: tipcast.sweep(multirun="seed=1,2"), "C001.*unknown key 'multirun'"),
        (lambda: tipcast.train(target="a"), "C003.*target: belongs to a DataFrame"),
        (lambda: tipcast.train(data=np.zeros((9, 2)), target="a"), "C003.*data: must be a DataFrame .*got ndarray"),
        (lambda: tipcast.train(data=pd.DataFrame({"a": [1]}), test=[1]), "C003.*test: must be a DataFrame .*got list"),
    ],
)
def test_mistakes_are_errors_with_a_code(
    call: Callable[[], object], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = state()
    with pytest.raises(TipcastError, match=line):
        call()
    assert state() == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["pandas", "dask"])
def test_a_data_frame(kind: str, store: str) -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(size=(600, 3))
    frame = pd.DataFrame(values, columns=["a", "b", "c"])
    frame["y"] = 3 * frame["a"] - frame["b"] + draw.normal(size=600) / 10 > 0
    rows = dask.dataframe.from_pandas(frame, npartitions=2) if kind == "dask" else frame
    run = tipcast.train(data=rows, target="y", tracking={"uri": store, "system_metrics": False}, **QUICK)
    assert run.metrics["test/auc"] > 0.8
    tag = mlflow.MlflowClient(store).get_run(run.run_id).data.tags["command"]
    assert tag == run.command
    assert re.match(r"tipcast\.train\(data=frame, overrides=\[.*'task=target', \"task.target='y'\"\]\)", tag)
    assert "parquet" not in tag
    assert len(run.load().predict(frame[["a", "b", "c"]])) == 600


def test_parameters_are_judged_for_the_kind_that_the_target_has(store: str) -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(400, 2)), columns=["a", "b"]).assign(y=draw.integers(-40, 3, 400))
    forest = {"name": "random_forest", "params": {"criterion": "squared_error", "n_estimators": 5}}
    settings = {**QUICK, "model": forest, "task": {"kind": "regression"}}
    run = tipcast.train(data=frame, target="y", tracking={"uri": store, "system_metrics": False}, **settings)
    assert list(run.metrics)[0] == "test/rmse"
    again = {**settings, "task": {}}
    frame["y"] = frame["y"] / 3
    run = tipcast.train(data=frame, target="y", tracking={"uri": store, "system_metrics": False}, **again)
    assert list(run.metrics)[0] == "test/rmse"


def test_a_sweep_tells_its_best_and_its_trials(store: str) -> None:
    found = tipcast.sweep(
        data={"rows": 2000},
        search={"trials": 2},
        tracking={"uri": store, "system_metrics": False},
        cluster=QUICK["cluster"],
        overrides=["model.params.n_estimators=4"],
    )
    assert found.details["trials"] == {"finished": 2, "failed": 0, "all": 2}
    assert found.details["best"]["trial"] in {0, 1}
    assert found.metrics["test/auc"] > 0.4


@pytest.mark.parametrize("kind", ["pandas", "dask"])
def test_intervals_and_periods_become_their_texts(kind: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [20, 40, None, 60], "month": pd.period_range("2019-01", periods=4, freq="M")})
    frame = frame.assign(band=pd.cut(frame["age"], [0, 30, 50, 99]))
    rows = dask.dataframe.from_pandas(frame, npartitions=2) if kind == "dask" else frame
    found = pd.read_parquet(api._written(rows, tmp_path / "t.parquet", "train"))
    assert found["band"].fillna("-").tolist() == ["(0, 30]", "(30, 50]", "-", "(50, 99]"]
    assert found["month"].tolist() == ["2019-01", "2019-02", "2019-03", "2019-04"]
    assert found["band"].dropna().tolist() == [str(value) for value in frame["band"].dropna()]


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (pd.DataFrame({"a": [1, 2], "x": [1j, 2]}), "D008.*cannot be written as Parquet.*complex.*astype"),
        (pd.DataFrame({"a": [1, 2], "x": [2**70, 1]}), "D008.*cannot be written as Parquet.*int.*astype"),
        (pd.DataFrame({"a": [1, "b"]}), "D008.*cannot be written as Parquet.*column a"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "D008.*Duplicate column names.*unique"),
        (pd.DataFrame({"a": [1], 0: [2]}), "D008.*must be named by texts, got 0"),
    ],
)
def test_a_data_frame_that_cannot_be_written(frame: pd.DataFrame, line: str) -> None:
    with pytest.raises(TipcastError, match=line):
        tipcast.train(data=frame, target="a")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"task": "tip_amount"}, "task: cannot be combined with target"),
        ({"task": {"name": "duration"}}, "task: cannot be combined with target"),
        ({"cluster": {"kind": "scheduler", "address": "tcp://127.0.0.1:1"}}, "not where the workers"),
    ],
)
def test_a_data_frame_does_not_go_with_everything(settings: dict[str, Any], told: str) -> None:
    frame = pd.DataFrame({"a": range(100), "y": [0, 1] * 50})
    with pytest.raises(tipcast.TipcastError, match=f"C003.*{told}"):
        tipcast.train(data=frame, target="y", **settings)


def test_keywords_are_overrides() -> None:
    assert as_overrides(
        {
            "model": {"name": "random_forest", "params": {"max_depth": 4, "class_weight": None}},
            "task": "high_tip",
            "data": {"source": "files", "train": ["a b.parquet", Path("it's.csv")]},
            "search": {"space": {"max_depth": {"int": [4, 8]}}},
            "debug": True,
            "tracking": {"wait_s": 1.5},
        }
    ) == [
        "model=random_forest",
        "model.params.max_depth=4",
        "model.params.class_weight=null",
        "task=high_tip",
        "data=files",
        r"data.train=['a b.parquet', 'it\'s.csv']",
        "search.space.max_depth={int: [4, 8]}",
        "debug=true",
        "tracking.wait_s=1.5",
    ]


def test_the_package_is_cheap_to_import(tmp_path: Path) -> None:
    program = (
        "import sys, tipcast\n"
        "heavy = {'mlflow', 'distributed', 'dask', 'pandas', 'hydra', 'xgboost', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert callable(tipcast.train)\n"
        "assert 'train' in dir(tipcast)\n"
        "assert not hasattr(tipcast, 'trian')\n"
    )
    python(tmp_path, "-c", program).check_returncode()
