"""The GPU tests on this machine: what passed, what failed, on which GPUs.

    PYTHONPATH=src python benchmarks/gpu_tests.py \\
        [--gpus 1] [--limit 3600] [--out FOLDER] [PYTEST WORDS ...]

A skip is a failure (TIPCAST_REQUIRE_GPU=1). The result is kept for each number of GPUs, also of
tests cut off by the time limit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from harness import import_from_here, write_result

ROOT = Path(__file__).resolve().parents[1]
CLOSE_S = 60.0
"""How long interrupted tests may take to close, in seconds."""


def main() -> int:
    """Run the tests and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gpus", type=int, default=1, help="how many the tests see, from the first"
    )
    parser.add_argument(
        "--limit", type=float, default=3600.0, help="seconds after which pytest is interrupted"
    )
    parser.add_argument("--out", type=Path, help="folder of the result")
    given, words = parser.parse_known_args()
    import_from_here()
    environment = {
        **os.environ,
        "TIPCAST_REQUIRE_GPU": "1",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(given.gpus))),
    }

    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "tests.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-m",
            "gpu",
            "-p",
            "no:cacheprovider",
            f"--junit-xml={file}",
        ]
        start = time.perf_counter()
        running = subprocess.Popen([*command, *words], cwd=ROOT, env=environment)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(given.limit)

        if running.poll() is None:
            running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(CLOSE_S)

        running.kill()
        code = running.wait()
        seconds = time.perf_counter() - start
        # pytest's
        cases = ElementTree.parse(file).iterfind(".//testcase[@name]") if file.exists() else []  # noqa: S314

    rows = [
        {
            "test": f"{case.get('classname')}::{case.get('name')}",
            "outcome": next(
                (each.tag for each in case if each.tag in ("failure", "error", "skipped")), "passed"
            ),
            "seconds": float(case.get("time", 0)),
        }
        for case in cases
    ]
    failed = [row["test"] for row in rows if row["outcome"] != "passed"]
    print(
        f"{given.gpus} GPUs: {len(rows) - len(failed)} of {len(rows)} passed in {seconds:.0f} s",
        *failed,
        sep="\n",
    )
    facts = {
        "gpus": given.gpus,
        "passed": len(rows) - len(failed),
        "failed": failed,
        "seconds": seconds,
    }
    facts |= {"exit_code": code, "cut_off": seconds > given.limit}
    write_result(f"gpu_tests_{given.gpus}", rows, out=given.out, **facts)

    return code


if __name__ == "__main__":
    sys.exit(main())
