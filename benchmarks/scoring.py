"""P12 and P21: how fast a registered model scores, against the bare library on the same rows; and
the whole job.

    PYTHONPATH=src python benchmarks/scoring.py \\
        [--backend cpu|gpu] [--rows 8000000] [--pairs 5] [--out FOLDER]

The model is trained, registered, and fetched as `tipcast score` fetches it. Reading and writing
stand apart: both sides score features in memory by a model that is loaded: tipcast's in parts on
its workers, the bare call's as one array, with all cores in the benchmark's own process or on the
GPU in the worker's. A forest scores a quarter of the rows on processors. The whole `tipcast score`,
a process from its start to its end and the job inside it, is held against by_hand.py. With a GPU
(P22) its phase `score` is held against the same on the machine's cores, and against cuDF's reading
and writing of the same files; of each the second run counts, as a machine's first process has
libraries to load.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tipcast.compute.forkserver import waiting

os.environ.update(waiting())  # as tipcast's entry point does, before libgomp loads

from distributed import wait

import by_hand
from harness import Comparison, compare, inside, options, process, tipcast, write_result
from read_prepare import prepared
from tipcast.compute.base import Session
from tipcast.compute.session import open_session
from tipcast.config.compose import compose, to_object
from tipcast.config.schema import TrackingSpec
from tipcast.datasets.counts import Counts
from tipcast.datasets.listing import ScanRequest
from tipcast.datasets.parts import Part, merged
from tipcast.datasets.rows import Rows, joined_if_few
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.features import compute, needed_columns
from tipcast.datasets.taxi.files import scan_file
from tipcast.models import native
from tipcast.models.fit import predict, send_saved_scorer
from tipcast.tracking.model_fetch import FetchedModel, fetch
from tipcast.tracking.store import open_store

TREES = 100
TRAIN = (
    "data.rows=200000",
    "task.validation=0",
    "tracking.system_metrics=false",
    "cluster.performance_report=false",
)


def on_workers(session: Session, files: list[Path], fetched: FetchedModel) -> list[Any]:
    """Put features on the workers, in the parts that a training has: futures of frames."""
    names = fetched.manifest["features"]
    wanted = ScanRequest(tuple(dict.fromkeys(("pickup", *needed_columns(names)))))
    parts = [each for file in files for each in scan_file(str(file), wanted).parts]
    most = session.frames.batch_rows(len(names))

    def features(part: Part, frames: Any) -> Any:  # nested, so that it travels by value
        matrix = compute(Taxi().read(part, frames), names, frames.xp)
        return frames.frame(matrix, names)

    client = session.client
    x = client.map(features, merged(parts, most), frames=session.frames, pure=False)
    sizes = tuple(client.gather(client.map(len, x, pure=False)))
    rows = joined_if_few(client, Rows(x, [], Counts(sum(sizes), 0, {}), sizes), most)
    wait(rows.x)
    return rows.x


def joined(parts: list[Any]) -> Any:
    """Return parts as one array, where they are."""
    arrays = [part.values for part in parts]
    return sys.modules[type(arrays[0]).__module__.partition(".")[0]].concatenate(arrays)


def bare(path: str, format: str, device: str, rows: Any) -> float:
    """Score by the library's own call, on all cores or the GPU; return the seconds of the call
    alone.
    """
    if format == "xgboost-ubj":
        import xgboost

        booster = xgboost.Booster(model_file=path)
        booster.set_param({"nthread": os.cpu_count(), "device": device})
        call = booster.inplace_predict
    else:
        loaded = native.load(path, format, device, threads=os.cpu_count() or 1)
        call = loaded.score if device == "cuda" else loaded.model.predict_proba
    call(rows[:1000])
    start = time.perf_counter()
    found = call(rows)
    if device == "cuda":
        found.device.synchronize()
    return time.perf_counter() - start


def registered(model: str, backend: str, folder: Path) -> FetchedModel:
    """Train and register a model, and fetch it."""
    words = [*TRAIN, f"backend={backend}", f"model={model}", f"model.params.n_estimators={TREES}"]
    words += ["model.fit.early_stopping_rounds=null"] if model == "xgboost" else []
    tipcast("train", *words, f"tracking.register={model}", folder=folder)
    (folder / model).mkdir()
    return fetch(
        open_store(TrackingSpec(uri=f"sqlite:///{folder}/mlflow.db")),
        f"models:/{model}/1",
        folder / model,
    )


def in_memory(model: str, given: Any, files: list[Path], fetched: FetchedModel) -> Comparison:
    """Compare scoring in parts with the bare call."""
    (composed,) = compose(
        "score", [f"backend={given.backend}", "model_uri=x", "input=x", "output=x"]
    )
    spec = to_object(composed.config)
    with open_session(spec.backend, spec.cluster) as session:
        client, parts = session.client, on_workers(session, files, fetched)
        held = send_saved_scorer(client, fetched.path, fetched.format, session.device)
        by = str(fetched.path), fetched.format, session.device
        # in a process of its own: Dask's workers give OpenMP one thread
        if session.device == "cpu":
            parts = parts[: -(-len(parts) // 4)] if model == "random_forest" else parts
            rows = joined(client.gather(parts))
        else:
            rows = client.submit(joined, parts, pure=False)
            wait(rows)

        def theirs() -> float:
            """Call the library; return what the call did not take."""
            start = time.perf_counter()
            call = (
                client.submit(bare, *by, rows, pure=False).result()
                if by[2] == "cuda"
                else bare(*by, rows)
            )
            return time.perf_counter() - start - call

        names = (f"tipcast, {model}", f"bare library, {model}")
        return compare(lambda: wait(predict(client, held, parts)), theirs, given.pairs, names=names)


def whole(given: Any, trips: Path, fetched: FetchedModel, folder: Path) -> list[Any]:
    """Compare whole processes and the jobs inside them; on a GPU each runs once."""
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []

    def job() -> float:
        """Score; return the seconds that it took to remove old scores."""
        start = time.perf_counter()
        shutil.rmtree(folder / "scored", ignore_errors=True)
        apart = time.perf_counter() - start
        words = (
            f"backend={given.backend}",
            f"model_uri={fetched.uri}",
            f"input={trips}",
            f"output={folder}/scored",
        )
        ours.append(tipcast("score", *words, folder=folder))
        return apart

    def reference() -> float:
        start = time.perf_counter()
        shutil.rmtree(folder / "hand", ignore_errors=True)
        apart = time.perf_counter() - start
        library, more = ("pandas", []) if given.backend == "cpu" else ("cudf", ["--warm"])
        words = [
            str(fetched.path),
            str(trips),
            f"{folder}/hand",
            str(fetched.manifest["threshold"]),
        ]
        version = [fetched.name or "", fetched.version or ""]
        theirs.append(process(by_hand.__file__, "score", library, *words, *version, *more))
        return apart

    if given.backend == "gpu":
        job()
        reference()
        return [{"what": "tipcast score", **ours[0], "by_hand": theirs[0]}]
    found = compare(
        job, reference, given.pairs, names=("tipcast score, process", "by hand, process")
    )
    works = [[each["job_s"] for each in runs] for runs in (ours, theirs)]
    return [found, inside(found, *works, names=("tipcast score, job", "by hand, job"))]


def phases(trips: Path, fetched: FetchedModel, folder: Path) -> dict[str, Any]:
    """Return the seconds of `tipcast score` on the GPU and on the cores, and of cuDF's reading and
    writing.
    """
    found: dict[str, Any] = {"what": "phase score", "files": len(list(trips.glob("*.parquet")))}
    for backend in ("gpu", "cpu"):
        for again in range(2):
            out = folder / f"{trips.name}-{backend}-{again}"
            words = (
                f"backend={backend}",
                f"model_uri={fetched.uri}",
                f"input={trips}",
                f"output={out}",
            )
            said = tipcast("score", *words, folder=folder)
            shutil.rmtree(out)
        found[backend] = {"phases_s": said["phases"], "process_s": said["process_s"]}

    words = "-", str(trips), f"{folder}/{trips.name}-copied"
    return {
        **found,
        "copied_s": process(by_hand.__file__, "copy", "cudf", *words, "--warm")["job_s"],
    }


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, backend="cpu", rows=8_000_000, pairs=5)
    name = "gpu_scoring" if given.backend == "gpu" else "scoring"
    results: list[Any] = []

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        period = "2018-04..2019-03" if given.backend == "gpu" else "2019-04..2019-06"
        files = prepared(folder / "trips", given.rows, months=period)
        for model in ("random_forest", "xgboost"):
            fetched = registered(model, given.backend, folder)
            results.append(in_memory(model, given, files, fetched))
            print(results[-1], flush=True)
            write_result(name, results, **vars(given), trees=TREES)

        results += whole(given, folder / "trips", fetched, folder)
        if given.backend == "gpu":
            prepared(folder / "month", given.rows, months="2019-04..2019-04")
            for trips in (folder / "trips", folder / "month"):
                results.append(phases(trips, fetched, folder))
                write_result(name, results, **vars(given), trees=TREES)

    print(*results[2:], write_result(name, results, **vars(given), trees=TREES), sep="\n")


if __name__ == "__main__":
    main()
