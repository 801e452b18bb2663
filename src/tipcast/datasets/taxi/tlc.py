"""Months as the TLC publishes them: downloaded once into a local cache, with their SHA-256 beside them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import requests

from tipcast.config.errors import TipcastError
from tipcast.datasets import address, split
from tipcast.datasets.base import Listing, ScanRequest, timed
from tipcast.datasets.listing import CSV, PARQUET
from tipcast.datasets.taxi.files import list_files
from tipcast.datasets.taxi.periods import parse_months
from tipcast.datasets.taxi.schema import COLOURS

TRIES = 3
ANSWER_S = 5.0
"""How long a server of months may take to answer."""


def list_months(months: object, url: str, cache: str, request: ScanRequest, key: str) -> Listing:
    """Fetch the months that the cache lacks, and list them all.

    Parameters
    ----------
    months
        ``2019-01``, ``2019-01..2019-03`` or a list of them.
    url
        Address with ``{colour}`` and ``{month}`` in it.
    cache
        Folder for the files.
    request
        What is asked of every file; its colour is one of ``COLOURS``.
    key
        The configuration's name for ``months``, for messages.

    Raises
    ------
    TipcastError
        C003 colour, months or pattern; D001 a month that is not published, D022 no network; those of ``list_files``.

    """
    files = [fetch(*month) for month in addresses(months, url, cache, request.facts.get("colour"), key)]
    return list_files([str(file) for file in files], request, key)


def addresses(months: object, url: str, cache: str, colour: str | None, key: str) -> list[tuple[str, Path]]:
    """Return where each month is published and where the cache has it; parameters and errors as ``list_months``.

    Raises
    ------
    TipcastError
        C003 colour, months or pattern.

    """
    if colour not in COLOURS:
        raise TipcastError("C003", "data.colour", f"unknown colour {colour!r}", f"choose one of {', '.join(COLOURS)}")
    ending = next((ending for ending in (*PARQUET, *CSV) if address.last_name(url).endswith(ending)), None)
    if "{month}" not in url or ending is None:
        raise TipcastError(
            "C003",
            "data.url",
            "is no address of months",
            "write {month} in it, and end it in .parquet, .csv or .csv.gz",
        )
    folder = Path(cache).expanduser().absolute()
    return [
        (url.replace("{colour}", colour).replace("{month}", month), folder / f"{colour}_tripdata_{month}{ending}")
        for month in parse_months(months, key)
    ]


def fetch(url: str, file: Path) -> Path:
    """Return ``file``, downloaded from ``url`` unless it is there with the SHA-256 recorded beside it.

    A file without a record, put there by hand, is taken as it is and recorded.

    Raises
    ------
    TipcastError
        D001 not published, D022 not reached or broken off.

    """
    record = file.with_name(f"{file.name}.sha256")
    if file.exists():
        digest = _sha256(file)
        if not record.exists():
            _write(record, f"{digest}  {file.name}\n")
            return file
        if record.read_text().split()[:1] == [digest]:
            return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise TipcastError(
            "D001", file.parent, "the cache folder cannot be made", "set data.cache to a folder you may write"
        ) from problem
    storage = address.storage(url, {})
    for attempt in range(1, TRIES + 1):
        try:
            digest = _download(url, storage, file)
            break
        except TipcastError as problem:
            if problem.code != "D022" or attempt == TRIES:
                raise _advised(problem, file) from problem
    _write(record, f"{digest}  {file.name}\n")
    return file


def _advised(problem: TipcastError, file: Path) -> TipcastError:
    if problem.code == "D001":
        return TipcastError(
            "D001", problem.where, "this month is not published there", "choose other months, or mend data.url"
        )
    return TipcastError(problem.code, problem.where, problem.what, f"check the network, or put the file at {file}")


def _download(url: str, storage: dict[str, object], file: Path) -> str:
    """Write the bytes to a temporary file in the same folder and rename it; return their SHA-256."""
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as out, address.opened(url, storage) as remote, address.reaching(url):
            shutil.copyfileobj(remote, out, 1 << 20)
            out.flush()
            os.fsync(out.fileno())
        digest = _sha256(Path(name))
        Path(name).replace(file)
        return digest
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()


def _write(path: Path, line: str) -> None:
    with contextlib.suppress(PermissionError):  # a shared cache may be read-only; the record is a convenience
        path.write_text(line)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_files(listing: Listing) -> str:
    """Say how many files, rows and parts there are, of which colour and time."""
    return f"{listing.size}, {listing.facts['colour']}, {split.describe(timed(listing.period))}"


def describe(months: object, url: str, cache: str, request: ScanRequest, key: str) -> str:
    """Tell which months the cache has; look at those, and ask the server for the first of the others.

    Parameters and errors as ``list_months``; also D001 and D022 for a month that is neither cached nor to be had.
    """
    found = addresses(months, url, cache, request.facts.get("colour"), key)
    cached = [str(file) for _, file in found if file.exists()]
    missing = [(url, file) for url, file in found if not file.exists()]
    told = f"{len(cached)} of {len(found)} months in {Path(cache).expanduser()}"
    if cached:
        told = f"{told} ({describe_files(list_files(cached, request, 'data.cache'))})"
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
