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
        See ``estimators.base``.

    Raises
    ------
    TipcastError
        C002 no such model or no variant for the device and reach, C006 classes that an override changed.

    """
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
