"""What becomes of `tipcast train` on two workers when one of them is killed, at random moments of
its fit.

    PYTHONPATH=src python benchmarks/killed_worker.py --device gpu --tries 20 --at-once 4 --out
    FOLDER

Each try is a process of its own. The fit goes on for minutes, so that every moment is one of
boosting or of its start.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import options, write_result

HANG_S = 180.0
LATEST_S = 8.0
"""Seconds after both workers began to fit, before which one is killed."""
WORDS = (
    "data.rows=2000000",
    "model.params.n_estimators=100000",
    "model.fit.early_stopping_rounds=null",
    "tracking.system_metrics=false",
    "cluster.performance_report=false",
    "cluster.n_workers=2",
)


def attempt(device: str, wait_s: float) -> dict[str, Any]:
    """Train, kill a worker so many seconds after both have begun to fit, and say how the driver
    ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        passed = Path(folder) / "passed"
        more = {
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
            "TIPCAST_GATE": f":{passed}",
        }
        job = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "faulthandler",
                "-m",
                "tipcast",
                "train",
                f"backend={device}",
                *WORDS,
            ],
            cwd=folder,
            env={**os.environ, **more},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            workers = _fitting(job, passed)
            time.sleep(wait_s)
            for worker in workers[:1]:
                os.kill(worker, signal.SIGKILL)
            killed = time.monotonic()
            _, said = job.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            return {"killed_after_s": wait_s, "exit_code": None, "said": "hangs"}
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()

    last = said.strip().splitlines()[-1] if said.strip() else ""
    code = next(iter(re.findall(r"^error\[(\w+)\]", last)), None)
    ending = {"exit_code": job.returncode, "code": code, "ended_s": time.monotonic() - killed}
    return {
        "killed_after_s": wait_s,
        **ending,
        **({} if code == "K003" else {"said": said[-1500:]}),
    }


def _fitting(job: subprocess.Popen[str], passed: Path) -> list[int]:
    """Wait until two workers begin to fit; return their processes, none where the job has ended
    before.
    """
    end = time.monotonic() + HANG_S
    while job.poll() is None and time.monotonic() < end:
        lines = passed.read_text().splitlines() if passed.exists() else []
        workers = [int(line.split()[1]) for line in lines if line.startswith("fit ")]
        if len(workers) == 2:
            return workers
        time.sleep(0.05)
    return []


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, device="cpu", tries=20, at_once=1, seed=0)
    draw = random.Random(given.seed)  # noqa: S311 - moments, no secrets
    moments = [draw.uniform(0, LATEST_S) for _ in range(given.tries)]
    with ThreadPoolExecutor(given.at_once) as pool:
        found = list(pool.map(lambda wait_s: attempt(given.device, wait_s), moments))
    for each in found:
        print(each, flush=True)
    write_result(f"killed_worker_{given.device}", found, **vars(given))


if __name__ == "__main__":
    main()
