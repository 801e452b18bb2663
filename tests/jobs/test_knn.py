"""`model=knn` as a user runs it: trained, registered, scored over all workers, held against scikit-learn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from sklearn.neighbors import KNeighborsClassifier

from tipcast.datasets.taxi import features
from tipcast.tracking.models import fetch

NEIGHBOURS = 30
ALONE = """
import sys
sys.modules["tipcast"] = sys.modules["sklearn"] = None  # importing them fails
import mlflow, pandas as pd
model = mlflow.pyfunc.load_model(sys.argv[1])
pd.DataFrame({"p": model.predict(pd.read_parquet(sys.argv[2]))}).to_parquet(sys.argv[3])
"""


def theirs(path: Path, x: np.ndarray, weights: str) -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's probabilities by the rows of a saved file, and where the last neighbour is tied."""
    with np.load(path, allow_pickle=False) as kept:
        each = np.repeat(np.arange(len(kept["rows"])), kept["counts"])
        labels = np.concatenate([np.arange(n) < p for n, p in zip(kept["counts"], kept["sums"], strict=True)])
        own = KNeighborsClassifier(NEIGHBOURS, weights=weights).fit(kept["rows"][each], labels)
        z = (x - kept["mean"]) / kept["scale"]
    assert len(each) == 3000
    far, _ = own.kneighbors(z, NEIGHBOURS + 1)
    return own.predict_proba(z)[:, 1], np.isclose(far[:, -1], far[:, -2], rtol=1e-9, atol=0)


def test_what_is_trained_is_scored_over_all_workers(job: Callable[..., Any], store: str, tmp_path: Path) -> None:
    params = (f"model.params.n_neighbors={NEIGHBOURS}", "model.params.weights=distance", "model.fit.rows=3000")
    trained = job("train", "model=knn", *params, "data.rows=20000", "tracking.register=near")
    assert trained.said["model_uri"] == "models:/near/1"
    assert trained.run.data.metrics["parity/max_abs_diff"] <= 1e-9
    assert "knn-scipy" in trained.run.data.tags["parity.ways"].split(", ")
    job("prepare", "data.rows=6000", "data.months=2019-05", "out=trips", "row_group_rows=1000")
    (file,) = Path("trips").glob("*.parquet")
    Path("trips/manifest.json").unlink()
    workers = ("cluster.n_workers=2", "cluster.threads_per_worker=1")
    said = job("score", "model_uri=models:/near/1", "input=trips", "output=scored", *workers).said
    scored = pq.read_table(Path("scored") / file.name).to_pandas()
    assert said["rows"] == len(scored) == pq.read_metadata(file).num_rows

    (tmp_path / "fetched").mkdir()
    fetched = fetch(mlflow.MlflowClient(store), "models:/near/1", tmp_path / "fetched")
    columns = {"pickup": scored["tpep_pickup_datetime"].to_numpy().astype("datetime64[us]").view(np.int64)}
    columns |= {name: scored[name].to_numpy(float) for name in ("passenger_count", "PULocationID", "DOLocationID")}
    expected, tied = theirs(fetched.path, features.compute(columns, features.BASE_FEATURES).astype(float), "distance")
    apart = np.abs(scored["probability"].to_numpy() - expected)
    assert apart[~tied].max() <= 1e-6
    assert tied.mean() < 0.02
    assert apart[tied].max(initial=0) <= 1 / NEIGHBOURS * 2

    mlflow.set_tracking_uri(store)
    pd.read_parquet(file).to_parquet("raw.parquet")
    command = [sys.executable, "-c", ALONE, "models:/near/1", "raw.parquet", "alone.parquet"]
    variables = {"MLFLOW_TRACKING_URI": store, "MLFLOW_REGISTRY_URI": store, "PATH": "/usr/bin:/bin"}
    subprocess.run(command, env=variables, check=True, capture_output=True, timeout=120)
    alone = pd.read_parquet("alone.parquet")["p"].to_numpy()
    np.testing.assert_allclose(alone, scored["probability"].to_numpy(), rtol=0, atol=1e-9)


def test_a_sweep_searches_neighbours_and_weights(job: Callable[..., Any], store: str) -> None:
    words = ("search=grid", "search.space.n_neighbors=[5,200]", "search.space.weights=[uniform,distance]")
    ended = job("sweep", "model=knn", "data.rows=10000", "model.fit.rows=2000", *words)
    assert ended.said["trials"] == {"finished": 4, "failed": 0, "all": 4}
    assert ended.said["best"]["n_neighbors"] == 200  # of labels as noisy as tips many tell more than few
    trials = mlflow.MlflowClient(store).search_runs(
        [ended.run.info.experiment_id], f"tags.mlflow.parentRunId = '{ended.run.info.run_id}'"
    )
    tried = {(run.data.params["model.params.n_neighbors"], run.data.params["model.params.weights"]) for run in trials}
    assert tried == {(number, weights) for number in ("5", "200") for weights in ("uniform", "distance")}
    assert len({run.data.metrics["validation/auc"] for run in trials}) == 4
