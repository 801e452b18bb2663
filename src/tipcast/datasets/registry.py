"""Datasets by the source that a configuration names, or by the name that a saved model's manifest
has.
"""

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from tipcast.config import data_schema
from tipcast.config.errors import TipcastError, unknown
from tipcast.datasets.base import Dataset, check_class, check_names
from tipcast.datasets.made import Blobs, Regression
from tipcast.datasets.table.dataset import Table
from tipcast.datasets.taxi.dataset import Taxi

GROUP = "tipcast.datasets"
"""Entry points of installed packages that name datasets."""

BY_NAME: dict[str, Any] = {"taxi": Taxi, "blobs": Blobs, "regression": Regression, "table": Table}
"""``Dataset.name`` -> the class, with ``open`` and ``of_model``."""
BY_SOURCE: dict[str, Any] = {
    "sample": Taxi,
    "files": Taxi,
    "tlc": Taxi,
    "blobs": Blobs,
    "regression": Regression,
    "table": Table,
}
"""``data.source`` -> the class; ``data_schema.SOURCES`` has the class of its configuration."""


def register(name: str, dataset: Any) -> None:
    """Make a dataset known under a name: that of its configuration's ``source`` and of
    ``Dataset.name``.

    Its class makes it by ``open(spec)`` of its configuration, and by ``of_model(manifest)`` of what
    ``to_manifest`` put into a saved model's manifest. An installed package does the same with an
    entry point of the group ``tipcast.datasets``.

    Raises C003 for a class with a method that nothing would call.
    """
    if isinstance(dataset, type):
        check_class(dataset)
    BY_SOURCE[name] = BY_NAME[name] = dataset


def open_dataset(spec: data_schema.DataSpec) -> Dataset:
    """Make the dataset that a configuration names.

    Raises C003 for an unknown source, and for columns that it does not have; D-errors of a dataset
    that looks into its files for what its columns mean.
    """
    opened = _named(BY_SOURCE, spec.source)
    if opened is None:
        raise unknown("data.source", "source", spec.source, BY_SOURCE, "C003")
    if type(spec) is not data_schema.SOURCES.get(spec.source, type(spec)):
        what = f"{spec.source} has its own configuration"
        raise TipcastError("C003", "data.source", what, f"use data={spec.source}")

    dataset: Dataset = opened.open(spec)
    columns = getattr(spec, "columns", None)
    if isinstance(columns, Mapping):  # for made rows it is a number
        check_names(dataset, columns, "data.columns")

    return dataset


def dataset_of(manifest: Mapping[str, Any]) -> Dataset:
    """Make the dataset that a saved model was trained on. Raises M002 if it is unknown here."""
    name = str(manifest["dataset"])
    trained_on = _named(BY_NAME, name)
    if trained_on is None:
        what = f"was trained on an unknown dataset: {name}"
        raise TipcastError(
            "M002",
            "the model",
            what,
            f"install the package that registers it as an entry point in {GROUP}",
        )
    dataset: Dataset = trained_on.of_model(manifest)
    return dataset


def _named(classes: Mapping[str, Any], name: str) -> Any:
    """Return a dataset's class, that of an installed package too; None where there is none."""
    if name not in classes:
        for entry in importlib.metadata.entry_points(group=GROUP, name=name):
            register(name, entry.load())

    return classes.get(name)
