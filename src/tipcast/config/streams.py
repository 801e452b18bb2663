"""Standard input, output and error, as cron, daemons, full disks and ASCII terminals leave them."""

import contextlib
import os
import sys

from tipcast.config.errors import TipcastError


def open_streams() -> None:
    """Open closed streams on the null device, and let output escape what its encoding lacks.

    Otherwise the next file that is opened, such as a database, gets the number of a closed stream,
    and other programs print into it.
    """
    for number in range(3):
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        # The new file gets the lowest free number, which is the missing one; children inherit it.
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115
            setattr(sys, name, stream)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def check_folder() -> None:
    """Refuse a working folder that was deleted, as no relative path means anything; C003."""
    try:
        os.getcwd()  # noqa: PTH109
    except OSError as problem:
        raise TipcastError(
            "C003", "working folder", "it was deleted", "change to another one with cd"
        ) from problem


def show(text: str) -> None:
    """Print on standard output, at once.

    Raises T010 if the text cannot be written; after that nothing more is printed. BrokenPipeError
    passes: the reader has left.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as problem:
        _silence(1)
        fix = (
            "free space there, or redirect the output; everything that the job recorded is complete"
        )
        what = f"cannot be written: {problem.strerror or problem}"
        raise TipcastError("T010", "standard output", what, fix) from problem


def tell(line: object) -> None:
    """Print a line on standard error, if that can be written.

    A closed standard error must not change the exit code.
    """
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _silence(2)


def end_error() -> None:
    """Drop lines that standard error did not take, which would change the exit code at the end."""
    try:
        sys.stderr.flush()
    except OSError:
        _silence(2)


def _silence(number: int) -> None:
    """Redirect a stream to the null device.

    Otherwise Python fails at its end, when it writes what is left in the buffer.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
