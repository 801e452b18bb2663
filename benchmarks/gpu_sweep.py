"""P8: a sweep's trials on GPUs, one and several at once on each, on one and on all; gpu.py runs it.

Rows are read and binned, and every slot has had a trial, before the clock runs; the same trials run
in every case.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sweep_rows
from gpu_rows import attempt, months, opened
from harness import options, write_result
from tipcast.search.pool import Pool
from tipcast.search.proposals import Listed
from tipcast.search.trial import Proposal, TrialResult
from tipcast.search.trial_workers import TrialWorkers

CASES = {1: ((1, 1), (1, 4)), 2: ((1, 1), (2, 1), (1, 4), (2, 4))}
"""GPUs of the machine -> GPUs used and trials at once on each."""


def searched(given: Any, folder: Path, gpus: int, at_once: int) -> dict[str, Any]:
    """Time a search."""
    spec = sweep_rows.model(100)
    with opened(given.device, gpus) as session:
        common = sweep_rows.sweep_setup(folder, spec, session.device, session.frames)
        trial_workers = TrialWorkers(session.client, common, at_once, 60)
        proposals = sweep_rows.proposals(spec, given.trials)
        with trial_workers.opened():
            trial_workers.load(1)
            _run(
                trial_workers,
                [
                    Proposal(at, proposals[at % given.trials].params)
                    for at in range(2 * gpus * at_once)
                ],
            )
            start = time.perf_counter()
            trials = _run(
                trial_workers, [Proposal(1000 + each.number, each.params) for each in proposals]
            )
            seconds = time.perf_counter() - start

    return {
        "seconds": seconds,
        "trials_per_minute": 60 * len(trials) / seconds,
        "busy": sum(trial.seconds for trial in trials) / (seconds * gpus * at_once),
        "best_auc": max(trial.score for trial in trials),
    }


def _run(trial_workers: TrialWorkers, proposals: Sequence[Proposal]) -> list[Any]:
    events = Pool(trial_workers, 1).events(Listed(proposals, {}))
    return [event for event in events if isinstance(event, TrialResult)]


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, device="gpu", gpus=1, rows=8_000_000, trials=32, folder="")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        train, _ = months(Path(given.folder or scratch), given.rows)
        for gpus, at_once in CASES[given.gpus]:
            name = {
                "model": "xgboost",
                "rows": given.rows,
                "gpus": gpus,
                "at_once": at_once,
                "trials": given.trials,
            }
            found.append(attempt(name, partial(searched, given, train, gpus, at_once)))
            write_result(f"gpu_sweep_{given.gpus}", found, **vars(given))


if __name__ == "__main__":
    main()
