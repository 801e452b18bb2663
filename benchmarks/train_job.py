"""P4: the whole `tipcast train` on processors against the library calls inside it, as a job and as
a process.

    PYTHONPATH=src python benchmarks/train_job.py [--rows 8000000] [--pairs 5] [--out FOLDER]

A process is from its start to its end, imports and workers too; a job is its reading, fitting,
evaluating and logging. The reference is by_hand.py, which logs nothing, with OpenMP's defaults.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import by_hand
from harness import compare, inside, options, peak_bytes, process, tipcast, write_result
from read_prepare import prepared

OVERRIDES = [
    f"model.params.n_estimators={by_hand.ROUNDS}",
    "model.fit.early_stopping_rounds=null",
    "data=files",
]


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, rows=8_000_000, test_rows=1_000_000, pairs=5)
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        train = folder / "train"
        test = folder / "test"
        prepared(train, given.rows)
        prepared(test, given.test_rows, months="2019-04..2019-04")

        def job() -> None:
            ours.append(
                tipcast(
                    "train", *OVERRIDES, f"data.train={train}", f"data.test={test}", folder=folder
                )
            )

        def reference() -> None:
            theirs.append(
                process(by_hand.__file__, "train", "pandas", "xgboost", str(train), str(test))
            )

        before, peak = peak_bytes(job)
        whole = compare(
            job,
            reference,
            given.pairs,
            names=("tipcast train, process", "by hand, process"),
            warmups=0,
        )
    works = [[each["job_s"] for each in runs] for runs in (ours, theirs)]
    results = [inside(whole, *works, names=("tipcast train, job", "by hand, job")), whole]
    print(*results, sep="\n")
    facts = {
        "rounds": by_hand.ROUNDS,
        "auc": [ours[-1]["metrics"]["test/auc"], theirs[-1]["test_auc"]],
        "peak_bytes": peak - before,
        "phases_s": {
            name: statistics.median(each["phases"][name] for each in ours)
            for name in ours[0]["phases"]
        },
    }
    print(write_result("train_job", results, **vars(given), **facts))


if __name__ == "__main__":
    main()
