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
"""Table of the model's yaml -> device."""


def build_for_task(model: ModelSpec, device: str, task: Task) -> Any:
    """Make the estimator of a task that is known, see ``build``."""
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
    the model's ``kinds``, None for its first one, of so many ``classes``, which ``check`` alone
    does not need. C002 no such model, or none for the device, C003 not a model of the kind, or
    categories that it does not know, C006 classes that an override may not name.
    """
    kind = kind or kinds.named(model.kinds[0])
    if kind.name not in model.kinds or (model.classes and not model.classes.get(kind.name)):
        fix = "use model=kmeans"
        if kind.has_target:
            fix = "use model=xgboost or model=random_forest"
        raise TipcastError("C003", "task.kind", f"{kind} is not what {model.name} does", fix)
    shipped: Mapping[str, Any] = {} if model.classes else _shipped(model.name)
    for table in TABLES:
        if getattr(model, table) != shipped.get(table):
            fix = (
                "set model.classes" if model.classes else "choose a model by name, as model=xgboost"
            )
            raise TipcastError(
                "C006", f"model.{table}", "an override cannot name a class here", fix
            )
    tables = model.classes[kind.name] if model.classes else shipped
    table = "cpu" if device == "cpu" else "gpu"
    entry: Any = tables.get(table) or {}
    name: Any = entry.get("local") if model.classes else entry
    if not name:
        others = " and ".join(side for side in TABLES if tables.get(side))
        raise TipcastError(
            "C002", f"model={model.name}", f"has no class for {table}", f"it has one for {others}"
        )
    settings = (
        dict(model.params),
        dict(model.fit),
        TABLES[table],
        tuple(categorical),
        kind,
        classes,
        missing,
    )
    if model.classes:
        # scikit-learn, which no worker of XGBoost's needs
        from tipcast.models.library import Library, named

        reference = (tables.get("cpu") or {}).get("local") or name
        estimator: Any = Library(
            *settings,
            library=name,
            distributed=entry.get("distributed", ""),
            reference=reference,
            on_gpu=bool(tables.get("gpu")),
        )
    else:
        module, _, attribute = name.rpartition(".")
        estimator = getattr(importlib.import_module(module), attribute)(*settings)
    if categorical and not estimator.takes_categories:
        fix = "use model=xgboost, or task.categorical=[]"
        raise TipcastError("C003", "task.categorical", f"{model.name} knows no categories", fix)
    if model.classes:
        named(name, f"model.classes.{kind}.{table}")
    return estimator


def _shipped(name: str) -> Mapping[str, Any]:
    files = {path.stem: path for path in sorted((conf_dir() / "model").glob("*.yaml"))}
    if name not in files:
        what = "no such model in conf/model"
        fix = f"choose one of {', '.join(files)}"
        raise TipcastError("C002", f"model.name={name}", what, fix)
    loaded: Mapping[str, Any] = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    return loaded
