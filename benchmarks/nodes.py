"""More GPUs in a node against more nodes: the same training on one GPU, on several of a node, on
nodes of one GPU each.

    PYTHONPATH=src python benchmarks/nodes.py --gpus 2 --out FOLDER
    # on few rows, to try it
    PYTHONPATH=src python benchmarks/nodes.py --device cpu --rows 20000 --models xgboost \\
        --out FOLDER

A node is a `dask cuda worker` process with one GPU that reaches the others by TCP alone: NCCL may
use neither NVLink nor shared memory between them (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE). They are on
one machine, so that their network is its loopback interface, faster than most networks: what nodes
lose here they lose everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gpu_rows import attempt, months
from gpu_train import OVERRIDES
from harness import ROOT, options, tipcast, write_result

APART = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
"""Variables with which NCCL's ranks reach each other by sockets."""
START_S = 60.0


@contextmanager
def nodes(device: str, count: int, folder: Path) -> Iterator[list[str]]:
    """Start a scheduler and a worker process for each node; yield the overrides with which a job
    uses them.
    """
    file = folder / "scheduler.json"
    file.unlink(missing_ok=True)
    dask = [sys.executable, "-m", "dask"]
    own = ["--host", "127.0.0.1", "--scheduler-file", str(file)]
    worker = (
        ["cuda", "worker", "--rmm-pool-size", "0.2"]
        if device == "gpu"
        else ["worker", "--nthreads", "1"]
    )
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    with ExitStack() as stack:

        def start(words: list[str], variables: Mapping[str, str]) -> None:
            process = subprocess.Popen(
                [*dask, *words, *own, "--no-dashboard"], env=os.environ | path | variables
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start(["scheduler", "--port", "0"], {})
        until = time.monotonic() + START_S
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.1)
        for number in range(count):
            start(worker, APART | {"NCCL_COMM_BLOCKING": "1", "CUDA_VISIBLE_DEVICES": str(number)})
        address = json.loads(file.read_text(encoding="utf-8"))["address"]
        yield ["cluster=scheduler", f"cluster.address={address}", f"cluster.n_workers={count}"]


def measured(given: Any, model: str, words: list[str], folder: Path) -> dict[str, Any]:
    """Train twice; return the phases of the second time, when what is compiled once is there."""
    train, test = months(Path(given.folder or folder), given.rows)
    every = [
        f"backend={given.device}",
        f"model={model}",
        *OVERRIDES[model],
        "tracking.system_metrics=false",
        *words,
    ]
    for _ in range(2 if given.device == "gpu" else 1):
        said = tipcast(
            "train", *every, "data=files", f"data.train={train}", f"data.test={test}", folder=folder
        )

    return {
        "phases_s": said["phases"],
        "job_s": said["job_s"],
        "process_s": said["process_s"],
        "test_auc": said["metrics"]["test/auc"],
    }


def main() -> None:
    """Run the benchmark."""
    given = options(
        __doc__, device="gpu", gpus=2, rows=80_000_000, models=list(OVERRIDES), folder=""
    )
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for model in given.models:
            for gpus in sorted({1, given.gpus}):
                name = {"model": model, "rows": given.rows, "nodes": 1, "gpus_each": gpus}
                found.append(
                    attempt(
                        name, partial(measured, given, model, [f"cluster.n_workers={gpus}"], folder)
                    )
                )
                write_result(f"nodes_{given.gpus}", found, **vars(given))
            with nodes(given.device, given.gpus, folder) as words:
                name = {"model": model, "rows": given.rows, "nodes": given.gpus, "gpus_each": 1}
                found.append(attempt(name, partial(measured, given, model, words, folder)))
                write_result(f"nodes_{given.gpus}", found, **vars(given))


if __name__ == "__main__":
    main()
