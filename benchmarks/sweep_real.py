"""A sweep of XGBoost on real trips against its default parameters, chosen on validation rows and tested a year later.

python benchmarks/sweep_real.py FOLDER        # with yellow/yellow_tripdata_2018-*.parquet and ..._2019-03_10k.parquet
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import write_result

GOAL = 0.003
"""Test AUC that the swept model gains."""
TASKS = {"zones as numbers": [], "zones as categories": ["experiment=categorical_zones"]}
"""What the trips' zones are to the model; which is better is chosen on validation rows, as the parameters are."""


def said(job: str, words: Sequence[str], folder: str) -> dict[str, Any]:
    """Run a job and return what its last line says."""
    ended = subprocess.run(
        [sys.executable, "-m", "tipcast", job, *words, "print=json"],
        cwd=folder,
        env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--trees", type=int, default=200)
    parser.add_argument("--search", default="tpe")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--more", nargs="*", default=[], help="further overrides of the sweeps")
    parser.add_argument("--no-result", action="store_true", help="print only")
    given = parser.parse_args()
    folder = given.folder.resolve() / "yellow"
    data = [
        "data=files",
        f"data.train={folder}/yellow_tripdata_2018-*.parquet",
        f"data.test={folder}/yellow_tripdata_2019-03_10k.parquet",
        f"seed={given.seed}",
    ]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        default = said("train", data, scratch)["metrics"]["test/auc"]
        print(f"default: test AUC {default:.4f}", flush=True)
        for name, task in TASKS.items():
            words = [
                f"search={given.search}",
                f"search.trials={given.trials}",
                f"model.params.n_estimators={given.trees}",
                *task,
            ]
            found = said("sweep", [*data, *words, *given.more], scratch)
            gain = found["metrics"]["test/auc"] - default
            rows.append(
                {
                    "zones": name,
                    "search": given.search,
                    "trials": given.trials,
                    "default/auc": default,
                    "gain": gain,
                    "best": found["best"],
                    **found["metrics"],
                    "seconds": found["phases"]["search"],
                }
            )
            print(
                f"{name}: validation AUC {found['best']['validation/auc']:.4f}, test AUC "
                f"{found['metrics']['test/auc']:.4f}, gain {gain:+.4f}; {found['best']}",
                flush=True,
            )
    chosen = max(rows, key=lambda row: float(row["best"]["validation/auc"]))
    print(f"chosen on validation rows: {chosen['zones']}, gain {chosen['gain']:+.4f} (goal {GOAL})")
    if not given.no_result:
        print(
            write_result(
                "sweep_real",
                rows,
                chosen=chosen["zones"],
                goal=GOAL,
                seed=given.seed,
                trees=given.trees,
                more=given.more,
            )
        )


if __name__ == "__main__":
    main()
