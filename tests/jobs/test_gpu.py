"""Training and searching with backend=gpu, held against the same on the CPU; test_gpu_scoring.py
has the other jobs.

On a GPU machine modules run beside each other and the tests of one in turn: two take half as long
as one, and no more than two of these jobs hold the GPU's memory at once.
"""

import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from tests import warm
from tests.conftest import python
from tests.jobs.conftest import Ended, children, run_job
from tests.waiting import wait_until

from tipcast.compute import gpus
from tipcast.datasets.taxi.sample import sample_block

NO_GPU = """
import sys
from tipcast import cli
code = cli.main(sys.argv[1:])
print(sorted({"mlflow", "pandas", "xgboost", "sklearn"} & set(sys.modules)))
sys.exit(code)
"""
COLUMNS = ("tpep_pickup_datetime", "passenger_count", "PULocationID", "DOLocationID")
MARCH_2019 = (1_551_398_400_000_000, 1_554_076_800_000_000)


def said_by(folder: Path, *words: str) -> dict[str, Any]:
    """Return what the last line of a command that ends well says."""
    # a job that ran in this process has left its own in the environment
    store = f"sqlite:///{folder / 'mlflow.db'}"
    ended = python(folder, "-m", "tipcast", *words, "print=json", MLFLOW_TRACKING_URI=store)
    assert ended.returncode == 0, ended.stderr
    said: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return said


@pytest.mark.parametrize(
    "words", [["train"], ["score", "model_uri=models:/tipcast/1", "input=trips", "output=scored"]]
)
def test_without_a_gpu_it_ends_before_libraries_are_loaded(
    tmp_path: Path, words: list[str]
) -> None:
    ended = python(tmp_path, "-c", NO_GPU, *words, "backend=gpu", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 4, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        "error[K006] backend=gpu: no NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES='')"
    )
    assert ended.stdout == "[]\n"
    assert not list(tmp_path.iterdir()), "no run, no cluster"


@dataclass(frozen=True)
class BothDevices:
    """A training on real trips by the CPU, and the same by the GPU as a command."""

    on_cpu: Ended
    said: dict[str, Any]
    """What the command on the GPU said."""
    run: Any
    """Of the GPU."""
    uri: str
    """Of the command's store."""


@pytest.fixture(scope="module")
def by_both(
    gpu: None, store: str, taxi: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], BothDevices]:
    """Train a model on both devices, the first time that it is asked for."""
    train = taxi / "yellow" / "yellow_tripdata_2018_120k.parquet"
    # 50,000 trips: fewer tell less than 0.002
    test = taxi / "yellow" / "yellow_tripdata_2019-0*_10k.parquet"

    @functools.cache
    def train_once(model: str) -> BothDevices:
        folder = tmp_path_factory.mktemp(model)
        words = [f"model={model}", "data=files", f"data.train={train}", f"data.test={test}"]
        with contextlib.chdir(folder):
            on_cpu = run_job(store, "train", *words)
        said = said_by(folder, "train", "backend=gpu", "tracking.register=tips", *words)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        return BothDevices(on_cpu, said, mlflow.MlflowClient(uri).get_run(said["run_id"]), uri)

    return train_once


of_each_model = pytest.mark.parametrize("model", ["xgboost", "random_forest", "knn"])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "apart"), [("xgboost", 0.002), ("random_forest", 0.01), ("knn", 0.002)]
)
def test_a_gpu_learns_what_the_cpu_does(
    by_both: Callable[[str], BothDevices], model: str, apart: float
) -> None:
    both = by_both(model)
    metrics = both.run.data.metrics
    assert abs(both.said["metrics"]["test/auc"] - both.on_cpu.auc) <= apart
    assert metrics["parity/max_abs_diff"] <= 1e-5
    for name in ("train/rows", "train/positive_rate", "test/rows"):
        assert metrics[name] == both.on_cpu.run.data.metrics[name]


@pytest.mark.gpu
@of_each_model
def test_a_run_names_the_gpus_that_it_used(
    by_both: Callable[[str], BothDevices], model: str
) -> None:
    run = by_both(model).run
    params = run.data.params
    assert run.data.metrics["memory/device_peak_bytes"] > 100 << 20
    assert params["fit.device"].startswith("cuda")
    assert int(params["gpu.count"]) == len(gpus.visible())
    assert params["gpu.name"] == gpus.visible()[0].name
    assert {"estimator"} < set(params["parity.ways"].split(", "))


