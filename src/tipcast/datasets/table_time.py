"""The sides of a table whose rows have a time: which parts of its files hold rows of the side's
period.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tipcast.compute.base import Array
from tipcast.compute.frames import NULL_TIME
from tipcast.config.errors import TipcastError
from tipcast.datasets import address, split
from tipcast.datasets.parts import Fragment, Period
from tipcast.datasets.scan import AnyScan, FileScan

Times = Callable[[Fragment], Array]
"""Reads a fragment's times, (rows,) int64 microseconds, ``NULL_TIME`` for null."""


def side_of(
    scans: Sequence[AnyScan], times: Times, time: str, which: str, test_share: float | None
) -> list[AnyScan]:
    """Give the files the side's period, without their parts of other times; D010 a file without a
    time.

    ``test_share`` is the last share of the time that the side ``test`` has, ``train`` the rest;
    None: the files hold one side alone.
    """
    spans = _spans(scans, times)
    for scan, of_file in zip(scans, spans, strict=True):
        if not any(of_file):
            raise empty(scan.uri, time)

    every = [span for of_file in spans for span in of_file if span]
    low = min(first for first, _ in every)
    last = max(last for _, last in every)
    high = last + split.MINUTE
    if test_share is not None:
        border = min(high - int((high - low) * test_share), last)  # each side has a row
        low, high = (low, max(border, low + 1)) if which == "train" else (border, high)

    inside = []
    for scan, of_file in zip(scans, spans, strict=True):
        pairs = zip(scan.fragments, of_file, strict=True)
        chosen = [part for part, span in pairs if span and span[0] < high and span[1] >= low]
        if chosen:
            fragments = tuple(replace(part, period=(low, high)) for part in chosen)
            inside.append(replace(scan, period=(low, high), fragments=fragments))
    return inside


def empty(uri: str, time: str) -> TipcastError:
    """Return the error of a file in which the column of times has no value; D010."""
    what = f"column {time!r} is empty"
    return TipcastError("D010", address.shown(uri), what, "check data.time")


def _spans(scans: Sequence[FileScan], times: Times) -> list[list[Period | None]]:
    """Return the first and last time of each fragment of each file; None where it has none."""

    def span(fragment: Fragment) -> Period | None:
        values = times(fragment)
        values = values[values != NULL_TIME]
        return (int(values.min()), int(values.max())) if len(values) else None

    with ThreadPoolExecutor(address.AT_ONCE) as pool:
        spans = [pool.map(span, scan.fragments) for scan in scans]
    return [list(of_file) for of_file in spans]
