"""Whether the trips that a configuration names can be read, found out from names, footers and headers alone."""

from __future__ import annotations

import os
from pathlib import Path

import requests

from tipcast.config.errors import TipcastError
from tipcast.config.schema import DataSpec, SampleData, TlcData
from tipcast.datasets import address, split
from tipcast.datasets.base import Dataset, Listing, ScanRequest, counted
from tipcast.datasets.taxi import features
from tipcast.datasets.taxi.files import list_files
from tipcast.datasets.taxi.schema import REQUIRED
from tipcast.datasets.taxi.tlc import addresses

ANSWER_S = 5.0
"""How long a server of months may take to answer."""


COLUMNS = {
    name: (*dict.fromkeys(("fare_amount", "tip_amount", *features.needed_columns(features.BASE_FEATURES))),)
    for name in ("train", "test")
} | {"months": REQUIRED}
"""Period -> the columns that its files must have."""


def describe(dataset: Dataset, data: DataSpec, which: str) -> str:
    """List one period of a source as a job does, but download nothing, and say what it holds.

    Parameters
    ----------
    dataset, data
        The trips and their configuration.
    which
        ``train``, ``test`` or ``months``.

    Raises
    ------
    TipcastError
        What ``scan`` raises; D001 and D022 for a month that is neither cached nor to be had.

    """
    columns = COLUMNS[which]
    if isinstance(data, TlcData):
        return _months(data, which, columns)
    listing = dataset.scan(which, columns)
    if isinstance(data, SampleData):
        rows = sum(fragment.rows or 0 for fragment in listing.fragments)
        return f"makes {rows:,} {listing.name} of {_period(listing)}"
    return _files(listing)


def _files(listing: Listing) -> str:
    rows = [fragment.rows for fragment in listing.fragments]
    known = f"{sum(row for row in rows if row is not None):,} rows, " if None not in rows else ""
    files, parts = counted(len(listing.uris), "file"), counted(len(rows), "part")
    return f"{files}, {known}{parts}, {listing.facts['colour']}, {_period(listing)}"


def _period(listing: Listing) -> str:
    return split.describe(listing.period) if listing.period else ""


def _months(data: TlcData, which: str, columns: tuple[str, ...]) -> str:
    """Tell which months the cache has; look at those, and ask the server for the first of the others."""
    months = addresses(getattr(data, which), data.url, data.cache, data.colour, f"data.{which}")
    cached = [str(file) for _, file in months if file.exists()]
    missing = [(url, file) for url, file in months if not file.exists()]
    told = f"{len(cached)} of {len(months)} months in {Path(data.cache).expanduser()}"
    if cached:
        listing = list_files(
            cached, ScanRequest(tuple(dict.fromkeys(("pickup", *columns))), facts={"colour": data.colour}), "data.cache"
        )
        told = f"{told} ({_files(listing)})"
    if not missing:
        return told
    url, file = missing[0]
    size = answer(url)
    _writable(file.parent)
    each = f", {size / 1e6:,.0f} MB," if size else ""
    return f"{told}; {address.shown(url)}{each} answers: {len(missing)} to download"


def answer(url: str, limit_s: float = ANSWER_S) -> int:
    """Return how many bytes an address says it has, without fetching them.

    Raises
    ------
    TipcastError
        D001 nothing there, D021 an address that is not read, D022 no answer in time or a refusal.

    """
    if not address.scheme(url).startswith("http"):
        return address.size(url, address.storage(url, {}))
    try:
        response = requests.head(url, timeout=limit_s, allow_redirects=True)
    except requests.RequestException as problem:
        raise _silent(url, f"cannot be reached ({type(problem).__name__})") from problem
    if response.status_code == requests.codes.not_found:
        raise TipcastError(
            "D001", address.shown(url), "this month is not published there", "choose other months, or mend data.url"
        )
    if not response.ok:
        raise _silent(url, f"answers {response.status_code} {response.reason}")
    return int(response.headers.get("Content-Length") or 0)


def _silent(url: str, what: str) -> TipcastError:
    return TipcastError("D022", address.shown(url), what, "check network and months, or put the files into data.cache")


def _writable(folder: Path) -> None:
    """Refuse a cache that no month can be put into; a folder that is not there can be made in the next one that is."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise TipcastError(
            "D001", folder, "the cache folder cannot be written", "set data.cache to a folder you may write"
        )
