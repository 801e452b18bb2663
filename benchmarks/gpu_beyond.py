"""P26: XGBoost on more rows than a GPU's memory holds, beside rows that it holds.

    PYTHONPATH=src python benchmarks/gpu_beyond.py --out FOLDER
    # tries it on few rows, without a GPU
    PYTHONPATH=src python benchmarks/gpu_beyond.py --device cpu --free-gib 2 --rounds 2 --out FOLDER

The table has 512 float32 columns. Another process holds all of the GPU's memory but ``--free-gib``;
the sizes of the rows are shares of these. A size's files are hard links to one. Each case is a
`tipcast train` process of its own. What is compared is the phase `fit`, binning and all rounds, for
each million rows and round. A case that ends in an error keeps its last line.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpu_rows import attempt
from harness import options, tipcast, write_result

COLUMNS = 512
FILE_ROWS = 250_000
"""Rows of a file, which has one row group: half a GB of float32."""
SIZES = {"fits": 0.4, "beyond": 1.6}
"""Bytes of all float32 features, as shares of the free memory: 1.6 are 128 GB on 80 GB."""
GIB = 1 << 30
VALUE_BYTES = 4
HOLDER = """
import sys, cupy
free, total = cupy.cuda.runtime.memGetInfo()
held = cupy.cuda.runtime.malloc(free - int(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def table(folder: Path, name: str, rows: int) -> Path:
    """Return a folder of so many files of a table, all of them links to one."""
    first = folder / "first.parquet"
    if not first.exists():
        draw = np.random.default_rng(7)
        x = draw.standard_normal((COLUMNS, FILE_ROWS), dtype=np.float32)
        y = x[0] + x[1] * x[2] + draw.standard_normal(FILE_ROWS, dtype=np.float32) > 0
        columns = {f"x{at}": x[at] for at in range(COLUMNS)} | {"y": y.astype(np.int32)}
        pq.write_table(pa.table(columns), first, row_group_size=FILE_ROWS, use_dictionary=False)

    out = folder / name
    out.mkdir()
    for copy in range(rows // FILE_ROWS):
        os.link(first, out / f"{copy:04}.parquet")
    return out


@contextlib.contextmanager
def held(free_bytes: int) -> Iterator[None]:
    """Hold the GPU's memory but for so many bytes while the block runs."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(free_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
    finally:
        holder.kill()
        holder.wait()


def train(given: Any, train: Path, test: Path, folder: Path) -> dict[str, Any]:
    """Run `tipcast train`; return its phases and peaks of memory."""
    words = [f"backend={given.device}", "data=table", f"data.train={train}", f"data.test={test}"]
    words += ["task.target=y", "task.validation=0", f"model.params.n_estimators={given.rounds}"]
    words += ["model.fit.early_stopping_rounds=null"]
    if given.device == "gpu":
        words += ["cluster.n_workers=1", "cluster.rmm_pool_size=1GiB"]

    said = tipcast("train", *words, folder=folder)
    run = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db").get_run(said["run_id"]).data
    rows = run.metrics["train/rows"]
    return {
        "train_rows": rows,
        "phases_s": said["phases"],
        "process_s": said["process_s"],
        "test_auc": said["metrics"]["test/auc"],
        "fit_s_each_million_rows_and_round": said["phases"]["fit"] / (rows / 1e6 * given.rounds),
        "memory": {
            name.removeprefix("memory/"): value
            for name, value in run.metrics.items()
            if name.startswith("memory/")
        },
    }


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, device="gpu", free_gib=24.0, rounds=100, sizes=list(SIZES))
    free_bytes = int(given.free_gib * GIB)
    found: list[dict[str, Any]] = []

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        test = table(folder, "test", FILE_ROWS)
        with held(free_bytes) if given.device == "gpu" else contextlib.nullcontext():
            for name in given.sizes:
                rows = int(SIZES[name] * free_bytes / COLUMNS / VALUE_BYTES)
                files = table(folder, name, rows)
                case = {"rows": name, "bytes": rows * COLUMNS * VALUE_BYTES}
                found.append(attempt(case, partial(train, given, files, test, folder)))
                write_result("gpu_beyond", found, **vars(given))


if __name__ == "__main__":
    main()
