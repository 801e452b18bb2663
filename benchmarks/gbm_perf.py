"""GBM-perf's shape: 100 trees of depth 10 on rows like its airline data, `tipcast train` against
bare `xgboost.train`.

    PYTHONPATH=src python benchmarks/gbm_perf.py \\
        [--device gpu] [--rows 100000 1000000] [--pairs 5] [--out FOLDER]
    PYTHONPATH=src python benchmarks/gbm_perf.py bare cpu|gpu TRAIN TEST

szilard/GBM-perf has the times and AUCs of many machines on flights that are not to be had here:
these rows are made, so its AUCs are no measure for them. Both sides read the same Parquet files and
know the same columns as categories; the second line is the reference, a process of its own.
Compared are the fit, as GBM-perf has it (binning and rounds), and the job: read, fit, evaluate (and
log).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TARGET = "dep_delayed_15min"
CATEGORIES = ("Month", "DayofMonth", "DayOfWeek", "UniqueCarrier", "Origin", "Dest")
NUMBERS = ("DepTime", "Distance")
CARRIERS = 22
AIRPORTS = 300
ROUNDS = 100
TEST_ROWS = 100_000
PARAMS = {"max_depth": 10, "learning_rate": 0.1, "max_bin": 256, "tree_method": "hist"}
WORDS = [
    "data=table",
    f"task.target={TARGET}",
    f"task.categorical=[{','.join(CATEGORIES)}]",
    "task.validation=0",
    "model=xgboost",
    f"model.params.n_estimators={ROUNDS}",
    "model.fit.early_stopping_rounds=null",
    *(f"model.params.{name}={value}" for name, value in PARAMS.items()),
]


def flights(rows: int, seed: int) -> pa.Table:
    """Make flights; late are those of the evening, the winter, some carriers and some airports more
    often.
    """
    # the second: effects, the same in all files
    draw = np.random.default_rng(seed)
    airline = np.random.default_rng(0)
    busy = airline.dirichlet(np.full(AIRPORTS, 0.3))
    effects = {
        name: airline.normal(0, spread, size)
        for name, (size, spread) in {
            "Month": (12, 0.25),
            "DayofMonth": (31, 0.1),
            "DayOfWeek": (7, 0.15),
            "UniqueCarrier": (CARRIERS, 0.4),
            "Origin": (AIRPORTS, 0.5),
            "Dest": (AIRPORTS, 0.3),
        }.items()
    }
    codes = {name: draw.integers(0, len(effect), rows) for name, effect in effects.items()}
    codes |= {name: draw.choice(AIRPORTS, rows, p=busy) for name in ("Origin", "Dest")}
    minutes = np.clip(draw.normal(13.5 * 60, 4.5 * 60, rows), 0, 1439).astype(np.int64)
    distance = np.exp(draw.normal(6.4, 0.65, rows)).astype(np.int64)
    margin = (
        -1.9 + sum(effects[name][code] for name, code in codes.items()) + 0.13 * (minutes / 60 - 13)
    )
    margin += 0.3 * np.sin(codes["Origin"] * 7 + codes["UniqueCarrier"]) - 0.1 * np.log(
        distance / 600
    )
    late = draw.random(rows) < 1 / (1 + np.exp(-margin))
    texts = {
        name: np.array([f"{name[:2]}-{at + 1}" for at in range(len(effects[name]))])
        for name in CATEGORIES
    }
    columns = {name: pa.array(texts[name][codes[name]]).dictionary_encode() for name in CATEGORIES}
    columns |= {
        "DepTime": pa.array(minutes // 60 * 100 + minutes % 60),
        "Distance": pa.array(distance),
    }

    return pa.table({**columns, TARGET: pa.array(np.where(late, "Y", "N"))})


def bare(device: str, train: str, test: str) -> dict[str, Any]:
    """Read, bin, train, predict and measure as a careful user of XGBoost writes it."""
    import pandas as pd
    import xgboost
    from sklearn.metrics import roc_auc_score

    def read(path: str) -> tuple[Any, Any]:
        rows = pd.read_parquet(path)
        return rows.drop(columns=TARGET), (rows[TARGET] == "Y").to_numpy(dtype=np.float32)

    start = time.perf_counter()
    x, y = read(train)
    for name in CATEGORIES:
        x[name] = x[name].astype(pd.CategoricalDtype(sorted(x[name].unique())))
    begun = time.perf_counter()
    params = {
        **PARAMS,
        "objective": "binary:logistic",
        "device": {"cpu": "cpu", "gpu": "cuda"}[device],
        "seed": 0,
    }
    matrix = xgboost.QuantileDMatrix(x, y, enable_categorical=True)
    booster = xgboost.train(params, matrix, ROUNDS, verbose_eval=False)
    fitted = time.perf_counter()
    x_test, y_test = read(test)
    for name in CATEGORIES:
        x_test[name] = x_test[name].astype(x[name].dtype)
    auc = roc_auc_score(y_test, booster.inplace_predict(x_test))
    return {"auc": float(auc), "fit_s": fitted - begun, "job_s": time.perf_counter() - start}


def measured(device: str, rows: int, pairs: int) -> list[dict[str, Any]]:
    """Return fit and job of both sides on so many rows, with their AUCs."""
    from harness import compare, inside, process, tipcast

    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = [str(folder / f"{side}.parquet") for side in ("train", "test")]
        for seed, (path, number) in enumerate(zip(files, (rows, TEST_ROWS), strict=True), 1):
            pq.write_table(flights(number, seed), path, row_group_size=max(number // 4, 1))

        def job() -> None:
            named = [
                f"data.train={files[0]}",
                f"data.test={files[1]}",
                f"backend={device}",
                "cluster.n_workers=1",
            ]
            ours.append(tipcast("train", *WORDS, *named, folder=folder))

        def reference() -> None:
            theirs.append(process(__file__, "bare", device, *files))

        whole = compare(job, reference, pairs, names=("tipcast", "bare XGBoost"), warmups=1)
    clocks = {
        "fit": ([each["phases"]["fit"] for each in ours], [each["fit_s"] for each in theirs]),
        "job": ([each["job_s"] for each in ours], [each["job_s"] for each in theirs]),
    }
    aucs = {
        f"test/{key}": ours[-1]["metrics"].get(f"test/{key}")
        for key in ("auc", "auc_low", "auc_high")
    }
    told = {"rows": rows, **aucs, "bare_auc": theirs[-1]["auc"]}
    found = [
        (clock, inside(whole, *seconds, names=whole.names)) for clock, seconds in clocks.items()
    ]
    for clock, each in found:
        print(
            f"{rows:,} rows, {clock}: {each}; AUC {told['test/auc']:.6f}, {told['bare_auc']:.6f}",
            flush=True,
        )
    return [{**told, "clock": clock, **each.record()} for clock, each in found]


def main() -> None:
    """Run the benchmark, or the reference."""
    if sys.argv[1:2] == ["bare"]:
        print(json.dumps(bare(*sys.argv[2:])))
        return
    from harness import options, write_result

    given = options(__doc__, device="cpu", rows=[100_000, 1_000_000], pairs=5)
    rows = [row for number in given.rows for row in measured(given.device, number, given.pairs)]
    print(write_result(f"gbm_perf_{given.device}", rows, **vars(given)))


if __name__ == "__main__":
    main()
