"""P3b: what starting NCCL costs a fit by several GPUs, and what its variables save.

    PYTHONPATH=src python benchmarks/nccl.py --gpus 2 --out FOLDER

XGBoost makes a communicator in each fit by several GPUs. A fit of one tree is hardly more than that
and the binning of rows. The same fits run on one GPU, which makes none.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gpu_fit import shipped
from gpu_rows import attempt, in_memory, months
from growth import MADE, linked
from harness import options, write_result
from tipcast.compute.session import open_session
from tipcast.config.schema import BackendSpec, LocalCudaCluster
from tipcast.models.build import build
from tipcast.models.fit import fit

VARIABLES: tuple[dict[str, str], ...] = (
    {"NCCL_CUMEM_ENABLE": "1"},
    {"NCCL_CUMEM_ENABLE": "0"},
    {"NCCL_CUMEM_ENABLE": "0", "NCCL_MAX_NCHANNELS": "4"},
)
"""Variables of the workers that are tried; NCCL's own default is the first."""
TREES = (1, 100)
FITS = 3
"""Fits of each kind; the first, in which libraries still load, is left out."""


def measured(folder: Path, gpus: int, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the median seconds of a fit of each number of trees."""
    cluster = LocalCudaCluster(
        "local_cuda", n_workers=gpus, rmm_pool_size=0.2, environment=dict(variables)
    )
    seconds: dict[int, list[float]] = {trees: [] for trees in TREES}
    with open_session(BackendSpec("gpu"), cluster) as session:
        rows = in_memory(session, folder)
        for trees in TREES:
            spec = shipped("xgboost")
            model = dataclasses.replace(spec, params={**spec.params, "n_estimators": trees})
            for _ in range(FITS):
                start = time.perf_counter()
                fit(session.client, build(model, session.device), rows, None, seed=0)
                seconds[trees].append(time.perf_counter() - start)

    return {"fit_s": {trees: statistics.median(each[1:]) for trees, each in seconds.items()}}


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, gpus=2, rows=[8_000_000, 80_000_000, 320_000_000], folder="")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for count in given.rows:
            times = -(-count // MADE)
            train, _ = months(Path(given.folder or scratch), count // times)
            train = train if times == 1 else linked(Path(given.folder or scratch), train, times)
            cases = [(1, {}), *((given.gpus, variables) for variables in VARIABLES)]
            for gpus, variables in cases:
                name = {"rows": count, "gpus": gpus, "variables": variables}
                found.append(attempt(name, partial(measured, train, gpus, variables)))
                write_result(f"nccl_{given.gpus}", found, **vars(given))


if __name__ == "__main__":
    main()
