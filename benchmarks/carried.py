"""Models trained on a GPU, carried to a machine without one: do they score alike there?

    # on the GPU machine: train, register, score trips
    PYTHONPATH=src python benchmarks/carried.py make FILE.tar.gz
    # elsewhere: register the models that came, score the same trips
    PYTHONPATH=src python benchmarks/carried.py check FILE.tar.gz [FOLDER]

Both machines make the trips themselves from one seed, so that only the models and the scores
travel.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd

from harness import describe_environment, import_from_here, tipcast, write_result
from tipcast.datasets.taxi.sample import sample_block

MODELS = ("xgboost", "random_forest")
ROWS = {"gpu": 1_000_000, "cpu": 20_000}
"""That a model is trained on; on a processor only to try the script."""
PERIOD = (1_551_398_400_000_000, 1_554_076_800_000_000)
"""March 2019, in microseconds since 1970."""
COLUMNS = ("tpep_pickup_datetime", "passenger_count", "PULocationID", "DOLocationID")
BLOCKS = 4
BLOCK_ROWS = 250_000
"""More rows in a block than the model scores on a processor where there is a GPU."""


def trips() -> Iterator[pd.DataFrame]:
    """Yield the same raw trips on every machine, block by block."""
    for number in range(BLOCKS):
        columns = sample_block(PERIOD, number, 1, BLOCK_ROWS, "yellow", COLUMNS)
        yield pd.DataFrame(
            {
                name: values.view("datetime64[us]") if "time" in name else values
                for name, values in columns.items()
            }
        )


def scored(uri: str) -> Any:
    """Return the scores of all trips by a model as MLflow loads it."""
    model = mlflow.pyfunc.load_model(uri)
    return np.concatenate([np.asarray(model.predict(block), dtype=np.float64) for block in trips()])


def furthest(here: Any, there: Any) -> float:
    """Return the largest difference of scores; trips without a score must have none on either side,
    else it is NaN.
    """
    scored = ~(np.isnan(here) & np.isnan(there))
    return float(np.abs(here - there)[scored].max())


def make(file: Path, device: str) -> None:
    """Train, register and score; leave each model and its scores in an archive."""
    facts: dict[str, Any] = {"machine": describe_environment(), "models": {}}
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(file, "w:gz") as archive:
        folder = Path(scratch) / "carried"
        folder.mkdir()
        mlflow.set_tracking_uri(f"sqlite:///{scratch}/mlflow.db")
        for name in MODELS:
            words = [
                f"backend={device}",
                f"model={name}",
                f"data.rows={ROWS[device]}",
                f"tracking.register={name}",
            ]
            said = tipcast("train", *words, folder=Path(scratch))
            run = mlflow.MlflowClient().get_run(said["run_id"]).data
            shutil.copytree(mlflow.artifacts.download_artifacts(said["model_uri"]), folder / name)
            # smaller to carry
            np.save(folder / f"{name}.npy", scored(said["model_uri"]).astype(np.float32))
            facts["models"][name] = {
                "test_auc": said["metrics"]["test/auc"],
                "trained_on": run.params["fit.device"],
            }
            print(name, facts["models"][name], flush=True)

        (folder / "facts.json").write_text(json.dumps(facts, indent=2))
        archive.add(folder, "carried")


def check(file: Path, out: Path | None) -> None:
    """Register and score the models here; write how far the scores are from those that came
    along.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    found = []
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(file) as archive:
        archive.extractall(scratch, filter="data")
        folder = Path(scratch) / "carried"
        facts = json.loads((folder / "facts.json").read_text())
        mlflow.set_tracking_uri(f"sqlite:///{scratch}/mlflow.db")
        client = mlflow.MlflowClient()
        for name, told in facts["models"].items():
            client.create_registered_model(name)
            version = client.create_model_version(name, source=str(folder / name))
            here = scored(f"models:/{name}/{version.version}")
            there = np.load(folder / f"{name}.npy")
            row = {"model": name, "rows": len(here), "max_abs_diff": furthest(here, there), **told}
            found.append(row)
            print(row, flush=True)

    print(write_result("carried", found, out=out, trained_on=facts["machine"]))


if __name__ == "__main__":
    half, where, *more = sys.argv[1:]
    import_from_here()
    if half == "make":
        make(Path(where).resolve(), *(more or ["gpu"]))
    else:
        check(Path(where).resolve(), Path(more[0]) if more else None)
