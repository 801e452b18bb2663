"""scikit-learn's own grid search over a Dask cluster, with a child run in MLflow for each
candidate.

# an SVC and XGBoost, on this machine's cores
python examples/grid_search.py
python examples/grid_search.py --data iris.parquet --target species --models svc
# `dask cuda worker`: a GPU each
python examples/grid_search.py --device gpu --scheduler tcp://127.0.0.1:8786
"""

import argparse
import json

import dask
import joblib
import mlflow
import pandas as pd
import sklearn
import xgboost
from distributed import Client
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC


def make_search(model: str, device: str) -> GridSearchCV:
    """Return an unfitted search; a fit has one thread, because the candidates keep all cores
    busy.
    """
    if model == "svc":
        estimator = make_pipeline(StandardScaler(), SVC())
        grid = {"svc__C": [0.1, 1, 10], "svc__gamma": [0.01, 0.1, 1]}
    else:
        estimator = xgboost.XGBClassifier(n_estimators=50, device=device, n_jobs=1, verbosity=0)
        grid = {"max_depth": [2, 4, 6], "learning_rate": [0.1, 0.3]}
    return GridSearchCV(estimator, grid, cv=3, error_score="raise")


def read_table(data: str | None, target: str) -> tuple[pd.DataFrame, pd.Series]:
    """Return the columns of numbers, of complete rows, and the class of each row, from 0."""
    if data is None:
        x, y = make_classification(2000, 10, n_informative=6, flip_y=0.1, random_state=0)
        return pd.DataFrame(x).add_prefix("x"), pd.Series(y)
    frame = (pd.read_parquet if data.endswith(".parquet") else pd.read_csv)(data).dropna()
    return frame.drop(columns=target).select_dtypes("number").astype(float), frame[target].astype(
        "category"
    ).cat.codes


def record(search: GridSearchCV, x: pd.DataFrame) -> None:
    """Log a child run for each candidate, and the best model without pickle."""
    for params, score in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    ):
        with mlflow.start_run(nested=True):
            mlflow.log_params(params)
            mlflow.log_metric("mean_test_score", score)

    best = search.best_estimator_
    mlflow.log_params({**search.best_params_, "rows": len(x)})
    mlflow.log_metric("mean_test_score", search.best_score_)
    kept = {"name": "model", "signature": mlflow.models.infer_signature(x, best.predict(x))}
    kept["pip_requirements"] = [
        f"scikit-learn=={sklearn.__version__}",
        f"xgboost=={xgboost.__version__}",
        "skops",
    ]

    # which falls back to the processor where it sees no GPU
    if isinstance(best, xgboost.XGBClassifier):
        mlflow.log_param(
            "device",
            json.loads(best.get_booster().save_config())["learner"]["generic_param"]["device"],
        )
        mlflow.xgboost.log_model(best, **kept)
    else:
        mlflow.sklearn.log_model(best, serialization_format="skops", **kept)

    print(f"mean_test_score {search.best_score_:.4f} with {search.best_params_}")


if __name__ == "__main__":  # worker processes import this file
    parser = argparse.ArgumentParser(description="scikit-learn's grid search over a Dask cluster")
    parser.add_argument(
        "--models", nargs="+", choices=["svc", "xgboost"], default=["svc", "xgboost"]
    )
    parser.add_argument("--data", help="a CSV or Parquet file; without one a table is made")
    parser.add_argument("--target", default="target", help="the column of its classes")
    parser.add_argument(
        "--device",
        choices=["cpu", "gpu"],
        default="cpu",
        help="where XGBoost trains; local workers share the first GPU",
    )
    parser.add_argument(
        "--scheduler", help="a Dask scheduler's address; without one a cluster is started"
    )
    args = parser.parse_args()
    try:
        x, y = read_table(args.data, args.target)
    except (OSError, KeyError, ValueError) as problem:
        parser.error(f"--data {args.data} --target {args.target}: {problem}")
    mlflow.set_experiment("grid_search")
    # A worker may end within a heartbeat: Dask would log a traceback of it.
    dask.config.set({"distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical"})
    here = {"address": args.scheduler} if args.scheduler else {"dashboard_address": "127.0.0.1:0"}
    with Client(**here) as client, joblib.parallel_config("dask", client=client, scatter=[x, y]):
        for model in args.models:
            with mlflow.start_run(run_name=f"grid {model}"):
                record(make_search(model, args.device).fit(x, y), x)
