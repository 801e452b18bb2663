"""Every result of GPUs that docs quote, in one run on a machine with one or two; each is written
once it is measured.

    # nine minutes at most on one H200
    PYTHONPATH=src python benchmarks/gpu.py --gpus 1 --out FOLDER
    PYTHONPATH=src python benchmarks/gpu.py --gpus 2 --out FOLDER        # seven on two
    # tries it on few rows, without a GPU
    PYTHONPATH=src python benchmarks/gpu.py --device cpu --out FOLDER

A part that fails, or that the time ends, leaves the others' results. What is most quoted comes
first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from harness import RESULTS, ROOT, options

LIMITS = {1: 530.0, 2: 410.0}
"""Seconds, by the number of GPUs."""
LEAST_S = 20.0
"""With less left no part is begun."""
CUT_OFF = 124
JOBS = ["xgboost:80000000", "xgboost:8000000", "random_forest:8000000"]
CORES = ["xgboost:8000000:cores"]


def ended(command: list[str], limit_s: float) -> int:
    """Run a command and return its exit code; after so many seconds end all of its processes."""
    running = subprocess.Popen(command, start_new_session=True)
    try:
        return running.wait(limit_s)
    except subprocess.TimeoutExpired:
        return CUT_OFF
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


def stopped(*_: object) -> None:
    """End the part at work, also one that is only just being started, and then this process."""
    for process in psutil.Process().children(recursive=True):
        process.kill()
    sys.exit(128 + signal.SIGTERM)


def parts(gpus: int, device: str, out: Path) -> dict[str, list[str]]:
    """Return scripts and their words."""
    some = ["--device", device, "--gpus", str(gpus)]
    cases = (
        [*JOBS, *(CORES if gpus == 1 else [])]
        if device == "gpu"
        else ["xgboost:20000", "xgboost:20000:cores"]
    )
    found = {
        "gpu_train": [*some, "--cases", *cases],
        "scoring": ["--backend", device] if device == "gpu" else ["--rows", "6000", "--pairs", "1"],
        "gpu_sweep": some if device == "gpu" else [*some, "--rows", "5000", "--trials", "3"],
        "carried": ["make", str(out / "carried.tar.gz"), *([] if device == "gpu" else ["cpu"])],
        "gpu_fit": some
        if device == "gpu"
        else [*some, "--rows", "20000", "--pairs", "1", "--models", "xgboost"],
    }
    return (
        found
        if gpus == 1
        else {name: found[name] for name in ("gpu_fit", "gpu_sweep", "gpu_train")}
    )


def main() -> int:
    """Run the parts; return how many failed."""
    given = options(__doc__, gpus=1, device="gpu")
    if given.out == RESULTS:
        raise SystemExit(
            "give --out FOLDER: results of another machine are copied to benchmarks/results"
        )

    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, stopped)
    end = time.monotonic() + LIMITS[given.gpus] * (1 if given.device == "gpu" else 10)
    failed = 0

    with tempfile.TemporaryDirectory() as folder:
        for name, words in parts(given.gpus, given.device, given.out).items():
            start = time.monotonic()
            more = [] if name == "carried" else ["--out", str(given.out)]
            more += ["--folder", folder] if name.startswith("gpu_") else []
            command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *words, *more]
            code = ended(command, end - start) if end - start > LEAST_S else CUT_OFF
            failed += bool(code)
            print(f"== {name}: exit code {code} after {time.monotonic() - start:.0f} s", flush=True)

    return failed


if __name__ == "__main__":
    sys.exit(main())
