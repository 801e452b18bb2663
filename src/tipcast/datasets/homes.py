"""Homes: the workers that are to hold the parts of the rows."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from distributed import wait

from tipcast.compute.base import Session
from tipcast.compute.cluster import at_home, worker_info
from tipcast.datasets.parts import Part

if TYPE_CHECKING:
    from distributed import Client


def plan_homes(session: Session, parts: Sequence[Part]) -> list[str | None]:
    """Return the address of a worker for each part, so that the session's homes get about the same
    number of rows per thread. If the client has only one worker, return None for each part.

    Dask would give a part to whichever worker is free. A training that draws rows by ``subsample``
    would then draw other ones in each process.
    """
    if len(worker_info(session.client)) < 2:
        return [None] * len(parts)

    threads = threads_of_homes(session)
    load = dict.fromkeys(threads, 0.0)
    homes: dict[int, str] = {}
    # The largest first: small ones even out what these leave.
    for place in sorted(range(len(parts)), key=lambda place: -(parts[place].rows or 1)):
        home = min(load, key=load.__getitem__)  # the first of equals
        load[home] += (parts[place].rows or 1) / threads[home]
        homes[place] = home
    return [homes[place] for place in range(len(parts))]


def threads_of_homes(session: Session) -> dict[str, int]:
    """Return the address of each home -> its threads, in the order of the workers' names."""
    workers = worker_info(session.client)
    names = sorted((str(worker["name"]), address) for address, worker in workers.items())
    return {address: int(workers[address]["nthreads"]) for _, address in names[: session.homes]}


def map_at_home(
    client: "Client",
    homes: Sequence[str | None],
    function: Callable[..., Any],
    *of_parts: Sequence[Any],
    **given: Any,
) -> list[Any]:
    """Start a task for each part on its home, or elsewhere if that worker is gone or there is no
    home; return futures in the order of the parts.
    """
    futures: dict[int, Any] = {}
    for home in dict.fromkeys(homes):
        places = [at for at, address in enumerate(homes) if address == home]
        of_home = [[values[at] for at in places] for values in of_parts]
        where = at_home(home) if home else {}
        tasks = client.map(function, *of_home, pure=False, **where, **given)
        futures |= dict(zip(places, tasks, strict=True))
    return [futures[at] for at in range(len(homes))]


def holders_of(client: "Client", parts: Sequence[Any]) -> list[str]:
    """Wait for parts; return the address of a worker that holds each, empty for a part that was
    lost meanwhile.
    """
    with client.as_current():  # Dask's wait takes no client
        wait(parts)

    holders = client.who_has(parts)
    return [min(holders[part.key], default="") for part in parts]
