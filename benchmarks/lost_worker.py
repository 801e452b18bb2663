"""What becomes of a bare `xgboost.dask.train` whose worker is killed: an error, a hang, or the end
of the driver.

    PYTHONPATH=src python benchmarks/lost_worker.py --device gpu --out FOLDER

Each try is a process of its own with a local cluster of two workers, as Dask and dask-cuda make it;
nothing of tipcast is in it. docs/decisions/0008 says what follows.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from harness import options, write_result

HANG_S = 60.0
STARTED_S = 10.0
"""Seconds after which the worker is killed: XGBoost then trains."""


def attempt(device: str) -> None:
    """Train until a worker is killed; print how that ended as JSON."""
    import dask.array as da
    from distributed import Client, LocalCluster
    from xgboost import dask as dxgb

    if device == "gpu":
        from dask_cuda import LocalCUDACluster

        cluster = LocalCUDACluster(dashboard_address=None)
    else:
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        pids = client.run(os.getpid)
        x = da.random.random((400_000, 10), chunks=(50_000, 10)).astype("float32").persist()
        y = (x[:, 0] > 0.5).astype("int32").persist()
        rows = dxgb.DaskQuantileDMatrix(client, x, y)
        threading.Timer(STARTED_S, os.kill, (max(pids.values()), signal.SIGKILL)).start()
        start = time.monotonic()
        try:
            dxgb.train(
                client,
                {"device": "cuda" if device == "gpu" else "cpu"},
                rows,
                num_boost_round=1_000_000,
            )
            ending = "trained"
        except Exception as problem:
            ending = type(problem).__name__
        print(
            json.dumps({"ending": ending, "after_kill_s": time.monotonic() - start - STARTED_S}),
            flush=True,
        )


def watched(device: str) -> dict[str, Any]:
    """Run a try in a process; say how it ended."""
    command = [sys.executable, "-X", "faulthandler", __file__, "--attempt", device]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=STARTED_S + 60 + HANG_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"exit_code": None, "ending": "hangs"}

    said = next(
        (json.loads(line) for line in reversed(out.splitlines()) if line.startswith('{"ending"')),
        {},
    )
    last = (
        {"stderr": re.sub(r"[^\s\"']*/site-packages/", "", err)[-1500:]}
        if process.returncode
        else {}
    )
    return {"exit_code": process.returncode, "ending": "the driver ends", **said, **last}


def main() -> None:
    """Run the benchmark."""
    if sys.argv[1:2] == ["--attempt"]:
        attempt(sys.argv[2])
        return
    given = options(__doc__, device="cpu", tries=6)
    found = [watched(given.device) for _ in range(given.tries)]
    for each in found:
        print({name: value for name, value in each.items() if name != "stderr"}, flush=True)
    write_result(f"lost_worker_{given.device}", found, **vars(given))


if __name__ == "__main__":
    main()
