"""P13: `tipcast ladder` for every kind of task: on the machine's cores and on its GPUs, in time and
in result.

    PYTHONPATH=src python benchmarks/ladder.py --cores 32 --gpus 1 2 --out FOLDER

Each case is one process; its rungs are the cores and GPUs asked for, without --cores one and all of
the cores, and each rung's seconds of read, fit and evaluate, speed-up, efficiency and agreement are
what the job says.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from gpu_rows import attempt
from harness import options, tipcast, write_result

BLOBS = ("data=blobs", "task=clusters")
CASES: dict[str, tuple[int, tuple[str, ...]]] = {
    "xgboost": (2_000_000, ()),
    "random_forest of numbers": (2_000_000, ("task=tip_amount", "model=random_forest")),
    "xgboost of classes": (1_000_000, ("data=blobs", "task=target", "data.cluster_std=4")),
    "linear": (10_000_000, ("model=linear", "data=regression", "task=target")),
    "linear of 10 GB": (
        119_047_620,
        (
            "model=linear_dask",
            "data=regression",
            "data.block_rows=2000000",
            "task.validation=0",
            "data.test_rows=100000",
        ),
    ),
    "kmeans": (5_000_000, ("model=kmeans", *BLOBS, "model.fit.rows=null")),
}
"""Name -> training rows, overrides. 10 GB are 21 columns of float32, of which Dask-ML fits on cores
what cuML does.
"""


def climb(given: Any, name: str, folder: Path) -> dict[str, Any]:
    """Run one ladder; return what its rungs took."""
    rows, words = CASES[name]
    rows = max(int(rows * given.share), 2000)
    model = (
        []
        if any(word.startswith("model=") for word in words)
        else [f"model={name.partition(' ')[0]}"]
    )
    made, sized = (
        any(word.startswith(key) for word in words) for key in ("data=", "data.test_rows=")
    )
    sizes = [f"cores={given.cores}".replace(" ", "")] if given.cores[0] else []
    gpus = f"gpus={given.gpus if given.gpus[0] else []}".replace(" ", "")
    rest = [
        f"data.rows={rows}",
        *([f"data.test_rows={rows // 10}"] if made and not sized else []),
        gpus,
        *sizes,
    ]
    said = tipcast("ladder", *model, *words, *rest, "tracking.system_metrics=false", folder=folder)

    return {
        "rows": rows,
        "rungs": said["rungs"],
        "not_run": said["not_run"],
        "process_s": said["process_s"],
    }


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, cores=[0], gpus=[1, 2], share=1.0, cases=list(CASES))
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.cases:
            found.append(attempt({"case": name}, partial(climb, given, name, Path(scratch))))
            write_result(f"ladder_{max(given.gpus)}", found, **vars(given))


if __name__ == "__main__":
    main()
