"""The one look-up from a model's name, a device and a reach to the class that fits it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tipcast.config.conf_files import conf_dir
from tipcast.config.errors import TipcastError
from tipcast.config.schema import ModelSpec

TABLES = {"cpu": "cpu", "cuda": "gpu", "gpu": "gpu"}
"""Device -> table of the model's yaml."""

DEVICES = {"cpu": "cpu", "gpu": "cuda"}
"""Table -> device as the estimators know it."""


def build(
    model: ModelSpec,
    device: str,
    reach: str,
    categorical: Sequence[str] = (),
    kind: str | None = None,
    classes: int = 0,
) -> Any:
    """Make the estimator that a model's shipped table names.

    Parameters
    ----------
    model
        The composed model; its class names are compared with the shipped ones and never used.
    device
        ``cpu`` or ``cuda`` (a session's device); a backend's name ``gpu`` means ``cuda``.
    reach
        ``distributed``: one fit over all workers. ``local``: one fit inside one process.
    categorical
        Features that are categories, for the models that know such.
    kind, classes
        Of the task: one of the model's ``kinds``, None for its first one; and of how many classes where there are such,
        0: as the labels have.

    Returns
    -------
    Distributed or Local
        See ``models.base``.

    Raises
    ------
    TipcastError
        C002 no such model or no variant for the device and reach, C006 classes that an override changed.

    """
    if model.classes:
        return _of_library(model, TABLES.get(device, device), reach, categorical, kind or model.kinds[0], classes)
    shipped = _shipped(model.name)
    kind = kind or model.kinds[0]
    if kind not in model.kinds:
        raise TipcastError("C003", "task.kind", f"{kind} is not what {model.name} does", f"use a model of kind {kind}")
    for table in ("cpu", "gpu"):
        if dict(getattr(model, table)) != dict(shipped.get(table) or {}):
            raise TipcastError(
                "C006", f"model.{table}", "an override cannot name a class", "choose a model by name, as model=xgboost"
            )
    table = TABLES.get(device, device)
    cells = dict(shipped.get(table) or {})
    if reach not in cells:
        there = [f"{side}/{name}" for side in ("cpu", "gpu") for name in (shipped.get(side) or {})]
        raise TipcastError(
            "C002", f"model={model.name}", f"has no {table}/{reach} variant", f"it has {', '.join(there)}"
        )
    module, _, name = str(cells[reach]).rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    if categorical and not getattr(cls, "CATEGORIES", False):
        raise TipcastError(
            "C003", "task.categorical", f"{model.name} knows no categories", "use model=xgboost, or task.categorical=[]"
        )
    return cls(dict(model.params), dict(model.fit), DEVICES[table], tuple(categorical), kind, classes)


def _of_library(
    model: ModelSpec,
    table: str,
    reach: str,
    categorical: Sequence[str],
    kind: str,
    classes: int,
) -> Any:
    """Make the adapter of a library's class; a distributed one that the yaml does not name fits on a sample."""
    from tipcast.models import library  # which, by way of what it fits with, imports this module

    if categorical:
        raise TipcastError(
            "C003", "task.categorical", f"{model.name} knows no categories", "use model=xgboost, or task.categorical=[]"
        )
    if model.cpu or model.gpu:
        raise TipcastError("C006", "model.cpu", "an override cannot name a class here", "set model.classes")
    cells = {device: dict(own or {}) for device, own in (model.classes.get(kind) or {}).items()}
    if kind not in model.kinds or not cells:
        raise TipcastError("C003", "task.kind", f"{kind} is not what {model.name} does", f"use a model of kind {kind}")
    own = cells.get(table) or {}
    if reach not in ("local", "distributed") or not own.get("local"):
        there = ", ".join(f"{device}/{name}" for device, found in cells.items() for name in found)
        raise TipcastError("C002", f"model={model.name}", f"has no {table}/{reach} variant", f"it has {there}")
    variant: Any = library.LocalLibrary if reach == "local" else library.GatheredLibrary
    if reach == "distributed" and own.get("distributed"):
        variant = library.DistributedLibrary
    name = str(own.get(reach) or own["local"])
    library.named(name, f"model.classes.{kind}.{table}")
    reference = str(cells.get("cpu", {}).get("local") or own["local"])
    return variant(dict(model.params), dict(model.fit), DEVICES[table], (), kind, classes, name, reference)


def check(
    model: ModelSpec,
    device: str = "cpu",
    reach: str = "distributed",
    categorical: Sequence[str] = (),
    kind: str | None = None,
) -> None:
    """Refuse a model that cannot be fitted, before any worker starts.

    Raises
    ------
    TipcastError
        C001 unknown parameter, C003 bad value, C010 a device that is not the backend's; those of ``build``.

    """
    try:
        build(model, device, reach, categorical, kind).check()
    except TipcastError as problem:
        if problem.code != "C001":
            raise
        raise TipcastError(
            "C001", f"conf/model/{model.name}.yaml", f"unknown key '{problem.where}'", problem.fix
        ) from problem


def _shipped(name: str) -> Mapping[str, Any]:
    files = {path.stem: path for path in sorted((conf_dir() / "model").glob("*.yaml"))}
    if name not in files:
        raise TipcastError(
            "C002", f"model.name={name}", "no such model in conf/model", f"choose one of {', '.join(files)}"
        )
    loaded: Mapping[str, Any] = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    return loaded
