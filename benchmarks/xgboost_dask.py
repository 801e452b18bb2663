"""P2: what Dask adds to XGBoost's training on a CPU, and whether the model stays the same.

Bare `xgboost.train` on rows in memory and tipcast's distributed estimator on the same rows in one
Dask worker take turns; both build their matrices and run the same rounds. The worker is a process,
which is up before the clock starts.

    PYTHONPATH=src python benchmarks/xgboost_dask.py \\
        [--rows 2000000] [--rounds 100] [--pairs 5] [--out FOLDER]
"""

from __future__ import annotations

import os

from tipcast.compute.forkserver import waiting

os.environ.update(waiting())  # as tipcast's entry point does, before libgomp loads

import distributed
import numpy as np
import pandas as pd
import xgboost
from sklearn.metrics import roc_auc_score

from harness import compare, options, write_result
from tipcast.models.base import Split
from tipcast.models.xgboost import XGBoost

FEATURES = {
    "pickup_weekday": 7,
    "pickup_hour": 24,
    "pickup_week_hour": 168,
    "pickup_minute": 60,
    "passenger_count": 7,
    "PULocationID": 266,
    "DOLocationID": 266,
}
"""Name -> number of values, as in the trips."""


def drawn(n: int, seed: int) -> tuple[pd.DataFrame, pd.Series]:
    """Draw rows with the cardinalities of the trips and a label that is hard to predict."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.integers(0, high, n) for high in FEATURES.values()]).astype(np.float32)
    margin = 0.3 * np.sin(x[:, 1] / 4) + (x[:, 5] * 7919 % 13) / 16 + (x[:, 6] * 31 % 17) / 34 - 0.6
    y = (rng.random(n) < 1 / (1 + np.exp(-margin))).astype(np.int32)
    return pd.DataFrame(x, columns=list(FEATURES)), pd.Series(y, name="high_tip")


def main() -> None:
    """Run the pairs, print and write the result."""
    given = options(__doc__, rows=2_000_000, parts=16, rounds=100, max_depth=6, threads=2, pairs=5)
    parts = [drawn(given.rows // given.parts, seed) for seed in range(given.parts)]
    valid, test = drawn(given.rows // 8, 1000), drawn(given.rows // 8, 1001)
    x = pd.concat([part[0] for part in parts], ignore_index=True)
    y = pd.concat([part[1] for part in parts], ignore_index=True)
    params = {"max_depth": given.max_depth, "learning_rate": 0.1, "eval_metric": "logloss"}
    estimator = XGBoost({**params, "n_estimators": given.rounds}, {}, "cpu")
    models: dict[str, xgboost.Booster] = {}

    def bare() -> None:
        rows = xgboost.QuantileDMatrix(x, y, nthread=given.threads)
        judged = xgboost.QuantileDMatrix(*valid, ref=rows, nthread=given.threads)
        settings = {**params, "objective": "binary:logistic", "nthread": given.threads, "seed": 0}
        models["xgboost"] = xgboost.train(
            settings, rows, given.rounds, evals=[(judged, "validation")], verbose_eval=False
        )

    def through_dask() -> None:
        models["tipcast"] = estimator.fit_distributed(
            client, Split(*train, Split(*held_out)), seed=0
        ).scorer.booster

    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=given.threads,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        train = [client.scatter([part[i] for part in parts], hash=False) for i in (0, 1)]
        held_out = tuple([client.scatter(half, hash=False)] for half in valid)
        result = compare(through_dask, bare, given.pairs, names=("tipcast", "xgboost"))
    auc = {
        name: float(roc_auc_score(test[1], model.inplace_predict(test[0])))
        for name, model in models.items()
    }
    difference = abs(auc["tipcast"] - auc["xgboost"])
    print(
        f"{result}; AUC {auc['tipcast']:.5f} and {auc['xgboost']:.5f}, difference {difference:.1e}"
    )
    write_result("xgboost_dask", result, auc=auc, auc_difference=difference, **vars(given))


if __name__ == "__main__":
    main()
