"""Fit a model although workers are lost: a lost worker's successor takes its place and its rows,
and the training goes on from its newest checkpoint.
"""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from distributed import Variable

from tipcast.compute.cluster import worker_info
from tipcast.config.errors import TipcastError
from tipcast.models import fit as fits
from tipcast.models.base import Estimator, Fitted, Progress
from tipcast.models.fit import RowsOnWorkers

if TYPE_CHECKING:
    from distributed import Client

LOG = logging.getLogger("tipcast")
LOOKS = 4
"""Looks for a new checkpoint in the least time between two."""
KEEP_S = 10.0
"""Most seconds that a fit waits at its end for a checkpoint that is being kept."""
Keep = Callable[[bytes], None]
"""Keeps a checkpoint where it outlives this process."""
WITHOUT_CHECKPOINTS = 1
"""Most times that a fit which keeps no checkpoints begins again."""

RowsT = TypeVar("RowsT", bound=RowsOnWorkers)


@dataclass(frozen=True)
class Healed(Generic[RowsT]):
    """A fit that has ended, and what it took."""

    fitted: Fitted
    splits: Mapping[str, RowsT]
    """The rows, where they lie now."""
    recoveries: int = 0
    """How often the fit went on after it had lost a worker."""
    waited_s: float = 0.0
    """Seconds for which it waited for workers and their rows."""


def fit(
    client: "Client",
    estimator: Estimator,
    splits: Mapping[str, RowsT],
    seed: int,
    progress: Progress = None,
    *,
    recoveries: int,
    wait_s: float,
    checkpoint: bytes = b"",
    keep: Keep | None = None,
) -> Healed[RowsT]:
    """Fit as ``models.fit.fit`` does, on the splits ``train`` and, if any, ``validation``.

    The fit goes on from a ``checkpoint``, if it is not empty, and calls ``keep`` with each new one,
    from a thread.

    A fit that loses a worker goes on at most ``recoveries`` times. It waits up to ``wait_s``
    seconds for the worker's successor, and then does with the workers that are left. A model that
    keeps no checkpoints begins again, once. Raises what ``models.fit.fit`` does.
    """
    if estimator.checkpoint_s is None:
        recoveries = min(recoveries, WITHOUT_CHECKPOINTS)

    waited_s = 0.0
    with _variable(client, checkpoint) as newest, _copies(newest, estimator, keep):
        for recovery in range(recoveries + 1):
            resumed = estimator.resuming(newest.get(), keep_in=newest.name)
            layout = _Layout.of(client, splits.values())
            try:
                fitted = fits.fit(
                    client, resumed, splits["train"], splits.get("validation"), seed, progress
                )
                return Healed(fitted, splits, recovery, waited_s)
            except TipcastError as problem:
                if problem.code != "K003" or recovery == recoveries or client.status != "running":
                    raise
                lost = fits.lost_workers(problem)

            LOG.warning("%s was lost while training: its rows are read again", ", ".join(lost))
            began = time.monotonic()
            _replace_workers(client, lost, len(layout.names), wait_s)
            if stuck := estimator.stuck_workers(client):
                _replace_workers(client, stuck, len(layout.names), wait_s)
            splits = layout.restored(client, splits)
            waited_s += time.monotonic() - began

    raise AssertionError("the last fit returns or raises")


def _replace_workers(client: "Client", lost: Iterable[str], n_workers: int, wait_s: float) -> None:
    """Wait for the successors of lost workers; nannies restart those that are frozen.

    Returns after ``wait_s`` seconds even if there are fewer than ``n_workers`` workers then.
    """
    frozen = sorted(set(lost) & set(worker_info(client)))
    if frozen:
        client.restart_workers(frozen, timeout=wait_s, raise_for_error=False)
    with contextlib.suppress(TimeoutError):
        client.wait_for_workers(n_workers, timeout=wait_s)


@final
@dataclass(frozen=True)
class _Layout:
    """Which worker holds which part of the rows."""

    names: Mapping[str, str]
    """Address of a worker -> its name, which its successor has too."""
    homes: Mapping[Any, str]
    """Key of a part -> the address of the worker that holds it."""

    @classmethod
    def of(cls, client: "Client", splits: Iterable[RowsOnWorkers]) -> "_Layout":
        """Wait for all parts of the splits; return where they are."""
        parts = [part for rows in splits for part in (*rows.x, *rows.y)]
        holding = fits.holders(client, parts)
        homes = {part.key: min(held_by) for part, held_by in zip(parts, holding, strict=True)}
        return cls(_names(client), homes)

    def restored(self, client: "Client", splits: Mapping[str, RowsT]) -> dict[str, RowsT]:
        """Return the splits with each part on the worker that held it, or on its successor.

        Dask reads lost rows again wherever a worker is idle. The sums of a training, and so its
        last digits, depend on which worker holds which rows.
        """
        fits.holders(client, [part for rows in splits.values() for part in (*rows.x, *rows.y)])
        places = successors(self.names, _names(client))
        homes = {key: places[address] for key, address in self.homes.items() if address in places}
        return {name: rows.moved(client, homes) for name, rows in splits.items()}


def successors(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return old address -> the address of the worker that has its place now, if any.

    Both are address -> name of workers.
    """
    by_name = {name: address for address, name in now.items()}
    places = {address: by_name[name] for address, name in before.items() if name in by_name}

    # A worker that was started without a name has its address as one.
    newcomers = sorted(set(now) - set(places.values()))
    vacant = sorted(set(before) - set(places))
    return places | dict(zip(vacant, newcomers, strict=False))


def _names(client: "Client") -> dict[str, str]:
    """Return address -> name of all workers."""
    return {address: str(info["name"]) for address, info in worker_info(client).items()}


@contextlib.contextmanager
def _variable(client: "Client", content: bytes) -> Iterator[Variable]:
    """Open a variable of Dask's scheduler, which outlives all workers."""
    variable = Variable(f"tipcast checkpoint {uuid.uuid4().hex}", client)
    variable.set(content)
    try:
        yield variable
    finally:
        variable.delete()


@contextlib.contextmanager
def _copies(newest: Variable, estimator: Estimator, keep: Keep | None) -> Iterator[None]:
    """Call ``keep`` with each new checkpoint of a fit, from a thread."""
    if keep is None or estimator.checkpoint_s is None:
        yield
        return

    over = threading.Event()
    every_s = estimator.checkpoint_s / LOOKS

    def copy() -> None:
        kept = newest.get()
        with contextlib.suppress(Exception):  # the scheduler is gone, which ends the fit
            while not over.wait(every_s):
                content = newest.get()
                if content != kept:
                    keep(content)
                    kept = content

    thread = threading.Thread(target=copy, daemon=True, name="checkpoints")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(KEEP_S)
