"""Compare reading and preparing months on the workers with pandas reading, and pyarrow decoding,
the same six columns.

    PYTHONPATH=src python benchmarks/read_prepare.py [--rows 8000000] [--pairs 5] [--out FOLDER]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from by_hand import COLUMNS
from harness import compare, options, peak_bytes, write_result
from tipcast.compute.base import Session
from tipcast.compute.session import open_session
from tipcast.config import data_schema, schema
from tipcast.config.compose import compose, to_object
from tipcast.datasets import rows
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.tasks.base import Task
from tipcast.tasks.make import make_task


def prepared(folder: Path, count: int, months: str = "2019-01..2019-03") -> list[Path]:
    """Return the months of a period of so many synthetic trips, made once."""
    command = ["prepare", f"data.months={months}", f"data.rows={count}", f"out={folder}"]
    subprocess.run(
        [sys.executable, "-m", "tipcast", *command], check=True, stdout=subprocess.DEVNULL
    )
    return sorted(folder.glob("*.parquet"))


def ours(session: Session, folder: Path, task: Task) -> int:
    """Read and prepare all rows, as `tipcast train` does; they stay on the workers until the next
    run.
    """
    recipe = Recipe(Taxi(), task)
    data = data_schema.FilesData(source="files", train=str(folder), block_bytes=1 << 25)
    listing = Taxi(data).scan("train", recipe.columns)
    (loaded,), _ = rows.collect(session, listing, recipe, rows.start(session, listing, recipe))
    return loaded.counts.rows


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, rows=8_000_000, pairs=5)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = prepared(folder, given.rows)
        task = make_task(to_object(compose("train", [])[0].config).task, Taxi())
        with open_session(schema.BackendSpec("cpu"), schema.LocalCluster(kind="local")) as session:
            # the first run: loads libraries too
            before, peak = peak_bytes(lambda: ours(session, folder, task))
            results = [
                compare(
                    lambda: ours(session, folder, task),
                    lambda: [pd.read_parquet(file, columns=COLUMNS) for file in files],
                    given.pairs,
                    names=("tipcast read + prepare", "pandas.read_parquet, six columns"),
                ),
                compare(
                    lambda: ours(session, folder, task),
                    lambda: [pq.read_table(file, columns=COLUMNS) for file in files],
                    given.pairs,
                    names=("tipcast read + prepare", "pyarrow read_table, six columns"),
                ),
            ]
            threads = session.n_threads

    for result in results:
        print(result)

    added = round((peak - before) / 1e6)
    print(f"memory added {added} MB")
    print(write_result("read_prepare", results, **vars(given), threads=threads, added_mb=added))


if __name__ == "__main__":
    main()
