"""What XGBoost's training on several GPUs costs beside its rounds, by tipcast's tasks and by `xgboost.dask`.

python benchmarks/gpu_together.py [--rows 80000000] [--gpus 2] [--rounds 1 100] [--turns 3] [--dry]
                                  [--environment NCCL_COMM_BLOCKING=0 ...]

The result without blocking is kept beside that with it, which workers get by default. Ways and numbers of rounds take
turns on the same rows in device memory, after a first turn that does not count.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from xgboost import dask as dxgb

from gpu_fit import shipped
from gpu_rows import in_memory, months
from harness import write_result
from tipcast.backends.session import session
from tipcast.config.schema import BackendSpec, LocalCudaCluster
from tipcast.data.features import BASE_FEATURES
from tipcast.estimators.build import build
from tipcast.estimators.xgboost_plan import plan


def by_dask(client: Any, x: Any, y: Any, model: Any) -> None:
    """Train through xgboost.dask."""
    planned = plan(model.params, model.fit, "cuda")
    like = pd.DataFrame({name: np.empty(0, np.float32) for name in BASE_FEATURES}), pd.Series(np.empty(0, np.int32))
    with client.as_current():
        both = [
            dd.from_delayed(list(parts), meta=meta, verify_meta=False) for parts, meta in zip((x, y), like, strict=True)
        ]
        rows = dxgb.DaskQuantileDMatrix(client, *both, max_bin=planned.max_bin)
        dxgb.train(client, {**planned.params, "seed": 0}, rows, planned.rounds, verbose_eval=False)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=80_000_000)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--environment", nargs="*", default=[], help="of the workers, as NCCL_DEBUG=INFO")
    parser.add_argument("--folder", type=Path, help="keeps the prepared months here")
    parser.add_argument("--dry", action="store_true", help="write no result")
    given = parser.parse_args()
    environment = dict(pair.split("=", 1) for pair in given.environment)
    seconds: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        train, _ = months(folder, given.rows)
        cluster = LocalCudaCluster("local_cuda", n_workers=given.gpus, environment=environment)
        with session(BackendSpec("gpu"), cluster) as workers:
            data = in_memory(workers, train)
            for turn in range(given.turns + 1):
                for rounds in given.rounds:
                    model = shipped("xgboost")
                    model.params["n_estimators"] = rounds
                    estimator = build(model, workers.device, "distributed")
                    ways: dict[str, Callable[[], object]] = {
                        "tipcast": lambda e=estimator: e.fit(workers.client, data.x, data.y, None, seed=0),  # type: ignore[misc]
                        "xgboost.dask": lambda m=model: by_dask(workers.client, data.x, data.y, m),  # type: ignore[misc]
                    }
                    for name, way in ways.items():
                        start = time.perf_counter()
                        way()
                        if turn:
                            seconds.setdefault((name, rounds), []).append(time.perf_counter() - start)
    found = [
        {"way": way, "rounds": rounds, "median_s": statistics.median(each), "seconds": each}
        for (way, rounds), each in seconds.items()
    ]
    for row in found:
        print(row, flush=True)
    if not given.dry:
        name = "gpu_together" if environment.get("NCCL_COMM_BLOCKING") == "0" else "gpu_together_blocking"
        write_result(name, found, rows=given.rows, gpus=given.gpus, environment_of_workers=environment)


if __name__ == "__main__":
    main()
