"""What the GPU benchmarks have in common: months of synthetic trips on disk, the same in device
memory, workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tipcast.compute.base import Session
from tipcast.compute.session import open_session
from tipcast.config.compose import compose, to_object
from tipcast.config.data_schema import FilesData
from tipcast.config.schema import BackendSpec, LocalCluster, LocalCudaCluster
from tipcast.datasets import rows
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.tasks.make import make_task

TRAIN = "2018-01..2018-12"
TEST = "2019-01..2019-01"
TEST_ROWS = 1_000_000
GROUP = 1_000_000
"""Rows of a row group, as the TLC's own files have."""


def months(folder: Path, count: int) -> tuple[Path, Path]:
    """Return folders of prepared training and test months, made once, all cores at work."""
    made = []
    for name, period, trips in (
        (f"train-{count}", TRAIN, count),
        (f"test-{TEST_ROWS}", TEST, min(TEST_ROWS, count)),
    ):
        out = folder / name
        words = [
            f"data.months={period}",
            f"data.rows={trips}",
            f"data.block_rows={GROUP}",
            f"row_group_rows={GROUP}",
        ]
        cores = os.cpu_count() or 1
        words += [
            f"cluster.n_workers={min(4, cores)}",
            f"cluster.threads_per_worker={max(cores // 4, 1)}",
        ]
        words += ["cluster.memory_limit=64GiB"] if cores > 4 else []
        command = [sys.executable, "-m", "tipcast", "prepare", *words, f"out={out}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        made.append(out)

    return made[0], made[1]


def opened(device: str, count: int) -> AbstractContextManager[Session]:
    """Return a session of so many workers; on processors only to try a script where there is no
    GPU.
    """
    if device == "gpu":
        return open_session(
            BackendSpec("gpu"), LocalCudaCluster("local_cuda", n_workers=count, rmm_pool_size=0.2)
        )
    return open_session(
        BackendSpec("cpu"), LocalCluster("local", n_workers=count, threads_per_worker=1)
    )


def in_memory(session: Session, folder: Path) -> rows.Rows:
    """Read and prepare months as `tipcast train` does; the rows stay on the workers."""
    config = to_object(compose("train", [])[0].config)
    recipe = Recipe(Taxi(), make_task(config.task, Taxi()))
    data = FilesData(source="files", train=str(folder), block_bytes=1 << 25)
    listing = Taxi(data).scan("train", recipe.columns)
    return rows.collect(session, listing, recipe, rows.start(session, listing, recipe))[0][0]


def attempt(name: Mapping[str, Any], part: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return a part's result, or what went wrong in it, so that the others are still measured and
    written.
    """
    print("--", *(f"{key}={value}" for key, value in name.items()), flush=True)
    try:
        found = {**name, **part()}
    except Exception as problem:
        traceback.print_exc()
        found = {**name, "error": f"{type(problem).__name__}: {problem}"[:2000]}
    print(
        {key: value for key, value in found.items() if key not in ("pairs", "command")}, flush=True
    )
    return found
