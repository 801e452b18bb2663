"""What becomes of `tipcast train` whose driver is killed (kill -9) in a random round and that is
resumed.

    PYTHONPATH=src python benchmarks/killed_driver.py --device gpu --out FOLDER

`tipcast train resume=last` goes on in the same run. Its model is compared with that of an
undisturbed training by its file, by its scores of random rows and by its AUC. Its curves must have
the points of the undisturbed ones, each logged once.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import options, write_result
from killed_worker import (
    CLUSTER,
    LAST_SHARE,
    UNDISTURBED,
    Training,
    compare_models,
    recorded,
    training_words,
)

OF_PROCESS = ("seconds/", "memory/")
"""Beginnings of metrics that tell how a process went."""

Points = set[tuple[str, int, float]]


def attempt(words: Sequence[str], again: Sequence[str], moment: float | None) -> dict[str, Any]:
    """Train; kill the driver at a moment in rounds, if there is one, and resume the run."""
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder), words)
        row: dict[str, Any] = {"round": moment}
        with training.running():
            row["killed"] = moment is not None and training.wait_for(moment)
            if row["killed"]:
                os.kill(training.process.pid, signal.SIGKILL)
                training.process.wait()
                row |= resumed(Path(folder), again)
            else:
                row |= training.end()

        row |= recorded(Path(folder)) | logged(Path(folder))
    hidden = ("content", "points")
    print({name: value for name, value in row.items() if name not in hidden}, flush=True)
    return row


def resumed(folder: Path, words: Sequence[str]) -> dict[str, Any]:
    """Resume the last run, beside what is left of the killed process; return how that ended."""
    training = Training(folder, ["resume=last", *words])
    before = len(training.at("round"))
    with training.running():
        ended = training.end()
    return {**ended, "rounds_before": before, "rounds_after": len(training.at("round")) - before}


def logged(folder: Path) -> dict[str, Any]:
    """Return the points that the run's metrics have, and how many were logged more than once."""
    with sqlite3.connect(folder / "mlflow.db") as database:
        rows = database.execute("select key, step, value from metrics").fetchall()
        (runs,) = database.execute("select count(*) from runs").fetchone()

    steps = [(key, step) for key, step, _ in rows]
    points: Points = {row for row in rows if not row[0].startswith(OF_PROCESS)}
    return {"runs": runs, "logged_twice": len(steps) - len(set(steps)), "points": points}


def main() -> None:
    """Run the benchmark."""
    given = options(
        __doc__, device="cpu", tries=10, seed=0, rows=200_000, trees=300, checkpoint_s=1.0
    )
    words = training_words(given)
    again = [f"backend={given.device}", *CLUSTER]
    draw = random.Random(given.seed)  # noqa: S311 - moments, no secrets
    moments = [draw.uniform(1, LAST_SHARE * given.trees) for _ in range(given.tries)]

    undisturbed = [attempt(words, again, None) for _ in range(UNDISTURBED)]
    killed = [attempt(words, again, moment) for moment in moments]
    compare_models(killed, undisturbed)
    curves = [in_model(row["points"]) for row in undisturbed]
    for row in killed:
        row["same_points"] = in_model(row["points"]) in curves
    for row in (*killed, *undisturbed):
        del row["content"], row["points"]

    fit_s = statistics.median(row["fit_s"] for row in undisturbed)
    facts = {**vars(given), "fit_s": fit_s, "undisturbed": undisturbed}
    write_result(f"killed_driver_{given.device}", killed, **facts)


def in_model(points: Points) -> Points:
    """Return the points that are of the model: its curves and its metrics of test rows."""
    beginnings = ("history/", "test/", "validation/", "roc/", "baseline/")
    return {point for point in points if point[0].startswith(beginnings)}


if __name__ == "__main__":
    main()
