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
from typing import TYPE_CHECKING, TypeVar, final

import dask
from distributed import Scheduler, SchedulerPlugin, Variable

from tipcast.compute.cluster import restart, successors, worker_info, worker_names
from tipcast.config.errors import TipcastError
from tipcast.models import fit as fits
from tipcast.models.base import Estimator, Fitted, Progress
from tipcast.models.fit import RowsOnWorkers

if TYPE_CHECKING:
    from distributed import Client

LOG = logging.getLogger("tipcast")
LOOKS = 2
"""How often the driver looks for a new checkpoint while one is made."""
LOOK_S = 30.0
"""Most seconds of such a look."""
KEEP_S = 10.0
"""Most seconds that a fit waits at its end for a checkpoint that is being kept."""
Keep = Callable[[bytes], None]
"""Keeps a checkpoint where it outlives this process."""
WITHOUT_CHECKPOINTS = 1
"""How often at most a fit without checkpoints begins again."""

RowsT = TypeVar("RowsT", bound=RowsOnWorkers)


@dataclass(frozen=True)
class Healed:
    """A fit that has ended, and what it took."""

    fitted: Fitted
    recoveries: int = 0
    """How often the fit went on after it had lost a worker."""
    waited_s: float = 0.0
    """Seconds for which it waited for workers and their rows."""


def fit(
    client: "Client",
    estimator: Estimator,
    splits: dict[str, RowsT],
    seed: int,
    progress: Progress = None,
    *,
    recoveries: int,
    wait_s: float,
    checkpoint: bytes = b"",
    keep: Keep | None = None,
) -> Healed:
    """Fit as ``models.fit.fit`` does, on the splits ``train`` and, if any, ``validation``.

    The fit goes on from a ``checkpoint``, if it is not empty, and calls ``keep`` with each new one,
    from a thread.

    A fit that loses a worker goes on at most ``recoveries`` times. It waits up to ``wait_s``
    seconds for the worker's successor, and otherwise makes do with the workers that are left. The
    rows in ``splits`` are replaced by those that were moved to a successor. A model that keeps no
    checkpoints begins again, once. Raises what ``models.fit.fit`` does.
    """
    if estimator.checkpoint_s is None:
        recoveries = min(recoveries, WITHOUT_CHECKPOINTS)

    layout = _Layout(client)
    lost: list[str] = []
    waited_s = 0.0

    with (
        _variable(client, checkpoint) as newest,
        _copies(newest, checkpoint, estimator, keep),
        # A checkpoint of many trees is sent with its task.
        dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}),
    ):
        for recovery in range(recoveries + 1):
            try:
                if lost:
                    waited_s += _recover(client, estimator, layout, splits, lost, wait_s)
                # A worker may also be lost while its rows are looked for.
                layout.find(splits)

                resumed = estimator.resuming(newest.get(), keep_in=newest.name)
                fitted = fits.fit(
                    client, resumed, splits["train"], splits.get("validation"), seed, progress
                )
                return Healed(fitted, recovery, waited_s)
            except TipcastError as problem:
                # Another worker may be lost while one is waited for.
                if problem.code != "K003" or recovery == recoveries or client.status != "running":
                    raise
                lost = fits.lost_workers(problem)
                message = (
                    "lost while training: %s; a replacement reads the rows again, or after %g s "
                    "the other workers do"
                )
                LOG.warning(message, ", ".join(lost), wait_s)

    raise AssertionError("the last fit returns or raises")


def _recover(
    client: "Client",
    estimator: Estimator,
    layout: "_Layout",
    splits: dict[str, RowsT],
    lost: Iterable[str],
    wait_s: float,
) -> float:
    """Wait up to ``wait_s`` seconds for the successors of lost workers, and give them their rows;
    return the seconds.

    Workers that are frozen are restarted, and then those that are stuck because of them.
    """
    began = time.monotonic()
    _restart(client, lost)
    _restart(client, estimator.stuck_workers(client))
    with contextlib.suppress(TimeoutError):
        client.wait_for_workers(len(layout.names), timeout=wait_s)

    layout.restore(splits)
    return time.monotonic() - began


def _restart(client: "Client", workers: Iterable[str]) -> None:
    """Restart those of some workers that the scheduler still has."""
    present = sorted(set(workers) & set(worker_info(client)))
    if present:
        restart(client, present)


@final
class _Layout:
    """Which worker holds which part of the rows, before any worker is lost."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self.names = worker_names(client)
        """Address of a worker -> its name, which its successor has too."""
        self._homes: dict[str, list[str]] = {}
        """Split -> the address of the worker that holds each of its parts."""

    def find(self, splits: Mapping[str, RowsOnWorkers]) -> None:
        """Wait for all parts of the splits, and note where they are, unless that is known."""
        if self._homes:
            return

        homes = {
            name: [min(holding) for holding in fits.holders(self._client, rows.parts)]
            for name, rows in splits.items()
        }
        self.names = worker_names(self._client)
        self._homes = homes

    def restore(self, splits: dict[str, RowsT]) -> None:
        """Move each part of the splits to the worker that held it, or to its successor.

        Dask reads lost rows again wherever a worker is idle. The sums of a training, and so its
        last digits, depend on which worker holds which rows. A part without a successor stays where
        it is.
        """
        places = successors(self.names, worker_names(self._client))
        for name, addresses in self._homes.items():
            rows = splits[name]
            fits.holders(self._client, rows.parts)
            homes = [places.get(address, "") for address in addresses]
            splits[name] = rows.moved(self._client, homes)


@contextlib.contextmanager
def _variable(client: "Client", content: bytes) -> Iterator[Variable]:
    """Open a variable of Dask's scheduler, which outlives all workers, but not this process."""
    variable = Variable(f"tipcast checkpoint {uuid.uuid4().hex}", client)
    client.register_plugin(DeleteAfter(variable.name, client.id))
    variable.set(content)
    try:
        yield variable
    finally:
        variable.delete()
        with contextlib.suppress(Exception):  # a cluster that is gone holds nothing
            client.unregister_scheduler_plugin(variable.name)


@final
class DeleteAfter(SchedulerPlugin):
    """Deletes a variable when the client that made it disconnects, as a driver that is killed."""

    idempotent = True

    def __init__(self, variable: str, client: str) -> None:
        self.name = variable
        self._client = client

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Clear up after a driver that was killed."""
        if client != self._client:
            return

        # Dask's own way to delete a variable is a coroutine, which this hook cannot wait for.
        scheduler.extensions["variables"].variables.pop(self.name, None)
        with contextlib.suppress(ValueError):  # the driver has removed the plugin itself
            scheduler.remove_plugin(self.name)


@contextlib.contextmanager
def _copies(
    newest: Variable, checkpoint: bytes, estimator: Estimator, keep: Keep | None
) -> Iterator[None]:
    """Call ``keep`` with each checkpoint that comes after ``checkpoint``, from a thread."""
    if keep is None or estimator.checkpoint_s is None:
        yield
        return

    over = threading.Event()
    every_s = estimator.checkpoint_s / LOOKS

    def copy() -> None:
        last_copied = checkpoint
        while not over.wait(every_s):
            with contextlib.suppress(Exception):  # a scheduler that is gone ends the fit anyway
                content = newest.get(timeout=LOOK_S)
                if content != last_copied:
                    keep(content)
                    last_copied = content

    thread = threading.Thread(target=copy, daemon=True, name="checkpoints")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(KEEP_S)
