"""Memory: the most that the driver and each worker ever held."""

from __future__ import annotations

import resource
import sys
from typing import Any

UNIT = 1 if sys.platform == "darwin" else 1024
"""ru_maxrss counts bytes on macOS and KiB elsewhere."""


def peak_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def peaks(client: Any) -> dict[str, int]:
    """Return the largest resident sets, in bytes.

    Parameters
    ----------
    client
        A ``distributed.Client``.

    Returns
    -------
    dict
        ``driver`` and ``worker`` (the largest of the workers) -> bytes.

    """
    workers = client.run(peak_bytes)
    return {"driver": peak_bytes(), "worker": max(workers.values(), default=0)}
