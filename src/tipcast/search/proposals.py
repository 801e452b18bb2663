"""Proposals: which parameters are tried, in an order that no worker has any influence on."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.config.schema_sweep import SearchSpec
from tipcast.search.space import MOST, Space


@dataclass(frozen=True)
class Proposal:
    """Parameters to try."""

    number: int
    """From 0, in the order of proposal."""
    params: Mapping[str, Any]


def grid(spec: SearchSpec, space: Space, seed: int = 0) -> list[Proposal]:
    """Return every combination of lists and of some points of ranges, the last parameter changing fastest.

    Raises
    ------
    TipcastError
        C003 for more combinations than ``search.trials`` or than anyone waits for.

    """
    points = [axis.points(spec.points) for axis in space.values()]
    number, most = math.prod(map(len, points)), spec.trials or MOST
    if number > most:
        raise TipcastError(
            "C003",
            "search.trials",
            f"the grid has {number:,} points, more than {most:,}",
            "search fewer parameters or values, or use search=random",
        )
    return [Proposal(at, dict(zip(space, values, strict=True))) for at, values in enumerate(itertools.product(*points))]


def random(spec: SearchSpec, space: Space, seed: int) -> list[Proposal]:
    """Return draws of which no two are alike; a longer search begins with the trials of a shorter one."""
    wanted = spec.trials or MOST
    sizes = [axis.size for axis in space.values()]
    possible = None if None in sizes else math.prod(size or 0 for size in sizes)
    if possible is not None and possible <= MOST:
        if possible < wanted and spec.trials:
            logging.getLogger("tipcast").warning("the space has %d points only: as many trials", possible)
        every = list(itertools.product(*(axis.points(possible) for axis in space.values())))
        order = np.random.default_rng([seed]).permutation(possible)[:wanted]
        return [Proposal(at, dict(zip(space, every[i], strict=True))) for at, i in enumerate(order)]
    found: dict[str, dict[str, Any]] = {}
    since = 0
    for number in itertools.count():
        if len(found) == wanted or since == MOST:  # so many draws in a row that were there before
            break
        draw = np.random.default_rng([seed, number])
        params = {name: axis.at(float(draw.random())) for name, axis in space.items()}
        since = since + 1 if repr(params) in found else 0
        found.setdefault(repr(params), params)
    return [Proposal(number, params) for number, params in enumerate(found.values())]


LISTED: Mapping[str, Callable[[SearchSpec, Space, int], list[Proposal]]] = {
    "grid": grid,
    "random": random,
    "halving": random,
}
"""Searches whose trials are known beforehand."""
