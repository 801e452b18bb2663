"""Out-of-fold predictions as a Parquet file: each training row that a fold tests, predicted by the
model of that fold.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.compute.base import Array, to_host
from tipcast.config.disk import writing
from tipcast.datasets.rows import ROWS_OF_FILE
from tipcast.jobs.cross_validation import CrossValidation
from tipcast.jobs.train_plan import Plan
from tipcast.tasks.base import Task

if TYPE_CHECKING:
    from distributed import Client

FILE = "predictions.parquet"
"""Name of the file, below the artifact folder ``folds``."""
MOST_ROWS = 5_000_000
"""Most rows whose predictions are kept."""


def write_predictions(
    client: "Client", plan: Plan, folded: CrossValidation, folder: Path
) -> Path | None:
    """Write the predictions into a folder, part by part; return the file, None for more than
    ``MOST_ROWS`` rows.

    The columns are the row's file; its number in the file, from 0; the fold, from 1; the target;
    and those of a scored file.
    """
    if folded.out_of_fold.rows > MOST_ROWS:
        return None

    path = folder / FILE
    tables = _tables(client, plan, folded)
    first = next(tables)
    with writing(path), pq.ParquetWriter(path, first.schema) as file:
        file.write_table(first)
        for table in tables:
            file.write_table(table)
    return path


def _tables(client: "Client", plan: Plan, folded: CrossValidation) -> Iterator[pa.Table]:
    """Yield the predictions of each part of each fold's test rows."""
    task = plan.task
    files = pa.array(plan.train.uris).dictionary_encode()
    threshold = folded.out_of_fold.threshold
    for fold, result in enumerate(folded.results, 1):
        predicted = result.predicted
        for part in zip(predicted.predictions, predicted.targets, result.numbers, strict=True):
            predicted, actual, numbers = map(to_host, client.gather(list(part)))
            number = numbers["row"].to_numpy()
            values = task.kind.scored_values(np.asarray(predicted), task.classes, threshold)
            names = task.kind.scored_columns(task.classes)
            columns = {
                "file": files.take(pa.array(number // ROWS_OF_FILE)),
                "row": number % ROWS_OF_FILE,
                "fold": np.full(len(actual), fold, np.int8),
                "target": _target(np.asarray(actual), task),
            }
            yield pa.table(columns | dict(zip(names, values, strict=True)))


def _target(values: Array, task: Task) -> Array:
    """Return targets in the form of predictions: names of classes if there are several."""
    if task.kind.column_per_class:
        return np.asarray(task.classes)[values]
    if task.kind.has_classes:
        return values.astype(np.int8)
    return values.astype(np.float64)
