"""A progress bar on a terminal, for whatever takes more than two seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

PATIENCE_S = 2.0
REFRESH_S = 0.2


@contextlib.contextmanager
def progress(label: str, futures: Sequence[Any] = ()) -> Iterator[None]:
    """Show how long a block has taken and how many of its futures are done, where standard error is a terminal.

    Parameters
    ----------
    label
        What is going on.
    futures
        ``distributed.Future`` objects to count; none shows the time only.

    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(label, futures, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(label: str, futures: Sequence[Any], done: threading.Event) -> None:
    form = "{desc} {n}/{total} |{bar}| {elapsed} < {remaining}" if futures else "{desc} {elapsed}"
    with tqdm(
        total=len(futures) or None, desc=label, bar_format=form, delay=PATIENCE_S, miniters=0, leave=False
    ) as bar:
        while not done.wait(REFRESH_S):
            bar.update(sum(future.done() for future in futures) - bar.n)
