"""Score a local Parquet file on a GPU that reads and writes it by itself: the host takes only the
bytes.
"""

import json
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.compute import gpu_parquet
from tipcast.datasets import address
from tipcast.datasets.parquet import ParquetPart
from tipcast.datasets.parts import merged
from tipcast.evaluation import evaluator_of
from tipcast.evaluation.sums import Sums
from tipcast.models.native import Scorer
from tipcast.scoring.folder import FOOTER, ROW_GROUP, ManifestEntry
from tipcast.scoring.passthrough import kept_names
from tipcast.scoring.plan import DueFile, added_columns
from tipcast.scoring.predictions import (
    Predictions,
    ScoringContext,
    columns_of_model,
    columns_of_predictions,
    predict_part,
)
from tipcast.scoring.wanted import check_task_is_wanted
from tipcast.scoring.writing import OutputFile

GPU = threading.Lock()
"""Held while a worker's GPU is in use; meanwhile other files are read and written on the host."""
WHOLE_FILES = threading.BoundedSemaphore(2)
"""Limits the files of a worker that are whole in the host's memory: one is encoded while another is
written.
"""


def parts_for_gpu(file: DueFile, context: ScoringContext) -> list[ParquetPart]:
    """Return the parts of a file whose passthrough columns stay on the GPU; none if the host must
    read or write them.

    That is so for CSV, in object stores, for types that cuDF does not keep, and for large files.
    """
    parts = [part for part in file.parts if isinstance(part, ParquetPart)]
    if not context.frames.on_gpu or address.scheme(file.uri) or len(parts) < len(file.parts):
        return []

    schema = passthrough_schema(parts[0], context)
    # cuDF takes a dot in a name for a path into a struct.
    kept = all(gpu_parquet.keeps(field.type) and "." not in field.name for field in schema)
    if not schema.names or not kept:
        return []

    rows = sum(part.rows or 0 for part in parts)
    columns = len(schema) + len(added_columns(context.task))
    if not gpu_parquet.fits(rows, columns, address.size(file.uri, file.storage)):
        return []

    return list(merged(parts, context.frames.batch_rows(len(context.task.features))))


def passthrough_schema(part: ParquetPart, context: ScoringContext) -> pa.Schema:
    """Return names and types of the passthrough columns, in the file's order."""
    with part.undamaged():
        schema = pq.read_schema(part.uri)
    names = kept_names(schema.names, part, context)
    return pa.schema([(name, schema.field(name).type) for name in names])


def score_on_gpu(
    output: OutputFile,
    file: DueFile,
    parts: Sequence[ParquetPart],
    scorer: Scorer,
    context: ScoringContext,
    digest: Future[str],
) -> tuple[ManifestEntry, Sums]:
    """Score parts, and write them with the passthrough columns and a footer; return the manifest's
    entry for the file, and the sums.

    ``digest`` is the input's.
    """
    predictions = []
    for part in parts:
        check_task_is_wanted()
        with GPU:
            predictions.append(predict_part(part, scorer, context))

    entry = replace(
        file.entry,
        input_sha256=digest.result(),
        rows=sum(part.rows or 0 for part in parts),
        unscored=_unscored(predictions),
    )
    with WHOLE_FILES:
        check_task_is_wanted()
        added = pa.concat_tables([columns_of_predictions(part, context) for part in predictions])
        with GPU:
            content = _file_of(parts, added, entry, context)
        output.write(content)

    sums = evaluator_of(context.task.kind).total([part.sums for part in predictions])
    return entry, sums


def _unscored(predictions: Sequence[Predictions]) -> dict[str, int]:
    """Return reason -> rows of all parts without a prediction."""
    unscored = Counter[str]()
    for part in predictions:
        unscored.update(part.unscored)
    return dict(unscored)


def _file_of(
    parts: Sequence[ParquetPart], added: pa.Table, entry: ManifestEntry, context: ScoringContext
) -> memoryview:
    """Return the file of scores: passthrough columns, predictions and the model's name and version.

    Raises D005 if the file is damaged or has other rows than when it was scanned.
    """
    first = parts[0]
    schema = passthrough_schema(first, context)
    row_groups = [group for part in parts for group in part.row_groups]
    with first.undamaged():
        stored = gpu_parquet.read(first.uri, row_groups, schema.names)
    if stored.tbl.num_rows() != added.num_rows:
        raise address.changed(first.uri)

    constants = columns_of_model(context)
    of_model = pa.schema([(name, pa.string()) for name in constants])
    return gpu_parquet.write(
        stored,
        added.combine_chunks(),
        constants,
        pa.schema([*schema, *added.schema, *of_model]),
        {FOOTER.decode(): json.dumps(entry.footer)},
        ROW_GROUP,
    )
