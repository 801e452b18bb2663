"""Rows made up on the workers, each by its number: the same on every device, in blocks of any size.

Gaussian blobs, and a linear regression.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BlobsData, DataSpec, RegressionData
from tipcast.datasets import table_features
from tipcast.datasets.base import MADE, Dataset, FileScan, Fragment, Listing, RawColumn, ScanRequest, check_blocks
from tipcast.datasets.table import Table
from tipcast.tasks.base import TargetColumn

VERSION = 2
"""Of what a seed means: raise it with any change to the rows, and their digests change with it."""
SIDES = {"train": 0, "test": 1}
VALUE_BYTES = 4
"""Of a feature and of a target, as workers hold them."""
LEVELS = 1 << 16
"""Of a table of the normal distribution's quantiles, two of which make a number."""


@dataclass(frozen=True)
class Numbers:
    """Random numbers of neighbouring rows, on the device that asks: by integers and table look-ups, to the same bit."""

    xp: ModuleType
    seed: int
    side: int
    first: int
    """Number of the first row."""
    rows: int

    def bits(self, column: int) -> Array:
        """Return (rows,) uint64: SplitMix64 (Steele, Lea and Flood, 2014) of a key of the column, at its place."""
        key = np.random.SeedSequence([self.seed, 1 + self.side, column]).generate_state(1, np.uint64)[0]
        z = self.xp.arange(self.first, self.first + self.rows, dtype=self.xp.uint64)
        z *= np.uint64(0x9E3779B97F4A7C15)
        z += key
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return z

    def below(self, most: int, column: int) -> Array:
        """Return (rows,) integers from 0 to below a number."""
        return (self.bits(column) % np.uint64(most)).astype(self.xp.int64)

    def normal(self, column: int) -> Array:
        """Return (rows,) standard normal numbers, float64."""
        places = self.bits(column).view(self.xp.uint16).reshape(-1, 4)
        table = self.xp.asarray(_quantiles())
        total = table[places[:, 0]]
        total += table[places[:, 2]]
        total *= math.sqrt(0.5)
        return total


@lru_cache(maxsize=1)
def _quantiles() -> Array:
    from scipy.special import ndtri  # of no use to rows of files

    return ndtri((np.arange(LEVELS) + 0.5) / LEVELS)


