"""The clock of a job: how many seconds each phase took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import final


@final
class Clock:
    """Seconds by phase, in the order in which the phases began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add a block's seconds of wall time to a phase, however the block ends."""
        start = time.perf_counter()
        self.seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
