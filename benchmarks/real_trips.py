"""Train every model on real months of trips, test it on a later one, and write the AUCs with their
intervals.

    TIPCAST_TAXI=FOLDER PYTHONPATH=src python benchmarks/real_trips.py \\
        [--models xgboost ...] [--out FOLDER]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness import TAXI, options, tipcast, write_result

TRIPS = {
    "yellow 2018 -> 2019-03": (
        "yellow/yellow_tripdata_2018-*.parquet",
        "yellow/yellow_tripdata_2019-03_10k.parquet",
    ),
    "green 2020-10 -> 2023-12": (
        "no_repo_license/green_tripdata_2020-10.csv.gz",
        "no_repo_license/green_tripdata_2023-12.parquet",
    ),
}


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, models=["xgboost", "random_forest", "xgboost_forest", "logistic"])
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, (train, test) in TRIPS.items():
            for model in given.models:
                words = [
                    "data=files",
                    f"data.train={TAXI / train}",
                    f"data.test={TAXI / test}",
                    f"model={model}",
                ]
                said = tipcast("train", *words, folder=Path(scratch))
                rows.append(
                    {"trips": name, "model": model, **said["metrics"], "seconds": said["job_s"]}
                )
                low, auc, high = (rows[-1][f"test/{key}"] for key in ("auc_low", "auc", "auc_high"))
                print(f"{name} {model} {auc:.4f} ({low:.4f} to {high:.4f})", flush=True)

    print(write_result("real_trips", rows, **vars(given)))


if __name__ == "__main__":
    main()
