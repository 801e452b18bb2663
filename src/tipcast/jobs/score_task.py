"""What workers do in a scoring: score a fragment of a file into a part, put a file's parts together, digest inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.backends.base import Array, Frames
from tipcast.backends.host import to_host
from tipcast.config.errors import travelling
from tipcast.data import address, scored
from tipcast.data.base import Fragment, Period, timed
from tipcast.data.concatenate import Joined, concatenate
from tipcast.data.kept import read_kept
from tipcast.data.taxi import features, rules
from tipcast.data.taxi.dataset import Taxi
from tipcast.data.writing import written
from tipcast.estimators.base import Scorer
from tipcast.evaluation import binned, drift
from tipcast.evaluation.binned import Binned
from tipcast.tasks.shipped import high_tip

MAY_LACK = ("passenger_count",)
"""Columns that a file may lack: all their values are missing then."""
LABEL = ("fare_amount", "tip_amount")
ROW_GROUP = 1_000_000
"""Most rows of a row group that is written."""
HOST_THREADS = 8
"""How many row groups a worker with one thread for its device writes at once."""


@dataclass(frozen=True)
class Work:
    """What all tasks of a scoring share."""

    features: tuple[str, ...]
    threshold: float
    """Scores at or above it are predicted 1."""
    label_threshold: float
    """Tip over fare above which a trip's label is 1."""
    keep: tuple[str, ...] | None
    name: str
    """Of the model; its version is None where it is not registered."""
    version: str | None
    compression: str
    storage: Mapping[str, Any]
    """For the output, as ``address.storage`` returns them."""
    bins: Mapping[str, Any]
    """Feature -> its bins in the profile of the training rows, where the model tells of them."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Canonical columns that the features are made of."""
        return features.needed_columns(self.features)


@dataclass(frozen=True)
class Scored:
    """A part, or all parts of a file."""

    paths: tuple[str, ...]
    """Of a part: its files, in order."""
    rows: int
    unscored: Mapping[str, int]
    """Reason -> rows whose probability is null."""
    values: Mapping[str, Any]
    """Feature -> counts of its values, see ``evaluation.drift``."""
    scores: Binned
    seen: int
    """Labelled rows of the period that the model was trained on."""


@travelling
def score_fragment(
    fragment: Fragment, path: str, scorer: Scorer, frames: Frames, work: Work, seen: Period | None = None
) -> Scored:
    """Score one fragment and write it as Parquet files of its own.

    Parameters
    ----------
    fragment
        What to score; every row of it is.
    path
        How the names of the files begin.
    scorer
        The model.
    frames
        The device's frame library.
    work
        What is asked for.
    seen
        Period of the rows that the model was trained on, where they are of this fragment's taxis.

    Raises
    ------
    TipcastError
        D-errors naming the file, for bytes that cannot be read; T008, T009 where the part cannot be written.

    """
    needed = dict.fromkeys(("pickup", *work.columns, *LABEL))  # whether a row counts as labelled depends on its time
    columns = Taxi().read(fragment, frames, [name for name in needed if name in fragment.columns])
    labels = _labels(columns, fragment, frames, work)
    bad, unscored = features.impossible(columns, work.columns, frames.xp)
    matrix, scores = score(columns, scorer, frames, work.features)
    good = slice(None) if bad is None else ~bad
    alone = frames.batch_rows > 0  # then a worker has one thread for its device, and the host's cores are idle
    kept = read_kept(fragment, work.keep, threads=alone)
    table = with_scores(kept, to_host(scores), None if bad is None else to_host(bad), work)
    return Scored(
        paths=write(table, path, work, HOST_THREADS if alone else 1),
        rows=len(scores),
        unscored=unscored,
        values=drift.count(matrix[good], work.features, work.bins),
        scores=binned.count(scores[good], None if labels is None else labels[good], work.threshold),
        seen=0 if labels is None or seen is None else _within(columns["pickup"][good], labels[good], seen),
    )


