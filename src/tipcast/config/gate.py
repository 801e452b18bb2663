"""Named points of a job at which a test may hold it: a fault then comes at that point, not after
some seconds.
"""

import os
import time
from pathlib import Path

VARIABLE = "TIPCAST_GATE"
"""Variable with POINT:PATH, which workers of this machine inherit; unset, nothing happens."""


def gate(point: str) -> None:
    """Note the point and the process in PATH; at POINT, wait until the file PATH.go exists."""
    gated_point, _, path = os.environ.get(VARIABLE, "").partition(":")
    if not path:
        return

    # One short write: lines stay whole and in the order of their events.
    with Path(path).open("a") as passed:
        passed.write(f"{point} {os.getpid()}\n")
    while point == gated_point and not Path(f"{path}.go").exists():
        time.sleep(0.02)
