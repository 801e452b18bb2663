"""scikit-learn's random forest, with its trees fitted as tasks on all workers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import treelite.sklearn
from joblib import parallel_config
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from tipcast.compute.workers import completed, known
from tipcast.config.errors import TipcastError, travelling
from tipcast.models import native
from tipcast.models.base import (
    Estimator,
    Fitted,
    Future,
    Progress,
    Split,
    check_names,
    columns,
    parts,
    positive_int,
    refused,
    shares,
    stacked,
)
from tipcast.models.fit import holders, parts_of

CHUNKS_PER_THREAD = 8
"""Tasks per thread: enough to finish together and to show progress."""

SHARE_OF_MEMORY = 0.5
"""Share of a worker's memory limit for all rows and the trees' working arrays."""

RESERVED = {
    "random_state": "seed=...",
    "n_jobs": "cluster.threads_per_worker",
    "verbose": "nothing: the progress bar shows the trees",
    "warm_start": "nothing: a run grows its trees once",
    "oob_score": "task.validation",
}
COLUMNS, PER_COLUMN = 64, {"monotonic_cst"}
"""For trying parameters: more columns than any choice of features, and parameters that need the real number."""


@final
@dataclass(frozen=True)
class Forest(Estimator):
    """One forest, fitted inside one process or by all workers.

    Where the rows of all workers fit into half of each worker's memory, every tree sees all rows, and the forest is
    the one that scikit-learn grows from the same rows and seed. Otherwise each worker grows trees from the rows it
    holds, in proportion to their number.
    """

    def check(self) -> None:
        """Refuse parameters that scikit-learn would, by fitting one tree on eight rows."""
        valid = set(_unfitted(self.kind).get_params()) - set(RESERVED)
        check_names("params", list(self.params), valid, RESERVED)
        check_names("fit", list(self.training), (), {})
        judge(self.given, self.kind)

    @property
    def given(self) -> dict[str, Any]:
        """Parameters, without a null criterion."""
        return {name: value for name, value in self.params.items() if name != "criterion" or value is not None}

    @property
    def trees(self) -> int:
        """Trees of the forest."""
        return positive_int("model.params.n_estimators", self.params.get("n_estimators", 100))

    def fit(self, rows: Split, seed: int, threads: int = 1) -> Fitted:
        """Grow the trees from frames in memory."""
        values, target = stacked(parts(rows.x), parts(rows.y))
        _check_classes(target, self.kind, self.classes)
        forest = _unfitted(self.kind, **self.given, random_state=seed, n_jobs=threads)
        with parallel_config("threading"):  # processes of joblib's a worker may not start
            return _fitted(forest.fit(values, target), columns(rows.x), {"rows_seen": "all"})

    def fit_distributed(self, client: Any, rows: Split, seed: int, progress: Progress = None) -> Fitted:
        """Grow the trees as tasks of all workers."""
        features, values, targets = columns(rows.x), parts_of(client, rows.x), parts_of(client, rows.y)
        workers = _workers(client, values, targets, self.trees)
        tasks = {}
        for worker in workers:
            there = {"workers": [worker.address], "allow_other_workers": True, "pure": False}  # elsewhere if it dies
            own = [[each[i] for i in worker.parts] for each in (values, targets)]
            joined = client.submit(stacked, *own, **there)  # once for each worker: Dask keeps it for the tasks of it
            for start, stop in _chunks(worker):
                chunk = client.submit(_grow, joined, self, seed, start, stop, **there)
                tasks[chunk] = start
        grown: dict[int, list[Any]] = {}
        forest = _unfitted(self.kind)
        for chunk, found in completed(client, list(tasks)):
            forest, grown[tasks.pop(chunk)] = found
            chunk.release()
            if progress:
                progress(sum(map(len, grown.values())), self.trees)
        forest.set_params(n_estimators=self.trees, random_state=seed)
        forest.estimators_ = [tree for start in sorted(grown) for tree in grown[start]]
        seen = "all" if all(len(worker.parts) == len(values) for worker in workers) else "each worker's own"
        return _fitted(forest, features, {"rows_seen": seen})


def judge(params: Mapping[str, Any], kind: str) -> None:
    """Let scikit-learn validate a forest's parameters by one tree on eight rows: C003 with its message."""
    positive_int("model.params.n_estimators", params.get("n_estimators", 100))
    x = np.arange(8 * COLUMNS, dtype=np.float32).reshape(8, COLUMNS)
    given = {name: value for name, value in params.items() if name not in PER_COLUMN}
    try:
        _unfitted(kind, **{**given, "n_estimators": 1}).fit(x, np.array([0, 1] * 4))
    except (ValueError, TypeError) as problem:
        raise refused(problem, params, type(_unfitted(kind)).__name__) from problem


