"""What happens when a worker is killed, and when one is frozen, while two GPUs train: the error, and after how long.

python benchmarks/gpu_faults.py [--rows 8000000] [--models xgboost random_forest] [--ttl 10] [--dry]
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from functools import partial
from typing import Any

from gpu_fit import shipped
from gpu_rows import attempt
from harness import write_result
from tipcast.backends.session import session
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, LocalCudaCluster
from tipcast.estimators.build import build

LONG = {"xgboost": {"n_estimators": 20_000, "max_depth": 8}, "random_forest": {"n_estimators": 5_000, "max_depth": 12}}
SIGNALS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
FEATURES = 7


def rows(count: int, seed: int, frames: Any) -> tuple[Any, Any]:
    """Make rows on this worker's device."""
    xp = frames.xp
    xp.random.seed(seed)
    values = xp.empty((count, FEATURES), dtype=xp.float32, order="F")
    for at in range(FEATURES):
        values[:, at] = xp.random.randint(0, 60, count)
    label = (values[:, 0] + xp.random.randint(0, 60, count) > 60).astype(xp.int32)
    return frames.frame(values, [f"f{at}" for at in range(FEATURES)]), frames.series(label, "target")


def side(both: tuple[Any, Any], at: int) -> Any:
    """Return features or label."""
    return both[at]


def fault(model: str, how: str, count: int, ttl: float, after: float) -> dict[str, Any]:
    """Train on two GPUs, lose a worker on the way, and tell what came of it."""
    spec = shipped(model)
    spec.params |= LONG[model]
    cluster = LocalCudaCluster("local_cuda", n_workers=2, worker_ttl_s=ttl)
    moments: dict[str, float] = {}
    pids: list[int] = []
    try:
        with session(BackendSpec("gpu"), cluster) as workers:
            client = workers.client
            pids = list(client.run(os.getpid).values())
            both = [
                client.submit(rows, count // 2, at, workers.frames, workers=[address], pure=False)
                for at, address in enumerate(client.nthreads())
            ]
            x, y = (client.map(side, both, at=at, pure=False) for at in (0, 1))

            def strike() -> None:
                moments["struck"] = time.perf_counter()
                os.kill(pids[1], SIGNALS[how])

            threading.Timer(after, strike).start()
            try:
                build(spec, workers.device, "distributed").fit(client, x, y, None, seed=0)
            finally:
                moments["ended"] = time.perf_counter()
    except Exception as problem:
        moments["closed"] = time.perf_counter()
        told = str(problem) if isinstance(problem, TipcastError) else f"{type(problem).__name__}: {problem}"
        if "struck" not in moments:
            raise
        return {
            "told": told[:500],
            "error_after_s": moments["ended"] - moments["struck"],
            "session_closed_after_s": moments["closed"] - moments["struck"],
            "processes_left": [pid for pid in pids if os.path.exists(f"/proc/{pid}")],  # noqa: PTH110
        }
    return {"told": "nothing: the fit ended", "struck": "struck" in moments}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--models", nargs="+", choices=list(LONG), default=list(LONG))
    parser.add_argument("--how", nargs="+", choices=list(SIGNALS), default=list(SIGNALS))
    parser.add_argument("--ttl", type=float, default=10.0, help="cluster.worker_ttl_s")
    parser.add_argument("--after", type=float, default=6.0, help="seconds from the fit's start to the signal")
    parser.add_argument("--dry", action="store_true", help="write no result")
    options = parser.parse_args()
    found = []
    for model in options.models:
        for how in options.how:
            name = {"model": model, "worker": how, "rows": options.rows, "gpus": 2, "worker_ttl_s": options.ttl}
            found.append(attempt(name, partial(fault, model, how, options.rows, options.ttl, options.after)))
            if not options.dry:
                write_result("gpu_faults", found)


if __name__ == "__main__":
    main()
