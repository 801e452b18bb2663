"""Fit and score on the workers that hold the rows.

A fit runs inside one worker, or over all workers by the library's distributed form.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import wait as ended
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, final

import dask
import numpy as np
from dask.utils import parse_timedelta
from distributed import MultiLock, wait
from numpy.typing import NDArray

from tipcast.compute.base import Array, Frame, to_host
from tipcast.compute.cluster import worker_info
from tipcast.config.errors import TipcastError, travelling
from tipcast.models import base, native
from tipcast.models.base import Estimator, Fitted, Parts, Progress, Split

if TYPE_CHECKING:
    from distributed import Client, Future, Scheduler

LOG = logging.getLogger("tipcast")
LOOK_S = 1.0
"""Seconds between two checks of the workers."""
WAIT_S = 5.0
"""Seconds to wait for a lock before checking its owner."""
LOCK = "tipcast "
"""Prefix of our locks' names: XGBoost locks workers by their plain addresses."""
BETWEEN = "|"
"""Separates the client from the rest of a lock's id."""

SEPARATOR = ", "
"""Separates the addresses of lost workers in an error."""

ROWS_OF_THREAD = 10_000
"""Rows to score that are worth a thread."""
DRAWN_ROWS = 500
"""Rows whose contributions a figure shows."""
FEWEST_DRAWN_ROWS = 50
"""Rows that it shows of a model whose contributions take long."""
DRAWN_SPLITS = 5e6
"""Splits of a model times rows whose contributions take about a second of a core."""
EXPLAINED_BY_THREAD = 10
"""Rows to explain that are worth a thread."""

Result = TypeVar("Result")


class RowsOnWorkers(Protocol):
    """One split of the rows, as ``datasets.rows.Rows``."""

    @property
    def x(self) -> Parts: ...

    @property
    def y(self) -> Parts: ...

    @property
    def parts(self) -> Parts: ...

    @property
    def weight(self) -> Parts: ...

    def moved(self, client: "Client", homes: Sequence[str]) -> Self: ...


def fit(
    client: "Client",
    estimator: Estimator,
    train: RowsOnWorkers,
    validation: RowsOnWorkers | None,
    seed: int,
    progress: Progress = None,
) -> Fitted:
    """Fit a model on rows that lie on the workers of a client.

    The rows of ``validation``, if any, decide when to stop. Models that can tell their progress
    call ``progress`` with the steps done and all steps. Raises K003 if a worker is lost, C010 if
    the library computed on another device, and the model's own errors.
    """
    splits = [train]
    if validation is not None:
        splits.append(validation)

    parts = [part for rows in splits for part in rows.parts]
    with_all_rows = set.intersection(*holders(client, parts))
    if with_all_rows:
        return _fit_on_one_worker(client, min(with_all_rows), estimator, splits, seed)

    train_split, *held_out = (
        Split(rows.x, rows.y or None, weight=rows.weight or None) for rows in splits
    )
    split = replace(train_split, validation=next(iter(held_out), None))
    return estimator.fit_distributed(client, split, seed, progress)


def _fit_on_one_worker(
    client: "Client",
    address: str,
    estimator: Estimator,
    splits: Sequence[RowsOnWorkers],
    seed: int,
) -> Fitted:
    """Fit inside a worker that holds all rows."""
    # Dask finds futures in mappings and lists, but not in a dataclass.
    rows = [_filled(x=split.x, y=split.y, weight=split.weight) for split in splits]
    threads = client.nthreads()[address]
    task = client.submit(_fit_rows, estimator, rows, seed, threads, workers=[address], pure=False)
    fitted: Fitted = watched_task(client, [address], task)
    return fitted


def _filled(**sides: Parts) -> dict[str, list[Any]]:
    """Return the sides that have parts."""
    return {name: list(parts) for name, parts in sides.items() if parts}


@travelling
def _fit_rows(
    estimator: Estimator, rows: Sequence[Mapping[str, Any]], seed: int, threads: int
) -> Fitted:
    """Fit on the sides of the training rows and, if any, of the validation rows."""
    train, *held_out = (Split(**sides) for sides in rows)
    split = replace(train, validation=next(iter(held_out), None))
    return estimator.fit(split, seed, threads)


def holders(client: "Client", parts: Parts) -> list[set[str]]:
    """Wait for parts; return the addresses of the workers that hold each.

    Raises K003 if a part was lost with its worker. Re-raises the first error of a part that failed.
    """
    with client.as_current():  # Dask's wait takes no client
        wait(parts)

    for part in parts:
        if part.status == "error":
            part.result()

    workers = client.who_has(list(parts))
    homes = [set(workers[part.key]) for part in parts]
    if not all(homes):
        raise _gone(["a worker that held rows"])

    return homes


def column_names(client: "Client", parts: Parts) -> list[str]:
    """Return the column names of frames that are futures."""
    names: list[str] = client.submit(base.columns, parts[0], pure=False).result()
    return names


