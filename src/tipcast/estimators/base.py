"""What every estimator offers, and what a fit leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tipcast.backends.base import Array, Frame
from tipcast.config.disk_space import writing

Future = Any
"""A ``distributed.Future``: rows stay on the workers."""

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
    file: str
    """Name of the saved file."""
    format: str
    write: Callable[[Any, Path], None]
    """Writes ``model`` to a path."""

    def save(self, folder: Path) -> NativeFile:
        """Write the model into a folder that exists."""
        path = folder / self.file
        with writing(path):
            self.write(self.model, path)
        return NativeFile(path, self.format)


class Distributed(Protocol):
    """One fit over all workers."""

    def check(self) -> None:
        """Refuse unknown parameters (C001) and bad values (C003); needs no workers."""
        ...

    def fit(
        self,
        client: Any,
        x: Sequence[Future],
        y: Sequence[Future],
        validation: tuple[Sequence[Future], Sequence[Future]] | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fitted:
        """Fit on futures of (n, features) float32 DataFrames and (n,) int32 Series, part by part alike."""
        ...


class Local(Protocol):
    """One fit inside one process."""

    def check(self) -> None:
        """Refuse unknown parameters (C001) and bad values (C003)."""
        ...

    def fit(self, x: Frame, y: Frame, validation: tuple[Frame, Frame] | None, seed: int, threads: int = 1) -> Fitted:
        """Fit on an (n, features) float32 DataFrame and an (n,) int32 Series."""
        ...


def shares(names: Sequence[str], weights: Iterable[float]) -> dict[str, float]:
    """Scale non-negative weights of features to sum 1."""
    values = [float(weight) for weight in weights]
    total = sum(values) or 1.0
    return {name: value / total for name, value in zip(names, values, strict=True)}


def columns(frame: Frame) -> list[str]:
    """Return a frame's column names."""
    return [str(name) for name in frame.columns]