def score(columns: dict[str, Array], scorer: Scorer, frames: Frames, names: Sequence[str]) -> tuple[Array, Array]:
    """Return features (rows, features) float32 and their scores (rows,), on the frames' device."""
    xp = frames.xp
    rows = len(next(iter(columns.values())))
    lacking = {name: xp.full(rows, np.nan) for name in MAY_LACK if name not in columns}
    with np.errstate(all="ignore"):  # values that cannot be are found by ``impossible``
        matrix = features.compute(columns | lacking, names, xp)
    matrix[xp.isinf(matrix)] = features.MISSING  # some libraries refuse them, and all rows with them
    return matrix, scorer.score(frames.frame(matrix, names))


def _labels(columns: dict[str, Array], fragment: Fragment, frames: Frames, work: Work) -> Array | None:
    """Return (rows,) 1, 0, or -1 for rows that training would drop; None where the file has no tips."""
    if not set(LABEL) <= set(columns):
        return None
    xp = frames.xp
    keep, _ = rules.clean(columns, timed(fragment.period), xp)
    with np.errstate(all="ignore"):  # fares of 0 are among the rows that are dropped
        labels = high_tip(columns, xp, threshold=work.label_threshold).astype(xp.int8)
    if keep is not None:
        labels[~keep] = -1
    return labels


def _within(pickup: Array, labels: Array, period: Period) -> int:
    """Count labelled rows that were picked up in a period."""
    return int(((labels >= 0) & (pickup >= period[0]) & (pickup < period[1])).sum())


def with_scores(table: pa.Table, scores: Any, bad: Any, work: Work) -> pa.Table:
    """Return kept columns with what scoring adds; probability and prediction are null where ``bad`` is true."""
    added = {
        "probability": pa.array(np.asarray(scores, dtype=np.float64), mask=bad),
        "prediction": pa.array((scores >= work.threshold).astype(np.int8), mask=bad),
        "model_name": pa.repeat(pa.scalar(work.name, pa.string()), len(scores)),
        "model_version": pa.repeat(pa.scalar(work.version, pa.string()), len(scores)),
    }
    if table.num_columns and table.num_rows != len(scores):
        raise ValueError(f"{table.num_rows} rows were kept and {len(scores)} scored")
    columns = dict(zip(table.column_names, table.columns, strict=True)) if table.num_columns else {}
    return pa.Table.from_arrays([*columns.values(), *added.values()], names=[*columns, *added])


def write(table: pa.Table, path: str, work: Work, threads: int) -> tuple[str, ...]:
    """Write a part as one file for each of its row groups, with checksums of pages; return their paths."""

    def one(at: int) -> str:
        piece = table.slice(at * ROW_GROUP, ROW_GROUP)
        own = f"{path}.{at}"
        with (
            written(own, work.storage) as file,
            pq.ParquetWriter(file, table.schema, compression=work.compression, write_page_checksum=True) as writer,
        ):
            writer.write_table(piece, row_group_size=ROW_GROUP)
        return own

    with ThreadPoolExecutor(threads) as pool:
        return tuple(pool.map(one, range(max(-(-table.num_rows // ROW_GROUP), 1))))


@travelling
def join(path: str, parts: Sequence[Scored], work: Work) -> tuple[Joined, Scored]:
    """Put a file's parts together, in their order.

    Raises
    ------
    TipcastError
        T008, T009 where the file cannot be written.

    """

    opened = [address.opened(part, work.storage) for each in parts for part in each.paths]
    with written(path, work.storage, synced=True) as file:
        joined = concatenate(opened, file, work.compression)
    return joined, total(parts)


def total(parts: Sequence[Scored]) -> Scored:
    """Return the sums of several parts, or files."""
    reasons = dict.fromkeys(reason for part in parts for reason in part.unscored)
    return Scored(
        paths=(),
        rows=sum(part.rows for part in parts),
        unscored={reason: sum(part.unscored.get(reason, 0) for part in parts) for reason in reasons},
        values=drift.total([part.values for part in parts]),
        scores=binned.total([part.scores for part in parts]),
        seen=sum(part.seen for part in parts),
    )


@travelling
def digest(uri: str, storage: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a file that was scored."""
    return scored.sha256(uri, storage)
