"""`python -m tipcast.compute.ssh_watchdog -m MODULE WORDS ...`: kill the process group when the SSH connection closes.

As root, OpenSSH forwards no signals, and nobody reads a process's output once Dask knows its address. So the process
that starts it holds standard input open; when that closes, the remote process group is killed. Standard error is
forwarded up to the address and dropped after it, so that a full pipe blocks nothing.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

ADDRESSES = (b"Scheduler at:", b"worker at:")
"""Lines by which Dask learns the address of a scheduler and of a worker."""


def main() -> None:
    """Run a module by its command line, and watch the connection."""
    read, write = os.pipe()
    told = os.dup(2)
    os.dup2(write, 2)
    threading.Thread(target=_pass_on, args=(read, told), daemon=True).start()
    threading.Thread(target=_hold, daemon=True).start()
    del sys.argv[:2]  # this program's name and -m
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _hold() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def _pass_on(read: int, told: int) -> None:
    known = False
    with os.fdopen(read, "rb") as lines, os.fdopen(told, "wb", 0) as out:
        for line in lines:
            if not known:
                out.write(line)
                known = any(address in line for address in ADDRESSES)


if __name__ == "__main__":
    main()
