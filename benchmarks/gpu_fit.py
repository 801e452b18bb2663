"""P3 and P3b: tipcast's distributed fit against the bare library on the same rows in device memory, and on more GPUs.

python benchmarks/gpu_fit.py [--rows 80000000] [--gpus 1 2] [--models xgboost random_forest] [--pairs 5] [--dry]

The bare calls run as one task in the same worker process, on all rows joined into one array beforehand: XGBoost's
QuantileDMatrix and train, cuML's fit. Pairs are on one GPU; on more, tipcast's fit alone is timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from gpu_rows import attempt, in_memory, months
from harness import compare, write_result
from tipcast.backends import forest
from tipcast.backends.session import session
from tipcast.config.location import conf_dir
from tipcast.config.schema import BackendSpec, LocalCudaCluster, ModelSpec
from tipcast.estimators.build import build
from tipcast.estimators.cuml_parameters import settings
from tipcast.estimators.xgboost_plan import plan

GOAL = 1.05
TRIES = 2
"""At most this many times the wanted pairs: what processors do hardly disturbs a GPU."""
PARAMS = {
    "xgboost": {"n_estimators": 100, "max_depth": 8},
    "random_forest": {"n_estimators": 20, "max_depth": 10},
}


def shipped(model: str) -> ModelSpec:
    """Return a model as it is shipped, with the benchmark's parameters."""
    spec = yaml.safe_load((conf_dir() / "model" / f"{model}.yaml").read_text())
    spec.pop("defaults")
    spec["params"] |= PARAMS[model]
    spec["fit"] = {name: None for name in spec["fit"]}
    return ModelSpec(**spec)


def bare_xgboost(rows: tuple[Any, Any], params: Mapping[str, Any], rounds: int, max_bin: int) -> float:
    """Train on rows in device memory; return the seconds inside the task."""
    import xgboost

    start = time.perf_counter()
    matrix = xgboost.QuantileDMatrix(rows[0], label=rows[1], max_bin=max_bin)
    xgboost.train({**params, "seed": 0}, matrix, rounds, verbose_eval=False)
    return time.perf_counter() - start


def bare_forest(rows: tuple[Any, Any], params: Mapping[str, Any]) -> float:
    """Grow a forest from rows in device memory; return the seconds inside the task."""
    from cuml.ensemble import RandomForestClassifier

    start = time.perf_counter()
    RandomForestClassifier(**params, random_state=0).fit(*rows)
    return time.perf_counter() - start


def bare_task(model: ModelSpec) -> tuple[Callable[..., float], list[Any]]:
    """Return the bare calls of a model and their arguments after the rows."""
    if model.name == "xgboost":
        planned = plan(model.params, model.fit, "cuda")
        return bare_xgboost, [dict(planned.params), planned.rounds, planned.max_bin]
    return bare_forest, [settings(model.params, model.fit)]


def measured(train: Path, gpus: int, name: str, pairs: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Time one model on so many GPUs."""
    model = shipped(name)
    with session(BackendSpec("gpu"), LocalCudaCluster("local_cuda", n_workers=gpus, **more)) as workers:
        client = workers.client
        start = time.perf_counter()
        data = in_memory(workers, train)
        read_s = time.perf_counter() - start
        estimator = build(model, workers.device, "distributed")
        seconds: list[float] = []
        aucs: dict[str, Any] = {}

        def ours() -> None:
            start = time.perf_counter()
            fitted = estimator.fit(client, data.x, data.y, None, seed=0)
            seconds.append(time.perf_counter() - start)
            aucs["info"] = dict(fitted.info)

        facts = {"rows_kept": data.counts.rows, "parts": len(data.parts), "read_s": read_s}
        if gpus > 1:
            for _ in range(pairs + 1):
                ours()
            return facts | {"fit_s": seconds, "median_s": statistics.median(seconds[1:]), **aucs}
        joined = client.submit(forest._joined, data.x, data.y, pure=False)
        task, arguments = bare_task(model)
        inside: list[float] = []
        result = compare(
            ours,
            lambda: inside.append(client.submit(task, joined, *arguments, pure=False).result()),
            pairs,
            names=("tipcast fit", "bare library"),
            tries=TRIES,
        )
        print(result, flush=True)
        return facts | result.record() | {"fit_s": seconds, "bare_inside_s": inside, **aucs}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[80_000_000])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", choices=list(PARAMS), default=list(PARAMS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keeps the prepared months here")
    parser.add_argument("--no-spill", action="store_true", help="without cuDF's spilling")
    parser.add_argument("--dry", action="store_true", help="write no result")
    options = parser.parse_args()
    more = {"rmm_pool_size": 0.2, "spill": not options.no_spill}
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for count in options.rows:
            train, _ = months(folder, count)
            for model in options.models:
                for gpus in options.gpus:
                    name = {"model": model, "rows": count, "gpus": gpus, "params": PARAMS[model]}
                    found.append(attempt(name, partial(measured, train, gpus, model, options.pairs, more)))
                    if not options.dry:
                        write_result("gpu_fit", found, goal=GOAL, cluster=more)


if __name__ == "__main__":
    main()
