"""The one wait of all tests: until something is so, under a watchdog."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

Value = TypeVar("Value")
WATCHDOG_S = 120.0
"""Longer than anything takes on a busy machine; only a test that hangs gets there."""


def wait_until(condition: Callable[[], Value], limit: float = WATCHDOG_S, what: object = "") -> Value:
    """Return the first true answer of a condition."""
    end = time.monotonic() + limit
    while not (answer := condition()):
        if time.monotonic() > end:
            pytest.fail(f"not so after {limit:g} s: {what or condition}")
        time.sleep(0.02)
    return answer
