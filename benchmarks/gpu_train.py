"""Whole `train` jobs on GPUs, phase by phase, and P4: the job against the bare library calls inside it.

python benchmarks/gpu_train.py [--rows 8000000 80000000] [--gpus 1 2] [--models xgboost random_forest] [--dry]

Each job is a process of its own, so that its peaks are its own; what starts with the process (the cluster's workers and
their libraries, the rehearsal) is the phase `cluster`. The bare calls warm up on a small part before they are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import mlflow

from gpu_rows import attempt, months
from harness import write_result

GOAL = 1.25
APART = ("list", "cluster")
"""Phases that belong to the process's start."""
MEMORY = ("memory/device_peak_bytes", "memory/worker_peak_bytes", "memory/driver_peak_bytes")
OVERRIDES = {"xgboost": ["model.params.n_estimators=100"], "random_forest": []}
COLUMNS = ["tpep_pickup_datetime", "passenger_count", "PULocationID", "DOLocationID", "fare_amount", "tip_amount"]


def job(model: str, train: Path, test: Path, gpus: int, folder: Path, more: list[str]) -> dict[str, Any]:
    """Run `tipcast train` and return its phases, its AUC and its peaks of memory."""
    store = f"sqlite:///{folder / 'mlflow.db'}"
    words = ["backend=gpu", f"cluster.n_workers={gpus}", f"model={model}", *OVERRIDES[model], *more, "data=files"]
    words += [
        f"data.train={train}",
        f"data.test={test}",
        f"tracking.uri={store}",
        "tracking.register=gpu",
        "print=json",
    ]
    start = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "tipcast", "train", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"exit code {ended.returncode}: {ended.stderr[-1500:]}")
    seconds = time.perf_counter() - start
    said = json.loads(ended.stdout.strip().splitlines()[-1])
    run = mlflow.MlflowClient(store).get_run(said["run_id"]).data
    phases = said["phases"]
    return {
        "phases_s": phases,
        "job_s": sum(value for name, value in phases.items() if name not in APART),
        "process_s": seconds,
        "test_auc": said["metrics"]["test/auc"],
        "rows_kept": sum(run.metrics.get(f"{split}/rows", 0) for split in ("train", "validation")),
        "memory": {name.removeprefix("memory/"): run.metrics.get(name) for name in MEMORY},
        "parity": {"max_abs_diff": run.metrics["parity/max_abs_diff"], "ways": run.tags.get("parity.ways")},
        "tags": {name: value for name, value in run.tags.items() if name.startswith(("gpu.", "fit."))},
    }


def bare(model: str, train: Path, test: Path) -> None:
    """Print the seconds of each of the library calls that the job is made of, on one GPU, warmed up."""
    files, tests = (sorted(str(path) for path in folder.glob("*.parquet")) for folder in (train, test))
    _bare(model, files[:1], tests, [0])
    phases, auc = _bare(model, files, tests, None)
    print(json.dumps({"phases_s": phases, "job_s": sum(phases.values()), "test_auc": auc}))


