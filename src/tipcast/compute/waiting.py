"""How threads that compute together wait for each other: spinning for a moment, then asleep."""

from __future__ import annotations

import os

ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000"}
"""Asleep at once, each wait costs an idle machine a wake-up; spinning as long as GNU's OpenMP does costs a busy one the
cores that others need: `benchmarks/busy_cores.py`."""


def waiting() -> dict[str, str]:
    """Return the variables that say so to OpenMP, to be set before it is loaded: the user's where there are such."""
    given = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return given or ENVIRONMENT
