"""What a job shows on standard error while it runs: a line for each phase, and a bar on a terminal
after 2 seconds.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, final

LOG = logging.getLogger("tipcast")

PATIENCE_S = 2.0
"""Seconds before a bar is shown."""
REFRESH_S = 0.2
"""Seconds between two updates of a bar."""
LINES = 10
"""Most lines that a long list of files prints."""
LONG_S = 1.0
"""Seconds from which on a phase gets a line even if it notes nothing."""


class _Handler(logging.Handler):
    """Writes to the standard error of the moment, above a progress bar.

    Level and logger stand before warnings, and before all lines of libraries.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if record.name != LOG.name or record.levelno != logging.INFO:
                line = f"{record.levelname} {record.name}: {line}"

            tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
            if tqdm:
                tqdm.write(line, file=sys.stderr)
            else:  # there is no bar to break
                print(line, file=sys.stderr)
        # As in logging's own handlers: a line that cannot be logged must not end the job.
        except Exception:  # noqa: BLE001
            self.handleError(record)


@contextlib.contextmanager
def logging_to_stderr(level: int) -> Iterator[None]:
    """Log to standard error during the block.

    ``logging.WARNING`` logs warnings and shows no progress bar; ``logging.DEBUG`` also logs what
    libraries log as INFO.
    """
    library_level = logging.WARNING
    if level < logging.INFO:
        library_level = logging.INFO

    root = logging.getLogger()
    handler = _Handler()
    handler.addFilter(lambda record: not record.name.startswith("hydra."))  # how Hydra composes
    root_level_before = root.level
    level_before = LOG.level
    root.addHandler(handler)
    root.setLevel(library_level)
    LOG.setLevel(level)

    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(root_level_before)
        LOG.setLevel(level_before)


def worth_a_line(done: int, total: int) -> bool:
    """Tell whether to log that ``done`` of ``total`` have ended.

    True at each tenth of them, so that a long list stays short.
    """
    return done * LINES // total > (done - 1) * LINES // total


class _Future(Protocol):
    """A future of Dask or of the standard library."""

    def done(self) -> bool: ...


@contextlib.contextmanager
def progress(
    label: str,
    futures: Sequence[_Future] = (),
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> Iterator[Callable[..., None]]:
    """Show how long a block has taken and how far it is, if standard error is a terminal.

    The steps are ``futures`` that end. Instead the block may call the function that this yields,
    with the number of steps done, the number of all steps, and a note. ``wait`` waits between two
    updates.
    """
    bar = _Bar(label, futures, wait)
    # With other levels there are lines in place of a bar, or nothing.
    if LOG.level in (logging.NOTSET, logging.INFO) and sys.stderr.isatty():
        bar.start()
    try:
        yield bar.report
    finally:
        bar.stop()


class _Steps(NamedTuple):
    """How far a block is."""

    done: int
    total: int
    note: str = ""


@final
class _Bar:
    """A bar of tqdm, which a thread updates until the bar is stopped."""

    def __init__(
        self,
        label: str,
        futures: Sequence[_Future],
        wait: Callable[[threading.Event, float], bool],
    ) -> None:
        self._label = label
        self._futures = futures
        self._wait = wait
        self._begun = time.time()  # tqdm's clock
        self._steps = _Steps(0, len(futures))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Show the bar after ``PATIENCE_S``."""
        self._thread.start()

    def report(self, done: int, total: int, note: str = "") -> None:
        """Take note of how far the block is."""
        self._steps = _Steps(done, total, note)

    def stop(self) -> None:
        """Remove the bar if it was started."""
        self._over.set()
        if self._thread.ident:
            self._thread.join()

    def _run(self) -> None:
        if self._wait(self._over, PATIENCE_S):  # tqdm's own delay ends with the first logged line
            return
        from tqdm import tqdm  # takes a while to import

        with tqdm(
            desc=self._label, bar_format="{desc} {elapsed}", miniters=0, mininterval=0, leave=False
        ) as bar:
            bar.start_t = self._begun
            while not self._wait(self._over, REFRESH_S):
                steps = self._steps
                if steps.total:
                    bar.total = steps.total
                    bar.bar_format = "{desc} {n}/{total} |{bar}| {elapsed} < {remaining}{postfix}"
                    bar.set_postfix_str(steps.note, refresh=False)
                ended = sum(future.done() for future in self._futures)
                bar.update(ended + steps.done - bar.n)


@final
class Clock:
    """Seconds by phase, in the order in which the phases began."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[list[str]]:
        """Add a block's seconds to a phase, and log a line.

        The line has the notes that the block appends to the list that it gets.
        """
        notes = list[str]()
        start = self._now()
        LOG.debug("%s begins", name)
        self.seconds.setdefault(name, 0.0)

        try:
            yield notes
        finally:
            seconds = self._now() - start
            self.seconds[name] += seconds

        level = logging.DEBUG
        if notes or seconds >= LONG_S:
            level = logging.INFO
        LOG.log(level, "%s", f"{name:<9}{seconds:7.1f} s  {', '.join(notes)}".rstrip())
