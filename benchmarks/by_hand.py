"""The references of whole jobs: what a careful user of pandas (cuDF), XGBoost and scikit-learn
(cuML) writes.

    python benchmarks/by_hand.py train pandas|cudf MODEL TRAIN TEST [--warm]
    python benchmarks/by_hand.py score pandas|cudf BOOSTER TRIPS OUT THRESHOLD NAME VERSION [--warm]
    # reading and writing alone
    python benchmarks/by_hand.py copy pandas|cudf - TRIPS OUT [--warm]

Each is a process that prints its seconds without imports, `job_s`. With `--warm` it does its work
twice: `job_s` is of the second time, whose seconds `again_s` can be left out of the process."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = [
    "tpep_pickup_datetime",
    "passenger_count",
    "PULocationID",
    "DOLocationID",
    "fare_amount",
    "tip_amount",
]
PARAMS = {
    "objective": "binary:logistic",
    "eval_metric": "logloss",
    "max_depth": 6,
    "learning_rate": 0.1,
}
ROUNDS = 100
HELD_OUT = 0.15
"""Share of the period that validation rows are from."""


def frames(library: Any, files: Sequence[Path]) -> tuple[Any, Any, Any]:
    """Return features (rows, 7) float32, label and pickup times of some months."""
    if library.__name__ == "cudf":
        trips = library.read_parquet([str(file) for file in files], columns=COLUMNS)
    else:
        trips = library.concat([library.read_parquet(file, columns=COLUMNS) for file in files])

    trips = trips[trips.fare_amount > 0]
    pickup = trips.tpep_pickup_datetime
    x = library.DataFrame({"weekday": pickup.dt.weekday, "hour": pickup.dt.hour})
    x["week_hour"] = x.weekday * 24 + x.hour
    x["minute"] = pickup.dt.minute
    for name in COLUMNS[1:4]:
        x[name] = trips[name]

    label = (trips.tip_amount / trips.fare_amount > 0.2).astype("int32")
    return x.astype("float32").fillna(-1), label, pickup


def split(
    library: Any, files: Sequence[Path], share: float = HELD_OUT
) -> tuple[Any, Any, Any, Any]:
    """Return training and validation rows of some months, cut by time: x, y, x, y."""
    x, y, pickup = frames(library, files)
    start = pickup.min()
    stop = pickup.max()
    early = pickup < stop - (stop - start) * share
    if library.__name__ == "pandas":
        early = early.to_numpy()  # else pandas compares the indexes
    return x[early], y[early], x[~early], y[~early]


def train(
    library: Any, model: str, train_files: Sequence[Path], test_files: Sequence[Path]
) -> dict[str, Any]:
    """Read, prepare, fit, predict and measure with all threads or on one GPU."""
    device = {"pandas": "cpu", "cudf": "cuda"}[library.__name__]
    clock = [time.perf_counter()]
    x, y, held_x, held_y = split(library, train_files)
    clock.append(time.perf_counter())
    if model == "xgboost":
        import xgboost

        matrix = xgboost.QuantileDMatrix(x, y)
        held_out = xgboost.QuantileDMatrix(held_x, held_y, ref=matrix)
        params = PARAMS | {"device": device}
        fitted = xgboost.train(
            params, matrix, ROUNDS, evals=[(held_out, "validation")], verbose_eval=False
        )
        score = fitted.inplace_predict
    else:
        from cuml.ensemble import RandomForestClassifier

        forest = RandomForestClassifier(n_estimators=100, max_depth=10, random_state=0).fit(x, y)

        def score(rows: Any) -> Any:
            return forest.predict_proba(rows).values[:, 1]

    clock.append(time.perf_counter())
    score(held_x)
    test_x, test_y, _ = frames(library, test_files)
    scores = score(test_x)
    if device == "cpu":
        from sklearn.metrics import roc_auc_score, roc_curve

        roc_curve(test_y, scores)
    else:
        from cuml.metrics import roc_auc_score
    auc = float(roc_auc_score(test_y.values, scores))
    clock.append(time.perf_counter())
    phases = {
        name: clock[at + 1] - clock[at] for at, name in enumerate(("read", "fit", "evaluate"))
    }
    return {"phases_s": phases, "job_s": clock[-1] - clock[0], "test_auc": auc}


def columns(library: Any, trips: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return what a model's own features are computed from, as arrays."""
    time_column = trips["tpep_pickup_datetime"]
    if library.__name__ == "cudf":
        found = {name: trips[name].fillna(-1).values for name in names if name != "pickup"}
        return {**found, "pickup": time_column.astype("datetime64[us]").astype("int64").values}
    found = {name: trips[name].to_numpy() for name in names if name != "pickup"}
    return {**found, "pickup": time_column.to_numpy().astype("datetime64[us]").view(np.int64)}


def scored(
    library: Any, booster: str, files: Sequence[Path], out: Path, threshold: float, names: list[str]
) -> float:
    """Score file by file and write each with its trips; return the seconds."""
    import xgboost

    from tipcast.datasets.taxi.features import BASE_FEATURES, compute, needed_columns

    start = time.perf_counter()
    out.mkdir(parents=True)
    device = {"pandas": "cpu", "cudf": "cuda"}[library.__name__]
    model = xgboost.Booster({"device": device}, model_file=booster)
    for file in files:
        trips = library.read_parquet(str(file))
        arrays = columns(library, trips, needed_columns(BASE_FEATURES))
        matrix = compute(
            arrays, BASE_FEATURES, importlib.import_module("numpy" if device == "cpu" else "cupy")
        )
        trips["probability"] = model.inplace_predict(matrix).astype("float64")
        trips["prediction"] = (trips["probability"] >= threshold).astype("int8")
        trips["model_name"], trips["model_version"] = names
        trips.to_parquet(str(out / file.name), compression="zstd", index=False)
    return time.perf_counter() - start


def copied(library: Any, files: Sequence[Path], out: Path) -> float:
    """Read file by file and write each; return the seconds."""
    start = time.perf_counter()
    out.mkdir(parents=True)
    for file in files:
        library.read_parquet(str(file)).to_parquet(
            str(out / file.name), compression="zstd", index=False
        )
    return time.perf_counter() - start


def months(folder: str) -> list[Path]:
    """Return the files of a folder."""
    return sorted(Path(folder).glob("*.parquet"))


def main() -> None:
    """Do one of the works and print what it took."""
    job, name, model, source, target, *more = (word for word in sys.argv[1:] if word != "--warm")
    library = importlib.import_module(name)

    def work(out: Path) -> dict[str, Any]:
        if job == "train":
            return train(library, model, months(source), months(target))
        if job == "copy":
            return {"job_s": copied(library, months(source), out)}
        return {"job_s": scored(library, model, months(source), out, float(more[0]), more[1:])}

    found = work(Path(target))
    if "--warm" in sys.argv:
        start = time.perf_counter()
        found = {**work(Path(f"{target}.again")), "again_s": time.perf_counter() - start}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
