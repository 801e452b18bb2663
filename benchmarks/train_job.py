"""Compare the whole `train` job with the bare library calls inside it: pandas, xgboost.train, scikit-learn's metrics.

The start of the worker processes does not count; its share is in the result. Both wait for threads as tipcast does.

python benchmarks/train_job.py [--rows 8000000] [--rounds 100] [--pairs 5] [--months FOLDER] [--dry]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import tempfile
from pathlib import Path

from tipcast.backends.waiting import waiting

os.environ.update(waiting())  # as tipcast's entry point does, before libgomp loads

import numpy as np
import pandas as pd
import xgboost
from sklearn.metrics import roc_auc_score, roc_curve

from harness import compare, peak_bytes, write_result
from read_prepare import COLUMNS, prepared
from tipcast.config.compose import compose, to_object
from tipcast.jobs import train

GOAL = 1.15
TEST_ROWS = 1_000_000
FEATURES = ["weekday", "hour", "week_hour", "minute", "passenger_count", "PULocationID", "DOLocationID"]


def frames(files: list[Path]) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """Return features, label and pickup times of some months, prepared with pandas alone."""
    trips = pd.concat([pd.read_parquet(file, columns=COLUMNS) for file in files])
    trips = trips[trips.fare_amount > 0]
    pickup = trips.tpep_pickup_datetime
    made = pd.DataFrame({"weekday": pickup.dt.weekday, "hour": pickup.dt.hour})
    made["week_hour"] = made.weekday * 24 + made.hour
    made["minute"] = pickup.dt.minute
    for name in FEATURES[4:]:
        made[name] = trips[name]
    label = (trips.tip_amount / trips.fare_amount > 0.2).astype("int32")
    return made.astype("float32").fillna(-1), label, pickup


def bare(train_files: list[Path], test_files: list[Path], params: dict[str, object], rounds: int) -> float:
    """Read, prepare, fit with early stopping, predict and measure, on one process with all threads."""
    x, y, pickup = frames(train_files)
    start, stop = pickup.min(), pickup.max()
    early = (pickup < stop - (stop - start) * 0.15).to_numpy()
    matrix = xgboost.QuantileDMatrix(x[early], y[early])
    held_out = xgboost.QuantileDMatrix(x[~early], y[~early], ref=matrix)
    booster = xgboost.train(params, matrix, rounds, evals=[(held_out, "validation")], verbose_eval=False)
    booster.inplace_predict(x[~early])
    x, y, _ = frames(test_files)
    scores = booster.inplace_predict(x)
    roc_curve(y, scores)
    return float(roc_auc_score(y, scores))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--months", type=Path)
    parser.add_argument("--dry", action="store_true", help="write no result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # MLflow's artifacts go to ./mlruns
        folder = options.months or Path(scratch) / "train"
        train_files = prepared(folder, options.rows)
        test_files = prepared(Path(scratch) / "test", TEST_ROWS, months="2019-04..2019-04")
        (composed,) = compose(
            "train",
            [
                "data=files",
                f"data.train={folder}",
                f"data.test={Path(scratch) / 'test'}",
                f"model.params.n_estimators={options.rounds}",
                "model.fit.early_stopping_rounds=null",
                f"tracking.uri=sqlite:///{scratch}/mlflow.db",
                "print=json",
            ],
        )
        spec = to_object(composed.config)
        params = {"objective": "binary:logistic", "eval_metric": "logloss", **spec.model.params}
        params.pop("n_estimators")
        phases: list[dict[str, float]] = []

        def job() -> float:
            with contextlib.redirect_stdout(io.StringIO()) as said:
                train.run(spec, "benchmark")
            phases.append(json.loads(said.getvalue().splitlines()[-1])["phases"])
            return phases[-1]["cluster"]

        _, peak = peak_bytes(job)
        aucs: list[float] = []
        result = compare(
            job,
            lambda: aucs.append(bare(train_files, test_files, params, options.rounds)),
            options.pairs,
            names=("tipcast train", "pandas + xgboost.train + scikit-learn"),
        )
    print(result, "bare test AUC", np.mean(aucs), "peak GB", peak / 1e9)
    if not options.dry:
        facts = {
            "rows": options.rows,
            "test_rows": TEST_ROWS,
            "rounds": options.rounds,
            "bare_auc": float(np.mean(aucs)),
            "peak_bytes": peak,
            "phases_s": {name: statistics.median(of[name] for of in phases) for name in phases[0]},
        }
        print(write_result("train_job", result, goal=GOAL, **facts))


if __name__ == "__main__":
    main()
