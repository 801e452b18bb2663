"""Tables that others have made, as packages carry them: trained on, scored, served, and held
against scikit-learn.

    python -m pip install --no-deps --target FOLDER --requirement benchmarks/other_tables.txt
    TIPCAST_TABLES=FOLDER PYTHONPATH=src python benchmarks/other_tables.py \\
        [--tables wine titanic ...] [--out FOLDER]

Each table is written as CSV and as Parquet as it comes, a quarter of its rows apart to test on; of
a table with groups `tipcast train` draws them. It fits with five folds on the file of one form and
registers the model of all training rows. Then

- scikit-learn's estimator is fitted on the features that the registered model gets (of XGBoost:
  judges its scores), and scikit-learn's metrics are compared with the run's;
- the same estimator goes through scikit-learn's `cross_validate` with the folds of the run, whose
  metrics are compared fold by fold (of XGBoost: its out-of-fold predictions are judged);
- rows and groups are counted that are where none may be;
- all rows are scored by `tipcast score` of the CSV and of the Parquet file, by the model on pandas'
  frame of each, and by `mlflow models serve`, sent as CSV and as JSON: the largest difference of
  any two is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import sklearn
from packaging.utils import canonicalize_name

from by_sklearn import (
    Side,
    apart,
    estimator_of,
    judged,
    sides_of,
    told_by,
    usable,
    weights_of_fit,
)
from harness import options, tipcast, write_result
from other_folds import (
    FOLDS,
    Folds,
    broken,
    by_cross_validate,
    by_predictions,
    read_folds,
    splits_of,
)
from package_tables import TABLES, Table
from score_ways import every_way, furthest, matrix, of_pandas

TEST_SHARE = 0.25
HEADLINE = {"classification": "auc", "multiclass": "log_loss", "regression": "rmse"}
Files = dict[str, dict[str, Path]]
"""Part, all, train or test -> form -> file."""


def written(table: Table, folder: Path) -> Files:
    """Write all rows, those to train on and those to test on in both forms."""
    rows = table.read(Path(os.environ["TIPCAST_TABLES"]))
    if table.time:
        tested = (rows[table.time].rank(pct=True) > 1 - TEST_SHARE).to_numpy()
    else:
        tested = np.random.default_rng(0).random(len(rows)) < TEST_SHARE

    parts = {"all": rows}
    if not table.group:
        parts |= {"train": rows[~tested], "test": rows[tested]}

    files: Files = {}
    for part, own in parts.items():
        files[part] = {form: folder / f"{part}.{form}" for form in ("csv", "parquet")}
        own.to_csv(files[part]["csv"], index=False)
        own.to_parquet(files[part]["parquet"], index=False)

    return files


def trained(table: Table, files: Files, folder: Path) -> str:
    """Train with folds, and register the model; return the run's ID."""
    if table.group:
        rows = [f"data.train={files['all'][table.form]}", f"data.test_share={TEST_SHARE}"]
    else:
        rows = [f"data.{part}={files[part][table.form]}" for part in ("train", "test")]

    said = tipcast(
        "train",
        "data=table",
        *rows,
        f"task.target={table.target}",
        f"model={table.model}",
        "task.validation=0",
        f"task.folds={FOLDS}",
        *table.keys,
        "tracking.register=other",
        folder=folder,
    )
    return str(said["run_id"])


