"""What task=high_tip tells of trips paid by card, beside task=high_tip_card and a sweep over it, on later real months.

TIPCAST_TAXI=FOLDER PYTHONPATH=src python benchmarks/card_trips.py [--trials 64] [--out FOLDER]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import mlflow
import pandas as pd

from harness import TAXI, options, tipcast, write_result
from real_trips import TRIPS
from tipcast.datasets.taxi.dataset import CARD

MONTHS = "no_repo_license/green_months/green_tripdata_{}.parquet"
SIDES = {
    "green 2022-01 -> 2022-02": (MONTHS.format("2022-01"), MONTHS.format("2022-02")),
    "green 2023-01 -> 2023-02": (MONTHS.format("2023-01"), MONTHS.format("2023-02")),
    "yellow 2018 -> 2019-03": TRIPS["yellow 2018 -> 2019-03"],
}
TOLD = ("auc", "auc_low", "auc_high", "mean_prediction", "positive_rate", "calibration_error", "rows")


def of_cards(model_uri: str, test: Path, folder: Path) -> float:
    """Return a model's AUC on the test trips that are paid by card."""
    trips = pd.read_parquet(test)
    trips[trips["payment_type"] == CARD].to_parquet(cards := folder / test.name)
    said = tipcast("score", f"model_uri={model_uri}", f"input={cards}", f"output={folder / test.stem}", folder=folder)
    return float(said["metrics"]["labelled/auc"])


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, trials=64, sides=list(SIDES))
    ways = {
        "high_tip": ("train", ["task=high_tip"]),
        "high_tip_card": ("train", ["task=high_tip_card"]),
        "swept": ("sweep", ["task=high_tip_card", "search=tpe", f"search.trials={given.trials}"]),
    }
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        client = mlflow.MlflowClient(f"sqlite:///{scratch}/mlflow.db")
        for name in given.sides:
            train, test = SIDES[name]
            for way, (job, words) in ways.items():
                files = ["data=files", f"data.train={TAXI / train}", f"data.test={TAXI / test}"]
                said = tipcast(job, *words, *files, folder=Path(scratch))
                found = client.get_run(said["run_id"]).data.metrics
                told = {key: found[f"test/{key}"] for key in TOLD if f"test/{key}" in found}
                told["auc_card"] = told["auc"]
                if way == "high_tip":
                    told["auc_card"] = of_cards(said["model_uri"], TAXI / test, Path(scratch))
                rows.append({"trips": name, "way": way, **told, "validation_auc": found.get("validation/auc")})
                print(rows[-1], flush=True)
    print(write_result("card_trips", rows, **vars(given)))


if __name__ == "__main__":
    main()
