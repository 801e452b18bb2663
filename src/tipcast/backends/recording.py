"""Dask's own account of what the workers did: its performance report as one file."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

from distributed import Client, performance_report


@contextlib.contextmanager
def recorded(client: Client, path: Path) -> Iterator[None]:
    """Record Dask's performance report of a block as one self-contained HTML file; a report that fails is left out."""
    report = performance_report(filename=str(path), mode="inline")
    report.__enter__()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bokeh warns of empty plots when a block is short
        try:
            report.__exit__(None, None, None)  # not after a failure: it would hold up the end by seconds
        except Exception as problem:
            logging.getLogger("tipcast").warning("no Dask performance report: %s", problem)
