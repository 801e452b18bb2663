"""Tables that others have made, as packages carry them: trained on, scored, served, and held
against scikit-learn.

    python -m pip install --no-deps --target FOLDER --requirement benchmarks/other_tables.txt
    TIPCAST_TABLES=FOLDER PYTHONPATH=src python benchmarks/other_tables.py [--tables wine titanic
    ...] [--out FOLDER]

Each table is written as CSV and as Parquet as it comes, a quarter of its rows apart to test on.
`tipcast train` fits on the file of one form and registers the model. Then

- scikit-learn's estimator is fitted on the features that the registered model gets (of XGBoost:
  judges its scores), and scikit-learn's metrics are compared with the run's;
- all rows are scored by `tipcast score` of the CSV and of the Parquet file, by the model on pandas'
  frame of each, and by `mlflow models serve`, sent as CSV and as JSON: the largest difference of
  any two is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import sklearn
from packaging.utils import canonicalize_name
from sklearn import datasets, metrics
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from harness import options, tipcast, write_result
from serving import served

TEST_SHARE = 0.25
BATCH = 20_000
"""Rows of a request."""
TIMEOUT_S = 120
TREES = {"n_estimators": 100, "max_depth": 12, "random_state": 0}
ESTIMATORS: dict[tuple[str, bool], Callable[[], Any]] = {
    ("logistic", False): lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    ("ridge", True): lambda: make_pipeline(StandardScaler(), Ridge()),
    ("linear", True): lambda: make_pipeline(StandardScaler(), LinearRegression()),
    ("poisson", True): lambda: make_pipeline(StandardScaler(), PoissonRegressor(max_iter=200)),
    ("extra_trees", False): lambda: ExtraTreesClassifier(**TREES),
    ("extra_trees", True): lambda: ExtraTreesRegressor(**TREES),
    ("hist_gradient_boosting", False): lambda: HistGradientBoostingClassifier(random_state=0),
    ("hist_gradient_boosting", True): lambda: HistGradientBoostingRegressor(random_state=0),
}
"""Model, and whether it is of values -> the estimator, by its own defaults where conf/model has the
same.
"""
LINEAR = ("logistic", "ridge", "linear", "poisson")
"""Models for which a text is no code, but a column of its own."""
HEADLINE = {"classification": "auc", "multiclass": "log_loss", "regression": "rmse"}


@dataclass(frozen=True)
class Table:
    """A table of a package, and what is asked of it."""

    name: str
    package: str
    read: Callable[[Path], pd.DataFrame]
    target: str
    model: str
    form: str = "csv"
    """Of the file that is trained on: csv or parquet."""
    words: tuple[str, ...] = ()
    later: str = ""
    """Column of dates, of which the last are tested on; else rows are drawn."""


def csv(path: str) -> Callable[[Path], pd.DataFrame]:
    """Return how to read a CSV file of a package."""
    return lambda folder: pd.read_csv(folder / path)


def named_classes(loaded: Any) -> pd.DataFrame:
    """Return a table of scikit-learn's with its classes by their names."""
    return loaded.frame.assign(target=loaded.target_names[loaded.frame["target"]])


def cars(folder: Path) -> pd.DataFrame:
    """Return a table whose years are dates."""
    return pd.read_json(folder / "vega_datasets/_data/cars.json", convert_dates=["Year"])


TABLES = (
    Table(
        "breast_cancer",
        "scikit-learn",
        lambda _: named_classes(datasets.load_breast_cancer(as_frame=True)),
        "target",
        "logistic",
        "parquet",
    ),
    Table(
        "wine",
        "scikit-learn",
        lambda _: named_classes(datasets.load_wine(as_frame=True)),
        "target",
        "extra_trees",
    ),
    Table(
        "diabetes",
        "scikit-learn",
        lambda _: datasets.load_diabetes(as_frame=True, scaled=False).frame,
        "target",
        "ridge",
        "parquet",
    ),
    Table(
        "penguins-raw",
        "palmerpenguins",
        csv("palmerpenguins/data/penguins-raw.csv"),
        "Sex",
        "logistic",
    ),
    Table(
        "diamonds",
        "plotnine",
        csv("plotnine/data/diamonds.csv"),
        "price",
        "hist_gradient_boosting",
        "parquet",
    ),
    Table("txhousing", "plotnine", csv("plotnine/data/txhousing.csv"), "median", "extra_trees"),
    Table("Wage", "islp", csv("ISLP/data/Wage.csv"), "wage", "linear", "parquet"),
    Table("OJ", "islp", csv("ISLP/data/OJ.csv"), "Purchase", "xgboost"),
    Table(
        "seattle-weather",
        "vega-datasets",
        csv("vega_datasets/_data/seattle-weather.csv"),
        "weather",
        "xgboost",
    ),
    Table(
        "cars",
        "vega-datasets",
        cars,
        "Miles_per_Gallon",
        "ridge",
        "parquet",
        words=("data.time=Year",),
        later="Year",
    ),
    Table(
        "titanic",
        "causaldata",
        lambda folder: pd.read_stata(folder / "causaldata/titanic/titanic.dta"),
        "survived",
        "xgboost",
        "parquet",
        words=("task.categorical=[class]",),
    ),
    Table(
        "nhefs",
        "causaldata",
        lambda folder: pd.read_stata(folder / "causaldata/nhefs/nhefs.dta"),
        "qsmk",
        "hist_gradient_boosting",
    ),
    Table("fair", "statsmodels", csv("statsmodels/datasets/fair/fair.csv"), "affairs", "poisson"),
    Table(
        "canadian_senators",
        "lifelines",
        csv("lifelines/datasets/canadian_senators.csv"),
        "reason",
        "extra_trees",
        "parquet",
    ),
)


