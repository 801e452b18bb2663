"""Models trained on a GPU, carried to a machine without one: do they score alike there?

    python benchmarks/carried.py make FOLDER      # on the GPU machine: trains, registers, scores a million trips
    python benchmarks/carried.py check FOLDER     # elsewhere: registers what came along, scores the same trips

Both machines make the trips themselves from one seed, so that only the models and the scores travel.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd

from harness import describe_environment, write_result
from tipcast.data.synthetic import sample_block

GOAL = 1e-5
MODELS = ("xgboost", "random_forest", "xgboost_forest", "logistic")
PERIOD = (1_551_398_400_000_000, 1_554_076_800_000_000)
"""March 2019, in microseconds since 1970."""
COLUMNS = ("tpep_pickup_datetime", "passenger_count", "PULocationID", "DOLocationID")
BLOCKS, BLOCK_ROWS = 4, 250_000
"""More rows in a block than the model scores on a processor where there is a GPU."""


def trips() -> Iterator[pd.DataFrame]:
    """Yield the same raw trips on every machine, block by block."""
    for number in range(BLOCKS):
        columns = sample_block(PERIOD, number, 1, BLOCK_ROWS, "yellow", COLUMNS)
        yield pd.DataFrame(
            {name: values.view("datetime64[us]") if "time" in name else values for name, values in columns.items()}
        )


def scored(uri: str) -> Any:
    """Return the scores of all trips by a model as MLflow loads it."""
    model = mlflow.pyfunc.load_model(uri)
    return np.concatenate([np.asarray(model.predict(block), dtype=np.float64) for block in trips()])


def make(folder: Path, rows: int, models: Sequence[str]) -> None:
    """Train, register and score on a GPU; leave each model and its scores in the folder."""
    folder.mkdir(parents=True)
    facts: dict[str, Any] = {"machine": describe_environment(), "models": {}}
    with tempfile.TemporaryDirectory() as scratch:
        store = f"sqlite:///{scratch}/mlflow.db"
        mlflow.set_tracking_uri(store)
        for name in models:
            words = ["backend=gpu", f"model={name}", f"data.rows={rows}", f"tracking.register={name}", "print=json"]
            ended = subprocess.run(
                [sys.executable, "-m", "tipcast", "train", *words, f"tracking.uri={store}"],
                cwd=scratch,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            said = json.loads(ended.stdout.splitlines()[-1])
            run = mlflow.MlflowClient().get_run(said["run_id"]).data
            shutil.copytree(mlflow.artifacts.download_artifacts(said["model_uri"]), folder / name)
            np.save(folder / f"{name}.npy", scored(said["model_uri"]).astype(np.float32))  # smaller to carry
            facts["models"][name] = {
                "test_auc": said["metrics"]["test/auc"],
                "trained_on": run.tags["fit.device"],
                "parity": run.metrics["parity/max_abs_diff"],
                "ways": run.tags["parity.ways"],
            }
            print(name, facts["models"][name], flush=True)
    (folder / "facts.json").write_text(json.dumps(facts, indent=2))


def check(folder: Path) -> list[dict[str, Any]]:
    """Register and score the models here; return how far the scores are from those that came along."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    facts = json.loads((folder / "facts.json").read_text())
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        mlflow.set_tracking_uri(f"sqlite:///{scratch}/mlflow.db")
        client = mlflow.MlflowClient()
        for name, told in facts["models"].items():
            client.create_registered_model(name)
            version = client.create_model_version(name, source=str(folder / name))
            here, there = scored(f"models:/{name}/{version.version}"), np.load(folder / f"{name}.npy")
            row = {"model": name, "rows": len(here), "max_abs_diff": float(np.abs(here - there).max()), **told}
            found.append(row)
            print(row, flush=True)
    return found


def main() -> None:
    """Run one half of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("half", choices=("make", "check"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000, help="that a model is trained on")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--dry", action="store_true", help="write no result")
    given = parser.parse_args()
    if given.half == "make":
        make(given.folder, given.rows, given.models)
        return
    found = check(given.folder)
    if not given.dry:
        trained = json.loads((given.folder / "facts.json").read_text())["machine"]
        print(write_result("carried", found, goal=GOAL, trained_on=trained))


if __name__ == "__main__":
    main()
