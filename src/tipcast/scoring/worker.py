"""Act, on a worker: read, score and write one file, part by part."""

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import get_worker, secede
from distributed.core import Status

from tipcast.compute.base import Array, Frames, to_host
from tipcast.config.errors import TipcastError, travelling
from tipcast.datasets import address
from tipcast.datasets.base import Scorable
from tipcast.datasets.parts import FilePart, Part
from tipcast.evaluation import evaluator_of
from tipcast.evaluation.sums import Sums
from tipcast.models.native import Scorer
from tipcast.scoring.folder import FOOTER, MANIFEST, ManifestEntry
from tipcast.scoring.plan import DueFile, added_columns
from tipcast.scoring.results import ScoredFile
from tipcast.scoring.writing import (
    OutputFile,
    atomic_write,
    file_sha256,
    file_stamp,
    remove_file,
)
from tipcast.tasks.base import Task, is_weight

ROW_GROUP = 1_000_000
"""Most rows of a row group that is written."""
GPU = threading.Lock()
"""Held while a worker's GPU is in use; meanwhile other files are read and written on the host."""
GPU_FILES = threading.BoundedSemaphore(8)
"""Limits the files that a worker with a GPU has in hand at once."""
REPLACES_INFINITE = -1.0
"""Value of a feature in place of an infinite one."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ScoringContext:
    """What all tasks of a scoring share."""

    frames: Frames
    dataset: Scorable
    task: Task
    threshold: float | None
    """With two classes, scores at or above it are predicted 1."""
    keep: Sequence[str] | None
    """Columns of the input that scored files have; None: all."""
    model_name: str
    model_version: str | None
    """Version of the model; None if it is not registered."""
    folder: str
    """Folder that gets the scores."""
    storage: Mapping[str, Any]
    """fsspec's options for the folder, as ``address.storage`` returns them."""
    weight: str | None = None
    """Column of the weights by which metrics count rows; None: all rows count the same."""


@dataclass(frozen=True)
class ScoredPart:
    """A part's rows as they are written, on the host."""

    table: pa.Table
    unscored: Mapping[str, int]
    """Reason -> rows without a prediction."""
    sums: Sums


@dataclass(frozen=True)
class Predictions:
    """A model's predictions of a part's rows, on the host."""

    values: Array
    """Predictions as ``Scorer.score`` returns them."""
    invalid: Array | None
    """(rows,) bool: rows whose prediction means nothing; None if there are no such rows."""
    unscored: Mapping[str, int]
    """Reason -> rows that are invalid."""
    sums: Sums


@travelling
def score_file(
    file: DueFile, scorer: Scorer, context: ScoringContext, *, replaces: bool, threads: int
) -> ScoredFile:
    """Score all rows of a file in their order, and write them whole or not at all.

    Parts are scored on ``threads`` of this file's own while the parts before them are written. A
    worker with a GPU has one thread and several files in hand, so that its GPU does not wait for
    the host. If the scores replace others, the manifest goes first. Raises D005 if the input has
    changed meanwhile, T008 and D022 as ``atomic_write``.
    """
    with _files_in_hand(context.frames), ThreadPoolExecutor(threads + 1) as pool:
        if context.frames.on_gpu:
            secede()  # the worker begins its next file

        check_task_is_wanted()
        # Beside scoring: both read the same pages of the file.
        digest = pool.submit(file_sha256, file.uri, file.storage)
        score = partial(score_part, scorer=scorer, context=context)
        parts = map_ahead(pool, score, file.parts, threads)

        with atomic_write(f"{context.folder}/{file.name}", context.storage) as output:
            entry, sums = write_parts(output, parts, file.entry, digest, context.task)

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


def check_task_is_wanted() -> None:
    """Raise CancelledError if nobody waits for this task any more: its worker is closing, or the
    job has ended without it.

    A task that runs outlives its job. It must not touch scores that a later job may be writing.
    """
    with suppress(ValueError, KeyError):  # called outside a task
        worker = get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
        closing = worker.status in (Status.closing, Status.closed)
        if closing or task is None or task.state == "cancelled":
            raise CancelledError


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
    table = with_predictions(table, predictions.values, predictions.invalid, context)
    return ScoredPart(table.combine_chunks(), predictions.unscored, predictions.sums)


def predict_part(part: Part, scorer: Scorer, context: ScoringContext) -> Predictions:
    """Compute features of a part's rows and predict; count the sums that metrics need."""
    features = context.task.features
    needed = context.dataset.needed_columns(features)
    columns = read_columns(part, context)
    target = target_of(columns, part, context)
    weights = weights_of(columns, context)
    invalid, unscored = context.dataset.code.impossible(columns, needed, context.frames.xp)

    matrix = compute_features(columns, context)
    values = scorer.score(context.frames.frame(matrix, features))

    sums = count_predictions(values, target, weights, invalid, context)
    return Predictions(to_host(values), to_host(invalid), unscored, sums)


