"""Synthetic trips as parts of the data: which blocks a period has, and making one of them."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tipcast.compute.base import Array, Frames
from tipcast.config.data_schema import SampleData
from tipcast.datasets.listing import Listing, ScanRequest
from tipcast.datasets.parts import Part, Period, check_blocks, timed
from tipcast.datasets.periods import of_months
from tipcast.datasets.taxi import sample, schema
from tipcast.datasets.taxi.files import TripInfo, parse_months

VERSION = 1
"""Of what a seed means: raise it with any change to the trips, and their digests change with it."""


def list_sample(data: SampleData, months: object, request: ScanRequest, key: str) -> Listing:
    """List the blocks of a period, over whose months rows are spread by their days.

    Raises C003 for the colour, months or numbers.
    """
    schema.check_colour(data.colour)
    check_blocks("rows", data.rows, data.block_rows)
    names = tuple(sample.column_names(data.colour))
    columns = schema.map_columns(
        names, f"sample trips ({data.colour})", request.columns, request.optional
    )
    named = parse_months(months, key)
    planned = _plan_months(data, named)
    parts = [part for month in planned for part in _blocks_of(month, data, columns)]
    digests = [f"{month.digest} {data.block_rows}" for month in planned]

    return Listing(
        parts=tuple(parts),
        period=of_months(min(named), max(named)),
        uris=tuple(month.uri for month in planned),
        digest=hashlib.sha256("\n".join(digests).encode()).hexdigest(),
        name=f"{data.colour} trips",
        info=TripInfo(colour=data.colour),
    )


@dataclass(frozen=True)
class _SampleMonth:
    """The synthetic trips of a month."""

    period: Period
    rows: int
    uri: str
    digest: str


def _plan_months(data: SampleData, names: Sequence[str]) -> list[_SampleMonth]:
    """Spread the rows over months, ``YYYY-MM``, by the length of these."""
    periods = [of_months(name) for name in names]
    passed = list(itertools.accumulate(stop - start for start, stop in periods))
    planned = []
    first = 0

    for name, period, time in zip(names, periods, passed, strict=True):
        last = data.rows * time // passed[-1]
        rows = last - first
        uri = f"sample://{data.colour}/{name}/seed-{data.seed}/{rows}"
        digest = hashlib.sha256(f"{uri} {VERSION}".encode()).hexdigest()
        planned.append(_SampleMonth(period, rows, uri, digest))
        first = last

    return planned


def _blocks_of(
    month: _SampleMonth, data: SampleData, columns: Mapping[str, str]
) -> list["SamplePart"]:
    """Cut a month into blocks of ``data.block_rows``, the last of them smaller."""
    return [
        SamplePart(
            uri=month.uri,
            digest=month.digest,
            columns=columns,
            period=month.period,
            rows=min(data.block_rows, month.rows - start),
            block=block,
            seed=data.seed,
            colour=data.colour,
        )
        for block, start in enumerate(range(0, month.rows, data.block_rows))
    ]


@dataclass(frozen=True, kw_only=True)
class SamplePart(Part):
    """A block of synthetic trips, which its number, the seed, the month and the colour decide."""

    block: int
    seed: int
    colour: str

    @property
    def extent(self) -> tuple[int, ...]:
        return self.block, self.seed

    def read(self, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Make the trips on the host."""
        names = self.columns if columns is None else {name: self.columns[name] for name in columns}
        made = sample.sample_block(
            timed(self.period),
            self.block,
            self.seed,
            self.rows or 0,
            self.colour,
            tuple(names.values()),
        )
        return {name: frames.xp.asarray(made[spelling]) for name, spelling in names.items()}