def written(table: Table, folder: Path) -> dict[str, dict[str, Path]]:
    """Write all rows, those to train on and those to test on in both forms; return part -> form ->
    file.
    """
    rows = table.read(Path(os.environ["TIPCAST_TABLES"]))
    if table.later:
        tested = (rows[table.later].rank(pct=True) > 1 - TEST_SHARE).to_numpy()
    else:
        tested = np.random.default_rng(0).random(len(rows)) < TEST_SHARE

    files: dict[str, dict[str, Path]] = {}
    for part, own in {"all": rows, "train": rows[~tested], "test": rows[tested]}.items():
        files[part] = {form: folder / f"{part}.{form}" for form in ("csv", "parquet")}
        own.to_csv(files[part]["csv"], index=False)
        own.to_parquet(files[part]["parquet"], index=False)

    return files


def of_pandas(file: Path) -> pd.DataFrame:
    """Return a file's rows as anyone reads them."""
    return pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file)


def matrix(predictions: Any) -> np.ndarray[Any, Any]:
    """Return what a model tells of each row as doubles, (rows, 1) or (rows, classes)."""
    values = np.asarray(predictions, dtype=np.float64)
    return values.reshape(len(values), -1)


def asked(port: int, body: bytes, form: str) -> pd.DataFrame:
    """Return a server's answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": form}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return pd.DataFrame(json.load(answer)["predictions"])


def by_server(uri: str, store: str, rows: pd.DataFrame) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a server tells of rows sent as CSV and as JSON."""
    found: dict[str, list[pd.DataFrame]] = {"server, CSV": [], "server, JSON": []}
    with served(uri, store) as port:
        for start in range(0, len(rows), BATCH):
            part = rows.iloc[start : start + BATCH]
            split = part.astype(object).where(part.notna(), None).to_dict("split", index=False)
            text = part.to_csv(index=False).encode()
            found["server, CSV"].append(asked(port, text, "text/csv"))
            body = json.dumps({"dataframe_split": split}).encode()
            found["server, JSON"].append(asked(port, body, "application/json"))
    return {way: matrix(pd.concat(answers)) for way, answers in found.items()}


def by_score(uri: str, file: Path, folder: Path) -> np.ndarray[Any, Any]:
    """Return what `tipcast score` writes."""
    output = folder / f"scored-{file.suffix[1:]}"
    tipcast(
        "score", f"model_uri={uri}", f"input={file}", f"output={output}", "keep=[]", folder=folder
    )
    scored = pd.read_parquet(output)
    told = [name for name in scored if name.startswith("probability")] or ["prediction"]
    return matrix(scored[told])


def furthest(ways: dict[str, np.ndarray[Any, Any]]) -> float:
    """Return the largest difference between two ways, relative to the largest value; NaN where one
    lacks a value.
    """
    values = np.stack(list(ways.values()))
    lacking = np.isnan(values)
    if (lacking != lacking[0]).any():
        return float("nan")
    return float(np.nanmax(np.ptp(values, axis=0)) / max(1.0, np.nanmax(np.abs(values))))


def judged(kind: str, target: np.ndarray[Any, Any], told: np.ndarray[Any, Any]) -> dict[str, float]:
    """Return scikit-learn's metrics of predictions: of classes the target is their numbers."""
    if kind == "regression":
        own = {
            "rmse": metrics.root_mean_squared_error,
            "mae": metrics.mean_absolute_error,
            "r2": metrics.r2_score,
        }
        return {name: float(function(target, told[:, 0])) for name, function in own.items()}

    if kind == "classification":
        own = {"auc": metrics.roc_auc_score, "average_precision": metrics.average_precision_score}
        own |= {"log_loss": metrics.log_loss, "brier": metrics.brier_score_loss}
        return {name: float(function(target, told[:, 0])) for name, function in own.items()}

    labels = np.arange(told.shape[1])
    accuracy = metrics.accuracy_score(target, told.argmax(axis=1))
    return {
        "log_loss": float(metrics.log_loss(target, told, labels=labels)),
        "accuracy": float(accuracy),
    }


