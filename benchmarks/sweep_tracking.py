"""P10 in a sweep: the share of a search's wall time that the driver spends on recording its trials,
on sqlite.

    PYTHONPATH=src python benchmarks/sweep_tracking.py \\
        [--trials 100] [--rows 500000] [--rounds 100] [--out FOLDER]
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

from tipcast.compute.forkserver import waiting

os.environ.update(waiting())  # as tipcast's entry point does, before libgomp loads

import sweep_rows
from harness import options, write_result
from tipcast.config.compose import compose, to_object
from tipcast.jobs import sweep
from tipcast.jobs.sweep_record import SweepRecord
from tipcast.search.trial import TrialEvent


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, trials=100, rows=500_000, rounds=100)
    seconds: list[float] = []
    record_event = SweepRecord.record_event

    def timed(self: SweepRecord, event: TrialEvent) -> None:
        start = time.perf_counter()
        record_event(self, event)
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
        with (
            mock.patch.object(SweepRecord, "record_event", timed),
            contextlib.redirect_stdout(io.StringIO()) as said,
        ):
            sweep.run(to_object(composed.config), "benchmark")
        phases = json.loads(said.getvalue().splitlines()[-1])["phases"]
    share = sum(seconds) / phases["search"]
    found = {
        "share": share,
        "tracking_s": sum(seconds),
        "search_s": phases["search"],
        "events": len(seconds),
    }
    print(found, f"{1e3 * sum(seconds) / given.trials:.1f} ms a trial")
    write_result("sweep_tracking", found, **vars(given))


if __name__ == "__main__":
    main()
