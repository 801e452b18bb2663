"""What a job shows on standard error while it runs: log lines, and a progress bar on a terminal after two seconds."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LOG = logging.getLogger("tipcast")

PATIENCE_S = 2.0
REFRESH_S = 0.2
LINES = 10
"""Lines that a long list of files may print."""


class _Handler(logging.Handler):
    """Write to the standard error of the moment, above a progress bar where that is a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if sys.stderr.isatty():
                from tqdm import tqdm  # takes a while to import

                tqdm.write(line, file=sys.stderr)
            else:
                print(line, file=sys.stderr, flush=True)
        except Exception:  # noqa: BLE001 - as every handler: what cannot be logged must not end the job
            self.handleError(record)


class _Formatter(logging.Formatter):
    """Show the job's own lines as they are, all others with their level and logger."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        own = record.name == LOG.name and record.levelno == logging.INFO
        return line if own else f"{record.levelname} {record.name}: {line}"


@contextlib.contextmanager
def shown(level: int) -> Iterator[None]:
    """Log to standard error.

    ``logging.WARNING`` shows warnings alone and no progress bar, ``logging.DEBUG`` also what libraries log as INFO.
    """
    root, handler = logging.getLogger(), _Handler()
    handler.setFormatter(_Formatter())
    handler.addFilter(lambda record: not record.name.startswith("hydra."))  # it prints what --info asks for itself
    before = root.level, LOG.level
    root.addHandler(handler)
    root.setLevel(logging.INFO if level < logging.INFO else logging.WARNING)
    LOG.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before[0])
        LOG.setLevel(before[1])


def worth_a_line(done: int, total: int) -> bool:
    """Tell whether to log that one more of many has ended: at each tenth of them, so that a long list stays short."""
    return done * LINES // total > (done - 1) * LINES // total


@dataclass
class _Steps:
    """How far a block has come, by its own account."""

    done: int = 0
    total: int = 0
    note: str = ""

    def tell(self, done: int, total: int, note: str = "") -> None:
        self.done, self.total, self.note = done, total, note


@contextlib.contextmanager
def progress(
    label: str, futures: Sequence[Any] = (), wait: Callable[[threading.Event, float], bool] = threading.Event.wait
) -> Iterator[Callable[..., None]]:
    """Show how long a block has taken and how far it is, where standard error is a terminal.

    The steps are futures that end, or those that a block tells what this yields: steps done, all steps and a word.
    ``wait`` waits between two looks at them.
    """
    steps = _Steps(total=len(futures))
    detailed_or_quiet = LOG.level not in (logging.NOTSET, logging.INFO)  # lines in place of a bar, or nothing
    if detailed_or_quiet or not sys.stderr.isatty():
        yield steps.tell
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(label, futures, steps, ended, wait), daemon=True)
    watcher.start()
    try:
        yield steps.tell
    finally:
        ended.set()
        watcher.join()


def _watch(
    label: str,
    futures: Sequence[Any],
    steps: _Steps,
    ended: threading.Event,
    wait: Callable[[threading.Event, float], bool],
) -> None:
    begun = time.time()  # as tqdm's clock
    if wait(ended, PATIENCE_S):  # tqdm's own delay ends with the first line that is logged
        return
    from tqdm import tqdm  # takes a while to import

    with tqdm(desc=label, bar_format="{desc} {elapsed}", miniters=0, mininterval=0, leave=False) as bar:
        bar.start_t = begun
        while not wait(ended, REFRESH_S):
            if steps.total:
                bar.total, bar.bar_format = steps.total, "{desc} {n}/{total} |{bar}| {elapsed} < {remaining}{postfix}"
                bar.set_postfix_str(steps.note, refresh=False)
            done = sum(future.done() for future in futures) if futures else steps.done
            bar.update(done - bar.n)
