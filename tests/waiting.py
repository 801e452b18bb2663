"""The one wait of all tests: until something is so, under a watchdog."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

Value = TypeVar("Value")
WATCHDOG_S = 120.0
"""Longer than anything takes on a busy machine; only a test that hangs gets there."""


def wait_until(
    condition: Callable[[], Value], limit: float = WATCHDOG_S, what: object = ""
) -> Value:
    """Return the first true answer of a condition; ``what`` says why there may be none, called only
    then.
    """
    end = time.monotonic() + limit
    while not (answer := condition()):
        if time.monotonic() > end:
            pytest.fail(
                f"not so after {limit:g} s: {(what() if callable(what) else what) or condition}"
            )
        time.sleep(0.02)
    return answer


class Turns:
    """Stands for time in a thread that looks now and then: a test gives it one look after
    another.
    """

    def __init__(self) -> None:
        self._come, self._go = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, ended: threading.Event, _: float) -> bool:
        """Wait for a turn, in place of ``Event.wait``."""
        self._come.release()
        while not self._go.acquire(timeout=0.02):
            if ended.is_set():
                return True
        return False

    def take(self, turns: int = 1) -> None:
        """Let the thread look so often; it has done so at the end."""
        for _ in range(turns):
            self.give()
        assert self._come.acquire(timeout=WATCHDOG_S)
        self._come.release()

    def give(self) -> None:
        """Let the thread look once, which may be its last look."""
        assert self._come.acquire(timeout=WATCHDOG_S)
        self._go.release()
