"""Tables whose rows are made on the workers by their numbers, the same on every device and in
blocks of any size.
"""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np

from tipcast.compute.base import Array, Frames, module_of
from tipcast.config.data_schema import BlobsData, RegressionData
from tipcast.config.errors import must_be
from tipcast.datasets.base import RawColumn
from tipcast.datasets.listing import Listing
from tipcast.datasets.parts import Part, can_join, check_blocks
from tipcast.datasets.random_split import random_bits
from tipcast.datasets.table.dataset import Table
from tipcast.tasks.base import TargetColumn
from tipcast.tasks.kinds import BINARY, MULTICLASS, REGRESSION, Kind

VERSION = 2
"""Of what a seed means: raise it with any change to the rows, and their digests change with it."""
LEVELS = 1 << 16
Bits = Callable[[int], Array]
"""Number of a column -> (rows,) uint64 random bits."""
Make = Callable[[Any, Bits, Collection[str]], dict[str, Array]]
"""Makes at least the columns that are wanted by a configuration: (rows,) float64, classes int64."""


def normal(bits: Array) -> Array:
    """Return (rows,) standard normal numbers, float64: each the sum of two quantiles out of a
    table.
    """
    places = bits.view(np.uint16).reshape(-1, 4)
    table = module_of(bits).asarray(_quantiles())
    return (table[places[:, 0]] + table[places[:, 2]]) * math.sqrt(0.5)


@lru_cache(maxsize=1)
def _quantiles() -> Array:
    from scipy.special import ndtri  # rows of files need no SciPy

    return ndtri((np.arange(LEVELS) + 0.5) / LEVELS)


