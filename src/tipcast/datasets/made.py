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
from tipcast.config.errors import must_be
from tipcast.datasets.base import MADE, Fragment, Listing, RawColumn, check_blocks
from tipcast.datasets.split import random_bits
from tipcast.datasets.table import Table
from tipcast.tasks.base import TargetColumn
from tipcast.tasks.kinds import BINARY, MULTICLASS, REGRESSION, Kind

VERSION = 2
"""Of what a seed means: raise it with any change to the rows, and their digests change with it."""
LEVELS = 1 << 16


def normal(bits: Array) -> Array:
    """Return (rows,) standard normal numbers, float64: each the sum of two quantiles out of a
    table.
    """
    places = bits.view(np.uint16).reshape(-1, 4)
    table = module_of(bits).asarray(_quantiles())
    return (table[places[:, 0]] + table[places[:, 2]]) * math.sqrt(0.5)


@lru_cache(maxsize=1)
def _quantiles() -> Array:
    from scipy.special import ndtri  # of no use to rows of files

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
        """Make the dataset of its configuration; C003 for numbers that no rows can be made of."""
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
        names = [f"x{number}" for number in range(int(manifest["dataset_columns"]))]
        return cls(tuple(RawColumn(name, (name,)) for name in (*names, cls.target)))

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns[:-1])

    def facts(self) -> dict[str, Any]:
        return {"dataset_columns": len(self.features)}

    def target_column(self, name: str | None, kind: Kind | None) -> TargetColumn:
        """Return the target; C003 for another column or kind."""
        classes = tuple(map(str, range(getattr(self.spec, "centers", 0))))
        own = {0: REGRESSION, 2: BINARY}.get(len(classes), MULTICLASS)
        if name not in (None, self.target):
            rule = f"{self.target}, which is {own}"
            raise must_be("task.target", rule, name, f"use {self.target}, or leave it out")
        if kind not in (None, own):
            rule = f"{own}, which column {self.target!r} of data={self.name} is"
            fix = "leave it out, or use data=table for rows of another kind"
            raise must_be("task.kind", rule, kind, fix)
        return TargetColumn(self.target, own, classes)

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List the blocks of a side, ``train`` or ``test``, each of which has rows of its own."""
        spec = self.spec
        rows = {"train": self.spec.rows, "test": self.spec.test_rows}[which]
        uri = f"{self.name}://{which}/seed-{spec.seed}/{rows}"
        depends = sorted(
            (name, value)
            for name, value in vars(spec).items()
            if name not in ("limits", "gigabytes")
        )
        digest = hashlib.sha256(f"{uri} {depends} {VERSION}".encode()).hexdigest()
        names = {column.name: column.name for column in self.columns}
        part = (int(which == "test"),)
        fragments = tuple(
            Fragment(
                uri,
                MADE,
                part,
                names,
                None,
                digest,
                min(spec.block_rows, rows - first),
                {"first": first},
            )
            for first in range(0, rows, spec.block_rows)
        )

        return Listing(fragments, None, (uri,), digest, f"{self.name} rows")

    def read(
        self, fragment: Fragment, frames: Frames, columns: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Make rows on the device, or read those of a file."""
        if fragment.format != MADE:
            return super().read(fragment, frames, columns)
        first = fragment.options["first"]
        side = 1 + fragment.part[0]
        wanted = fragment.columns if columns is None else columns

        def bits(column: int) -> Array:
            key = np.random.SeedSequence([self.spec.seed, side, column]).generate_state(
                1, np.uint64
            )[0]
            # by each row's number, so that blocks of any size hold the same rows
            return random_bits(frames.xp, int(key), first, first + (fragment.rows or 0))

        made = self.make(bits, wanted)
        return {name: made[name] for name in wanted}

    @abstractmethod
    def make(self, bits: Callable[[int], Array], wanted: Collection[str]) -> dict[str, Array]:
        """Make at least some columns, (rows,) float64 or classes as int64, of uint64 random bits by
        column number.
        """


class Blobs(Made):
    """Gaussian blobs around centres drawn by the seed within ``spread`` of 0, as scikit-learn's
    ``make_blobs``.
    """

    name = "blobs"
    target = "label"

    def make(self, bits: Callable[[int], Array], wanted: Collection[str]) -> dict[str, Array]:
        spec = self.spec
        centers = np.random.default_rng([spec.seed]).uniform(
            -spec.spread, spec.spread, (spec.centers, spec.columns)
        )
        label = (bits(spec.columns) % np.uint64(spec.centers)).astype(np.int64)
        made = {self.target: label}
        for at, name in enumerate(self.features):
            if name in wanted:
                made[name] = module_of(label).asarray(centers[:, at])[
                    label
                ] + spec.cluster_std * normal(bits(at))
        return made


class Regression(Made):
    """A linear regression of standard normal features, with normal noise, as scikit-learn's
    ``make_regression``.

    The first ``informative`` features have coefficients up to 100, drawn by the seed.
    """

    name = "regression"
    target = "y"

    def make(self, bits: Callable[[int], Array], wanted: Collection[str]) -> dict[str, Array]:
        spec = self.spec
        coefficients = np.random.default_rng([spec.seed]).uniform(
            0, 100, min(spec.informative, spec.columns)
        )
        made = {name: normal(bits(at)) for at, name in enumerate(self.features) if name in wanted}
        if self.target in wanted:
            target = spec.noise * normal(bits(spec.columns))
            # devices round a product of matrices differently
            for at, coefficient in enumerate(coefficients):
                name = self.features[at]
                target += float(coefficient) * (made[name] if name in made else normal(bits(at)))
            made[self.target] = target
        return made
