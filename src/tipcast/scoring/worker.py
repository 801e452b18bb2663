"""Act, on a worker: read, score and write one file, part by part."""

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
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
from tipcast.datasets.parts import FilePart, Fragment
from tipcast.evaluation import evaluator
from tipcast.evaluation.sums import Sums
from tipcast.models.native import Scorer
from tipcast.scoring.folder import FOOTER, MANIFEST, Entry
from tipcast.scoring.plan import DueFile, added_columns
from tipcast.scoring.results import ScoredFile
from tipcast.scoring.writing import (
    OutputFile,
    atomic_write,
    file_sha256,
    file_stamp,
    remove_file,
)
from tipcast.tasks.base import Task

ROW_GROUP = 1_000_000
"""Most rows of a row group that is written."""
GPU = threading.Lock()
"""Held while a worker's GPU is used: files are read and written on the host beside it."""
GPU_FILES = threading.BoundedSemaphore(8)
"""Files that a worker with a GPU has in hand at once."""
MISSING = -1.0
"""What features have where they are missing."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Work:
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


@dataclass(frozen=True)
class ScoredPart:
    """A part's rows as they are written, on the host."""

    table: pa.Table
    unscored: Mapping[str, int]
    """Reason -> rows without a prediction."""
    sums: Sums


@dataclass(frozen=True)
class Predictions:
    """What a model makes of a part's rows, on the host."""

    values: Array
    """Predictions as ``Scorer.score`` returns them."""
    invalid: Array | None
    """(rows,) bool: rows whose prediction means nothing; None: there are none."""
    unscored: Mapping[str, int]
    """Reason -> rows that are invalid."""
    sums: Sums


@travelling
def score_file(
    file: DueFile, scorer: Scorer, work: Work, *, replaces: bool, threads: int
) -> ScoredFile:
    """Score all rows of a file in their order, and write them whole or not at all.

    Parts are scored on ``threads`` of this file's own while the parts before them are written. A
    worker with a GPU has one thread and several files in hand, so that its GPU does not wait for
    the host. If the scores replace others, the manifest goes first. Raises D005 if the input has
    changed meanwhile, T008 and D022 as ``atomic_write``.
    """
    on_gpu = work.frames.on_gpu

    with GPU_FILES if on_gpu else nullcontext(), ThreadPoolExecutor(threads + 1) as pool:
        if on_gpu:
            secede()  # the worker begins its next file

        check_task_is_wanted()
        # Beside scoring: both read the same pages of the file.
        digest = pool.submit(file_sha256, file.uri, file.storage)
        score = partial(score_part, scorer=scorer, work=work)
        parts = map_ahead(pool, score, file.fragments, threads)

        with atomic_write(f"{work.folder}/{file.name}", work.storage) as output:
            entry, sums = write_parts(output, parts, file.entry, digest, work.task)

            # Otherwise one file would have scores of two contents.
            if file_stamp(file.uri, file.storage) != entry.input_stamp:
                raise address.changed(file.uri)

            check_task_is_wanted()
            if replaces:  # readers of the manifest must not find new scores under old digests
                remove_file(f"{work.folder}/{MANIFEST}", work.storage)

    entry = replace(entry, bytes=output.size, sha256=output.digest.hexdigest())
    return ScoredFile(file.name, entry, sums)


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
    """Apply a function to items on a pool's threads; yield what it returns in order, with ``most``
    on their way.

    ``Executor.map`` does so from Python 3.14 on, with ``buffersize``.
    """
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > most:
            yield waiting.popleft().result()

    while waiting:
        yield waiting.popleft().result()


def score_part(part: FilePart, scorer: Scorer, work: Work) -> ScoredPart:
    """Score all rows of a part, and add what is kept of its columns."""
    with GPU if work.frames.on_gpu else nullcontext():
        predictions = predict_part(part, scorer, work)

    table = read_passthrough(part, work)
    table = with_predictions(table, predictions.values, predictions.invalid, work)
    return ScoredPart(table.combine_chunks(), predictions.unscored, predictions.sums)


def predict_part(part: Fragment, scorer: Scorer, work: Work) -> Predictions:
    """Make features of a part's rows and predict; count what the metrics are made of."""
    features = work.task.features
    needed = work.dataset.needed_columns(features)
    columns = read_columns(part, work)
    target = target_of(columns, part, work)
    invalid, unscored = work.dataset.code.impossible(columns, needed, work.frames.xp)

    matrix = compute_features(columns, work)
    values = scorer.score(work.frames.frame(matrix, features))

    valid = slice(None) if invalid is None else ~invalid
    answers = None if target is None else target[valid]
    judge = evaluator(work.task.kind)
    sums = judge.count(values[valid], answers, threshold=work.threshold)

    return Predictions(to_host(values), to_host(invalid), unscored, sums)