@dataclass(frozen=True)
class Made(Table):
    """A table with the features ``x0``, ``x1``, ... and a target; files with such columns can be
    scored.
    """

    spec: Any = None
    """The configuration; None: rows are read from files."""
    target: ClassVar[str]
    """Column of the target."""
    known_columns = ()
    test_share = 0.0

    @classmethod
    def open(cls, spec: Any) -> Self:
        """Make the dataset of its configuration. Raises C003 for numbers that no rows can be made
        of.
        """
        if spec.gigabytes is not None:
            # 4 bytes a value on workers
            rows = math.ceil(spec.gigabytes * 1e9 / (4 * (spec.columns + 1)))
            spec = replace(spec, rows=rows, gigabytes=None)
        if spec.test_rows is None:
            spec = replace(spec, test_rows=min(max(spec.rows // 5, 1_000), 20_000))
        for name in ("rows", "test_rows"):
            check_blocks(name, getattr(spec, name), spec.block_rows)
        return replace(cls.of_model({"dataset_columns": spec.columns}), spec=spec)

    @classmethod
    def of_model(cls, manifest: Mapping[str, Any]) -> Self:
        names = (*feature_names(int(manifest["dataset_columns"])), cls.target)
        return cls(tuple(RawColumn(name, (name,)) for name in names))

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns[:-1])

    @staticmethod
    @abstractmethod
    def make(spec: Any, bits: Bits, wanted: Collection[str]) -> dict[str, Array]:
        """Make at least the ``wanted`` columns, see ``Make``."""

    def to_manifest(self) -> dict[str, Any]:
        return {"dataset_columns": len(self.features)}

    def target_column(self, name: str | None, kind: Kind | None) -> TargetColumn:
        """Return the target. Raises C003 for another column or kind."""
        classes = tuple(map(str, range(getattr(self.spec, "centers", 0))))
        made_kind = {0: REGRESSION, 2: BINARY}.get(len(classes), MULTICLASS)
        if name not in (None, self.target):
            rule = f"{self.target}, which is {made_kind}"
            raise must_be("task.target", rule, name, f"use {self.target}, or leave it out")
        if kind not in (None, made_kind):
            rule = f"{made_kind} for column {self.target!r} of data={self.name}"
            fix = "leave it out, or use data=table for rows of another kind"
            raise must_be("task.kind", rule, kind, fix)
        return TargetColumn(self.target, made_kind, classes)

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List the blocks of a side, ``train`` or ``test``; each side has rows of its own."""
        spec = self.spec
        rows = {"train": self.spec.rows, "test": self.spec.test_rows}[which]
        uri = f"{self.name}://{which}/seed-{spec.seed}/{rows}"
        depends = sorted(
            (name, value)
            for name, value in vars(spec).items()
            if name not in ("limits", "gigabytes")
        )
        digest = hashlib.sha256(f"{uri} {depends} {VERSION}".encode()).hexdigest()
        whole = MadePart(
            uri=uri,
            digest=digest,
            columns={column.name: column.name for column in self.columns},
            make=self.make,
            spec=spec,
            side=int(which == "test"),
            first=0,
        )
        parts = tuple(
            replace(whole, first=first, rows=min(spec.block_rows, rows - first))
            for first in range(0, rows, spec.block_rows)
        )

        return Listing(parts, None, (uri,), digest, f"{self.name} rows")


@dataclass(frozen=True, kw_only=True)
class MadePart(Part):
    """Rows that are made by their numbers, from nothing else."""

    make: Make
    spec: Any
    """The configuration."""
    side: int
    """0 to train on, 1 to test on."""
    first: int
    """Number of the first row."""

    @property
    def extent(self) -> tuple[int, ...]:
        return self.side, self.first

    def joined_with(self, other: Part) -> Self | None:
        if not isinstance(other, MadePart) or not can_join(self, other):
            return None
        return replace(self, rows=(self.rows or 0) + (other.rows or 0))

    def read(self, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Make rows on the device."""
        wanted = self.columns if columns is None else columns

        def bits(column: int) -> Array:
            seeds = np.random.SeedSequence([self.spec.seed, 1 + self.side, column])
            key = seeds.generate_state(1, np.uint64)[0]
            # Drawn by each row's number: blocks of any size hold the same rows.
            return random_bits(frames.xp, int(key), self.first, self.first + (self.rows or 0))

        made = self.make(self.spec, bits, wanted)
        return {name: made[name] for name in wanted}


def feature_names(columns: int) -> tuple[str, ...]:
    """Return the names of so many features that are made."""
    return tuple(f"x{number}" for number in range(columns))


def make_blobs(spec: BlobsData, bits: Bits, wanted: Collection[str]) -> dict[str, Array]:
    """Make Gaussian blobs around centres drawn by the seed within ``spread`` of 0."""
    centers = np.random.default_rng([spec.seed]).uniform(
        -spec.spread, spec.spread, (spec.centers, spec.columns)
    )
    label = (bits(spec.columns) % np.uint64(spec.centers)).astype(np.int64)
    made = {Blobs.target: label}

    for at, name in enumerate(feature_names(spec.columns)):
        if name in wanted:
            center = module_of(label).asarray(centers[:, at])[label]
            made[name] = center + spec.cluster_std * normal(bits(at))

    return made


def make_regression(spec: RegressionData, bits: Bits, wanted: Collection[str]) -> dict[str, Array]:
    """Make standard normal features, and a linear function of the first of them with noise."""
    coefficients = np.random.default_rng([spec.seed]).uniform(
        0, 100, min(spec.informative, spec.columns)
    )
    names = feature_names(spec.columns)
    made = {name: normal(bits(at)) for at, name in enumerate(names) if name in wanted}

    if Regression.target in wanted:
        target = spec.noise * normal(bits(spec.columns))
        # devices round a product of matrices differently
        for at, coefficient in enumerate(coefficients):
            feature = made[names[at]] if names[at] in made else normal(bits(at))
            target += float(coefficient) * feature
        made[Regression.target] = target

    return made


class Blobs(Made):
    """Gaussian blobs around centres drawn by the seed within ``spread`` of 0, as scikit-learn's
    ``make_blobs``.
    """

    name = "blobs"
    target = "label"
    make = staticmethod(make_blobs)


class Regression(Made):
    """A linear regression of standard normal features, with normal noise, as scikit-learn's
    ``make_regression``.

    The first ``informative`` features have coefficients up to 100, drawn by the seed.
    """

    name = "regression"
    target = "y"
    make = staticmethod(make_regression)
