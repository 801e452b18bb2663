"""P4b: the whole `tipcast train` beside a script of pandas, XGBoost, scikit-learn and MLflow that
tracks the same training.

    PYTHONPATH=src python benchmarks/tracked_job.py \\
        [--rows 20000 2000000] [--pairs 5] [--out FOLDER]

Both are processes from start to end, imports included, on this machine's cores. Both write to a
sqlite store that an earlier run has made, and register the model. The script is by_mlflow.py; the
script that tracks nothing, by_hand.py, is the limit: it fits without early stopping.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import by_hand
from harness import Comparison, compare, options, process, tipcast, write_result
from read_prepare import prepared

SCRIPT = Path(by_hand.__file__).with_name("by_mlflow.py")
ROUNDS = {20_000: 100, 2_000_000: 200}
"""Training rows -> most rounds of the fit that is tracked."""
GOALS = {20_000: 0.60, 2_000_000: 0.88}
"""Goal: training rows -> at most so many times the script that tracks."""
LIMIT_ROWS = 2_000_000
LIMIT = 1.3
"""Goal: with so many rows, at most so many times the script that tracks nothing."""


def compare_jobs(rows: int, pairs: int, folder: Path) -> list[dict[str, Any]]:
    """Compare a training of some rows with both scripts."""
    train = folder / f"train-{rows}"
    test = folder / f"test-{rows}"
    prepared(train, rows)
    prepared(test, rows // 8, months="2019-04..2019-04")
    files = ["data=files", f"data.train={train}", f"data.test={test}"]
    rounds = ROUNDS.get(rows, by_hand.ROUNDS)

    def train_as_the_script_that_tracks() -> None:
        words = [f"model.params.n_estimators={rounds}", "tracking.register=tipcast"]
        tipcast("train", *files, *words, folder=folder)

    def script_that_tracks() -> None:
        environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/by_mlflow.db"}
        words = str(train), str(test), str(rounds)
        process(str(SCRIPT), *words, cwd=folder, env=environment)

    def train_as_the_other_script() -> None:
        words = [f"model.params.n_estimators={by_hand.ROUNDS}"]
        words += ["model.fit.early_stopping_rounds=null"]
        tipcast("train", *files, *words, folder=folder)

    def script_that_tracks_nothing() -> None:
        process(by_hand.__file__, "train", "pandas", "xgboost", str(train), str(test))

    tracked = compare(
        train_as_the_script_that_tracks,
        script_that_tracks,
        pairs,
        names=("tipcast train", "script that tracks"),
    )
    untracked = compare(
        train_as_the_other_script,
        script_that_tracks_nothing,
        pairs,
        names=("tipcast train", "script that tracks nothing"),
    )
    print(tracked, untracked, sep="\n", flush=True)
    return [
        record(rows, rounds, tracked, GOALS.get(rows)),
        record(rows, by_hand.ROUNDS, untracked, LIMIT if rows == LIMIT_ROWS else None),
    ]


def record(rows: int, rounds: int, found: Comparison, goal: float | None) -> dict[str, Any]:
    """Return a comparison with what it is of."""
    return {"rows": rows, "rounds": rounds, "goal": goal, **found.record()}


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, rows=list(ROUNDS), pairs=5)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for rows in given.rows:
            results += compare_jobs(rows, given.pairs, Path(scratch))

    print(write_result("tracked_job", results, **vars(given)))


if __name__ == "__main__":
    main()
