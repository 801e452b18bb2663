"""What a job shows on standard error while it runs: a line for each phase, and a bar on a terminal
after 2 seconds.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

LOG = logging.getLogger("tipcast")

PATIENCE_S = 2.0
REFRESH_S = 0.2
"""Seconds before a bar is shown, and between two looks at what it counts."""
LINES = 10
"""Lines that a long list of files may print."""
LONG_S = 1.0
"""A phase that takes longer gets a line even if there is nothing to tell of it."""


class _Handler(logging.Handler):
    """Writes to the standard error of the moment, above a progress bar.

    Lines of other libraries have their level and logger before them.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            plain = record.name == LOG.name and record.levelno == logging.INFO
            # Where tqdm is not loaded there is no bar to break.
            tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
            write = tqdm.write if tqdm else print
            write(
                ("" if plain else f"{record.levelname} {record.name}: ") + self.format(record),
                file=sys.stderr,
            )
        # As in logging's own handlers: a line that cannot be logged must not end the job.
        except Exception:  # noqa: BLE001
            self.handleError(record)


@contextlib.contextmanager
def shown(level: int) -> Iterator[None]:
    """Log to standard error.

    ``logging.WARNING`` shows warnings alone and no progress bar, ``logging.DEBUG`` also what
    libraries log as INFO.
    """
    root = logging.getLogger()
    handler = _Handler()
    handler.addFilter(lambda record: not record.name.startswith("hydra."))  # how Hydra composes
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
    """Tell whether to log that one more of many has ended.

    True at each tenth of them, so that a long list stays short.
    """
    return done * LINES // total > (done - 1) * LINES // total


@contextlib.contextmanager
def progress(
    label: str,
    futures: Sequence[Any] = (),
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> Iterator[Callable[..., None]]:
    """Show how long a block has taken and how far it is, where standard error is a terminal.

    The steps are futures that end, or those that a block tells what this yields: steps done, all
    steps and a word. ``wait`` waits between two looks at them.
    """
    steps, over, begun = [0, len(futures), ""], threading.Event(), time.time()  # as tqdm's clock

    def tell(done: int, total: int, note: str = "") -> None:
        steps[:] = done, total, note

    def watch() -> None:
        if wait(over, PATIENCE_S):  # tqdm's own delay ends with the first line that is logged
            return
        from tqdm import tqdm  # takes a while to import

        with tqdm(
            desc=label, bar_format="{desc} {elapsed}", miniters=0, mininterval=0, leave=False
        ) as bar:
            bar.start_t = begun
            while not wait(over, REFRESH_S):
                done, total, note = steps
                if total:
                    bar.total = total
                    bar.bar_format = "{desc} {n}/{total} |{bar}| {elapsed} < {remaining}{postfix}"
                    bar.set_postfix_str(note, refresh=False)
                bar.update(sum(future.done() for future in futures) + done - bar.n)

    watcher = threading.Thread(target=watch, daemon=True)
    # With other levels there are lines in place of a bar, or nothing.
    if LOG.level in (logging.NOTSET, logging.INFO) and sys.stderr.isatty():
        watcher.start()
    try:
        yield tell
    finally:
        over.set()
        if watcher.ident:
            watcher.join()


@final
class Clock:
    """Seconds by phase, in the order in which the phases began."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[list[str]]:
        """Add a block's seconds to a phase, and log a line.

        The line has the facts that the block appends to the list that it gets.
        """
        facts = list[str]()
        start = self._now()
        LOG.debug("%s begins", name)
        self.seconds.setdefault(name, 0.0)

        try:
            yield facts
        finally:
            seconds = self._now() - start
            self.seconds[name] += seconds

        level = logging.INFO if facts or seconds >= LONG_S else logging.DEBUG
        LOG.log(level, "%s", f"{name:<9}{seconds:7.1f} s  {', '.join(facts)}".rstrip())