def _unfitted(kind: str, **params: Any) -> Any:
    return (RandomForestRegressor if kind == "regression" else RandomForestClassifier)(**params)


@dataclass(frozen=True)
class _Worker:
    """One worker's share: trees first to last, from some parts."""

    address: str
    threads: int
    first: int
    last: int
    parts: Sequence[int]


def _workers(client: Any, x: Sequence[Future], y: Sequence[Future], trees: int) -> list[_Worker]:
    """Divide the trees among workers: by threads where all rows fit, else by the rows they hold."""
    futures = [*x, *y]
    homes = holders(client, futures)
    threads = client.nthreads()
    sizes = client.nbytes([future.key for future in futures], summary=False)
    parts: dict[str, list[int]]
    if _fits(client, sum(sizes.values()), max(threads.values())):
        parts = {address: list(range(len(x))) for address in sorted(threads)}
        weights = [threads[address] for address in parts]
    else:
        parts = {}
        for at, home in enumerate(homes[: len(x)]):
            parts.setdefault(min(home), []).append(at)
        weights = [sum(sizes[x[i].key] for i in parts[address]) for address in parts]
        told = "a worker cannot hold all rows: each of %d grows trees from its own"
        logging.getLogger("tipcast").warning(told, len(parts))
    ends = np.round(np.cumsum(weights) / np.sum(weights) * trees).astype(int).tolist()
    return [
        _Worker(address, threads[address], first, last, own)
        for (address, own), first, last in zip(parts.items(), [0, *ends[:-1]], ends, strict=True)
        if last > first
    ]


def _fits(client: Any, size: int, threads: int) -> bool:
    """Return whether all rows and the working arrays of concurrent trees fit into the smallest worker's share.

    A row is held twice while parts are joined, its label once more as float64; each growing tree needs about 40 bytes
    a row. The seven base features and the label take 32 bytes, to which the trees' share is scaled.
    """
    limits = [worker["memory_limit"] for worker in known(client).values()]
    need = size * (2 + (8 + 40 * threads) / 32)
    return all(not limit or need <= SHARE_OF_MEMORY * limit for limit in limits)


def _chunks(worker: _Worker) -> list[tuple[int, int]]:
    """Split a worker's trees evenly into a multiple of its threads."""
    count = min(worker.threads * CHUNKS_PER_THREAD, worker.last - worker.first)
    ends = np.linspace(worker.first, worker.last, count + 1).round().astype(int).tolist()
    return list(zip(ends[:-1], ends[1:], strict=True))


def _check_classes(target: Any, kind: str, classes: int) -> None:
    """Refuse rows in which a class has none: scikit-learn would leave its column out."""
    if kind == "regression":
        return
    found = np.count_nonzero(np.bincount(target.astype(np.int64, copy=False)))
    if found < max(classes, 2):
        what = f"the rows of one worker are of {found} of {max(classes, 2)} classes"
        fix = "use fewer workers, give them more memory (cluster.memory_limit), or check the target"
        raise TipcastError("D015", "training rows", what, fix)


@travelling
def _grow(rows: tuple[Any, Any], estimator: Forest, seed: int, start: int, stop: int) -> tuple[Any, list[Any]]:
    """Grow trees start to stop of the forest; return the forest without trees, and the trees."""
    x, y = rows
    _check_classes(y, estimator.kind, estimator.classes)
    state = np.random.RandomState(seed)
    state.randint(np.iinfo(np.int32).max, size=start)  # the seeds of the trees before, drawn as scikit-learn draws them
    params = {**estimator.given, "n_estimators": stop - start}
    forest = _unfitted(estimator.kind, **params, random_state=state, n_jobs=1).fit(x, y)
    grown, forest.estimators_ = forest.estimators_, []
    forest._sample_weight = None  # of every row, under class_weight
    return forest, grown


def _fitted(forest: Any, features: Sequence[str], info: Mapping[str, str | float]) -> Fitted:
    return Fitted(
        scorer=native.ForestScorer(forest),
        importance=shares(features, forest.feature_importances_),
        importance_kind="decrease of impurity",
        info={"device": "cpu", "trees": len(forest.estimators_), **info},
        model=forest,
        format="treelite",
        write=_write,
    )


def _write(forest: Any, path: Path) -> None:
    path.write_bytes(treelite.sklearn.import_model(forest).serialize_bytes())
