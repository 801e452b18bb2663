"""Typed schemas of the sources of rows: ``data`` in conf/, see ``config.schema``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tipcast.config.bounds import MISSING, bounded

Open = dict[str, Any]
"""A mapping that takes keys beyond those of conf/, even without Hydra's +: its reader checks
them.
"""
OpenTexts = dict[str, str]
"""Such a mapping whose values are texts."""


@dataclass
class Limits:
    """Shares of a file's rows above which it is refused rather than cleaned."""

    stray: float | None = 0.01  # rows picked up outside the period; null: keep them
    bad_zone: float = 0.01  # zone ids outside 1 to 265
    non_finite: float = 0.01  # infinite or absurd numbers (|x| > 1e6) in fare, tip or passengers
    missing: float = 0.01  # missing fare, tip, pickup time or zone
    min_rows: int = 100  # minimum rows left in a period


@dataclass
class DataSpec:
    """Where rows come from. ``train``, ``test`` and (for prepare) ``months`` say which."""

    source: str = MISSING
    train: Any = MISSING  # months or files to train on
    test: Any = MISSING  # months or files to test on
    months: Any = MISSING  # months or files that `prepare` writes
    limits: Limits = field(default_factory=Limits)


@dataclass
class SampleData(DataSpec):
    """Synthetic trips."""

    rows: int = bounded(1)  # rows of all months of a period together
    seed: int = bounded(0, below=2**63)  # seed of the random trips
    colour: str = MISSING  # yellow or green
    block_rows: int = bounded(1)


@dataclass
class FilesData(DataSpec):
    """Files: paths, globs, directories, s3:// and https:// addresses, or lists of them."""

    colour: str | None = None
    columns: OpenTexts = field(default_factory=dict)
    block_bytes: int = bounded(1024)
    # fsspec options for this storage; secrets come from the environment
    storage_options: Open = field(default_factory=dict)


@dataclass
class TlcData(DataSpec):
    """Months as the TLC publishes them, kept in a local cache."""

    colour: str = MISSING
    url: str = MISSING  # address of a month's file, with {colour} and {month}
    cache: str = MISSING  # folder for downloaded files


@dataclass
class MadeData(DataSpec):
    """Rows that are made as they are read."""

    rows: int = bounded(1)  # rows to train on
    gigabytes: float | None = bounded(above=0, default=None)
    # rows to test on; null: a fifth of rows, from 1,000 to 20,000
    test_rows: int | None = bounded(1)
    columns: int = bounded(1)  # number of features
    seed: int = bounded(0)  # seed of the random rows
    block_rows: int = bounded(1)


@dataclass
class BlobsData(MadeData):
    """Gaussian blobs."""

    centers: int = bounded(2)  # number of blobs
    cluster_std: float = MISSING  # standard deviation of each
    spread: float = MISSING


@dataclass
class RegressionData(MadeData):
    """Rows of a linear regression."""

    informative: int = bounded(1)
    noise: float = MISSING


@dataclass
class TableData(DataSpec):
    """Files of anything: Parquet, CSV, Feather or JSON lines."""

    time: str | None = None
    # column of groups, such as customers; a random split keeps the rows of a group together
    group: str | None = None
    decimal: str = "."  # decimal sign of numbers in text files
    encoding: str = "utf-8"  # encoding of text files, by Python's name
    columns: OpenTexts = field(default_factory=dict)
    types: OpenTexts = field(default_factory=dict)
    # if test is null: share of the rows to test on; with time: the last share of the time
    test_share: float = bounded(0, below=1)
    block_bytes: int = bounded(1024)
    # fsspec options for this storage; secrets come from the environment
    storage_options: Open = field(default_factory=dict)


@dataclass
class OwnData(DataSpec):
    """A dataset that an installed package or a script brings; ``source`` is its name."""

    options: dict[str, Any] = field(default_factory=dict)  # options of the dataset's class
    # dataset's name -> name in the files, such as {pickup: started_at}
    columns: OpenTexts = field(default_factory=dict)


SOURCES = {
    "sample": SampleData,
    "files": FilesData,
    "tlc": TlcData,
    "blobs": BlobsData,
    "regression": RegressionData,
    "table": TableData,
}
"""``data.source`` -> its schema; a source of an installed package has that of ``OwnData``."""
