"""Rows made up on the workers, block by block, the same on every device: Gaussian blobs, and a linear regression."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BlobsData, DataSpec, RegressionData
from tipcast.datasets import table_features
from tipcast.datasets.base import (
    Dataset,
    FileScan,
    Fragment,
    Listing,
    RawColumn,
    ScanRequest,
    check_blocks,
    check_least,
)
from tipcast.datasets.table import Table
from tipcast.tasks.base import TargetColumn

VERSION = 1
"""Of what a seed means: raise it with any change to the rows, and their digests change with it."""
SIDES = {"train": 0, "test": 1}
LEAST = {"rows": 1, "test_rows": 1, "columns": 1, "block_rows": 1, "seed": 0, "centers": 2, "informative": 1}
VALUE_BYTES = 4
"""Of a feature and of a target, as workers hold them."""


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
            if not spec.gigabytes > 0:
                what = f"must be above 0, got {spec.gigabytes}"
                raise TipcastError("C003", "data.gigabytes", what, "use 0.1, or data.rows")
            rows = math.ceil(spec.gigabytes * 1e9 / (VALUE_BYTES * (spec.columns + 1)))
            spec = replace(spec, rows=rows, gigabytes=None)
        check_least(spec, LEAST)
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
    def block(self, spec: Any, rows: int, side: int, number: int) -> tuple[Array, Array]:
        """Make a block: (rows, columns) features and (rows,) target, float64, on the host."""

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
                uri, self.name, (number, SIDES[which]), names, None, digest, min(spec.block_rows, rows - start),
                {"first": start},
            )
            for number, start in enumerate(range(0, rows, spec.block_rows))
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
        """Make a block and put it onto the device; or read rows of a file."""
        if fragment.format in ("parquet", "csv"):
            return self._of_files.read(fragment, frames, columns)
        number, side = fragment.part
        values, target = self.block(self.spec, fragment.rows or 0, side, number)
        made = {name: values[:, at] for at, name in enumerate(self.features)} | {self.target.name: target}
        wanted = fragment.columns if columns is None else columns
        return {name: frames.xp.asarray(np.ascontiguousarray(made[name])) for name in wanted}


class Blobs(Made):
    """Gaussian blobs around centres drawn by the seed, as scikit-learn's ``make_blobs``; the label is the centre."""

    name = "blobs"

    @property
    def target(self) -> TargetColumn:
        centers = self.spec.centers if isinstance(self.spec, BlobsData) else 2
        kind = "classification" if centers == 2 else "multiclass"
        return TargetColumn("label", kind, tuple(str(number) for number in range(centers)))

    def block(self, spec: Any, rows: int, side: int, number: int) -> tuple[Array, Array]:
        """Make rows around their centres, drawn evenly within ``spread`` of the origin."""
        centers = np.random.default_rng([spec.seed]).uniform(-spec.spread, spec.spread, (spec.centers, spec.columns))
        draw = np.random.default_rng([spec.seed, 1 + side, number])
        label = draw.integers(0, spec.centers, rows)
        return centers[label] + spec.cluster_std * draw.standard_normal((rows, spec.columns)), label


class Regression(Made):
    """A linear regression: standard normal features, coefficients drawn by the seed, and normal noise."""

    name = "regression"

    @property
    def target(self) -> TargetColumn:
        return TargetColumn("y", "regression")

    def block(self, spec: Any, rows: int, side: int, number: int) -> tuple[Array, Array]:
        """Make rows; the first ``informative`` columns have coefficients up to 100, as in ``make_regression``."""
        coefficients = np.zeros(spec.columns)
        known = min(spec.informative, spec.columns)
        coefficients[:known] = np.random.default_rng([spec.seed]).uniform(0, 100, known)
        draw = np.random.default_rng([spec.seed, 1 + side, number])
        values = draw.standard_normal((rows, spec.columns))
        return values, values @ coefficients + spec.noise * draw.standard_normal(rows)
