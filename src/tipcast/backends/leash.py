"""`python -m tipcast.backends.leash -m MODULE WORDS ...`: a program over ssh that ends with the connection.

As root, OpenSSH passes on no signals, and what a process says is read by nobody once Dask knows its address. So whoever
started it holds its standard input open: where that ends, its whole process group does. Of standard error the lines up
to the address are passed on, and the rest is dropped, so that nobody waits for a reader.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

ADDRESSES = (b"Scheduler at:", b"worker at:")
"""What Dask waits for in the lines of a scheduler, and of a worker, to learn where it is."""


def main() -> None:
    """Run a module of this interpreter as its command line says, on the leash."""
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