def workers_of(client: "Client", parts: Parts) -> list[str]:
    """Return the addresses of all workers that hold any of the parts."""
    return sorted(set().union(*holders(client, parts)))


def watched(client: "Client", workers: Collection[str], fit: Callable[[], Result]) -> Result:
    """Run a fit in a thread while watching its workers: the peers of a lost one may wait for it for
    minutes.

    A frozen worker counts as lost when the scheduler has not heard from it for Dask's
    ``worker-ttl``. The scheduler itself checks only once in that time, and then waits for the
    worker to restart.

    The fit has the client as the current one. Raises K003 if a worker is lost; the fit is then left
    to end by itself.
    """
    outcome: ThreadFuture[Result] = ThreadFuture()

    def run() -> None:
        try:
            with client.as_current():
                outcome.set_result(fit())
        except BaseException as problem:
            outcome.set_exception(problem)

    threading.Thread(target=run, daemon=True, name="fit").start()
    heartbeats = _Heartbeats(client, workers)
    while True:
        ended([outcome], timeout=LOOK_S)
        problem: BaseException | None = None
        if outcome.done():
            problem = outcome.exception()
            if problem is None:
                return outcome.result()

        if client.status != "running":  # the scheduler is gone: Dask would try for long to ask it
            raise problem or _gone(["the scheduler"])
        if problem:
            time.sleep(LOOK_S)  # a fit may notice a lost worker before the scheduler does
        if lost := heartbeats.lost():
            raise _gone(lost) from problem
        if problem:
            raise problem


def watched_task(client: "Client", workers: Collection[str], task: "Future[Any]") -> Any:
    """Return a task's result while watching workers, as ``watched`` does; then forget the task."""
    try:
        return watched(client, workers, task.result)
    finally:
        client.cancel([task])


@final
class _Heartbeats:
    """Heartbeats of the workers of a fit, as the scheduler gets them."""

    def __init__(self, client: "Client", workers: Collection[str]) -> None:
        self._client = client
        self._workers = workers
        self._ttl = parse_timedelta(dask.config.get("distributed.scheduler.worker-ttl"))
        self._heard: dict[str, tuple[float, float]] = {}
        """Worker -> the scheduler's time of its last word, ours when that was new."""

    def lost(self) -> set[str]:
        """Return the workers that are gone, or not heard from for ``worker-ttl``."""
        alive = worker_info(self._client)
        now = time.monotonic()
        for address in set(self._workers) & set(alive):
            last_seen = alive[address]["last_seen"]
            if address not in self._heard or self._heard[address][0] != last_seen:
                self._heard[address] = (last_seen, now)

        return {
            address
            for address in self._workers
            if address not in alive or (self._ttl and now - self._heard[address][1] > self._ttl)
        }


def _gone(lost: Collection[str]) -> TipcastError:
    what = "worker lost while training"
    fix = "repeat the command; if a worker ran out of memory, raise cluster.memory_limit first"
    return TipcastError("K003", SEPARATOR.join(sorted(lost)), what, fix)


def lost_workers(problem: TipcastError) -> list[str]:
    """Return the addresses of the workers that a fit's K003 names."""
    return problem.where.split(SEPARATOR)


@contextlib.contextmanager
def worker_lock(client: "Client", workers: Sequence[str]) -> Iterator[None]:
    """Lock workers for one distributed fit; release locks of dead clients, which Dask would keep
    for ever.

    XGBoost locks the same workers by their addresses inside: a dead client's locks of that kind are
    released too.
    """
    lock = MultiLock([LOCK + address for address in workers], client)
    lock.id = f"{client.id}{BETWEEN}{lock.id}"
    warned = False

    while not lock.acquire(timeout=WAIT_S):
        owners = client.run_on_scheduler(_release_dead, names=list(lock.names))
        if owners and not warned:
            LOG.warning("waiting for another fit on the same workers, by %s", ", ".join(owners))
            warned = True

    try:
        yield
    finally:
        if client.status == "running":  # otherwise the scheduler is gone, and the lock with it
            lock.release()


def _release_dead(dask_scheduler: "Scheduler", names: Sequence[str]) -> list[str]:
    """Release locks of dead clients; return the clients that own the others."""
    locks: Any = dask_scheduler.extensions["multi_locks"]
    alive = []

    for user in sorted({str(user) for name in names for user in locks.locks[name][:1]}):
        client = user.partition(BETWEEN)[0]
        if client in dask_scheduler.clients:
            alive.append(client)
            continue

        # XGBoost's lock inside it is of the same workers, by their plain addresses.
        addresses = {name.removeprefix(LOCK) for name in locks.requests[user]}
        first = [locks.locks[address][0] for address in addresses if locks.locks.get(address)]
        for inner in {lock for lock in first if set(locks.requests.get(lock, ())) == addresses}:
            locks.release(id=inner)
        locks.release(id=user)

    return alive