def count_predictions(
    values: Array,
    target: Array | None,
    weights: Array | None,
    invalid: Array | None,
    context: ScoringContext,
) -> Sums:
    """Count the evaluator's sums over the rows with a valid prediction."""
    if invalid is not None:
        values = values[~invalid]
        target = None if target is None else target[~invalid]
        weights = None if weights is None else weights[~invalid]

    columns = [values, target] if weights is None else [values, target, weights]
    sums: Sums = evaluator_of(context.task.kind).count(*columns, threshold=context.threshold)
    return sums


def read_columns(part: Part, context: ScoringContext) -> dict[str, Array]:
    """Read the canonical columns that features, target and weights need, if the file has them."""
    dataset = context.dataset
    needed = [*dataset.needed_columns(context.task.features), *context.task.columns]
    if context.weight is not None:
        needed.append(context.weight)
    if dataset.time:
        needed.insert(0, dataset.time)
    names = [name for name in dict.fromkeys(needed) if name in part.columns]
    return dataset.read(part, context.frames, names)


def target_of(columns: Mapping[str, Array], part: Part, context: ScoringContext) -> Array | None:
    """Return the (rows,) target; -1 (classes) or NaN (values) for rows that training would drop, or
    whose weight is impossible.

    None if the file lacks the target's columns.
    """
    task = context.task
    xp = context.frames.xp
    if not task.has_target or not set(task.columns) <= set(columns):
        return None

    # Rows without a target, as those with fares of 0, are dropped.
    with np.errstate(all="ignore"):
        target: Any = task.target(columns, xp)
        usable, _ = context.dataset.clean(columns, part.period, xp)

    values: Array = target.astype(task.kind.target_dtype(xp.float64))
    if usable is not None:
        values[~usable] = task.kind.missing_target
    if context.weight is not None:
        weight = columns[context.weight]
        values[~is_weight(weight, xp)] = task.kind.missing_target

    return values


def weights_of(columns: Mapping[str, Array], context: ScoringContext) -> Array | None:
    """Return the (rows,) weights, 0 for rows that have none; None if all rows count the same, or
    the file has no weights.
    """
    if context.weight is None or context.weight not in columns:
        return None

    xp = context.frames.xp
    weight = columns[context.weight]
    return xp.where(is_weight(weight, xp), weight, 0.0)


def compute_features(columns: Mapping[str, Array], context: ScoringContext) -> Array:
    """Return (rows, features) float32, with ``REPLACES_INFINITE`` for infinite values."""
    xp = context.frames.xp
    features = context.task.features
    rows = len(next(iter(columns.values())))
    absent = [name for name in context.dataset.needed_columns(features) if name not in columns]
    nothing = {name: xp.full(rows, np.nan) for name in absent}

    with np.errstate(all="ignore"):  # ``impossible`` finds values that are out of range
        matrix = context.dataset.compute({**columns, **nothing}, features, xp)

    matrix[xp.isinf(matrix)] = REPLACES_INFINITE  # some libraries would refuse all rows
    return matrix


def read_passthrough(part: FilePart, context: ScoringContext) -> pa.Table:
    """Read the passthrough columns of a part, on the host, in row order, without the file's
    metadata.

    Parquet columns keep their types; CSV columns get those of ``Scorable.csv_types``. Raises D001
    if the file is gone, D005 if it is damaged or a cell does not parse, D007 if it lacks a column,
    D022 if it cannot be reached.
    """
    return part.read_as_stored(
        lambda names: kept_names(names, part, context), context.dataset.csv_types
    )


def kept_names(names: Sequence[str], part: FilePart, context: ScoringContext) -> list[str]:
    """Return the passthrough columns by the file's own names, in the file's order; by default all
    columns that scoring does not add.
    """
    if context.keep is None:
        return [name for name in names if name not in added_columns(context.task)]

    where = address.shown(part.uri)
    own_names = {**context.dataset.own_names(names, where), **part.columns, **part.column_names}
    own_names |= {name: name for name in names}
    missing = [name for name in context.keep if name not in own_names]
    if missing:
        columns = "columns"
        if len(missing) == 1:
            columns = "column"
        what = f"missing {columns} {', '.join(map(repr, missing))}, which keep lists"
        fix = "remove it from keep, or use a file that has it"
        raise TipcastError("D007", where, what, fix)

    kept = {own_names[name] for name in context.keep}
    return [name for name in names if name in kept]


def with_predictions(
    table: pa.Table, values: Array, invalid: Array | None, context: ScoringContext
) -> pa.Table:
    """Return the table of passthrough columns with those that scoring adds; predictions are null in
    rows that are ``invalid``.
    """
    columns = context.task.kind.scored_values(values, context.task.classes, context.threshold)
    arrays = [pa.array(column, mask=invalid) for column in columns]
    arrays += [
        pa.repeat(pa.scalar(text, pa.string()), len(values))
        for text in (context.model_name, context.model_version)
    ]
    names = [*table.column_names, *added_columns(context.task)]
    return pa.Table.from_arrays([*table.columns, *arrays], names=names)


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
