"""What folds cost: a training's five folds beside one fit of the same rows, and a sweep of six
folds beside a sweep of one split.

    PYTHONPATH=src python benchmarks/folds.py [--rows 400000] [--trials 32] [--out FOLDER]

Both run on this machine's cores, on made taxi trips. Of a training, the clock has the phase
`folds` (a fit and an evaluation for each fold, and the copies of its rows) and the phases `fit` and
`evaluate` of a training without folds, whose rows are the same: it validates on none. Of a sweep,
the clock has the phases `load` and `search`.

`--trials 0` leaves the sweeps out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import Comparison, compare, options, tipcast, write_result

FOLDS = 5
SWEEP_FOLDS = 6
MOST_OF_FIT = 4.5
"""Goal: five folds take at most so many times one fit."""
MOST_OF_SPLIT = 5.0
"""Goal: a sweep of six folds takes at most so many times a sweep of one split."""
WITHOUT_STOPPING = "model.fit.early_stopping_rounds=null"


def phases_of(
    job: str, words: Sequence[str], phases: Sequence[str], folder: Path
) -> Callable[[], float]:
    """Return a work that runs a job; it returns the seconds beside some phases, which do not
    count.
    """

    def run() -> float:
        said = tipcast(job, *words, folder=folder)
        counted = sum(said["phases"][phase] for phase in phases)
        return float(said["process_s"] - counted)

    return run


def compare_training(words: Sequence[str], folder: Path, pairs: int, warmups: int) -> Comparison:
    """Compare a training's folds with the fit of a training."""
    without = [*words, "task.validation=0"]
    folds = [*words, f"task.folds={FOLDS}"]
    return compare(
        phases_of("train", folds, ["folds"], folder),
        phases_of("train", without, ["fit", "evaluate"], folder),
        pairs,
        names=(f"{FOLDS} folds", "one fit"),
        warmups=warmups,
    )


def compare_sweep(words: Sequence[str], folder: Path, trials: int, pairs: int) -> Comparison:
    """Compare a sweep of folds with a sweep of one split."""
    searched = [*words, "search=random", f"search.trials={trials}"]
    phases = ["load", "search"]
    return compare(
        phases_of("sweep", [*searched, f"task.folds={SWEEP_FOLDS}"], phases, folder),
        phases_of("sweep", searched, phases, folder),
        pairs,
        names=(f"{SWEEP_FOLDS} folds", "one split"),
        warmups=0,
    )


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, rows=400_000, trials=32, pairs=3, warmups=1)
    words = [f"data.rows={given.rows}", WITHOUT_STOPPING]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        trained = compare_training(words, folder, given.pairs, given.warmups)
        print(trained, flush=True)
        results.append({"job": "train", "goal": MOST_OF_FIT, **trained.record()})

        if given.trials:
            swept = compare_sweep(words, folder, given.trials, pairs=1)
            print(swept, flush=True)
            results.append({"job": "sweep", "goal": MOST_OF_SPLIT, **swept.record()})

    write_result("folds", results, **vars(given))


if __name__ == "__main__":
    main()
