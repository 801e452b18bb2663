"""P3b: what starting NCCL costs a fit by several GPUs, and what its variables save.

    PYTHONPATH=src python benchmarks/nccl.py --gpus 2 --out FOLDER

A training fits once, in new workers. That fit starts NCCL, and does other work that later fits are
spared. So each case starts new workers, and their first fit is what counts. Two later fits are
shown for comparison: one of as many trees, and one of a single tree, which takes little longer than
starting NCCL and binning the rows. The same fits run on one GPU, which needs no NCCL.
"""

from __future__ import annotations

import dataclasses
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
from tipcast.compute.base import Session
from tipcast.compute.session import open_session
from tipcast.config.schema import BackendSpec, LocalCudaCluster
from tipcast.datasets.rows import Rows
from tipcast.models.build import build
from tipcast.models.fit import fit

VARIABLES: tuple[dict[str, str], ...] = (
    {},
    {"NCCL_CUMEM_ENABLE": "0"},
    {"NCCL_P2P_DISABLE": "1"},
    {"NCCL_IB_DISABLE": "1", "NCCL_MAX_NCHANNELS": "4"},
)
"""Variables of the workers, besides those that tipcast sets: all are tried with the first number of
rows, the first two with the others.
"""
TREES = 100
WARM_ROWS = 1_000_000
"""Rows of a fit that is not recorded: it loads the libraries from disk."""


def measured(folder: Path, gpus: int, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the seconds of the first fit of new workers, and of two later ones."""
    cluster = LocalCudaCluster(
        "local_cuda", n_workers=gpus, rmm_pool_size=0.2, environment=dict(variables)
    )
    with open_session(BackendSpec("gpu"), cluster) as session:
        rows = in_memory(session, folder)
        return {
            "first_fit_s": fit_seconds(session, rows, TREES),
            "later_fit_s": fit_seconds(session, rows, TREES),
            "one_tree_s": fit_seconds(session, rows, 1),
        }


def fit_seconds(session: Session, rows: Rows, trees: int) -> float:
    """Fit so many trees; return the seconds."""
    spec = shipped("xgboost")
    model = dataclasses.replace(spec, params={**spec.params, "n_estimators": trees})
    start = time.perf_counter()
    fit(session.client, build(model, session.device), rows, None, seed=0)
    return time.perf_counter() - start


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, gpus=2, rows=[8_000_000, 80_000_000, 320_000_000], folder="")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        warm, _ = months(Path(given.folder or scratch), WARM_ROWS)
        attempt({"warm": given.gpus}, partial(measured, warm, given.gpus, {}))

        for count in given.rows:
            times = -(-count // MADE)
            train, _ = months(Path(given.folder or scratch), count // times)
            train = train if times == 1 else linked(Path(given.folder or scratch), train, times)
            tried = VARIABLES if count == given.rows[0] else VARIABLES[:2]
            for gpus, variables in [(1, {}), *((given.gpus, each) for each in tried)]:
                name = {"rows": count, "gpus": gpus, "variables": variables}
                found.append(attempt(name, partial(measured, train, gpus, variables)))
                write_result(f"nccl_{given.gpus}", found, **vars(given))


if __name__ == "__main__":
    main()