def _bare(model: str, files: list[str], tests: list[str], groups: list[int] | None) -> tuple[dict[str, float], float]:
    import cudf
    import cuml.metrics
    import cupy
    import xgboost
    from cuml.ensemble import RandomForestClassifier

    phases: dict[str, float] = {}

    def prepared(paths: list[str]) -> tuple[Any, Any, Any]:
        selected = None if groups is None else [groups for _ in paths]
        trips = cudf.read_parquet(paths, columns=COLUMNS, row_groups=selected)
        trips = trips[trips.fare_amount > 0]
        pickup = trips.tpep_pickup_datetime
        x = cudf.DataFrame({"weekday": pickup.dt.weekday, "hour": pickup.dt.hour})
        x["week_hour"] = x.weekday * 24 + x.hour
        x["minute"] = pickup.dt.minute
        for name in COLUMNS[1:4]:
            x[name] = trips[name]
        y = (trips.tip_amount / trips.fare_amount > 0.2).astype("int32")
        return x.astype("float32").fillna(-1), y, pickup

    def timed(name: str, start: float) -> float:
        cupy.cuda.Device().synchronize()
        now = time.perf_counter()
        phases[name] = now - start
        return now

    clock = time.perf_counter()
    x, y, pickup = prepared(files)
    cut = pickup.min() + (pickup.max() - pickup.min()) * 0.85
    early = pickup < cut
    held_out, held_out_y, x, y = x[~early], y[~early], x[early], y[early]
    test_x, test_y, _ = prepared(tests)
    clock = timed("read", clock)
    if model == "xgboost":
        params = {"objective": "binary:logistic", "device": "cuda", "max_depth": 6, "learning_rate": 0.1}
        matrix = xgboost.QuantileDMatrix(x, y)
        watched = xgboost.QuantileDMatrix(held_out, held_out_y, ref=matrix)
        booster = xgboost.train(
            params | {"eval_metric": "logloss"},
            matrix,
            100,
            evals=[(watched, "validation")],
            early_stopping_rounds=20,
            verbose_eval=False,
        )
        clock = timed("fit", clock)
        scores = [booster.inplace_predict(rows) for rows in (held_out, test_x)]
    else:
        forest = RandomForestClassifier(n_estimators=100, max_depth=10, random_state=0).fit(x, y)
        clock = timed("fit", clock)
        scores = [forest.predict_proba(rows).to_cupy()[:, 1] for rows in (held_out, test_x)]
    cuml.metrics.roc_auc_score(held_out_y.values, scores[0])
    auc = float(cuml.metrics.roc_auc_score(test_y.values, scores[1]))
    timed("evaluate", clock)
    return phases, auc


def bare_in_a_process(model: str, train: Path, test: Path) -> dict[str, Any]:
    """Run the bare calls apart from everything else, and return what they print."""
    command = [sys.executable, __file__, "--bare", model, str(train), str(test)]
    ended = subprocess.run(
        command, env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"}, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"exit code {ended.returncode}: {ended.stderr[-1500:]}")
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


def over_bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each model and number of rows, the job's median seconds on one GPU over the bare calls'."""
    found = []
    for model, count in sorted({(row["model"], row["rows"]) for row in rows}):
        ours, theirs = (
            [
                row["job_s"]
                for row in rows
                if (row["model"], row["rows"]) == (model, count) and row["what"] == what and "job_s" in row
                if row["gpus"] == 1
            ]
            for what in ("tipcast train", "bare calls")
        )
        if ours and theirs:
            ratio = statistics.median(ours) / statistics.median(theirs)
            found.append({"what": "ratio", "model": model, "rows": count, "gpus": 1, "job_over_bare": ratio})
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[8_000_000, 80_000_000])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", choices=list(OVERRIDES), default=list(OVERRIDES))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keeps the prepared months here")
    parser.add_argument("--more", nargs="*", default=[], help="overrides for every job, as cluster.spill=false")
    parser.add_argument("--dry", action="store_true", help="write no result")
    parser.add_argument("--bare", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        bare(options.bare[0], *map(Path, options.bare[1:]))
        return
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for count in options.rows:
            start = time.perf_counter()
            train, test = months(folder, count)
            print(f"{count} rows on disk after {time.perf_counter() - start:.1f} s", flush=True)
            for model in options.models:
                for turn in range(options.repeat):
                    for gpus in options.gpus:
                        name = {"what": "tipcast train", "model": model, "rows": count, "gpus": gpus, "turn": turn}
                        found.append(attempt(name, partial(job, model, train, test, gpus, Path(scratch), options.more)))
                    name = {"what": "bare calls", "model": model, "rows": count, "gpus": 1, "turn": turn}
                    found.append(attempt(name, partial(bare_in_a_process, model, train, test)))
                if not options.dry:  # after each model, so that a machine taken away leaves what was measured
                    write_result("gpu_train", [*found, *over_bare(found)], goal=GOAL, more=options.more)
    print(json.dumps(over_bare(found), indent=2))


if __name__ == "__main__":
    main()