@pytest.mark.gpu
@of_each_model
def test_a_model_of_a_gpu_scores_where_there_is_none(
    by_both: Callable[[str], BothDevices], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    both = by_both(model)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    mlflow.set_tracking_uri(both.uri)
    mlflow.set_registry_uri(both.uri)
    trips = pd.DataFrame(sample_block(MARCH_2019, 0, 0, 1000, "yellow", COLUMNS))
    trips[COLUMNS[0]] = trips[COLUMNS[0]].to_numpy().view("datetime64[us]")
    scores = mlflow.pyfunc.load_model(both.said["model_uri"]).predict(trips)
    assert np.isfinite(scores).all()
    assert ((scores >= 0) & (scores <= 1)).all()


FOREST_GRID = [
    "search=grid",
    "search.space={max_depth:[4,8],n_estimators:[5,10]}",
    "search.trials_per_gpu=2",
]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("xgboost", ["search=random", "search.trials=6"]),
        ("xgboost", ["search=tpe", "search.trials=6", "search.trials_per_gpu=2"]),
        ("random_forest", FOREST_GRID),
        ("knn", ["search=random", "search.trials=4", "search.trials_per_gpu=2"]),
    ],
)
def test_a_sweep_tries_on_gpus(
    job: Callable[..., Any], store: str, model: str, words: list[str]
) -> None:
    # parity asks the CPU for neighbours, a minute of more
    rows = 50_000 if model == "knn" else 200_000
    said = job(
        "sweep", "backend=gpu", f"model={model}", f"data.rows={rows}", "debug=true", *words
    ).said
    client = mlflow.MlflowClient(store)
    parent = client.get_run(said["run_id"])
    trials = children(client, parent)
    assert len(trials) == said["trials"]["finished"] == said["trials"]["all"]
    assert {trial.info.status for trial in trials} == {"FINISHED"}
    assert all(trial.data.params["fit.device"].startswith("cuda") for trial in trials)
    best = max(trial.data.metrics["validation/auc"] for trial in trials)
    assert best == pytest.approx(said["best"]["validation/auc"], abs=1e-12)
    assert 0.5 < said["metrics"]["test/auc"] < 1
    assert parent.data.metrics["parity/max_abs_diff"] <= 1e-5


@pytest.mark.gpu
def test_workers_that_dask_cuda_worker_starts(tmp_path: Path) -> None:
    """A scheduler and one worker for each GPU, started by Dask's own commands, train as ours do."""
    words = ["train", "backend=gpu", "data.rows=100000"]
    ours = said_by(tmp_path, *words)
    file = tmp_path / "scheduler.json"
    local = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
    with contextlib.ExitStack() as stack:
        for command in (["scheduler", "--port", "0"], ["cuda", "worker"]):
            command = [sys.executable, "-m", "dask", *command, *local]
            process = stack.enter_context(
                subprocess.Popen(command, cwd=tmp_path, env=warm.environment())
            )
            stack.callback(process.terminate)
            wait_until(lambda process=process: process.poll() is not None or file.exists())
            assert process.poll() is None
        address = json.loads(file.read_text())["address"]
        there = [
            "cluster=scheduler",
            f"cluster.address={address}",
            f"cluster.n_workers={len(gpus.visible())}",
        ]
        theirs = said_by(tmp_path, *words, *there)
    assert theirs["metrics"]["test/auc"] == pytest.approx(ours["metrics"]["test/auc"], abs=1e-3)


@pytest.mark.gpu
def test_sums_of_many_rows_are_exact(tmp_path: Path) -> None:
    """2.4 billion values, 10 GB: what is left of the target is its noise, of standard deviation
    10.
    """
    words = [
        "model=linear",
        "model.fit.rows=null",
        "data=regression",
        "data.gigabytes=10",
        "task.validation=0",
    ]
    said = said_by(tmp_path, "train", "backend=gpu", "tracking.system_metrics=false", *words)
    assert said["metrics"]["test/rmse"] == pytest.approx(10, rel=0.005)
