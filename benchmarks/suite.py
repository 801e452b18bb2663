"""Whether `make test` is green in ten runs of one commit, how long each takes, and where the time
goes.

    PYTHONPATH=src python benchmarks/suite.py       # an hour and a half; interrupted, it goes on
    where it was

The CPU seconds are those of every process that the tests start, also of those whose parents have
ended.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import psutil

from harness import ROOT, options, write_result

WAYS = {"idle": 5, "nohup": 1, "elsewhere": 1, "busy": 3}
"""How the tests are started -> in how many orders."""
BUSY = 4
CLOSING = re.compile(r"=+ .* in [\d.]+s.* =+$")
"""Pytest's last line, of the tests that run at once and of those that run alone."""


def main() -> None:
    """Run the tests in each way and write the result, also of runs that failed and of those before
    an interrupt.
    """
    # which `&` in a script has switched off
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = options(__doc__).out
    code = tested()
    file = out / "suite.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    rows = before["results"] if before.get("facts", {}).get("tested") == code else []
    ways = [way for way, orders in WAYS.items() for _ in range(orders)]

    try:
        for seed, way in enumerate(ways, 1):
            if seed not in {row["seed"] for row in rows}:
                rows.append(measured(way, seed))
                print(rows[-1], flush=True)
    finally:  # not before: a test compares the pages with the results
        write_result("suite", rows, out=out, busy_processes=BUSY, tested=code)


def tested() -> list[str]:
    """Return git's hashes of what the tests run and are: runs of the same are one measurement."""
    names = [
        f"HEAD:{name}"
        for name in ("src", "conf", "tests", "Makefile", "requirements", "pyproject.toml")
    ]
    return subprocess.check_output(["git", "rev-parse", *names], cwd=ROOT, text=True).split()


def measured(way: str, seed: int) -> dict[str, object]:
    """Return what a run of the tests in the order of a seed took, in seconds, and its closing
    line.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        loops = [
            psutil.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(BUSY * (way == "busy"))
        ]
        before = used_s()
        start = time.monotonic()
        words = f"--junitxml={folder}/$$part.xml --randomly-seed={seed}"  # `part` is the Makefile's
        command = f"make test TESTS='{words}' >{out} 2>&1"
        if way == "nohup":  # a script's `&` ignores interrupts
            command = f"trap '' INT QUIT; nohup {command}"

        variables = (
            {"HOME": f"{folder}/home", "TMPDIR": f"{folder}/tmp"} if way == "elsewhere" else {}
        )
        for name in variables.values():
            Path(name).mkdir()

        running = subprocess.Popen(
            ["sh", "-c", command], cwd=ROOT, stdin=subprocess.DEVNULL, env=os.environ | variables
        )
        done, status = os.wait()
        while done != running.pid:  # what has outlived its parent: unreaped, tests would find it
            done, status = os.wait()

        wall_s = time.monotonic() - start
        for loop in loops:
            before += sum(loop.cpu_times()[:2])
            loop.kill()

        reap()
        lines = out.read_text().splitlines()
        reports = sorted(Path(folder).glob("*.xml"))
        return {
            "way": way,
            "seed": seed,
            "exit_code": os.waitstatus_to_exitcode(status),
            "wall_s": wall_s,
            "cpu_s": used_s() - before,
            "closing_lines": [line.strip("= ") for line in lines if CLOSING.match(line)],
            "failed": [line for line in lines if line.startswith(("FAILED", "ERROR"))],
            "by_folder_s": by_folder(reports),
            "slowest_s": slowest(reports),
        }


def used_s() -> float:
    """Return the CPU seconds of all children that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reap() -> None:
    """Wait for what outlived its parent."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def cases(reports: Sequence[Path]) -> Iterator[ElementTree.Element]:
    """Return all reports' cases."""
    for report in reports:
        yield from ElementTree.parse(report).iter("testcase")


def by_folder(reports: Sequence[Path]) -> dict[str, float]:
    """Return folder of tests -> seconds of its cases, fixtures included."""
    seconds: Counter[str] = Counter()
    for case in cases(reports):
        parts = case.attrib["classname"].split(".")
        depth = 3 if parts[1] == "unit" else 2
        seconds["/".join(parts[:depth]) if len(parts) > depth else "tests"] += float(
            case.attrib["time"]
        )
    return {name: round(value, 1) for name, value in seconds.most_common()}


def slowest(reports: Sequence[Path], most: int = 30) -> dict[str, float]:
    """Return the cases that take longest -> their seconds, fixtures included."""
    every = (case.attrib for case in cases(reports))
    seconds = Counter(
        {f"{case['classname']}::{case['name']}": float(case["time"]) for case in every}
    )
    return dict(seconds.most_common(most))


if __name__ == "__main__":
    main()
