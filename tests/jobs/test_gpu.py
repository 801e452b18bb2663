"""Jobs with backend=gpu as a user runs them, held against the same on the CPU."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from tests.conftest import python
from tests.waiting import wait_until

from tipcast.compute import gpus
from tipcast.datasets.taxi.sample import sample_block

ROOT = Path(__file__).resolve().parents[2]
BOTH = ("cpu", "gpu")


def said_by(folder: Path, *words: str) -> dict[str, Any]:
    """Return what the last line of a command that ends well says."""
    store = f"sqlite:///{folder / 'mlflow.db'}"  # a job that ran in this process has left its own in the environment
    ended = python(folder, "-m", "tipcast", *words, "print=json", MLFLOW_TRACKING_URI=store)
    assert ended.returncode == 0, ended.stderr
    said: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return said


NO_GPU = """
import sys
from tipcast import cli
code = cli.main(sys.argv[1:])
print(sorted({"mlflow", "pandas", "xgboost", "sklearn"} & set(sys.modules)))
sys.exit(code)
"""


@pytest.mark.parametrize("words", [["train"], ["score", "model_uri=models:/tipcast/1", "input=trips", "output=scored"]])
def test_without_a_gpu_it_ends_before_libraries_are_loaded(tmp_path: Path, words: list[str]) -> None:
    ended = python(tmp_path, "-c", NO_GPU, *words, "backend=gpu", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 4, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error[K006] backend=gpu: no NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES='')")
    assert ended.stdout == "[]\n"
    assert not list(tmp_path.iterdir()), "no run, no cluster"


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("model", "apart"), [("xgboost", 0.002), ("random_forest", 0.01), ("knn", 0.002)])
def test_a_gpu_learns_what_the_cpu_does(
    tmp_path: Path, taxi: Path, job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, model: str, apart: float
) -> None:
    train = taxi / "yellow" / "yellow_tripdata_2018_120k.parquet"
    test = taxi / "yellow" / "yellow_tripdata_2019-0*_10k.parquet"  # 50,000 trips: fewer tell less than 0.002
    words = [f"model={model}", "data=files", f"data.train={train}", f"data.test={test}"]
    on_cpu = job("train", *words)
    said = said_by(tmp_path, "train", "backend=gpu", "tracking.register=tips", *words)
    assert abs(said["metrics"]["test/auc"] - on_cpu.auc) <= apart
    run = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").get_run(said["run_id"])
    assert run.data.metrics["parity/max_abs_diff"] <= 1e-5
    assert run.data.metrics["memory/device_peak_bytes"] > 100 << 20
    assert run.data.params["fit.device"].startswith("cuda")
    assert int(run.data.params["gpu.count"]) == len(gpus.visible())
    assert run.data.params["gpu.name"] == gpus.visible()[0].name
    assert {"estimator"} < set(run.data.params["parity.ways"].split(", "))
    for name in ("train/rows", "train/positive_rate", "test/rows"):
        assert run.data.metrics[name] == on_cpu.run.data.metrics[name]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_registry_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    names = ("tpep_pickup_datetime", "passenger_count", "PULocationID", "DOLocationID")
    period = (1_551_398_400_000_000, 1_554_076_800_000_000)
    trips = sample_block(period, 0, 0, 1000, "yellow", names)
    frame = pd.DataFrame(
        {name: values.view("datetime64[us]") if "time" in name else values for name, values in trips.items()}
    )
    scores = mlflow.pyfunc.load_model(said["model_uri"]).predict(frame)
    assert np.isfinite(scores).all()
    assert ((scores >= 0) & (scores <= 1)).all()


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_a_table_with_categories(job: Callable[..., Any], tmp_path: Path) -> None:
    """A table with texts, a boolean and missing numbers: trained on a GPU, scored on both devices."""
    r = np.random.default_rng(8)
    rows = pd.DataFrame({"size": r.normal(0, 1, 40_000), "fast": r.random(40_000) < 0.2})
    rows["town"] = pd.Series(r.choice(list("ABCDEFGH"), 40_000), dtype=object).where(r.random(40_000) < 0.9)
    rows["late"] = np.where(rows["size"] + 2 * rows["town"].isin(["B", "E"]) + r.normal(0, 1, 40_000) > 1, "yes", "no")
    rows["size"] = rows["size"].where(r.random(40_000) < 0.9)
    rows.to_parquet(tmp_path / "rows.parquet")
    words = ["data=table", f"data.train={tmp_path / 'rows.parquet'}", "task.target=late", "task.categorical=[town]"]
    words += ["data.test_share=0.3", "model=xgboost", "model.params.n_estimators=30"]
    auc = {device: job("train", f"backend={device}", *words, f"tracking.register={device}").auc for device in BOTH}
    assert auc["cpu"] > 0.75
    assert auc["gpu"] == pytest.approx(auc["cpu"], abs=0.005)
    found = {}
    for device in BOTH:
        out = tmp_path / device
        given = [f"input={tmp_path / 'rows.parquet'}", f"output={out}"]
        job("score", f"backend={device}", "model_uri=models:/gpu/1", *given)
        scored = pd.read_parquet(out / "rows.parquet")
        found[device] = scored.drop(columns="prediction")  # which ends at the very score of some row
    pd.testing.assert_frame_equal(found["gpu"], found["cpu"], atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("xgboost", ["search=random", "search.trials=6"]),
        ("xgboost", ["search=tpe", "search.trials=6", "search.trials_per_gpu=2"]),
        (
            "random_forest",
            ["search=grid", "search.space={max_depth:[4,8],n_estimators:[5,10]}", "search.trials_per_gpu=2"],
        ),
        ("knn", ["search=random", "search.trials=4", "search.trials_per_gpu=2"]),
    ],
)
def test_a_sweep_tries_on_gpus(job: Callable[..., Any], store: str, model: str, words: list[str]) -> None:
    said = job("sweep", "backend=gpu", f"model={model}", "data.rows=200000", "debug=true", *words).said
    client = mlflow.MlflowClient(store)
    parent = client.get_run(said["run_id"])
    trials = client.search_runs([parent.info.experiment_id], f"tags.mlflow.parentRunId = '{said['run_id']}'")
    assert len(trials) == said["trials"]["finished"] == said["trials"]["all"]
    assert {trial.info.status for trial in trials} == {"FINISHED"}
    assert all(trial.data.params["fit.device"].startswith("cuda") for trial in trials)
    best = max(trial.data.metrics["validation/auc"] for trial in trials)
    assert best == pytest.approx(said["best"]["validation/auc"], abs=1e-12)
    assert 0.5 < said["metrics"]["test/auc"] < 1
    assert parent.data.metrics["parity/max_abs_diff"] <= 1e-5


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_workers_that_dask_cuda_worker_starts(tmp_path: Path) -> None:
    """A scheduler and one worker for each GPU, started by Dask's own commands, train as ours do."""
    words = ["train", "backend=gpu", "data.rows=100000"]
    own = said_by(tmp_path, *words)
    file = tmp_path / "scheduler.json"
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    scheduler = [sys.executable, "-m", "dask", "scheduler", "--port", "0", *local, "--scheduler-file", str(file)]
    cuda = [sys.executable, "-m", "dask", "cuda", "worker", *local[:2], "--scheduler-file", str(file)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with contextlib.ExitStack() as stack:
        for command in (scheduler, [*cuda, "--no-dashboard"]):
            process = stack.enter_context(subprocess.Popen(command, cwd=tmp_path, env=environment))
            stack.callback(process.terminate)
            wait_until(lambda process=process: process.poll() is not None or file.exists())
            assert process.poll() is None
        address = json.loads(file.read_text())["address"]
        number = len(gpus.visible())
        there = ["cluster=scheduler", f"cluster.address={address}", f"cluster.n_workers={number}"]
        theirs = said_by(tmp_path, *words, *there)
    assert theirs["metrics"]["test/auc"] == pytest.approx(own["metrics"]["test/auc"], abs=1e-3)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_sums_of_many_rows_are_exact(tmp_path: Path) -> None:
    """2.4 billion values, 10 GB: what is left of the target is its noise, of standard deviation 10."""
    words = ["model=linear", "model.fit.rows=null", "data=regression", "data.gigabytes=10", "task.validation=0"]
    said = said_by(tmp_path, "train", "backend=gpu", "tracking.system_metrics=false", *words)
    assert said["metrics"]["test/rmse"] == pytest.approx(10, rel=0.005)


ROWS = {"svc": 100_000, "knn": 100_000}
"""Of trips to score, where fewer than a million: the CPU takes a minute for more."""


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("model", ["xgboost", "random_forest", "xgboost_forest", "logistic", "svc", "knn"])
def test_both_devices_score_alike(job: Callable[..., Any], tmp_path: Path, model: str) -> None:
    trees = ["model.params.n_estimators=50"] if model in ("xgboost", "random_forest", "xgboost_forest") else []
    name = f"gpu_{model}"
    job("train", "backend=gpu", f"model={model}", *trees, "data.rows=200000", f"tracking.register={name}")
    rows = ROWS.get(model, 1_000_000)
    job("prepare", f"data.rows={rows}", "data.months=2019-04", "out=trips", "row_group_rows=60000")
    (file,) = (tmp_path / "trips").glob("*.parquet")
    found = {}
    for device in ("cpu", "gpu"):
        ended = job("score", f"backend={device}", f"model_uri=models:/{name}/1", "input=trips", f"output=on_{device}")
        found[device] = pq.read_table(tmp_path / f"on_{device}" / file.name)
        assert ended.said["rows"] == found[device].num_rows == pq.read_metadata(file).num_rows
        manifest = json.loads((tmp_path / f"on_{device}" / "_manifest.json").read_text())
        assert manifest["device"] == device
    kept = pq.read_schema(file).names
    assert found["gpu"].select(kept).equals(found["cpu"].select(kept))
    apart = np.abs(found["gpu"]["probability"].to_numpy() - found["cpu"]["probability"].to_numpy())
    assert apart.max() <= 1e-5
    other = found["gpu"]["prediction"].to_numpy() != found["cpu"]["prediction"].to_numpy()
    threshold = manifest["model"]["threshold"]
    assert (np.abs(found["cpu"]["probability"].to_numpy()[other] - threshold) <= 1e-5).all()


MODELS = (
    (("model=random_forest", "task.features=[trip_distance,PULocationID]"), ("model=xgboost",)),
    (
        ("model=svc",),
        ("model=knn",),
    ),
)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("pair", MODELS, ids=["trees", "neighbours"])
def test_a_gpu_says_what_the_cpu_does(
    job: Callable[..., Any], store: str, pair: tuple[tuple[str, ...], ...], request: pytest.FixtureRequest
) -> None:
    name = f"promoted_{request.node.callspec.id}"
    for words in pair:
        job("train", "backend=gpu", "data.rows=20000", f"tracking.register={name}", *words)
    client = mlflow.MlflowClient(store)
    found = {}
    for device in ("gpu", "cpu"):
        client.set_registered_model_alias(name, "champion", "1")
        found[device] = job("promote", f"backend={device}", f"model_uri=models:/{name}/2", "margin=0.5").said
        assert found[device]["moved"]
    for metric, value in found["cpu"]["metrics"].items():
        assert found["gpu"]["metrics"][metric] == pytest.approx(value, abs=1e-4), metric
