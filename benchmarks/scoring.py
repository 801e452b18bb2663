"""P12: how fast a registered model scores, against the bare library on the same rows; and the whole job beside it.

python benchmarks/scoring.py [--backend cpu|gpu] [--rows 8000000] [--rounds 100] [--trees 100] [--pairs 5] [--dry]

The model is trained, registered, and fetched as `tipcast score` fetches it. Reading and writing stand apart: both
sides score features that are in memory: tipcast's in parts on its workers, the bare call's as one array, with all
cores in the benchmark's own process or on the GPU in the worker's. For a forest every way that is installed is timed;
the bare call is scikit-learn's own (nvForest's on a GPU). The whole job is timed too, beside pandas, `inplace_predict`
and `to_parquet` in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tipcast.backends.waiting import waiting

os.environ.update(waiting())  # as tipcast's entry point does, before libgomp loads

import numpy as np
import pandas as pd
from distributed import wait

from harness import compare, peak_bytes, write_result
from read_prepare import prepared
from tipcast.backends.base import Session
from tipcast.backends.cpu import CpuFrames
from tipcast.backends.host import to_host
from tipcast.backends.session import session
from tipcast.config.compose import compose, to_object
from tipcast.config.schema import TrackingSpec
from tipcast.data.features import compute, needed_columns
from tipcast.data.fragments import Fragment, merged
from tipcast.data.kept import read_kept
from tipcast.data.read import read_fragment
from tipcast.data.sources.files import find
from tipcast.data.sources.found import Wanted
from tipcast.estimators import native
from tipcast.estimators.predict import predict
from tipcast.jobs import score, train
from tipcast.jobs.score_run import ON_GPU, scorer
from tipcast.tracking.models import Fetched, fetch
from tipcast.tracking.store import open_store

GOAL = 1 / 0.9
"""Time of scoring over the bare library's: 0.9 of its rows a second."""
WAY_ROWS = 1_000_000
"""Rows that each way to score a forest is timed on."""
TRAIN = ("data.rows=200000", "tracking.system_metrics=false", "cluster.performance_report=false", "print=json")


def run(job: Any, name: str, *words: str) -> dict[str, Any]:
    """Run a job in this process and return what it says."""
    (composed,) = compose(name, list(words))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        job(to_object(composed.config), "benchmark")
    found: dict[str, Any] = json.loads(said.getvalue().splitlines()[-1])
    return found


def on_workers(workers: Session, files: list[Path], fetched: Fetched) -> list[Any]:
    """Put features on the workers, in the parts that a scoring has: futures of frames."""
    names = fetched.manifest["features"]
    wanted = Wanted(tuple(dict.fromkeys(("pickup", *needed_columns(names)))))
    fragments = [each for file in files for each in find(str(file), wanted).fragments]

    def features(fragment: Fragment, frames: Any) -> Any:  # nested, so that it travels by value
        matrix = compute(read_fragment(fragment, frames), names, frames.xp)
        return frames.frame(matrix, names)

    parts = workers.client.map(
        features, merged(fragments, workers.frames.batch_rows), frames=workers.frames, pure=False
    )
    workers.client.gather(workers.client.map(len, parts, pure=False))
    return list(parts)


def joined(parts: list[Any]) -> Any:
    """Return parts as one array, where they are."""
    arrays = [part.values for part in parts]
    return sys.modules[type(arrays[0]).__module__.partition(".")[0]].concatenate(arrays)


def bare(path: str, format: str, device: str, rows: Any) -> float:
    """Score by the library's own call, on all cores or the GPU; return the seconds of the call alone."""
    if format == "xgboost-ubj":
        import xgboost

        booster = xgboost.Booster(model_file=path)
        booster.set_param({"nthread": os.cpu_count(), "device": device})
        call = booster.inplace_predict
    else:
        through = ON_GPU[format] if device == "cuda" else None
        loaded = native.load(path, format, device, threads=os.cpu_count() or 1, through=through)
        call = loaded.score if device == "cuda" else loaded.forest.predict_proba
    call(rows[:1000])
    start = time.perf_counter()
    found = call(rows)
    if device == "cuda":
        found.device.synchronize()
    return time.perf_counter() - start


def scored(workers: Session, fetched: Fetched, parts: list[Any]) -> None:
    """Score all parts as a scoring does; the scores stay where they are."""
    futures = predict(workers.client, scorer(fetched, workers.device), parts)
    workers.client.gather(workers.client.map(len, futures, pure=False))


def ways(fetched: Fetched, rows: Any) -> dict[str, float]:
    """Return rows a second of every way to score the model here, on one thread of a processor or on the GPU."""
    found = {}
    for way in native.available(fetched.format):
        loaded = native.load(fetched.path, fetched.format, through=way)
        loaded.score(rows[:1000])
        start = time.perf_counter()
        loaded.score(rows)
        found[way] = len(rows) / (time.perf_counter() - start)
    return found


def by_hand(files: list[Path], fetched: Fetched, out: Path) -> None:
    """Do with pandas and XGBoost alone what the job does, file by file."""
    import xgboost

    out.mkdir(exist_ok=True)
    names, booster = fetched.manifest["features"], xgboost.Booster(model_file=str(fetched.path))
    for file in files:
        trips = pd.read_parquet(file)
        pickup = trips["tpep_pickup_datetime"].to_numpy().astype("datetime64[us]").view(np.int64)
        columns = {name: pickup if name == "pickup" else trips[name].to_numpy() for name in needed_columns(names)}
        trips["probability"] = booster.inplace_predict(compute(columns, names)).astype(np.float64)
        trips["prediction"] = (trips["probability"] >= fetched.manifest["threshold"]).astype(np.int8)
        trips["model_name"], trips["model_version"] = fetched.name, fetched.version
        trips.to_parquet(out / file.name, compression="zstd", index=False)


