"""The reference of tracked jobs: what a careful user of pandas, XGBoost, scikit-learn and MLflow
writes.

    MLFLOW_TRACKING_URI=sqlite:///FILE python benchmarks/by_mlflow.py TRAIN TEST ROUNDS

The script reads trips, fits with early stopping, logs four metrics, a ROC curve and the model with
an input example, and registers the model. It prints its last line as JSON, for harness.process.
"""

from __future__ import annotations

import json
import sys

import matplotlib

matplotlib.use("agg")

import mlflow
import mlflow.xgboost
import pandas as pd
import xgboost
from sklearn.metrics import (
    RocCurveDisplay,
    accuracy_score,
    average_precision_score,
    log_loss,
    roc_auc_score,
)

from by_hand import PARAMS, frames, months, split

EARLY_STOPPING = 20
"""Rounds without a better validation loss after which the fit stops."""
EXAMPLE_ROWS = 5


def main() -> None:
    """Train, log and register."""
    train_folder, test_folder, rounds = sys.argv[1:]
    mlflow.set_experiment("taxi")
    mlflow.xgboost.autolog(log_models=False)

    with mlflow.start_run(run_name="xgboost"):
        x, y, held_x, held_y = split(pd, months(train_folder))
        matrix = xgboost.QuantileDMatrix(x, y)
        held_out = xgboost.QuantileDMatrix(held_x, held_y, ref=matrix)
        booster = xgboost.train(
            PARAMS,
            matrix,
            int(rounds),
            evals=[(held_out, "validation")],
            early_stopping_rounds=EARLY_STOPPING,
            verbose_eval=False,
        )

        test_x, test_y, _ = frames(pd, months(test_folder))
        scores = booster.inplace_predict(test_x)
        metrics = {
            "test_auc": roc_auc_score(test_y, scores),
            "test_average_precision": average_precision_score(test_y, scores),
            "test_log_loss": log_loss(test_y, scores),
            "test_accuracy": accuracy_score(test_y, scores >= 0.5),
        }
        mlflow.log_metrics(metrics)

        curve = RocCurveDisplay.from_predictions(test_y, scores)
        mlflow.log_figure(curve.figure_, "roc.png")
        mlflow.xgboost.log_model(
            booster,
            name="model",
            input_example=test_x.head(EXAMPLE_ROWS),
            registered_model_name="by_mlflow",
        )

    print(json.dumps({**metrics, "rounds": booster.num_boosted_rounds()}))


if __name__ == "__main__":
    main()
