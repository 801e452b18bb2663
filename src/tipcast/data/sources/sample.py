"""Blocks of synthetic trips: which months, how many rows in each, and the numbers that make each block what it is."""

from __future__ import annotations

import hashlib

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SampleData
from tipcast.data import synthetic
from tipcast.data.fragments import Fragment, Listing
from tipcast.data.schema import COLOURS, map_columns
from tipcast.data.sources.found import Wanted
from tipcast.data.sources.periods import parse_months, period_of

MOST_BLOCKS = 100_000
"""As many tasks as one scheduler takes in without a pause."""


def list_sample(data: SampleData, months: object, wanted: Wanted, key: str) -> Listing:
    """List the blocks of a period; ``data.rows`` are spread over its months by their days.

    Raises
    ------
    TipcastError
        C003 colour, months or numbers.

    """
    if data.colour not in COLOURS:
        raise TipcastError(
            "C003", "data.colour", f"unknown colour {data.colour!r}", f"choose one of {', '.join(COLOURS)}"
        )
    for name, value, least in (("rows", data.rows, 1), ("block_rows", data.block_rows, 1), ("seed", data.seed, 0)):
        if value < least:
            raise TipcastError("C003", f"data.{name}", f"{value} is too small", f"use {least} or more")
    if data.seed >= 2**63:
        raise TipcastError("C003", "data.seed", f"{data.seed} is too large", "use less than 2**63")
    if data.rows > MOST_BLOCKS * data.block_rows:
        raise TipcastError(
            "C003",
            "data.rows",
            f"{data.rows:,} rows are more than {MOST_BLOCKS:,} blocks of data.block_rows={data.block_rows:,}",
            "make fewer rows, or larger blocks",
        )
    names = synthetic.column_names(data.colour)
    columns = map_columns(names, f"sample trips ({data.colour})", wanted.columns, wanted.optional)
    chosen = parse_months(months, key)
    spans = [period_of(month)[1] - period_of(month)[0] for month in chosen]
    fragments: list[Fragment] = []
    passed = 0
    for month, span in zip(chosen, spans, strict=True):
        first, last = (data.rows * part // sum(spans) for part in (passed, passed + span))
        passed += span
        uri = f"sample://{data.colour}/{month}/seed-{data.seed}/{last - first}"
        digest = hashlib.sha256(f"{uri} {synthetic.VERSION}".encode()).hexdigest()
        for block, start in enumerate(range(first, last, data.block_rows)):
            rows = min(data.block_rows, last - start)
            options = {"rows": rows, "colour": data.colour}
            fragments.append(
                Fragment(uri, "sample", (block, data.seed), columns, period_of(month), digest, rows, options)
            )
    digests = dict.fromkeys(fragment.digest for fragment in fragments)
    return Listing(
        fragments=tuple(fragments),
        period=(period_of(chosen[0])[0], period_of(chosen[-1])[1]),
        uris=tuple(dict.fromkeys(fragment.uri for fragment in fragments)),
        digest=hashlib.sha256("\n".join((str(data.block_rows), *digests)).encode()).hexdigest(),
        colour=data.colour,
    )
