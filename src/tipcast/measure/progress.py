"""A progress bar on a terminal, for whatever takes more than two seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

PATIENCE_S = 2.0
REFRESH_S = 0.2


@dataclass
class _Steps:
    """How far a block has come, by its own account."""

    done: int = 0
    total: int = 0
    note: str = ""

    def tell(self, done: int, total: int, note: str = "") -> None:
        self.done, self.total, self.note = done, total, note


@contextlib.contextmanager
def progress(label: str, futures: Sequence[Any] = ()) -> Iterator[Callable[..., None]]:
    """Show how long a block has taken and how far it is, where standard error is a terminal.

    Parameters
    ----------
    label
        What is going on.
    futures
        ``distributed.Future`` objects to count.

    Yields
    ------
    callable
        To be told the steps done, all steps and what else is worth a word, by a block that has no futures to count;
        else only the time is shown.

    """
    steps = _Steps(total=len(futures))
    if not sys.stderr.isatty():
        yield steps.tell
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(label, futures, steps, ended), daemon=True)
    watcher.start()
    try:
        yield steps.tell
    finally:
        ended.set()
        watcher.join()


def _watch(label: str, futures: Sequence[Any], steps: _Steps, ended: threading.Event) -> None:
    with tqdm(desc=label, bar_format="{desc} {elapsed}", delay=PATIENCE_S, miniters=0, leave=False) as bar:
        while not ended.wait(REFRESH_S):
            if steps.total:
                bar.total, bar.bar_format = steps.total, "{desc} {n}/{total} |{bar}| {elapsed} < {remaining}{postfix}"
                bar.set_postfix_str(steps.note, refresh=False)
            done = sum(future.done() for future in futures) if futures else steps.done
            bar.update(done - bar.n)
