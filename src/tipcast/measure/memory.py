"""Memory: the most that the driver, each worker and each worker's device ever held."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

from distributed import Client

from tipcast.compute import gpus


def peak_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    status = Path("/proc/self/status")  # on Linux ru_maxrss begins with that of the process which started this one
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE) if status.exists() else None
    if found:
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peaks(client: Client) -> dict[str, int]:
    """Return the largest resident sets and, where workers have devices, the most memory in use on one, in bytes.

    They are of the ``driver``, of all ``worker`` processes, and of the ``device`` (see ``gpus.Watcher``).
    """
    workers = client.run(peak_bytes, on_error="ignore")  # one may die even now
    devices = [peak for peak in client.run(gpus.peak_bytes, on_error="ignore").values() if peak is not None]
    found = {"driver": peak_bytes(), "worker": max(workers.values(), default=0)}
    return found | ({"device": max(devices)} if devices else {})
