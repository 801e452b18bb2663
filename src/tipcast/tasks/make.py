"""Make a task from what a configuration asks and a dataset has."""

import inspect
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tipcast.config.errors import TipcastError, unknown
from tipcast.config.schema import TaskSpec
from tipcast.tasks import kinds
from tipcast.tasks.base import Target, TargetColumn, Task, target_function
from tipcast.tasks.kinds import Kind


class TaskData(Protocol):
    """What a task needs of its dataset, see ``datasets.base.Dataset``."""

    @property
    def name(self) -> str: ...

    @property
    def features(self) -> tuple[str, ...]: ...


@runtime_checkable
class HasTargetColumns(Protocol):
    """A dataset any of whose columns can be the target, as ``datasets.base.Tabular``."""

    def target_column(self, name: str | None, kind: Kind | None) -> TargetColumn: ...


@runtime_checkable
class HasNominalFeatures(Protocol):
    """A dataset with features that are useful as categories only: ``datasets.base.Published``."""

    @property
    def nominal(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class _TargetSpec:
    """What a task predicts for each row, and from which columns the target comes."""

    kind: Kind
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    """Raw columns that the target is computed from."""
    description: str
    values: tuple[float, ...] = ()
    """Numbers that a target column has in place of the classes."""
    resolved: Target | None = None
    """The function that computes the target from raw columns."""


def make_task(spec: TaskSpec, dataset: TaskData) -> Task:
    """Make the task that a configuration asks of a ``datasets.base.Dataset``.

    Raises C003 for keys and values that do not go together, C004 for a target function whose kind
    or classes are not named.
    """
    _check_unused(spec)
    params = _function_params(spec)
    target_spec = _target_spec(spec, dataset, params)
    features = _features(spec, dataset, target_spec.columns)
    if spec.weight in (*target_spec.columns, *features):
        what = f"column {spec.weight!r} is also the target or a feature"
        raise TipcastError("C003", "task.weight", what, "use another column")

    classes = target_spec.classes
    swapped = _is_swapped(spec, target_spec)
    if swapped:
        classes = classes[::-1]

    description = target_spec.description
    if params:
        description = description.format(**params)

    return Task(
        name=spec.name,
        kind=target_spec.kind,
        features=features,
        categorical=tuple(spec.categorical),
        classes=classes,
        columns=target_spec.columns,
        function=spec.function,
        params=params,
        resolved=target_spec.resolved,
        values=target_spec.values,
        swapped=swapped,
        description=description,
        weight=spec.weight,
        validation=0.0 if spec.folds else spec.validation,
        folds=spec.folds,
    )


def _check_unused(spec: TaskSpec) -> None:
    """Refuse keys that change nothing: those of a function without one, and ``target`` with one."""
    unused: tuple[str, ...] = ("target",)
    if spec.function is None:
        unused = ("threshold", "columns", "params")

    for name in unused:
        if getattr(spec, name) not in (None, [], {}):
            what = "has no effect on this task"
            raise TipcastError("C003", f"task.{name}", what, "leave it out")


def _function_params(spec: TaskSpec) -> dict[str, Any]:
    """Return the parameters of the target function, ``task.threshold`` among them."""
    params = dict(spec.params)
    if spec.threshold is not None:
        params["threshold"] = spec.threshold
    return params


def _target_spec(spec: TaskSpec, dataset: TaskData, params: Mapping[str, object]) -> _TargetSpec:
    """Return what is predicted: the result of a function, a column, or clusters."""
    kind = kinds.named_by(spec.kind)
    if spec.function is not None:
        return _spec_of_function(spec, spec.function, kind, params)
    if kind is None or kind.has_target:
        return _spec_of_column(spec, dataset, kind)
    return _TargetSpec(kind, tuple(spec.classes), tuple(spec.columns), spec.description)


def _spec_of_function(
    spec: TaskSpec, name: str, kind: Kind | None, params: Mapping[str, object]
) -> _TargetSpec:
    """Return the target that a function computes.

    Raises C003 for parameters that the function does not have, C004 if the kind or the classes are
    not named.
    """
    function = target_function(name)
    try:
        inspect.signature(function).bind({}, None, **params)
    except TypeError as problem:
        what = f"do not match the target function {name!r}: {problem}"
        fix = "use the parameters that it has"
        raise TipcastError("C003", "task.params", what, fix) from problem

    if kind is None or not kind.has_target:
        all_kinds = kinds.every_kind().items()
        choices = ", ".join(name for name, choice in all_kinds if choice.has_target)
        raise TipcastError("C004", "task.kind", "needs a value", f"set it to {choices}")

    classes = tuple(spec.classes)
    if kind.has_classes:
        classes = classes or kind.default_classes
        if not classes:
            fix = "list the classes, such as task.classes=[a,b,c]"
            raise TipcastError("C004", "task.classes", "needs a value", fix)

    columns = tuple(spec.columns)
    return _TargetSpec(kind, classes, columns, spec.description, resolved=function)


def _spec_of_column(spec: TaskSpec, dataset: TaskData, kind: Kind | None) -> _TargetSpec:
    """Return the target that a column holds, by default the dataset's own.

    Raises C003 for classes that are named though the column holds them, and for data whose columns
    cannot be targets.
    """
    if not isinstance(dataset, HasTargetColumns):
        what = f"{dataset.name} data has no columns to predict"
        raise TipcastError("C003", "task.target", what, "use a task made for this data")

    column = dataset.target_column(spec.target, kind)
    classes = tuple(spec.classes)
    if column.classes and classes:
        what = f"has no effect: column {column.name!r} defines the classes"
        raise TipcastError("C003", "task.classes", what, "leave it out")

    return _TargetSpec(
        kind=column.kind,
        classes=column.classes or classes,
        columns=(column.name,),
        description=spec.description or column.name,
        values=column.values,
    )


def _is_swapped(spec: TaskSpec, target_spec: _TargetSpec) -> bool:
    """Tell whether ``task.positive`` names the first class, which then becomes the second.

    Raises C003 if the kind has no positive class or the name is not that of a class.
    """
    kind = target_spec.kind
    classes = target_spec.classes
    positive = _in_the_form_of(classes, spec.positive)
    if positive is None:
        return False

    if not kind.has_positive or positive not in classes:
        what = f"{kind} has no positive class"
        if kind.has_positive:
            what = f"{spec.positive} is not one of the two classes"
        fix = "leave it out"
        if classes:
            fix = f"use {' or '.join(classes[:2])}"
        raise TipcastError("C003", "task.positive", what, fix)

    return positive == classes[0]


def _in_the_form_of(classes: Sequence[str], name: str | None) -> str | None:
    """Return the class that equals a name in its Unicode normal form; the name if none does."""
    if name is None or name in classes:
        return name

    plain = unicodedata.normalize("NFC", name)
    same = [label for label in classes if unicodedata.normalize("NFC", label) == plain]
    if len(same) != 1:
        return name
    return same[0]


def _features(spec: TaskSpec, dataset: TaskData, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the features that the model gets; C003 for names that are unknown or given twice.

    ``columns`` are those of the target: a target function's may be features too.
    """
    available = [name for name in dataset.features if name != spec.weight]
    if spec.function is None:
        available = [name for name in available if name not in columns]
    chosen = spec.features
    if chosen is None:
        chosen = _default_features(dataset, available, columns)

    if not chosen or len(set(chosen)) < len(chosen):
        what = "no feature is listed"
        if chosen:
            what = "a feature is listed twice"
        fix = f"use some of {', '.join(available)}, each once"
        raise TipcastError("C003", "task.features", what, fix)

    _check_features("features", chosen, available)
    _check_features("categorical", spec.categorical, chosen)
    return tuple(chosen)


def _default_features(
    dataset: TaskData, available: Sequence[str], columns: Sequence[str]
) -> list[str]:
    """Return all features but the target's columns and those that are useful only as categories."""
    nominal: tuple[str, ...] = ()
    if isinstance(dataset, HasNominalFeatures):
        nominal = dataset.nominal
    return [name for name in available if name not in (*columns, *nominal)]


def _check_features(key: str, names: Sequence[str], choices: Sequence[str]) -> None:
    """Refuse (C003) a feature under a key of the task that is not among the choices."""
    for name in names:
        if name not in choices:
            raise unknown(f"task.{key}", "feature", name, choices, "C003")
