"""Files of equal content under different names, whose rows would count twice."""

from __future__ import annotations

import filecmp
import hashlib
from collections.abc import Iterable

from tipcast.data import address
from tipcast.data.fragments import Fragment

BEGINNING = 64 << 10
"""Bytes of a local CSV file that are read before the whole is compared."""


def identical(fragments: Iterable[Fragment]) -> tuple[str, ...]:
    """Return one line that names two files of equal content, or nothing.

    Local files are compared by content where size and beginning (of Parquet files the footer) are equal, remote ones by
    footer or by size and ETag alone.

    Raises
    ------
    TipcastError
        D001 a file that is gone, D022 a store that does not answer.

    """
    known: dict[object, list[str]] = {}
    pairs: list[tuple[str, str]] = []
    for fragment in {fragment.uri: fragment for fragment in fragments}.values():
        alike = known.setdefault(_key(fragment), [])
        same = next((uri for uri in alike if _equal(uri, fragment.uri)), None)
        if same is None:
            alike.append(fragment.uri)
        else:
            pairs.append((address.shown(same), address.shown(fragment.uri)))
    if not pairs:
        return ()
    more = f" (and {len(pairs) - 1} more such files)" if len(pairs) > 1 else ""
    return (f"{pairs[0][0]} and {pairs[0][1]} have the same content, read twice{more}: name one of them",)


def _key(fragment: Fragment) -> object:
    """Return what files of equal content have in common, without reading much of them."""
    if fragment.format != "csv":
        return fragment.digest  # of Parquet: footer and size
    uri, storage = fragment.uri, fragment.options["storage"]
    if address.scheme(uri):
        with address.reaching(uri):
            return address.size(uri, storage), address.filesystem(uri, storage).info(uri).get("ETag", uri)
    return address.size(uri, storage), hashlib.sha256(address.read_range(uri, storage, 0, BEGINNING)).digest()


def _equal(one: str, other: str) -> bool:
    remote = address.scheme(one) or address.scheme(other)
    return bool(remote) or filecmp.cmp(one, other, shallow=False)
