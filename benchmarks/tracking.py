"""Compare how a trial's run is recorded, by one batch, with MLflow's single calls, on sqlite with
WAL.

    PYTHONPATH=src python benchmarks/tracking.py [--trials 20] [--pairs 5] [--out FOLDER]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag

from harness import compare, options, write_result
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.run import Run
from tipcast.tracking.store import open_store

PARAMS = {f"model.params.p{i}": i / 7 for i in range(12)}
METRICS = {f"test/m{i}": i / 11 for i in range(12)}
TAGS = {f"tag.t{i}": str(i) for i in range(6)}


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, trials=20, pairs=5)
    with tempfile.TemporaryDirectory(prefix="tipcast-") as folder:
        store = f"sqlite:///{Path(folder) / 'mlflow.db'}"
        client = open_store(TrackingSpec(uri=store, experiment="trials"))
        experiment = client.create_experiment("trials", artifact_location=folder)

        def trial(record: Any) -> None:
            run_id = client.create_run(experiment, run_name="trial").info.run_id
            record(run_id)
            client.set_terminated(run_id)

        def batch(run_id: str) -> None:
            now = int(time.time() * 1000)
            client.log_batch(
                run_id,
                metrics=[Metric(name, value, now, 0) for name, value in METRICS.items()],
                params=[Param(name, str(value)) for name, value in PARAMS.items()],
                tags=[RunTag(name, value) for name, value in TAGS.items()],
            )

        def room(run_id: str) -> None:
            run = Run(run_id, experiment, client)
            run.set_tags(TAGS)
            run.log_params(PARAMS)
            run.log_metrics(METRICS)

        def single(run_id: str) -> None:
            for name, value in TAGS.items():
                client.set_tag(run_id, name, value)
            for name, number in PARAMS.items():
                client.log_param(run_id, name, number)
            for name, number in METRICS.items():
                client.log_metric(run_id, name, number)

        def repeat(record: Any) -> Any:
            return lambda: [trial(record) for _ in range(given.trials)]

        results = []
        for name, ours in (("one log_batch", batch), ("tracking.run.Run", room)):
            results.append(
                compare(repeat(ours), repeat(single), given.pairs, names=(name, "single calls"))
            )
            print(f"{results[-1]}: {results[-1].medians[0] / given.trials * 1000:.1f} ms a trial")
        complete = [
            run for run in client.search_runs([experiment]) if run.info.status == "FINISHED"
        ]
        found = {(len(run.data.params), len(run.data.metrics)) for run in complete}
        if found != {(len(PARAMS), len(METRICS))}:
            raise SystemExit(f"runs differ: {found}")
    milliseconds = {r.names[0]: r.medians[0] / given.trials * 1000 for r in results}
    print(write_result("tracking", results, **vars(given), ms_per_trial=milliseconds))


if __name__ == "__main__":
    main()
