"""What checkpoints cost: the seconds of the fit with one at most every 60 s (the default), and with
one every second, beside those of a fit that keeps none.

    PYTHONPATH=src python benchmarks/checkpoint_cost.py --device gpu --out FOLDER

The rest of the job, before and after the fit, is left out.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import compare, options, tipcast, write_result
from killed_worker import CLUSTER, MODEL

EVERY_S = (60, 1)


def fit(words: list[str], every_s: int | None, folder: Path) -> Callable[[], float]:
    """Return a work that trains; it returns the seconds beside its fit, which do not count."""
    setting = f"model.fit.checkpoint_s={'null' if every_s is None else every_s}"

    def train() -> float:
        said = tipcast("train", *words, setting, folder=folder)
        return float(said["process_s"] - said["phases"]["fit"])

    return train


def checkpoints(words: list[str], every_s: int, folder: Path) -> int:
    """Return how many checkpoints a fit keeps."""
    passed = folder / f"passed-{every_s}"
    setting = f"model.fit.checkpoint_s={every_s}"
    tipcast("train", *words, setting, folder=folder, TIPCAST_GATE=f":{passed}")
    return passed.read_text().count("checkpoint ")


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, device="cpu", rows=2_000_000, trees=600, workers=2, pairs=5, warmups=1)
    words = [
        f"backend={given.device}",
        f"data.rows={given.rows}",
        f"model.params.n_estimators={given.trees}",
        *MODEL,
        *(word for word in CLUSTER if not word.startswith("cluster.n_workers")),
        f"cluster.n_workers={given.workers}",
    ]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for every_s in EVERY_S:
            compared = compare(
                fit(words, every_s, folder),
                fit(words, None, folder),
                given.pairs,
                names=(f"every {every_s} s", "none"),
                warmups=given.warmups,
            )
            print(compared, flush=True)
            kept = checkpoints(words, every_s, folder)
            ratios = [pair.a_s / pair.b_s for pair in compared.valid or compared.pairs]
            row = {"every_s": every_s, "checkpoints": kept, **compared.record()}
            results.append({**row, "median_of_ratios": statistics.median(ratios)})

    write_result(f"checkpoint_cost_{given.device}", results, **vars(given))


if __name__ == "__main__":
    main()
