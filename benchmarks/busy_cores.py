"""P5: what waiting costs: a fit whose threads soon sleep while they wait, as tipcast's do, against
OpenMP's default.

    PYTHONPATH=src python benchmarks/busy_cores.py \\
        [--rows 500000] [--rounds 30] [--pairs 5] [--out FOLDER]

Once with as many busy processes beside it as there are cores, as the trials of a sweep or another
user's job would be, and once on an idle machine. Each fit is a process of its own, which times
itself without its start.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

from harness import compare, options, write_result
from tipcast.compute.forkserver import WAITING

FIT = """
import sys, time
import numpy as np, xgboost
rows, rounds, threads = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
x = rng.integers(0, 200, (rows, 7)).astype(np.float32)
y = (x[:, 0] + rng.integers(0, 200, rows) > 200).astype(np.float32)
matrix = xgboost.QuantileDMatrix(x, y, nthread=threads)
start = time.perf_counter()
xgboost.train({"objective": "binary:logistic", "nthread": threads, "max_depth": 6}, matrix, rounds)
print(time.perf_counter() - start)
"""


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many cores at work."""
    burning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, rows=500_000, rounds=30, pairs=5)
    cores = len(os.sched_getaffinity(0))

    def fit(variables: Mapping[str, str]) -> float:
        """Return the seconds that do not count: all but the rounds."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMP_", "GOMP_"))
        }
        start = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-c", FIT, str(given.rows), str(given.rounds), str(cores)],
            env=environment | variables,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return time.perf_counter() - start - float(ended.stdout)

    found = []
    for name, processes in (("busy", cores), ("idle", 0)):
        with busy(processes):
            names = (f"soon asleep, {name}", f"OpenMP's default, {name}")
            found.append(compare(lambda: fit(WAITING), lambda: fit({}), given.pairs, names=names))
        print(found[-1], flush=True)
    print(write_result("busy_cores", found, cores=cores, **vars(given)))


if __name__ == "__main__":
    main()
