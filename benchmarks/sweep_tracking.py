"""P10 in a sweep: the share of a search's wall time that the driver spends on recording its trials, on sqlite.

python benchmarks/sweep_tracking.py [--trials 100] [--rows 500000] [--rounds 100] [--dry]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

from tipcast.backends.waiting import waiting

os.environ.update(waiting())  # as tipcast's entry point does, before libgomp loads

import sweep_rows
from harness import write_result
from tipcast.config.compose import compose, to_object
from tipcast.jobs import sweep
from tipcast.jobs.sweep_record import SweepRecord
from tipcast.search.events import Event

GOAL = 0.03


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--dry", action="store_true", help="write no result")
    given = parser.parse_args()
    seconds: list[float] = []
    take = SweepRecord.take

    def timed(self: SweepRecord, event: Event) -> None:
        start = time.perf_counter()
        take(self, event)
        seconds.append(time.perf_counter() - start)

    with tempfile.TemporaryDirectory(prefix="tipcast-") as scratch:
        train = sweep_rows.month(Path(scratch) / "train", given.rows)
        test = sweep_rows.month(Path(scratch) / "test", given.rows // 10, "2019-02")
        os.chdir(scratch)  # MLflow's artifacts go to ./mlruns
        words = [
            f"search.trials={given.trials}",
            f"model.params.n_estimators={given.rounds}",
            "data=files",
            f"data.train={train}",
            f"data.test={test}",
            f"tracking.uri=sqlite:///{scratch}/mlflow.db",
            "print=json",
        ]
        (composed,) = compose("sweep", words)
        with mock.patch.object(SweepRecord, "take", timed), contextlib.redirect_stdout(io.StringIO()) as said:
            sweep.run(to_object(composed.config), "benchmark")
        phases = json.loads(said.getvalue().splitlines()[-1])["phases"]
    share = sum(seconds) / phases["search"]
    found = {"share": share, "tracking_s": sum(seconds), "search_s": phases["search"], "events": len(seconds)}
    print(found, f"{1e3 * sum(seconds) / given.trials:.1f} ms a trial; goal {GOAL}")
    if not given.dry:
        write_result("sweep_tracking", found, goal=GOAL, **vars(given))


if __name__ == "__main__":
    main()
