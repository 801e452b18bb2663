"""P3: tipcast's fit of rows in device memory, as `tipcast train` calls it; gpu.py runs it.

On a machine with one GPU it takes turns with the bare calls, one task in the same worker process on
all rows joined into one array beforehand: XGBoost's QuantileDMatrix and train, cuML's fit. Where
there are more, tipcast's fit is timed on one and on all, where XGBoost's takes turns with
`xgboost.dask`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import yaml
from xgboost import dask as dxgb

from gpu_rows import attempt, in_memory, months, opened
from harness import compare, options, write_result
from tipcast.config.conf_files import conf_dir
from tipcast.config.schema import ModelSpec
from tipcast.datasets.taxi.features import BASE_FEATURES
from tipcast.models.base import stacked
from tipcast.models.build import build
from tipcast.models.cuml_forest import CumlForest
from tipcast.models.fit import fit
from tipcast.models.xgboost import XGBoost

TRIES = 2
"""At most this many times the wanted pairs: what processors do hardly disturbs a GPU."""
PARAMS = {
    "xgboost": {"n_estimators": 100, "max_depth": 8},
    "random_forest": {"n_estimators": 10, "max_depth": 10},
}
ALONE = 3
"""Fits that are timed where nothing is compared."""


def shipped(model: str) -> ModelSpec:
    """Return a model as it is shipped, with the benchmark's parameters."""
    spec = yaml.safe_load((conf_dir() / "model" / f"{model}.yaml").read_text(encoding="utf-8"))
    spec.pop("defaults")
    spec["params"] |= PARAMS[model]
    spec["fit"] = {name: None for name in spec["fit"]}
    return ModelSpec(**spec)


def bare_xgboost(
    joined: tuple[Any, Any], params: Mapping[str, Any], rounds: int, max_bin: int
) -> None:
    """Train on rows in device memory."""
    import xgboost

    matrix = xgboost.QuantileDMatrix(joined[0], label=joined[1], max_bin=max_bin)
    xgboost.train({**params, "seed": 0}, matrix, rounds, verbose_eval=False)


def bare_forest(joined: tuple[Any, Any], params: Mapping[str, Any]) -> None:
    """Grow a forest from rows in device memory."""
    from cuml.ensemble import RandomForestClassifier

    RandomForestClassifier(**params, random_state=0).fit(*joined)


def bare(client: Any, data: Any, model: ModelSpec, device: str) -> Callable[[], object]:
    """Return the bare calls of a model, as a task."""
    joined = client.submit(stacked, data.x, data.y, pure=False)
    if model.name == "random_forest":
        settings = CumlForest(model.params, model.fit, "cuda").settings
        return lambda: client.submit(bare_forest, joined, settings, pure=False).result()
    estimator = XGBoost(model.params, model.fit, device)
    training = estimator.to_xgboost()
    params = dict(training.params)
    rounds = training.rounds
    return lambda: client.submit(
        bare_xgboost, joined, params, rounds, estimator.bins, pure=False
    ).result()


def by_dask(client: Any, data: Any, model: ModelSpec, device: str) -> None:
    """Train through xgboost.dask."""
    estimator = XGBoost(model.params, model.fit, device)
    training = estimator.to_xgboost()
    params = dict(training.params)
    rounds = training.rounds
    like = (
        pd.DataFrame({name: np.empty(0, np.float32) for name in BASE_FEATURES}),
        pd.Series(np.empty(0, np.int32)),
    )

    with client.as_current():
        both = [
            dd.from_delayed(list(parts), meta=meta, verify_meta=False)
            for parts, meta in zip((data.x, data.y), like, strict=True)
        ]
        matrix = dxgb.DaskQuantileDMatrix(client, *both, max_bin=estimator.bins)
        dxgb.train(client, {**params, "seed": 0}, matrix, rounds, verbose_eval=False)


def measured(session: Any, data: Any, name: str, gpus: int, of: int, pairs: int) -> dict[str, Any]:
    """Time a model on so many of a machine's GPUs."""
    model = shipped(name)
    client = session.client
    device = session.device
    ours = partial(fit, client, build(model, device), data, None, seed=0)

    if of == 1:
        other = "bare library"
        reference = bare(client, data, model, device)
    elif gpus > 1 and name == "xgboost":
        other = "xgboost.dask"
        reference = partial(by_dask, client, data, model, device)
    else:
        seconds = []
        for _ in range(ALONE + 1):
            start = time.perf_counter()
            ours()
            seconds.append(time.perf_counter() - start)
        return {"fit_s": seconds, "median_s": statistics.median(seconds[1:])}
    result = compare(ours, reference, pairs, names=("tipcast fit", other), tries=TRIES)
    print(result, flush=True)
    return {**result.record(), "median_s": result.medians[0]}


def main() -> None:
    """Run the benchmark."""
    given = options(
        __doc__, device="gpu", gpus=1, rows=80_000_000, pairs=5, models=list(PARAMS), folder=""
    )
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        train, _ = months(Path(given.folder or scratch), given.rows)
        for gpus in sorted({1, given.gpus}):
            with opened(given.device, gpus) as session:
                data = in_memory(session, train)
                for model in given.models:
                    name = {
                        "model": model,
                        "rows": given.rows,
                        "gpus": gpus,
                        "params": PARAMS[model],
                    }
                    words = session, data, model, gpus, given.gpus, given.pairs
                    found.append(attempt(name, partial(measured, *words)))
                    write_result(f"gpu_fit_{given.gpus}", found, **vars(given))


if __name__ == "__main__":
    main()