def rows_of_sides(
    table: Table, files: Files, predictions: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the usable rows to train on, and those to test on, by their numbers in the file.

    Where `tipcast train` has drawn them, those to train on are the ones that folds have tested.
    """
    if not table.group:
        train, test = (
            usable(table, of_pandas(files[part][table.form])) for part in files if part != "all"
        )
        return train, test

    rows = usable(table, of_pandas(files["all"][table.form]))
    is_train = rows.index.isin(predictions["row"])
    return rows[is_train], rows[~is_train]


def metrics_of_sides(
    table: Table, kind: str, model: Any, train: Side, test: Side
) -> dict[str, float]:
    """Return the test metrics of scikit-learn's estimator; of XGBoost, of the model's scores."""
    if table.model == "xgboost":
        return judged(kind, test.y, matrix(model.predict(test.rows)), test.weight)

    estimator = estimator_of(table, kind, manifest_of(model), train.x)
    estimator.fit(train.x, train.y, **weights_of_fit(estimator, train.weight))
    told = told_by(estimator, test.x, kind, train.y.nunique())
    return judged(kind, test.y, told, test.weight)


def metrics_of_folds(
    table: Table, kind: str, model: Any, train: Side, folds: Folds
) -> dict[str, list[float]]:
    """Return the metrics of each fold of scikit-learn's `cross_validate`; of XGBoost, those of its
    out-of-fold predictions.
    """
    if table.model == "xgboost":
        return by_predictions(kind, train, folds.predictions)
    splits = splits_of(table, train, folds.predictions)
    return by_cross_validate(table, kind, manifest_of(model), train, splits)


def manifest_of(model: Any) -> dict[str, Any]:
    """Return what a registered model knows of its columns."""
    manifest: dict[str, Any] = model.unwrap_python_model().manifest
    return manifest


def examined(table: Table, folder: Path) -> dict[str, Any]:
    """Return a table's row of the result."""
    store = f"sqlite:///{folder}/mlflow.db"
    uri = "models:/other/1"
    files = written(table, folder)
    run_id = trained(table, files, folder)

    mlflow.set_tracking_uri(store)
    client = mlflow.MlflowClient(store)
    told = client.get_run(run_id).data.metrics
    folds = read_folds(client, run_id, folder)
    model = mlflow.pyfunc.load_model(uri)

    kind = next(kind for kind, name in HEADLINE.items() if f"test/{name}_low" in told)
    headline = HEADLINE[kind]
    rows = rows_of_sides(table, files, folds.predictions)
    train, test = sides_of(table, kind, model, *rows)
    theirs = metrics_of_sides(table, kind, model, train, test)
    metrics = {name: (told[f"test/{name}"], value) for name, value in theirs.items()}
    ways = every_way(uri, store, model, files["all"], folder)
    everything = of_pandas(files["all"]["csv"])
    return {
        "table": table.name,
        "package": table.package,
        "rows": len(everything),
        "columns": len(everything.columns),
        "task": kind,
        "target": table.target,
        "model": table.model,
        "keys": table.keys,
        "trained_on": table.form,
        "metric": headline,
        "run": told[f"test/{headline}"],
        "scikit_learn": theirs[headline],
        "metrics": metrics,
        "metrics_apart": apart(metrics.values()),
        "ways": len(ways),
        "ways_apart": furthest(ways),
        "folds": folds_in_result(table, kind, model, folds, train, test),
        "rows_apart": abs(told["train/rows"] - len(train.rows))
        + abs(told["test/rows"] - len(test.rows)),
    }


def folds_in_result(
    table: Table, kind: str, model: Any, folds: Folds, train: Side, test: Side
) -> dict[str, Any]:
    """Return what a table's row of the result says of folds."""
    theirs = metrics_of_folds(table, kind, model, train, folds)
    metrics = {
        name: list(zip(folds.metrics[name], values, strict=True)) for name, values in theirs.items()
    }
    return {
        "number": FOLDS,
        "metrics": metrics,
        "metrics_apart": max(apart(pairs) for pairs in metrics.values()),
        "broken": broken(table, folds, train, test, splits_of(table, train, folds.predictions)),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that tables are of."""
    installed = distributions(path=[os.environ["TIPCAST_TABLES"]])
    found = {canonicalize_name(each.metadata["Name"]): each.version for each in installed}
    return {"scikit-learn": sklearn.__version__, **dict(sorted(found.items()))}


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, tables=[table.name for table in TABLES])
    results = []
    for table in (table for table in TABLES if table.name in given.tables):
        with tempfile.TemporaryDirectory(prefix="tipcast-") as folder, contextlib.chdir(folder):
            results.append(examined(table, Path(folder)))
        print(json.dumps(results[-1]), flush=True)
    print(write_result("other_tables", results, **vars(given), packages=versions()))


if __name__ == "__main__":
    main()
