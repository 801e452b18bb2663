"""Sources: where rows come from, as a listing of fragments that the workers read."""

from __future__ import annotations

from collections.abc import Sequence

from tipcast.config.errors import TipcastError
from tipcast.config.schema import DataSpec, FilesData, SampleData, TlcData
from tipcast.data.fragments import Listing
from tipcast.data.sources.files import list_files
from tipcast.data.sources.found import Wanted
from tipcast.data.sources.sample import list_sample
from tipcast.data.sources.tlc import list_months

LEAST_BLOCK = 1024
"""Bytes of a CSV block: a few lines."""


def list_fragments(data: DataSpec, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
    """List what one period of a source consists of, from footers and headers alone.

    Parameters
    ----------
    data
        The configuration of a source.
    which
        ``train``, ``test`` or ``months``: the key of ``data`` that names the period.
    columns
        Canonical columns that every file must have; the pickup time is always among them.
    optional
        Canonical columns to read where a file has them.

    Returns
    -------
    Listing

    Raises
    ------
    TipcastError
        C003 C004 configuration; D001 to D010, D012, D016, D017, D021, D022, each naming the file.

    """
    named, key = getattr(data, which), f"data.{which}"
    if named is None or named == "???":
        raise TipcastError("C004", key, "needs a value", f"add {key}=...")
    needed = tuple(dict.fromkeys(("pickup", *columns)))
    if isinstance(data, SampleData):
        return list_sample(data, named, Wanted(needed, tuple(optional)), key)
    if isinstance(data, TlcData):
        return list_months(named, data.url, data.cache, Wanted(needed, tuple(optional), data.colour), key)
    if isinstance(data, FilesData):
        if data.block_bytes < LEAST_BLOCK:
            raise TipcastError(
                "C003", "data.block_bytes", f"{data.block_bytes} is too little", f"use {LEAST_BLOCK} or more"
            )
        wanted = Wanted(needed, tuple(optional), data.colour, data.block_bytes, dict(data.storage_options))
        return list_files(named, wanted, key)
    raise TipcastError(
        "C003", "data.source", f"no such source: {data.source}", "use data=sample, data=files or data=tlc"
    )
