"""Synthetic trips as parts of the data: which blocks a period has, and making one of them."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tipcast.compute.base import Array, Frames
from tipcast.config.schema import SampleData
from tipcast.datasets.parts import Fragment, check_blocks, timed
from tipcast.datasets.scan import Listing, ScanRequest
from tipcast.datasets.split import of_months
from tipcast.datasets.taxi import sample, schema
from tipcast.datasets.taxi.files import TripInfo, parse_months

VERSION = 1
"""Of what a seed means: raise it with any change to the trips, and their digests change with it."""


def list_sample(data: SampleData, months: object, request: ScanRequest, key: str) -> Listing:
    """List the blocks of a period, over whose months rows are spread by their days; C003 colour,
    months or numbers.
    """
    schema.check_colour(data.colour)
    check_blocks("rows", data.rows, data.block_rows)
    names = tuple(sample.column_names(data.colour))
    columns = schema.map_columns(
        names, f"sample trips ({data.colour})", request.columns, request.optional
    )
    periods = {month: of_months(month) for month in parse_months(months, key)}
    lasts = list(itertools.accumulate(stop - start for start, stop in periods.values()))
    parts: list[SamplePart] = []
    digests: dict[str, str] = {}
    first = 0

    for (month, period), passed in zip(periods.items(), lasts, strict=True):
        last = data.rows * passed // lasts[-1]
        uri = f"sample://{data.colour}/{month}/seed-{data.seed}/{last - first}"
        digest = hashlib.sha256(f"{uri} {VERSION}".encode()).hexdigest()
        digests[uri] = f"{digest} {data.block_rows}"
        parts += (
            SamplePart(
                uri=uri,
                digest=digest,
                columns=columns,
                period=period,
                rows=min(data.block_rows, last - start),
                block=block,
                seed=data.seed,
                colour=data.colour,
            )
            for block, start in enumerate(range(first, last, data.block_rows))
        )
        first = last

    return Listing(
        fragments=tuple(parts),
        period=of_months(min(periods), max(periods)),
        uris=tuple(digests),
        digest=hashlib.sha256("\n".join(digests.values()).encode()).hexdigest(),
        name=f"{data.colour} trips",
        info=TripInfo(colour=data.colour),
    )


@dataclass(frozen=True, kw_only=True)
class SamplePart(Fragment):
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
