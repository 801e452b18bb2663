"""The clock of a job: how many seconds each phase took, in a log line as the phase ends."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import final

LOG = logging.getLogger("tipcast")

LONG_S = 1.0
"""A phase that takes longer gets a line even if there is nothing to tell of it."""


@final
class Clock:
    """Seconds by phase, in the order in which the phases began."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[list[str]]:
        """Add a block's seconds to a phase; log a line, with the facts that a block adds to what this yields."""
        facts: list[str] = []
        LOG.debug("%s begins", name)
        start = self._now()
        self.seconds.setdefault(name, 0.0)
        try:
            yield facts
        finally:
            seconds = self._now() - start
            self.seconds[name] += seconds
        level = logging.INFO if facts or seconds >= LONG_S else logging.DEBUG
        LOG.log(level, "%s", f"{name:<9}{seconds:7.1f} s  {', '.join(facts)}".rstrip())