def with_columns_of_texts(
    manifest: dict[str, Any], rows: np.ndarray[Any, Any]
) -> ColumnTransformer:
    """Return scikit-learn's step that standardises numbers and gives each code of a text a column
    of 0 and 1.
    """
    texts = [column["name"] for column in manifest["columns"] if column["type"] == "category"]
    places = [manifest["features"].index(name) for name in texts]
    categories = [np.unique(codes[~np.isnan(codes)]) for codes in rows[:, places].T]
    encode = OneHotEncoder(categories=categories, handle_unknown="ignore", sparse_output=False)
    return ColumnTransformer([("texts", encode, places)], remainder=StandardScaler())


def fitted(
    table: Table, model: Any, train: pd.DataFrame, test: pd.DataFrame, y: np.ndarray[Any, Any]
) -> Any:
    """Return what scikit-learn's estimator tells of rows, fitted on the features that the model
    gets.
    """
    x, tested = (
        np.asarray(model.predict(rows, params={"output": "features"}), dtype=np.float64)
        for rows in (train, test)
    )
    values = (table.model, True) in ESTIMATORS and y.dtype.kind == "f"
    estimator = ESTIMATORS[table.model, values]()

    if table.model in LINEAR:
        estimator.steps[0] = (
            "prepare",
            with_columns_of_texts(model.unwrap_python_model().manifest, x),
        )

    estimator.fit(x, y)
    if values:
        return matrix(estimator.predict(tested))

    told = estimator.predict_proba(tested)
    return matrix(told[:, 1:] if told.shape[1] == 2 else told)


def coded(target: pd.Series, kind: str) -> np.ndarray[Any, Any]:
    """Return a column as values or, of classes, as their numbers in order."""
    if kind == "regression":
        return target.to_numpy(dtype=np.float64)
    return pd.factorize(target.astype(object), sort=True)[0]


def examined(table: Table, folder: Path) -> dict[str, Any]:
    """Return a table's row of the result."""
    store = f"sqlite:///{folder}/mlflow.db"
    files = written(table, folder)
    words = [f"data.train={files['train'][table.form]}", f"data.test={files['test'][table.form]}"]
    words += [
        "data=table",
        f"task.target={table.target}",
        f"model={table.model}",
        "task.validation=0",
    ]
    said = tipcast("train", *words, *table.words, "tracking.register=other", folder=folder)
    told = mlflow.MlflowClient(store).get_run(said["run_id"]).data.metrics

    uri = "models:/other/1"
    mlflow.set_tracking_uri(store)
    model = mlflow.pyfunc.load_model(uri)
    rows = {
        part: of_pandas(files[part][table.form]).dropna(subset=table.target)
        for part in ("train", "test")
    }
    kind = next(kind for kind, name in HEADLINE.items() if f"test/{name}_low" in told)
    both = coded(pd.concat(rows.values())[table.target], kind)
    y = both[: len(rows["train"])]
    tested = both[len(rows["train"]) :]
    theirs = (
        fitted(table, model, rows["train"], rows["test"], y)
        if table.model != "xgboost"
        else matrix(model.predict(rows["test"]))
    )
    metrics_of = judged(kind, tested, theirs)

    ways = {}
    for form, file in files["all"].items():
        ways[f"tipcast score, {form}"] = by_score(uri, file, folder)
        ways[f"the model in Python, {form}"] = matrix(model.predict(of_pandas(file)))
    everything = of_pandas(files["all"]["csv"])
    ways |= by_server(uri, store, everything)
    headline = HEADLINE[kind]
    return {
        "table": table.name,
        "package": table.package,
        "rows": len(everything),
        "columns": len(everything.columns),
        "task": kind,
        "target": table.target,
        "model": table.model,
        "trained_on": table.form,
        "metric": headline,
        "run": told[f"test/{headline}"],
        "scikit_learn": metrics_of[headline],
        "metrics": {name: [told[f"test/{name}"], value] for name, value in metrics_of.items()},
        "metrics_apart": max(
            abs(told[f"test/{name}"] - value) / max(1.0, abs(value))
            for name, value in metrics_of.items()
        ),
        "ways": len(ways),
        "ways_apart": furthest(ways),
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
