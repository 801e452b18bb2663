"""What others have published of the same trips: their models through `tipcast train`, and tipcast's
own by their rules.

    TIPCAST_TAXI=FOLDER PYTHONPATH=src python benchmarks/outside.py \\
        [--models published xgboost ...] [--out FOLDER]

DataTalksClub's mlops-zoomcamp trains on one month of green trips and tests on the next: rows of 1
to 60 minutes, the pair of zones one-hot, and the distance. Each of its four numbers is told as
published, as the course's own lines give it here, and as `tipcast train` does with the files of
benchmarks/outside/conf; then xgboost and random_forest learn from the same rows. The clock is not
looked at: what a training takes is train_job.py's and gbm_perf.py's.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LinearRegression
from sklearn.metrics import root_mean_squared_error

from card_trips import MONTHS
from harness import ROOT, TAXI, options, tipcast, write_result

CONF = ROOT / "benchmarks" / "outside" / "conf"


@dataclass(frozen=True)
class Published:
    """A number of the course's."""

    what: str
    published: str
    months: tuple[str, str]
    task: str
    column: str
    """What it predicts, as the course calls it."""
    model: Any
    """The course's estimator."""
    words: tuple[str, ...]
    """The same for `tipcast train`."""


FOREST = ("model=zoomcamp_forest",)
TUNED = {"max_depth": 19, "n_estimators": 11, "min_samples_split": 2, "min_samples_leaf": 2}
COURSE = (
    Published(
        "minutes, module 1: linear regression",
        "7.7587152",
        ("2021-01", "2021-02"),
        "zoomcamp_duration",
        "duration",
        LinearRegression(),
        ("model=linear", "model.fit.standardize=false"),
    ),
    Published(
        "minutes, module 2: forest of depth 10",
        "5.431",
        ("2023-01", "2023-02"),
        "zoomcamp_duration",
        "duration",
        RandomForestRegressor(max_depth=10, random_state=0, n_jobs=-1),
        FOREST,
    ),
    Published(
        "minutes, module 2: the best forest of its search",
        "5.335419588556921",
        ("2023-01", "2023-02"),
        "zoomcamp_duration",
        "duration",
        RandomForestRegressor(**TUNED, random_state=42, n_jobs=-1),
        (*FOREST, "seed=42", *(f"model.params.{name}={value}" for name, value in TUNED.items())),
    ),
    Published(
        "dollars of the tip, module 2: forest of depth 10",
        "2.45",
        ("2022-01", "2022-02"),
        "zoomcamp_tip",
        "tip_amount",
        RandomForestRegressor(max_depth=10, random_state=0, n_jobs=-1),
        FOREST,
    ),
)
FEATURES = (
    "pickup_weekday",
    "pickup_hour",
    "pickup_week_hour",
    "pickup_minute",
    "passenger_count",
    "PULocationID",
    "DOLocationID",
    "trip_distance",
    "VendorID",
    "RatecodeID",
    "trip_type",
)
"""What the own models learn from: known at pick-up, as the course has it, but for the distance."""
OWN = {
    "xgboost": (
        "model=xgboost",
        "task.categorical=[PULocationID,DOLocationID]",
        "task.validation=0.15",
    ),
    "random_forest": ("model=random_forest", "task.categorical=[]"),
}
TOLD = ("rmse", "rmse_low", "rmse_high", "rows", "r2")


def months(published: Published) -> list[Path]:
    """Return the files to train and to test on."""
    return [TAXI / MONTHS.format(month) for month in published.months]


def by_the_course(published: Published) -> float:
    """Return the RMSE that the course's own lines give."""

    def read(path: Path) -> tuple[list[dict[str, Any]], Any]:
        trips = pd.read_parquet(path)
        trips["duration"] = (
            trips.lpep_dropoff_datetime - trips.lpep_pickup_datetime
        ).dt.total_seconds() / 60
        trips = trips[(trips.duration >= 1) & (trips.duration <= 60)]
        zones = trips[["PULocationID", "DOLocationID"]].astype(str)
        features = trips[["trip_distance"]].assign(
            PU_DO=zones.PULocationID + "_" + zones.DOLocationID
        )
        return features.to_dict(orient="records"), trips[published.column].to_numpy()

    train, test = months(published)
    vectorizer = DictVectorizer()
    rows, target = read(train)
    published.model.fit(vectorizer.fit_transform(rows), target)
    rows, target = read(test)
    return float(
        root_mean_squared_error(target, published.model.predict(vectorizer.transform(rows)))
    )


def trained(published: Published, *words: str, folder: Path) -> dict[str, float]:
    """Train by the course's rules, with every row of its months; return what the run tells of the
    test.
    """
    train, test = months(published)
    files = ["data=files", f"data.train={train}", f"data.test={test}", "data.limits.stray=null"]
    said = tipcast(
        "train", f"--config-dir={CONF}", f"task={published.task}", *files, *words, folder=folder
    )
    found = (
        mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db").get_run(said["run_id"]).data.metrics
    )
    return {key: found[f"test/{key}"] for key in TOLD if f"test/{key}" in found}


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, models=["published", *OWN])
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        done: dict[tuple[str, ...], dict[str, float]] = {}
        for each in COURSE:
            course = by_the_course(each)
            for model in given.models:
                own = (
                    (f"task.features=[{','.join(FEATURES)}]", *OWN[model])
                    if model in OWN
                    else each.words
                )
                key = (each.task, *each.months, *own)
                done[key] = done.get(key) or trained(each, *own, folder=Path(scratch))
                told = {"what": each.what, "published": each.published, "course": course}
                trips = f"green {' -> '.join(each.months)}"
                rows.append({**told, "months": trips, "model": model, **done[key]})
                print(rows[-1], flush=True)

    print(write_result("outside", rows, **vars(given)))


if __name__ == "__main__":
    main()
