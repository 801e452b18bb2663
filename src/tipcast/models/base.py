"""What every estimator offers, and what a fit leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tipcast.compute.base import Array, Frame
from tipcast.config.disk_space import writing
from tipcast.models import native

Future = Any
"""A ``distributed.Future``: rows stay on the workers."""

Collection = Any
"""A Dask DataFrame or Series over the workers' rows."""

Parts = Frame | Sequence[Frame]
"""Rows of one process: a frame, or its parts in order."""

History = Mapping[str, Mapping[str, Sequence[float]]]
"""Split -> metric -> one value per round or iteration."""

Progress = Callable[[int, int], None]
"""Called with the steps done and all steps, by estimators that can tell."""


@dataclass(frozen=True)
class NativeFile:
    """A saved model that ``native.load`` reads."""

    path: Path
    format: str
    """``xgboost-ubj``, ``treelite``, ``npz-logistic``, ``npz-svc`` or ``npz-knn``."""


def scoring_code(format: str) -> Path:
    """Return the file that loads a format, alone: it travels inside saved models."""
    return Path(__file__).with_name({"npz-svc": "native_svc.py", "npz-knn": "native_knn.py"}.get(format, "native.py"))


class Scorer(Protocol):
    """A fitted model's scoring half: local, picklable, one thread per call."""

    def score(self, x: Frame | Array) -> Array:
        """Return P(1) for each row of an (n, features) float32 frame or array."""
        ...


@dataclass(frozen=True)
class Fitted:
    """A fitted model, the same whatever library and device made it."""

    scorer: Scorer
    history: History
    importance: Mapping[str, float]
    """Feature -> share; all features, summing to 1 (to 0 where the model uses none)."""
    importance_kind: str
    """What the importance is a share of, as ``gain``."""
    info: Mapping[str, str | float]
    """What the run records: the device really used, rounds, best_iteration."""
    model: Any
    """The library's own object."""
    format: str
    """One of ``native.FILES``."""
    write: Callable[[Any, Path], None]
    """Writes ``model`` to a path."""

    def save(self, folder: Path) -> NativeFile:
        """Write the model into a folder that exists."""
        path = folder / native.FILES[self.format]
        with writing(path):
            self.write(self.model, path)
        return NativeFile(path, self.format)


@dataclass(frozen=True)
class Estimator:
    """What every estimator is made of, see ``build.build``."""

    params: Mapping[str, Any]
    """By the library's own names."""
    training: Mapping[str, Any]
    """What belongs to training rather than to the model."""
    device: str
    """``cpu`` or ``cuda``."""
    categorical: tuple[str, ...] = ()
    kind: str = "classification"
    classes: int = 0
    """How many classes there are; 0: as many as the labels have."""

    def class_count(self, *targets: Parts | None) -> int:
        """Return how many classes a model of labels tells apart; 0 where it tells none."""
        if self.kind not in ("classification", "multiclass"):
            return 0
        if self.kind == "classification":
            return 2
        seen = (int(part.max()) + 1 for target in targets if target is not None for part in parts(target) if len(part))
        return self.classes or max(seen)


class Distributed(Protocol):
    """One fit over all workers."""

    def check(self) -> None:
        """Refuse unknown parameters (C001) and bad values (C003); needs no workers."""
        ...

    def fit(
        self,
        client: Any,
        x: Collection,
        y: Collection | None,
        validation: tuple[Collection, Collection | None] | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fitted:
        """Fit on a Dask DataFrame of float32 features and a Series: int32 classes, float32 values, or none."""
        ...


class Local(Protocol):
    """One fit inside one process."""

    def check(self) -> None:
        """Refuse unknown parameters (C001) and bad values (C003)."""
        ...

    def fit(
        self, x: Parts, y: Parts | None, validation: tuple[Parts, Parts | None] | None, seed: int, threads: int = 1
    ) -> Fitted:
        """Fit on (n, features) float32 DataFrames and (n,) Series: int32 classes, float32 values, or none."""
        ...


def shares(names: Sequence[str], weights: Iterable[float]) -> dict[str, float]:
    """Scale non-negative weights of features to sum 1."""
    values = [float(weight) for weight in weights]
    total = sum(values) or 1.0
    return {name: value / total for name, value in zip(names, values, strict=True)}


def columns(frame: Parts) -> list[str]:
    """Return the column names of a frame, of its parts or of a Dask DataFrame."""
    first: Frame = frame[0] if isinstance(frame, list) else frame
    return [str(name) for name in first.columns]


def parts(rows: Parts) -> list[Frame]:
    """Return rows as a list of parts."""
    return rows if isinstance(rows, list) else [rows]
