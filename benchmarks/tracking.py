"""Compare what recording a trial costs with one batch and with single calls, and write a result.

A trial is a child run with parameters, tags, metrics and a history per round. Ours opens it, writes one batch for each kind
and ends it; theirs is what a tutorial does: `mlflow.start_run(nested=True)` with one call for each value.

python benchmarks/tracking.py [--trials 32] [--pairs 5] [--params 12] [--metrics 12] [--rounds 50] [--dry]
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from harness import compare, write_result
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.run import Run
from tipcast.tracking.store import open_store

GOAL_MS = 20.0
"""Milliseconds that recording one trial may take."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--params", type=int, default=12)
    parser.add_argument("--metrics", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--dry", action="store_true", help="write no result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tipcast-") as folder:
        database = Path(folder) / "mlflow.db"
        client = open_store(TrackingSpec(uri=f"sqlite:///{database}", experiment="tracking"))
        import mlflow

        experiments = [client.create_experiment(name, artifact_location=folder) for name in ("batched", "single")]
        params = {f"model.params.p{n}": n / 7 for n in range(options.params)}
        tags = {"job": "sweep", "trial": "0", "worker": "w0"}
        metrics = {f"test/m{n}": 0.5 + n / 100 for n in range(options.metrics)}
        history = {"history/validation_auc": [0.5 + n / 1000 for n in range(options.rounds)]}

        def batched() -> None:
            for number in range(options.trials):
                made = client.create_run(experiments[0], run_name=f"trial-{number}")
                run = Run(made.info.run_id, experiments[0], f"sqlite:///{database}", client)
                run.set_tags(tags)
                run.log_params(params)
                run.log_metrics(metrics)
                run.log_history(history)
                client.set_terminated(run.id, "FINISHED")

        def single() -> None:
            for number in range(options.trials):
                with mlflow.start_run(experiment_id=experiments[1], run_name=f"trial-{number}"):
                    for name, text in tags.items():
                        mlflow.set_tag(name, text)
                    for name, value in params.items():
                        mlflow.log_param(name, value)
                    for name, value in metrics.items():
                        mlflow.log_metric(name, value)
                    for name, values in history.items():
                        for step, value in enumerate(values):
                            mlflow.log_metric(name, value, step=step)

        result = compare(batched, single, options.pairs, names=("tipcast Run", "one call per value"))
        counts = _points(database, experiments)
        per_trial = [1000 * seconds / options.trials for seconds in result.medians]
        start = time.perf_counter()
        client.search_runs(experiments[:1], max_results=1000)
        reading_ms = 1000 * (time.perf_counter() - start)
    if counts[0] != counts[1]:
        raise SystemExit(f"not equal: {counts[0]} rows written in batches, {counts[1]} one by one")
    print(result)
    print(f"per trial {per_trial[0]:.1f} ms against {per_trial[1]:.1f} ms (goal {GOAL_MS:g} ms)")
    if not options.dry:
        facts = {
            "trials": options.trials,
            "params": options.params,
            "metrics": options.metrics,
            "rounds": options.rounds,
        }
        row = {
            **result.record(),
            "per_trial_ms": dict(zip(result.names, per_trial, strict=True)),
            "list_runs_ms": reading_ms,
        }
        print(write_result("tracking", row, goal_ms=GOAL_MS, store="sqlite, WAL", written=counts[0], **facts))


def _points(database: Path, experiments: list[str]) -> list[dict[str, int]]:
    """Return, for each experiment, how many runs, parameters and metric points the store holds; both must hold the same."""
    of_runs = "SELECT run_uuid FROM runs WHERE experiment_id = ? AND status = 'FINISHED'"
    with closing(sqlite3.connect(database)) as connection:
        return [
            {
                table: connection.execute(
                    f"SELECT COUNT(*) FROM {table} WHERE run_uuid IN ({of_runs})", (experiment,)
                ).fetchone()[0]
                for table in ("runs", "params", "metrics")
            }
            for experiment in experiments
        ]


if __name__ == "__main__":
    main()