@dataclass(frozen=True)
class Made(Dataset):
    """What datasets of rows that are made up have in common: columns ``x0``, ``x1``, ... and one to be predicted."""

    columns: int
    """Features."""
    spec: BlobsData | RegressionData | None = None
    code: ClassVar[ModuleType] = table_features

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"x{number}" for number in range(self.columns))

    @classmethod
    def open(cls, spec: DataSpec) -> Self:
        """Make the dataset of its configuration; C003 for numbers that no rows can be made of."""
        if not isinstance(spec, BlobsData | RegressionData):
            fix = f"use data={spec.source}"
            raise TipcastError("C003", "data.source", f"{spec.source} has a configuration of its own", fix)
        if spec.gigabytes is not None:
            rows = math.ceil(spec.gigabytes * 1e9 / (VALUE_BYTES * (spec.columns + 1)))
            spec = replace(spec, rows=rows, gigabytes=None)
        for name in ("rows", "test_rows"):
            check_blocks(name, getattr(spec, name), spec.block_rows)
        return cls(spec.columns, spec)

    @classmethod
    def of_model(cls, manifest: Mapping[str, Any]) -> Self:
        return cls(int(manifest["dataset_columns"]))

    @property
    @abstractmethod
    def target(self) -> TargetColumn:
        """What can be predicted."""

    @abstractmethod
    def make(self, spec: Any, numbers: Numbers, wanted: Sequence[str]) -> dict[str, Array]:
        """Make some columns of rows: (rows,) float64, of the target as it is."""

    def facts(self) -> dict[str, Any]:
        return {"dataset_columns": self.columns}

    def target_column(self, name: str | None, kind: str | None) -> TargetColumn:
        """Return the column that can be predicted; C003 for any other one."""
        own = self.target
        if name not in (None, own.name) or kind not in (None, own.kind):
            raise TipcastError(
                "C003", "task.target", f"no {kind or 'target'} column: {name}", f"use {own.name}, which is {own.kind}"
            )
        return own

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List the blocks of a side; ``test`` has rows of its own; C004 a side that rows are not made for."""
        spec = self.spec
        if spec is None or which not in SIDES:
            raise TipcastError("C004", f"data.{which}", f"data={self.name} makes no {which}", "use train and test")
        rows = spec.rows if which == "train" else spec.test_rows
        uri = f"{self.name}://{which}/seed-{spec.seed}/{rows}"
        own = {name: value for name, value in vars(spec).items() if name not in ("limits", "gigabytes")}
        digest = hashlib.sha256(f"{uri} {sorted(own.items())} {VERSION}".encode()).hexdigest()
        names = {name: name for name in (*self.features, self.target.name)}
        fragments = tuple(
            Fragment(
                uri, MADE, (SIDES[which],), names, None, digest, min(spec.block_rows, rows - start), {"first": start}
            )
            for start in range(0, rows, spec.block_rows)
        )  # fmt: skip
        return Listing(fragments, None, (uri,), digest, f"{self.name} rows")

    @property
    def _of_files(self) -> Table:
        """Tables with the same columns, which a model can score."""
        return Table(tuple(RawColumn(name, (name,)) for name in (*self.features, self.target.name)))

    def scan_file(self, uri: str, request: ScanRequest) -> FileScan:
        return self._of_files.scan_file(uri, request)

    def csv_types(self, header: Sequence[str], where: str) -> dict[str, pa.DataType]:
        return self._of_files.csv_types(header, where)

    def read(self, fragment: Fragment, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Make rows on the device; or read rows of a file."""
        if fragment.format != MADE:
            return self._of_files.read(fragment, frames, columns)
        seed = self.spec.seed if self.spec else 0
        numbers = Numbers(frames.xp, seed, fragment.part[0], fragment.options["first"], fragment.rows or 0)
        return self.make(self.spec, numbers, list(fragment.columns if columns is None else columns))


class Blobs(Made):
    """Gaussian blobs around centres drawn by the seed, as scikit-learn's ``make_blobs``; the label is the centre."""

    name = "blobs"

    @property
    def target(self) -> TargetColumn:
        centers = self.spec.centers if isinstance(self.spec, BlobsData) else 2
        kind = "classification" if centers == 2 else "multiclass"
        return TargetColumn("label", kind, tuple(str(number) for number in range(centers)))

    def make(self, spec: Any, numbers: Numbers, wanted: Sequence[str]) -> dict[str, Array]:
        """Make rows around their centres, drawn evenly within ``spread`` of the origin."""
        centers = np.random.default_rng([spec.seed]).uniform(-spec.spread, spec.spread, (spec.centers, spec.columns))
        label = numbers.below(spec.centers, spec.columns)
        made = {self.target.name: label}
        for at, name in enumerate(self.features):
            if name in wanted:
                made[name] = numbers.xp.asarray(centers[:, at])[label] + spec.cluster_std * numbers.normal(at)
        return {name: made[name] for name in wanted}


class Regression(Made):
    """A linear regression: standard normal features, coefficients drawn by the seed, and normal noise."""

    name = "regression"

    @property
    def target(self) -> TargetColumn:
        return TargetColumn("y", "regression")

    def make(self, spec: Any, numbers: Numbers, wanted: Sequence[str]) -> dict[str, Array]:
        """Make rows; the first ``informative`` columns have coefficients up to 100, as in ``make_regression``."""
        known = min(spec.informative, spec.columns)
        coefficients = np.random.default_rng([spec.seed]).uniform(0, 100, known)
        target = spec.noise * numbers.normal(spec.columns) if self.target.name in wanted else None
        made = {}
        for at, name in enumerate(self.features):
            if name in wanted or (target is not None and at < known):
                made[name] = numbers.normal(at)
            if target is not None and at < known:  # one by one: a product of matrices is rounded as each device likes
                target += float(coefficients[at]) * made[name]
        return {name: target if name == self.target.name else made[name] for name in wanted}
