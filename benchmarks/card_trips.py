"""What task=high_tip tells of trips paid by card, beside task=high_tip_card and a sweep over it, on
later real months.

For months that do not follow at once, the model is calibrated by a newer month too, see
examples/recalibrate.py.

    TIPCAST_TAXI=FOLDER PYTHONPATH=src python benchmarks/card_trips.py [--trials 64] [--out FOLDER]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import mlflow
import pandas as pd

from harness import TAXI, options, tipcast, write_result
from real_trips import TRIPS
from tipcast.evaluation.classification import Classification

CARD = 1
"""The TLC's payment type of a credit card."""
RECALIBRATE = Path(__file__).resolve().parents[1] / "examples" / "recalibrate.py"
MONTHS = "no_repo_license/green_months/green_tripdata_{}.parquet"
YELLOW = "yellow/yellow_tripdata_{}_10k.parquet"
SIDES = {
    "green 2022-01 -> 2022-02": (MONTHS.format("2022-01"), MONTHS.format("2022-02")),
    "green 2023-01 -> 2023-02": (MONTHS.format("2023-01"), MONTHS.format("2023-02")),
    "yellow 2018 -> 2019-03": TRIPS["yellow 2018 -> 2019-03"],
    "yellow 2018-01 to 2018-09 -> 2018-10": (YELLOW.format("2018-0*"), YELLOW.format("2018-10")),
    "yellow 2019-02 -> 2019-03": (YELLOW.format("2019-02"), YELLOW.format("2019-03")),
}
NEWER = {"yellow 2018 -> 2019-03": YELLOW.format("2019-02")}
"""Months -> the month with answers that the scores are calibrated by."""
TOLD = (
    "auc",
    "auc_low",
    "auc_high",
    "mean_prediction",
    "positive_rate",
    "calibration_error",
    "rows",
)


def of_cards(model_uri: str, test: Path, folder: Path) -> float:
    """Return a model's AUC on the test trips that are paid by card."""
    trips = pd.read_parquet(test)
    trips[trips["payment_type"] == CARD].to_parquet(cards := folder / test.name)
    said = tipcast(
        "score",
        f"model_uri={model_uri}",
        f"input={cards}",
        f"output={folder / test.stem}",
        folder=folder,
    )
    return float(said["metrics"]["labelled/auc"])


def recalibrated(model_uri: str, months: tuple[Path, Path], folder: Path) -> dict[str, float]:
    """Return what is told of the test trips by a model that the first month calibrates."""
    scored = [folder / month.stem for month in months]
    for month, out in zip(months, scored, strict=True):
        tipcast("score", f"model_uri={model_uri}", f"input={month}", f"output={out}", folder=folder)

    words = [
        "--rows",
        f"payment_type == {CARD} and fare_amount > 0",
        "--answer",
        "tip_amount / fare_amount > 0.2",
    ]
    subprocess.run([sys.executable, RECALIBRATE, *scored, *words], check=True)
    trips = pd.read_parquet(scored[1].with_suffix(".calibrated.parquet"))
    labels = (trips["tip_amount"] / trips["fare_amount"] > 0.2).to_numpy(int)
    found = Classification().evaluate_here(trips["calibrated"].to_numpy(), labels)
    told = {key: found.metrics[key] for key in TOLD if key in found.metrics} | {"rows": found.rows}

    return {
        **told,
        "auc_low": found.interval.low,
        "auc_high": found.interval.high,
        "auc_card": found.headline_value,
    }


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

                rows.append(
                    {
                        "trips": name,
                        "way": way,
                        **told,
                        "validation_auc": found.get("validation/auc"),
                    }
                )
                print(rows[-1], flush=True)
                if way == "high_tip_card" and name in NEWER:
                    told = recalibrated(
                        said["model_uri"], (TAXI / NEWER[name], TAXI / test), Path(scratch)
                    )
                    rows.append({"trips": name, "way": "recalibrated", **told})
                    print(rows[-1], flush=True)

    print(write_result("card_trips", rows, **vars(given)))


if __name__ == "__main__":
    main()
