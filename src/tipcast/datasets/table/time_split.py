"""The sides of a table whose rows have a time: which parts of its files hold rows of the side's
period.
"""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tipcast.compute.base import Array
from tipcast.compute.frames import NULL_TIME
from tipcast.config.errors import TipcastError
from tipcast.datasets import address, periods
from tipcast.datasets.listing import AnyScan, FileScan
from tipcast.datasets.parts import Part, Period

Times = Callable[[Part], Array]
"""Reads a part's times, (rows,) int64 microseconds, ``NULL_TIME`` for null."""
Span = tuple[int, int]
"""The first and the last time of some rows, in microseconds."""


def side_of(
    scans: Sequence[AnyScan], times: Times, time: str, which: str, test_share: float | None
) -> list[AnyScan]:
    """Give the files the side's period, without their parts of other times.

    ``test_share`` is the last share of the time that the side ``test`` has, ``train`` the rest;
    None: the files hold one side alone.

    Raises D010 for a file without a time.
    """
    spans, rows = _spans(scans, times)
    for scan, of_file in zip(scans, spans, strict=True):
        if not any(of_file):
            raise empty(scan.uri, time)

    period = _period_of([span for of_file in spans for span in of_file if span], which, test_share)
    inside = []
    for scan, of_file, sizes in zip(scans, spans, rows, strict=True):
        starts = itertools.accumulate(sizes, initial=0)
        parts = tuple(
            replace(part, period=period, first_row=start)
            for part, span, start in zip(scan.parts, of_file, starts, strict=False)
            if span and _has_rows_of(span, period)
        )
        if parts:
            inside.append(replace(scan, period=period, parts=parts))

    return inside


def _spans(
    scans: Sequence[FileScan], times: Times
) -> tuple[list[list[Span | None]], list[list[int]]]:
    """Return the first and last time of each part of each file, None where it has none; and the
    rows of each part.
    """

    def span_and_rows(part: Part) -> tuple[Span | None, int]:
        values = times(part)
        present = values[values != NULL_TIME]
        span = (int(present.min()), int(present.max())) if len(present) else None
        return span, len(values)

    with ThreadPoolExecutor(address.AT_ONCE) as pool:
        spans_of_files = [pool.map(span_and_rows, scan.parts) for scan in scans]
    files = [list(of_file) for of_file in spans_of_files]
    spans = [[span for span, _ in of_file] for of_file in files]
    return spans, [[rows for _, rows in of_file] for of_file in files]


def _period_of(spans: Sequence[Span], which: str, test_share: float | None) -> Period:
    """Return the period of a side, see ``side_of``."""
    first = min(low for low, _ in spans)
    last = max(high for _, high in spans)
    stop = last + periods.MINUTE
    if test_share is None:
        return first, stop

    border = min(stop - int((stop - first) * test_share), last)  # each side has a row
    if which == "train":
        return first, max(border, first + 1)
    return border, stop


def _has_rows_of(span: Span, period: Period) -> bool:
    return span[0] < period[1] and span[1] >= period[0]


def empty(uri: str, time: str) -> TipcastError:
    """Return the error (D010) of a file in which the column of times has no value."""
    what = f"column {time!r} is empty"
    return TipcastError("D010", address.shown(uri), what, "check data.time")
