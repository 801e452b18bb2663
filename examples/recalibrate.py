"""Calibrate the probabilities of scored files by the newest month whose answers are known.

python examples/recalibrate.py scored/2019-05 scored/2019-06 --rows "payment_type == 1 and
fare_amount > 0" \
    --answer "tip_amount / fare_amount > 0.2"

Platt's method: a logistic regression of the answer on the logit of the probability, fitted on the
rows of the first folder. The second folder's rows get the column `calibrated`, in one file beside
the folder.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

BINS = 16


def read_scored(folder: Path, rows: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the scored rows that a query chooses, and the logits of their probabilities (rows,
    1).
    """
    found = pd.read_parquet(folder).dropna(subset="probability").query(rows)
    probability = found["probability"].astype(float).clip(1e-6, 1 - 1e-6)
    return found, logit(probability.to_numpy())[:, None]


def calibration_error(probability: np.ndarray, answer: np.ndarray) -> float:
    """Return the mean distance of probability and answers in equal-width bins, as
    `test/calibration_error`.
    """
    bins = np.minimum((probability * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(bins, probability - answer)).sum() / len(answer))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Probabilities of a month by the answers of another"
    )
    parser.add_argument(
        "labelled", type=Path, help="a folder of tipcast score, of the newest month with answers"
    )
    parser.add_argument("scored", type=Path, help="a folder of tipcast score, of a later month")
    parser.add_argument(
        "--answer", required=True, help="an expression of columns, as pandas evaluates it"
    )
    parser.add_argument(
        "--rows", default="index >= 0", help="a query of the rows that the model is meant for"
    )
    args = parser.parse_args()
    try:
        (known, margins), (rows, later) = (
            read_scored(each, args.rows) for each in (args.labelled, args.scored)
        )
        model = LogisticRegression(C=np.inf).fit(margins, known.eval(args.answer).astype(int))
    except (OSError, ValueError, KeyError, pd.errors.UndefinedVariableError) as problem:
        parser.error(str(problem))
    rows["calibrated"] = expit(model.decision_function(later))
    rows.to_parquet(out := args.scored.with_suffix(".calibrated.parquet"))
    try:
        answer = rows.eval(args.answer).to_numpy(dtype=float)
    except pd.errors.UndefinedVariableError:  # of rows that have no answers yet
        answer = np.full(len(rows), np.nan)
    for name in ("probability", "calibrated"):
        error = calibration_error(rows[name].to_numpy(float), answer)
        print(
            f"{name:<12} mean {rows[name].mean():.3f}, answers {answer.mean():.3f}, calibration "
            f"error {error:.4f}"
        )
    print(out)
