"""P4, P17, P23: whole `tipcast train` processes on GPUs, phase by phase, and the library calls in
them; gpu.py runs it.

A case is model:rows, with `:cores` on all cores of the machine instead.

Each is a process from its start to its end. What starts with it (imports, workers and their
libraries) is no part of the job. The library calls are by_hand.py's, on a machine with one GPU:
their process is their work done once, cold; their job is the same again, as tipcast's workers are
warm when a job begins.
"""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import mlflow

import by_hand
from gpu_rows import attempt, months
from harness import options, process, tipcast, write_result

MEMORY = ("memory/device_peak_bytes", "memory/worker_peak_bytes", "memory/driver_peak_bytes")
OVERRIDES = {
    "xgboost": [
        f"model.params.n_estimators={by_hand.ROUNDS}",
        "model.fit.early_stopping_rounds=null",
    ],
    "random_forest": [],
}


def job(given: Any, model: str, train: Path, test: Path, folder: Path) -> dict[str, Any]:
    """Run `tipcast train` and return its phases, its AUC and its peaks of memory; on processors,
    with all cores.
    """
    words = [f"backend={given.device}", f"model={model}", *OVERRIDES[model]]
    words += [f"cluster.n_workers={given.gpus}"] if given.device == "gpu" else []
    words += ["data=files", f"data.train={train}", f"data.test={test}", "tracking.register=trips"]
    said = tipcast("train", *words, folder=folder)
    run = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db").get_run(said["run_id"]).data

    return {
        "phases_s": said["phases"],
        "job_s": said["job_s"],
        "process_s": said["process_s"],
        "test_auc": said["metrics"]["test/auc"],
        "memory": {name.removeprefix("memory/"): run.metrics.get(name) for name in MEMORY},
        "parity": {
            "max_abs_diff": run.metrics["parity/max_abs_diff"],
            "ways": run.params.get("parity.ways"),
        },
    }


def main() -> None:
    """Run the benchmark."""
    given = options(
        __doc__, device="gpu", gpus=1, cases=["xgboost:80000000", "xgboost:8000000"], folder=""
    )
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        # A machine's first process reads all libraries from its disk: P17 is of the second.
        tipcast("train", f"backend={given.device}", "data.rows=20000", folder=Path(scratch))
        for model, count, *cores in (case.split(":") for case in given.cases):
            train, test = months(Path(given.folder or scratch), int(count))
            name = {
                "what": "tipcast train",
                "model": model,
                "rows": int(count),
                "gpus": 0 if cores else given.gpus,
            }
            name |= {"cores": os.cpu_count()} if cores else {}
            here = Namespace(**vars(given) | ({"device": "cpu"} if cores else {}))
            found.append(attempt(name, partial(job, here, model, train, test, Path(scratch))))
            write_result(f"gpu_train_{given.gpus}", found, **vars(given))
            if given.gpus == 1 and not cores:
                library = "cudf" if given.device == "gpu" else "pandas"
                words = by_hand.__file__, "train", library, model, str(train), str(test), "--warm"
                found.append(attempt(name | {"what": "bare calls"}, partial(process, *words)))
                write_result(f"gpu_train_{given.gpus}", found, **vars(given))


if __name__ == "__main__":
    main()
