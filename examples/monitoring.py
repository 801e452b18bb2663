"""Compare the rows of a folder of scores with those that their model was trained on, column by
column.

python examples/monitoring.py scored/2019-06                              # with the files that the
model was trained on python examples/monitoring.py scored/2019-06 --reference scored/2019-05   #
with others: the scores are compared too

The exit code is 3 where a column has moved: by more than the limit, and by more than chance
explains.
"""

import argparse
import json
import sys
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pyarrow.dataset
import yaml
from scipy.stats import chi2_contingency, ks_2samp


def training_files(scored: Path) -> list[str]:
    """Return the training files of the run whose model made the scores."""
    model = json.loads((scored / "_manifest.json").read_text())["model"]
    run_id = mlflow.models.get_model_info(model["uri"]).run_id
    return yaml.safe_load(mlflow.artifacts.load_text(f"runs:/{run_id}/data/files.yaml"))["train"]


def read_sample(files: list[str], rows: int) -> pd.DataFrame:
    """Return random rows of Parquet files, or of all files of a folder."""
    found = pyarrow.dataset.dataset(files if len(files) > 1 else files[0])
    count = found.count_rows()
    chosen = np.random.default_rng(0).choice(count, min(rows, count), replace=False)
    return found.take(np.sort(chosen)).to_pandas()


def compare(then: pd.Series, now: pd.Series) -> dict[str, float]:
    """Return the distance of two columns, from 0 to 1, and the probability of such a distance by
    chance alone.
    """
    if all(map(pd.api.types.is_numeric_dtype, (then, now))):
        found = ks_2samp(*(each.astype(float).fillna(-np.inf) for each in (then, now)))
        return {"distance": found.statistic, "p_value": found.pvalue}

    counts = pd.concat(
        [each.astype("string").fillna("missing").value_counts() for each in (then, now)], axis=1
    )
    counts = counts.fillna(0).to_numpy(float)
    shares = counts / counts.sum(axis=0)
    return {
        "distance": np.ptp(shares, axis=1).sum() / 2,
        "p_value": chi2_contingency(counts).pvalue,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Drift of scored rows from those of the training")
    parser.add_argument("scored", type=Path, help="a folder that tipcast score has written")
    parser.add_argument(
        "--reference", nargs="+", help="a folder, or Parquet files, in place of the training files"
    )
    parser.add_argument(
        "--rows", type=int, default=20_000, help="most rows that are drawn of each side"
    )
    parser.add_argument(
        "--limit", type=float, default=0.1, help="distance from which on a column has moved"
    )
    args = parser.parse_args()
    try:
        files = args.reference or training_files(args.scored)
        then, now = (read_sample(each, args.rows) for each in (files, [str(args.scored)]))
    except (OSError, ValueError, mlflow.MlflowException) as problem:
        parser.error(f"{args.scored}: {problem}")
    now = now.select_dtypes(exclude=["datetime", "datetimetz"]).drop(
        columns=["model_name", "model_version"]
    )
    table = pd.DataFrame({name: compare(then[name], now[name]) for name in now if name in then}).T
    table["moved"] = (table["distance"] >= args.limit) & (table["p_value"] < 0.01 / len(table))
    mlflow.set_experiment("monitoring")
    with mlflow.start_run(run_name=f"drift {args.scored}"):
        mlflow.log_params(
            {"scored": args.scored, "reference": files, "rows": len(now), "limit": args.limit}
        )
        mlflow.log_metrics(
            {"columns_moved": table["moved"].sum(), "largest_distance": table["distance"].max()}
        )
        mlflow.log_table(table.rename_axis("column").reset_index(), "drift.json")
    print(table.sort_values("distance", ascending=False).to_string())
    sys.exit(3 if table["moved"].any() else 0)
