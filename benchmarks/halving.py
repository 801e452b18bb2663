"""A sweep by halving beside all of its trials in full: trees that were grown, the best trial, and
whether the trials of the last rung are those of trainings in one go.

    python -m pip install --no-deps --target FOLDER --requirement benchmarks/other_tables.txt
    TIPCAST_TABLES=FOLDER TIPCAST_TAXI=FOLDER PYTHONPATH=src python benchmarks/halving.py \\
        [--rows trips diamonds ...] [--trials 32] [--workers 1 2 4] [--out FOLDER]

`search=random` has the same trials, each with the model's trees and early stopping: its best
validation AUC is what halving is to find, and its trees are what halving is to save. Both search
on each number of workers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow import MlflowClient

from harness import TAXI, options, tipcast, write_result
from real_trips import TRIPS

TABLES: dict[str, tuple[str, Callable[[pd.DataFrame], pd.Series[bool]]]] = {
    "diamonds": ("plotnine/data/diamonds.csv", lambda rows: rows.pop("cut") == "Ideal"),
    "Default": ("ISLP/data/Default.csv", lambda rows: rows.pop("default") == "Yes"),
    "mortgages": (
        "causaldata/mortgages/fetter_mortgages.csv",
        lambda rows: rows.pop("home_ownership") == 1,
    ),
}
"""Table -> file of a package, and how its column of two classes is taken from its rows."""
TRIPS_OF = "yellow 2018 -> 2019-03"


def data_words(name: str, folder: Path) -> list[str]:
    """Return what a sweep is told of trips or of a table, which is written into a folder."""
    if name == "trips":
        train, test = TRIPS[TRIPS_OF]
        return ["data=files", f"data.train={TAXI / train}", f"data.test={TAXI / test}"]

    path, target = TABLES[name]
    rows = pd.read_csv(Path(os.environ["TIPCAST_TABLES"]) / path)
    rows["target"] = target(rows)
    file = folder / f"{name}.parquet"
    rows.to_parquet(file, index=False)
    return ["data=table", f"data.train={file}", "task.target=target"]


def swept(folder: Path, *words: str) -> list[Any]:
    """Sweep, and return the runs of the trials that ended."""
    run_id = tipcast("sweep", *words, folder=folder)["run_id"]
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_run(run_id).info.experiment_id
    condition = f"tags.`mlflow.parentRunId` = '{run_id}'"
    return list(client.search_runs([experiment], condition, max_results=1000))


def trees_of(trials: list[Any], metric: str) -> int:
    """Return the trees that trials have grown."""
    return int(sum(run.data.metrics[metric] for run in trials))


def validation(run: Any) -> dict[str, float]:
    """Return a trial's metrics of the validation rows."""
    metrics: dict[str, float] = run.data.metrics
    return {name: value for name, value in metrics.items() if name.startswith("validation/")}


def compared(name: str, trials: int, workers: int) -> dict[str, Any]:
    """Search both ways; return trees, AUC, and how far the last rung is from one go."""
    with tempfile.TemporaryDirectory(prefix="tipcast-") as scratch:
        folder = Path(scratch)
        words = [*data_words(name, folder), f"search.trials={trials}"]
        words.append(f"cluster.n_workers={workers}")
        in_full = swept(folder, *words)
        by_halving = swept(folder, *words, "search=halving")

    metrics = {int(run.data.tags["trial.number"]): validation(run) for run in in_full}
    most = max(int(run.data.params["model.params.n_estimators"]) for run in by_halving)
    last = {
        int(run.data.tags["trial.number"]) % trials: validation(run)
        for run in by_halving
        if int(run.data.params["model.params.n_estimators"]) == most
    }

    trees = trees_of(by_halving, "fit/grown_trees"), trees_of(in_full, "fit/rounds")
    best = [max(run["validation/auc"] for run in runs.values()) for runs in (last, metrics)]
    return {
        "rows": name,
        "workers": workers,
        "survivors": sorted(last),
        "trees": trees,
        "share": round(trees[0] / trees[1], 3),
        "validation_auc": best,
        "lost_auc": best[1] - best[0],
        "furthest": max(
            abs(value - metrics[number][metric])
            for number, own in last.items()
            for metric, value in own.items()
        ),
    }


def main() -> None:
    """Compare on all rows and numbers of workers, print and write the results."""
    given = options(__doc__, rows=["trips", *TABLES], trials=32, workers=[1, 2, 4])
    rows = []
    for name in given.rows:
        for workers in given.workers:
            rows.append(compared(name, given.trials, workers))
            print(rows[-1], flush=True)
    print(write_result("halving", rows, **vars(given)))


if __name__ == "__main__":
    main()