def predict(client: "Client", scorer: "Future[native.Scorer]", x: Parts) -> list[Any]:
    """Start scoring futures of (rows, features) float32 DataFrames where they lie; return futures
    of the scores.

    ``scorer`` is a future of a scorer, as ``send_saved_scorer`` and ``send_fitted_scorer`` return
    it.
    """
    return list(
        client.map(_score, x, scorer=scorer, threads=_threads(client, x), pure=False, key="score")
    )


def evaluation_targets(
    client: "Client", scorer: "Future[native.Scorer]", rows: RowsOnWorkers
) -> list[Any]:
    """Return futures of what predictions are compared with: the target, or the features if there is
    no target.
    """
    if rows.y:
        return list(rows.y)
    return list(client.map(_one_hot_rows, rows.x, scorer=scorer, pure=False, key="one-hot"))


def _one_hot_rows(x: Frame, scorer: native.Scorer) -> Array:
    return scorer.one_hot_rows(x)


def _threads(client: "Client", x: Parts) -> int:
    """Return how many threads a part may take: fewer parts than threads would leave cores idle."""
    nthreads: Sequence[int] = list(client.nthreads().values())
    return min(max(sum(nthreads) // len(x), 1), max(nthreads, default=1))


def send_fitted_scorer(client: "Client", scorer: native.Scorer) -> "Future[native.Scorer]":
    """Return a future of a fit's scorer, of which each worker gets one copy; no file is written."""
    return _sent(client, copy, scorer)


def send_saved_scorer(
    client: "Client", saved: Path, format: str, device: str
) -> "Future[native.Scorer]":
    """Return a future of a saved model's scorer, loaded by a worker: the driver may lack a GPU."""
    return _sent(client, native.load, saved.read_bytes(), format, device)


def score_every_way(client: "Client", fitted: Fitted, saved: Path, x: Array) -> dict[str, Array]:
    """Score (rows, features) float32 host rows by every way that a worker has to score a saved
    model.

    Returns way -> predictions on the host: ``estimator`` is the scorer of the fit, the others are
    those of ``native.available``.
    """
    scores: dict[str, Array] = _sent(
        client, _score_every_way, fitted.scorer, saved.read_bytes(), fitted.format, x
    ).result()
    return scores


def _score_every_way(
    scorer: native.Scorer, content: bytes, format: str, x: Array
) -> dict[str, Array]:
    ways = {way: native.load(content, format, through=way) for way in native.available(format)}
    scorers = {"estimator": scorer, **ways}
    return {name: to_host(scorer.score(x)) for name, scorer in scorers.items()}


def _sent(client: "Client", function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
    """Start a task with large arguments inside the graph: the scheduler keeps them, so that they
    outlive a worker.
    """
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
        return client.submit(function, *arguments, pure=False)


def _score(x: Frame, scorer: native.Scorer, threads: int) -> Array:
    if threads > 1:
        scorer.score(x[:0])  # load the model once, rather than in each thread
    return native.shared_out(scorer.score, x, threads, ROWS_OF_THREAD)


def drawn_rows(saved: Path) -> int:
    """Return how many rows' contributions a figure of a booster shows: fewer if it has many splits,
    which take longer.
    """
    booster = native.load(saved, "xgboost-ubj").booster
    splits = sum(booster.get_score(importance_type="weight").values())
    return int(np.clip(DRAWN_SPLITS / max(splits, 1), FEWEST_DRAWN_ROWS, DRAWN_ROWS))


def contributions(
    client: "Client",
    scorer: "Future[native.Scorer]",
    x: Parts,
    sizes: Sequence[int],
    most: int,
    *,
    of_class: int | None = None,
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return rows of parts at even distances, and the contributions of features to their margins.

    ``scorer`` is a future, as ``send_saved_scorer`` returns it. ``x`` are futures of (rows,
    features) float32 DataFrames of ``sizes`` rows; at most ``most`` rows are taken. Contributions
    are computed where the part lies; with several classes, they are to the margin of ``of_class``.
    Returns (rows, features) and (rows, features + 1).
    """
    step = max(-(-sum(sizes) // most), 1)
    # The distance between rows stays even across the parts' borders.
    starts = [-sum(sizes[:at]) % step for at in range(len(sizes))]
    threads = _threads(client, x)
    parts = client.map(
        _explain_part,
        x,
        starts,
        scorer=scorer,
        step=step,
        threads=threads,
        of_class=of_class,
        pure=False,
        key="explain",
    )
    values, added = zip(*client.gather(parts), strict=True)

    return np.concatenate(values), np.concatenate(added)


def _explain_part(
    x: Frame,
    start: int,
    scorer: native.XGBoostScorer,
    step: int,
    threads: int,
    of_class: int | None = None,
) -> tuple[Array, Array]:
    rows = x.iloc[start::step]
    added = native.shared_out(scorer.contributions, rows, threads, EXPLAINED_BY_THREAD)
    if of_class is not None:
        added = added[:, of_class]
    return to_host(rows.values), added
