"""Act, on a worker: read, score and write one file, part by part."""

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from distributed import secede

from tipcast.compute.base import Frames
from tipcast.config.errors import travelling
from tipcast.datasets import address
from tipcast.datasets.parts import FilePart
from tipcast.evaluation import evaluator_of
from tipcast.evaluation.sums import Sums
from tipcast.models.native import Scorer
from tipcast.scoring.folder import FOOTER, MANIFEST, ROW_GROUP, ManifestEntry
from tipcast.scoring.gpu_file import GPU, parts_for_gpu, score_on_gpu
from tipcast.scoring.passthrough import read_passthrough
from tipcast.scoring.plan import DueFile
from tipcast.scoring.predictions import (
    ScoringContext,
    columns_of_model,
    columns_of_predictions,
    predict_part,
)
from tipcast.scoring.results import ScoredFile
from tipcast.scoring.wanted import check_task_is_wanted
from tipcast.scoring.writing import (
    OutputFile,
    atomic_write,
    file_sha256,
    file_stamp,
    remove_file,
)
from tipcast.tasks.base import Task

GPU_FILES = threading.BoundedSemaphore(8)
"""Limits the files that a worker with a GPU has in hand at once."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ScoredPart:
    """A part's rows as they are written, on the host."""

    table: pa.Table
    unscored: Mapping[str, int]
    """Reason -> rows without a prediction."""
    sums: Sums


@travelling
def score_file(
    file: DueFile, scorer: Scorer, context: ScoringContext, *, replaces: bool, threads: int
) -> ScoredFile:
    """Score all rows of a file in their order, and write them whole or not at all.

    Parts are scored on ``threads`` of this file's own while the parts before them are written. A
    worker with a GPU has one thread and several files in hand, so that its GPU does not wait for
    the host; where it can, the GPU reads and writes all columns by itself. If the scores replace
    others, the manifest goes first. Raises D005 if the input has changed meanwhile, T008 and D022
    as ``atomic_write``.
    """
    with _files_in_hand(context.frames), ThreadPoolExecutor(threads + 1) as pool:
        if context.frames.on_gpu:
            secede()  # the worker begins its next file

        check_task_is_wanted()
        # Beside scoring: both read the same pages of the file.
        digest = pool.submit(file_sha256, file.uri, file.storage)
        gpu_parts = parts_for_gpu(file, context)

        with atomic_write(f"{context.folder}/{file.name}", context.storage) as output:
            if gpu_parts:
                entry, sums = score_on_gpu(output, file, gpu_parts, scorer, context, digest)
            else:
                score = partial(score_part, scorer=scorer, context=context)
                scored = map_ahead(pool, score, file.parts, threads)
                entry, sums = write_parts(output, scored, file.entry, digest, context.task)

            # Otherwise one file would have scores of two contents.
            if file_stamp(file.uri, file.storage) != entry.input_stamp:
                raise address.changed(file.uri)

            check_task_is_wanted()
            if replaces:  # readers of the manifest must not find new scores under old digests
                remove_file(f"{context.folder}/{MANIFEST}", context.storage)

    entry = replace(entry, bytes=output.size, sha256=output.digest.hexdigest())
    return ScoredFile(file.name, entry, sums)


def _files_in_hand(frames: Frames) -> AbstractContextManager[object]:
    """Return a context that waits on a GPU worker while too many files are in hand."""
    if frames.on_gpu:
        return GPU_FILES
    return nullcontext()


def map_ahead(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], most: int
) -> Iterator[Result]:
    """Apply a function to items on a pool's threads, at most ``most`` ahead of the caller; yield
    the results in order.

    From Python 3.14 on, ``Executor.map`` can do this, with ``buffersize``.
    """
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > most:
            yield waiting.popleft().result()

    while waiting:
        yield waiting.popleft().result()


def score_part(part: FilePart, scorer: Scorer, context: ScoringContext) -> ScoredPart:
    """Score all rows of a part, and add its passthrough columns."""
    use_of_device: AbstractContextManager[object] = nullcontext()
    if context.frames.on_gpu:
        use_of_device = GPU
    with use_of_device:
        predictions = predict_part(part, scorer, context)

    table = read_passthrough(part, context)
    added = columns_of_predictions(predictions, context)
    of_model = {
        name: pa.repeat(pa.scalar(text, pa.string()), added.num_rows)
        for name, text in columns_of_model(context).items()
    }
    table = pa.Table.from_arrays(
        [*table.columns, *added.columns, *of_model.values()],
        names=[*table.column_names, *added.column_names, *of_model],
    )
    return ScoredPart(table.combine_chunks(), predictions.unscored, predictions.sums)


def write_parts(
    output: OutputFile,
    parts: Iterator[ScoredPart],
    entry: ManifestEntry,
    digest: Future[str],
    task: Task,
) -> tuple[ManifestEntry, Sums]:
    """Write parts as row groups of one Parquet file, with a footer; return the manifest's entry
    for it, and the sums.

    ``digest`` is the input's.
    """
    evaluator = evaluator_of(task.kind)
    sums = evaluator.total([])
    unscored = Counter[str]()
    rows = 0

    part: Any = next(parts)  # the first has the schema
    schema = part.table.schema
    with pq.ParquetWriter(output, schema, compression="zstd", write_page_checksum=True) as writer:
        while part is not None:
            check_task_is_wanted()
            if part.table.num_rows:
                writer.write_table(part.table, row_group_size=ROW_GROUP)
            rows += part.table.num_rows
            sums = evaluator.total([sums, part.sums])
            unscored.update(part.unscored)
            part = next(parts, None)

        entry = replace(entry, input_sha256=digest.result(), rows=rows, unscored=dict(unscored))
        writer.add_key_value_metadata({FOOTER: json.dumps(entry.footer)})

    return entry, sums