def read_columns(part: Fragment, work: Work) -> dict[str, Array]:
    """Read the canonical columns that features and target are made of, those that the file has."""
    dataset = work.dataset
    needed = dataset.needed_columns(work.task.features)
    times = [dataset.time] if dataset.time else []
    wanted = dict.fromkeys((*times, *needed, *work.task.columns))
    names = [name for name in wanted if name in part.columns]
    return dataset.read(part, work.frames, names)


def target_of(columns: Mapping[str, Array], part: Fragment, work: Work) -> Array | None:
    """Return the (rows,) target, -1 (classes) or NaN (values) for rows that training would drop;
    None if the file lacks its columns.
    """
    task = work.task
    xp = work.frames.xp
    if not task.has_target or not set(task.columns) <= set(columns):
        return None

    # Rows without an answer, as those with fares of 0, are dropped.
    with np.errstate(all="ignore"):
        target: Any = task.target(columns, xp)
        usable, _ = work.dataset.clean(columns, part.period, xp)

    values: Array = target.astype(task.kind.target_dtype(xp.float64))
    if usable is not None:
        values[~usable] = task.kind.no_answer

    return values


def compute_features(columns: Mapping[str, Array], work: Work) -> Array:
    """Return (rows, features) float32; ``MISSING`` where a value cannot be a number."""
    xp = work.frames.xp
    features = work.task.features
    rows = len(next(iter(columns.values())))
    absent = [name for name in work.dataset.needed_columns(features) if name not in columns]
    nothing = {name: xp.full(rows, np.nan) for name in absent}

    with np.errstate(all="ignore"):  # ``impossible`` finds values that cannot be
        matrix = work.dataset.compute({**columns, **nothing}, features, xp)

    matrix[xp.isinf(matrix)] = MISSING  # some libraries refuse them, and all rows with them
    return matrix


def read_passthrough(part: FilePart, work: Work) -> pa.Table:
    """Read what is kept of a part, on the host: in its row order, without the file's metadata.

    Parquet columns keep their types; those of CSV become what ``Scorable.csv_types`` says. Raises
    D001 if the file is gone, D005 if it is damaged or a cell does not parse, D007 if it lacks a
    column, D022 if it cannot be reached.
    """
    return part.read_kept(lambda names: kept_names(names, part, work), work.dataset.csv_types)


def kept_names(names: Sequence[str], part: FilePart, work: Work) -> list[str]:
    """Return the file's own names of what is kept, in the file's order; by default all but an
    earlier scoring's.
    """
    if work.keep is None:
        return [name for name in names if name not in added_columns(work.task)]

    where = address.shown(part.uri)
    own_names = {**work.dataset.own_names(names, where), **part.columns, **part.column_names}
    missing = [name for name in work.keep if name not in names and name not in own_names]
    if missing:
        columns = "column" if len(missing) == 1 else "columns"
        what = f"missing {columns} {', '.join(map(repr, missing))}, which keep names"
        fix = "take what is missing out of keep, or use a file that has it"
        raise TipcastError("D007", where, what, fix)

    wanted = {name if name in names else own_names[name] for name in work.keep}
    return [name for name in names if name in wanted]


def with_predictions(table: pa.Table, values: Array, invalid: Array | None, work: Work) -> pa.Table:
    """Return a table of kept columns with what scoring adds; predictions are null where
    ``invalid``, (rows,), is true.
    """
    columns = work.task.kind.scored_values(values, work.task.classes, work.threshold)
    arrays = [pa.array(column, mask=invalid) for column in columns]
    arrays += [
        pa.repeat(pa.scalar(text, pa.string()), len(values))
        for text in (work.model_name, work.model_version)
    ]
    names = [*table.column_names, *added_columns(work.task)]
    return pa.Table.from_arrays([*table.columns, *arrays], names=names)


def write_parts(
    output: OutputFile,
    parts: Iterator[ScoredPart],
    entry: Entry,
    digest: Future[str],
    task: Task,
) -> tuple[Entry, Sums]:
    """Write parts as row groups of one Parquet file, with a footer; return what the manifest says
    of it, and the sums.

    ``digest`` is of the input.
    """
    judge = evaluator(task.kind)
    sums = judge.total([])
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
            sums = judge.total([sums, part.sums])
            unscored.update(part.unscored)
            part = next(parts, None)

        entry = replace(entry, input_sha256=digest.result(), rows=rows, unscored=dict(unscored))
        writer.add_key_value_metadata({FOOTER: json.dumps(entry.footer)})

    return entry, sums
