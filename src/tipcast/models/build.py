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
    """Make the estimator that a model's table names: a class of ours, as it is shipped, or the adapter of a library's.

    Parameters
    ----------
    model
        The composed model.
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
    Estimator
        See ``models.base``.

    Raises
    ------
    TipcastError
        C002 no such model or no variant for the device and reach, C003 not a model of the kind, or categories that it
        does not know, C006 classes that an override may not name.

    """
    kind = kind or model.kinds[0]
    cells = _cells(model, kind)
    table = TABLES.get(device, device)
    own = cells[table]
    name = own.get(reach) or (own.get("local") if model.classes and reach == "distributed" else None)
    if not name:
        there = ", ".join(f"{side}/{each}" for side, found in cells.items() for each in found)
        raise TipcastError("C002", f"model={model.name}", f"has no {table}/{reach} variant", f"it has {there}")
    if not model.classes:
        module, _, attribute = name.rpartition(".")
        cls = getattr(importlib.import_module(module), attribute)
        _check_categories(model, categorical, known=cls.CATEGORIES)
        return cls(dict(model.params), dict(model.fit), DEVICES[table], tuple(categorical), kind, classes)
    from tipcast.models import library  # which, by way of what it fits with, imports this module

    _check_categories(model, categorical, known=False)
    variant: Any = library.LocalLibrary if reach == "local" else library.GatheredLibrary
    if reach in own and reach == "distributed":
        variant = library.DistributedLibrary
    library.named(name, f"model.classes.{kind}.{table}")
    reference = cells["cpu"].get("local") or own["local"]
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


def _cells(model: ModelSpec, kind: str) -> dict[str, Mapping[str, str]]:
    """Return a model's classes by table and reach."""
    shipped: Mapping[str, Any] = {} if model.classes else _shipped(model.name)
    if kind not in model.kinds or (model.classes and not model.classes.get(kind)):
        raise TipcastError("C003", "task.kind", f"{kind} is not what {model.name} does", f"use a model of kind {kind}")
    for table in DEVICES:
        if dict(getattr(model, table) or {}) != dict(shipped.get(table) or {}):
            fix = "set model.classes" if model.classes else "choose a model by name, as model=xgboost"
            raise TipcastError("C006", f"model.{table}", "an override cannot name a class here", fix)
    cells = model.classes[kind] if model.classes else shipped
    return {table: dict(cells.get(table) or {}) for table in DEVICES}


def _shipped(name: str) -> Mapping[str, Any]:
    files = {path.stem: path for path in sorted((conf_dir() / "model").glob("*.yaml"))}
    if name not in files:
        what, fix = "no such model in conf/model", f"choose one of {', '.join(files)}"
        raise TipcastError("C002", f"model.name={name}", what, fix)
    loaded: Mapping[str, Any] = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    return loaded


def _check_categories(model: ModelSpec, categorical: Sequence[str], known: bool) -> None:
    if categorical and not known:
        fix = "use model=xgboost, or task.categorical=[]"
        raise TipcastError("C003", "task.categorical", f"{model.name} knows no categories", fix)
