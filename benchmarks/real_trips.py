"""Train every model on real months of trips, test it on a later one, and write the AUCs.

python benchmarks/real_trips.py FOLDER        # with yellow/yellow_tripdata_2018-*.parquet, ... 2019-03 and green months
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import write_result

MODELS = ("xgboost", "random_forest", "xgboost_forest", "logistic")


def trained(model: str, train: str, test: str, folder: str) -> dict[str, Any]:
    """Run `tipcast train` and return what its last line says."""
    command = ["train", "data=files", f"data.train={train}", f"data.test={test}", f"model={model}", "print=json"]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    ended = subprocess.run(
        [sys.executable, "-m", "tipcast", *command],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    said: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return said


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    yellow = f"{folder}/yellow/yellow_tripdata_2018-*.parquet", f"{folder}/yellow/yellow_tripdata_2019-03_10k.parquet"
    green = (
        f"{folder}/no_repo_license/green_tripdata_2020-10.csv.gz",
        f"{folder}/no_repo_license/green_tripdata_2023-12.parquet",
    )
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, (train, test) in (("yellow 2018 -> 2019-03", yellow), ("green 2020-10 -> 2023-12", green)):
            for model in MODELS:
                said = trained(model, train, test, scratch)
                rows.append({"trips": name, "model": model, **said["metrics"], "seconds": sum(said["phases"].values())})
                print(name, model, round(rows[-1]["test/auc"], 4))
    print(write_result("real_trips", rows))


if __name__ == "__main__":
    main()
