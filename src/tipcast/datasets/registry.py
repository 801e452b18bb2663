"""Datasets by the source that a configuration names, or by the name that a saved model's manifest has."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any, Protocol

from tipcast.config.errors import TipcastError
from tipcast.config.schema import DataSpec
from tipcast.datasets.base import Dataset
from tipcast.datasets.made import Blobs, Regression
from tipcast.datasets.table import Table
from tipcast.datasets.taxi.dataset import Taxi

GROUP = "tipcast.datasets"
"""Entry points of installed packages that name datasets."""


class DatasetClass(Protocol):
    """What makes a dataset."""

    def open(self, spec: DataSpec) -> Dataset:
        """Make it of its configuration; errors of files are D-errors."""

    def of_model(self, manifest: Mapping[str, Any]) -> Dataset:
        """Make it of what ``Dataset.facts`` put into a saved model's manifest, without a configuration."""


SOURCES: dict[str, DatasetClass] = {
    "sample": Taxi,
    "files": Taxi,
    "tlc": Taxi,
    "blobs": Blobs,
    "regression": Regression,
    "table": Table,
}
"""``data.source`` -> the dataset."""
NAMES: dict[str, DatasetClass] = {"taxi": Taxi, "blobs": Blobs, "regression": Regression, "table": Table}
"""``Dataset.name`` -> the dataset."""


def register(name: str, dataset: DatasetClass) -> None:
    """Make a dataset known under a name: that of its configuration's ``source`` and of ``Dataset.name``.

    An installed package does the same with an entry point of the group ``tipcast.datasets``.
    """
    SOURCES[name] = NAMES[name] = dataset


def open_dataset(spec: DataSpec) -> Dataset:
    """Make the dataset that a configuration names.

    Raises
    ------
    TipcastError
        C003 no such source; D-errors of a dataset that looks into its files for what its columns mean.

    """
    if spec.source not in SOURCES:
        _installed(spec.source)
    if spec.source not in SOURCES:
        ways = ", ".join(f"data={name}" for name in SOURCES)
        raise TipcastError("C003", "data.source", f"no such source: {spec.source}", f"use {ways}")
    return SOURCES[spec.source].open(spec)


def dataset_of(manifest: Mapping[str, Any]) -> Dataset:
    """Make the dataset that a saved model was trained on; models of the first version are of taxi trips.

    Raises
    ------
    TipcastError
        M002 a dataset that is not known here.

    """
    name = str(manifest.get("dataset", "taxi"))
    if name not in NAMES:
        _installed(name)
    if name not in NAMES:
        what = f"was trained on a dataset that is not known here: {name}"
        raise TipcastError("M002", "the model", what, f"install the package that has it as an entry point in {GROUP}")
    return NAMES[name].of_model(manifest)


def _installed(name: str) -> None:
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        register(name, entry.load())
