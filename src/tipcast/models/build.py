"""Look up the estimator of a model by name and device."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tipcast.config.conf_files import conf_dir
from tipcast.config.errors import TipcastError
from tipcast.config.schema import ModelSpec
from tipcast.tasks import kinds
from tipcast.tasks.base import Task
from tipcast.tasks.kinds import Kind

TABLES = {"cpu": "cpu", "gpu": "cuda"}
"""Key of the model's yaml, ``cpu`` or ``gpu`` -> device.

Below ``classes`` and a kind of task the key holds a mapping of reach (``local``, ``distributed``)
-> class of a library. At the top level it holds a class of tipcast's own.
"""

WITH_WEIGHTS = {"kmeans_dask": "kmeans", "linear_dask": "linear"}
"""Model that takes no weights -> the nearest one that does, unless that is the kind's example."""
WITH_WEIGHTS_ON_GPU = {"random_forest": "xgboost_forest"}
"""Model that takes weights on processors alone -> one that takes them on GPUs too."""


def build_for_task(model: ModelSpec, device: str, task: Task) -> Any:
    """Make the estimator for a task, see ``build``."""
    return build(model, device, task.categorical, task.kind, len(task.classes), task.missing)


def build(
    model: ModelSpec,
    device: str,
    categorical: Sequence[str] = (),
    kind: Kind | None = None,
    classes: int = 0,
    missing: float = -1.0,
) -> Any:
    """Make the estimator that a model's yaml names: a class of tipcast's, or the adapter for a
    library's class.

    ``device`` is ``cpu`` or ``cuda`` (a session's), or a backend's name ``gpu``. ``categorical``
    are features that are categories, in which ``missing`` stands for no value. ``kind`` is one of
    the model's ``kinds``; None for its first one. ``classes`` is the number of classes, which
    ``check`` alone does not need.

    Raises C002 if there is no such model, or none for the device; C003 if the model does not learn
    the kind, or takes no categories; C006 for classes that an override may not name.
    """
    kind = kind or kinds.named(model.kinds[0])
    _check_kind(model, kind)

    shipped: Mapping[str, Any] = {}
    if not model.classes:
        shipped = _shipped(model.name)
    _check_shipped(model, shipped)

    table = "cpu" if device == "cpu" else "gpu"
    tables = model.classes[kind.name] if model.classes else shipped
    name = _class_name(model, tables, table)
    settings: dict[str, Any] = {
        "params": dict(model.params),
        "fit_settings": dict(model.fit),
        "device": TABLES[table],
        "categorical": tuple(categorical),
        "kind": kind,
        "classes": classes,
        "missing": missing,
    }

    if model.classes:
        return _build_library(tables, table, name, settings, f"model.classes.{kind}.{table}")

    module, _, attribute = name.rpartition(".")
    estimator = getattr(importlib.import_module(module), attribute)(**settings)
    if categorical and not estimator.takes_categories:
        fix = "use model=xgboost, or task.categorical=[]"
        raise TipcastError(
            "C003", "task.categorical", f"{model.name} does not support categories", fix
        )
    return estimator


def check_weights(model: ModelSpec, device: str, kind: Kind, where: str) -> None:
    """Refuse (C003) a model that takes no weights, where the key ``where`` asks for some.

    ``device`` is as for ``build``.
    """
    if build(model, device, kind=kind).takes_weights:
        return

    what = f"{model.name} does not support weights"
    fix = f"use model={WITH_WEIGHTS.get(model.name, kind.example_model)}"
    if device != "cpu" and build(model, "cpu", kind=kind).takes_weights:
        what = f"{what} on GPUs"
        fix = "use backend=cpu"
        if model.name in WITH_WEIGHTS_ON_GPU:
            fix = f"{fix}, or model={WITH_WEIGHTS_ON_GPU[model.name]}"
    raise TipcastError("C003", where, what, fix)


def _check_kind(model: ModelSpec, kind: Kind) -> None:
    """Refuse (C003) a kind of task that the model does not learn."""
    if kind.name in model.kinds and (not model.classes or model.classes.get(kind.name)):
        return

    fix = f"use model={kind.example_model}"
    raise TipcastError("C003", "task.kind", f"{model.name} does not support {kind}", fix)


def _check_shipped(model: ModelSpec, shipped: Mapping[str, Any]) -> None:
    """Refuse (C006) a class of tipcast's that an override names in place of the shipped yaml's."""
    for table in TABLES:
        if getattr(model, table) != shipped.get(table):
            fix = "choose a model by name, such as model=xgboost"
            if model.classes:
                fix = "set model.classes"
            what = "an override cannot name a class here"
            raise TipcastError("C006", f"model.{table}", what, fix)


def _class_name(model: ModelSpec, tables: Mapping[str, Any], table: str) -> str:
    """Return the dotted name of the class in a table; C002 if the table has none."""
    name: Any = tables.get(table) or {}
    if model.classes:  # in place of one class, there is one by reach
        name = name.get("local")
    if name:
        return str(name)

    filled = " and ".join(side for side in TABLES if tables.get(side))
    what = f"has no class for {table}"
    raise TipcastError("C002", f"model={model.name}", what, f"it has one for {filled}")


def _build_library(
    tables: Mapping[str, Any], table: str, name: str, settings: Mapping[str, Any], where: str
) -> Any:
    """Make the adapter for a library's class; C002 or C006 for one that cannot be named."""
    # Imported here: it loads scikit-learn, which workers of XGBoost do without.
    from tipcast.models.library import Library
    from tipcast.models.library_class import find_class

    find_class(name, where)
    return Library(
        **settings,
        library=name,
        distributed=tables[table].get("distributed", ""),
        reference=(tables.get("cpu") or {}).get("local") or name,
        on_gpu=bool(tables.get("gpu")),
    )


def _shipped(name: str) -> Mapping[str, Any]:
    files = {path.stem: path for path in sorted((conf_dir() / "model").glob("*.yaml"))}
    if name not in files:
        what = "no such model in conf/model"
        fix = f"choose one of {', '.join(files)}"
        raise TipcastError("C002", f"model.name={name}", what, fix)
    loaded: Mapping[str, Any] = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    return loaded