def phases_apart(files: list[Path], fetched: Fetched, frames: Any) -> dict[str, float]:
    """Return seconds of one thread for reading features, reading what is kept, and scoring, over all files."""
    names = fetched.manifest["features"]
    wanted = Wanted(tuple(dict.fromkeys(("pickup", *needed_columns(names)))))
    loaded, found = native.load(fetched.path, fetched.format), dict.fromkeys(("features", "kept", "score"), 0.0)
    for fragment in (each for file in files for each in find(str(file), wanted).fragments):
        clock = time.perf_counter()
        matrix = compute(read_fragment(fragment, frames), names, frames.xp)
        now = time.perf_counter()
        found["features"] += now - clock
        read_kept(fragment, None)
        clock = time.perf_counter()
        found["kept"] += clock - now
        loaded.score(matrix)
        found["score"] += time.perf_counter() - clock
    return found


def registered(model: str, options: argparse.Namespace, folder: Path) -> Fetched:
    """Train and register a model, and fetch it."""
    trees = {"xgboost": options.rounds, "random_forest": options.trees}[model]
    words = [*TRAIN, f"backend={options.backend}", f"model={model}", f"model.params.n_estimators={trees}"]
    words += ["task.validation=0"] + (["model.fit.early_stopping_rounds=null"] if model == "xgboost" else [])
    run(train.run, "train", *words, f"tracking.register={model}")
    (folder / model).mkdir()
    return fetch(open_store(TrackingSpec()), f"models:/{model}/1", folder / model)


def in_memory(model: str, options: argparse.Namespace, files: list[Path], fetched: Fetched) -> list[Any]:
    """Compare scoring in parts with the bare call; for a forest time every way as well."""
    (composed,) = compose("score", [f"backend={options.backend}", "model_uri=x", "input=x", "output=x"])
    spec = to_object(composed.config)
    with session(spec.backend, spec.cluster) as workers:
        client, parts = workers.client, on_workers(workers, files, fetched)
        by = str(fetched.path), fetched.format, workers.device
        if workers.device == "cpu":  # in a process of its own: Dask's workers give OpenMP one thread
            rows = joined(client.gather(parts))
        else:
            rows = client.submit(joined, parts, pure=False)
            wait(rows)

        def theirs() -> float:
            """Call the library; return what the call did not take."""
            start = time.perf_counter()
            call = client.submit(bare, *by, rows, pure=False).result() if by[2] == "cuda" else bare(*by, rows)
            return time.perf_counter() - start - call

        names = (f"tipcast, {model}", f"bare library, {model}")
        result = compare(lambda: scored(workers, fetched, parts), theirs, options.pairs, names=names)
        print(result, f"{options.rows / result.medians[0]:,.0f} rows/s")
        found: list[Any] = [result]
        if model == "random_forest":
            some = to_host(parts[0].result()).to_numpy()[:WAY_ROWS]
            pace = ways(fetched, some)
            print({way: f"{each:,.0f} rows/s" for way, each in pace.items()})
            found.append({"what": "ways to score a forest", "rows": len(some), "rows_per_s": pace})
    return found


def whole_job(options: argparse.Namespace, files: list[Path], fetched: Fetched, folder: Path) -> list[Any]:
    """Compare the whole job with pandas and XGBoost alone; on a GPU the job alone is timed, twice."""
    phases: list[dict[str, float]] = []
    out = folder / "scored"

    def job() -> float:
        shutil.rmtree(out, ignore_errors=True)
        words = [f"backend={options.backend}", f"model_uri={fetched.uri}", f"input={files[0].parent}", f"output={out}"]
        said = run(score.run, "score", *words, "tracking.system_metrics=false", "print=json")
        phases.append(said["phases"])
        return float(said["phases"]["cluster"])

    if options.backend == "gpu":
        job()
        job()
        return [{"what": "tipcast score", "phases_s": phases[-1]}]
    _, peak = peak_bytes(job)
    names = ("tipcast score", "pandas + inplace_predict")
    result = compare(job, lambda: by_hand(files, fetched, folder / "hand"), options.pairs, names=names)
    print(result, "peak GB", peak / 1e9)
    apart = phases_apart(files, fetched, CpuFrames())
    median = {name: statistics.median(of.get(name, 0.0) for of in phases) for name in phases[0]}
    return [result, {"what": "tipcast score", "phases_s": median, "peak_bytes": peak, "one_thread_s": apart}]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="write no result")
    options = parser.parse_args()
    results: list[Any] = []
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # MLflow's artifacts go to ./mlruns
        folder = Path(scratch)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
        files = prepared(folder / "trips", options.rows, months="2019-04..2019-06")
        (folder / "trips" / "manifest.json").unlink()
        for model in ("random_forest", "xgboost"):
            fetched = registered(model, options, folder)
            results += in_memory(model, options, files, fetched)
        results += whole_job(options, files, fetched, folder)
    if not options.dry:
        name = "gpu_scoring" if options.backend == "gpu" else "scoring"
        facts = {"rows": options.rows, "rounds": options.rounds, "trees": options.trees}
        print(write_result(name, results, goal=GOAL, **facts))


if __name__ == "__main__":
    main()
