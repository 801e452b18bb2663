"""examples/network_ddp.py, PyTorch's DistributedDataParallel, in one process and in several, a GPU
each.

    PYTHONPATH=src python benchmarks/network.py --gpus 2 --out FOLDER
    # on cores, to try it
    PYTHONPATH=src python benchmarks/network.py --device cpu --rows 20000 --out FOLDER

Seconds of the fit are those that the example logs, of the slowest process; each run is a process
group of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import mlflow

from gpu_rows import attempt
from harness import ROOT, options, write_result


def trained(given: Any, processes: int, folder: Path) -> dict[str, Any]:
    """Train in so many processes; return what the run says."""
    store = f"sqlite:///{folder}/network-{processes}.db"
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command += [str(ROOT / "examples" / "network_ddp.py"), f"data.rows={given.rows}"]
    command += ["backend=gpu"] if given.device == "gpu" else []
    variables = {"PYTHONPATH": path, "MLFLOW_TRACKING_URI": store, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, cwd=folder, env=os.environ | variables)
    (run,) = mlflow.MlflowClient(store).search_runs(["1"])
    names = {"seconds/fit": "fit_s", "test/auc": "test_auc", "train/rows": "train_rows"}
    return {name: run.data.metrics[key] for key, name in names.items()}


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, device="gpu", gpus=2, rows=8_000_000)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for processes in (1, given.gpus):
            found.append(
                attempt({"processes": processes}, partial(trained, given, processes, Path(scratch)))
            )
            write_result(f"network_{given.gpus}", found, **vars(given))


if __name__ == "__main__":
    main()
