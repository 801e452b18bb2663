"""What several fits inside one process share: rows prepared once, and trees that are grown once, cut or grown on."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tipcast.compute.base import Frame
from tipcast.models.base import Fitted


@dataclass(frozen=True)
class Split:
    """Training and validation rows in memory: (n, features) float32 frames and (n,) int32 labels."""

    x: Frame
    y: Frame
    validation: tuple[Frame, Frame]


@dataclass(frozen=True)
class Grown:
    """A fit that can be grown on where it was left."""

    fitted: Fitted
    trees: int
    state: Any
    """What ``grow`` takes to go on; small beside the rows."""
    over: bool
    """Whether more trees would not be used: the fit would have stopped early by now."""


@runtime_checkable
class Shares(Protocol):
    """A local estimator that fits on rows prepared once for all parameters of one key."""

    @property
    def sharing(self) -> Hashable:
        """Parameters that the preparation depends on."""
        ...

    def prepared(self, rows: Split, threads: int) -> Any:
        """Return what ``fit_prepared`` takes; the rows' frames may be dropped."""
        ...

    def fit_prepared(self, prepared: Any, seed: int, threads: int = 1) -> Fitted:
        """Fit as ``fit`` does, bit by bit."""
        ...


@runtime_checkable
class Grows(Protocol):
    """A local estimator of trees, of which fewer are the first ones of more."""

    @property
    def trees(self) -> int | None:
        """Trees at most; None where these parameters allow neither to cut nor to grow on."""
        ...

    def cut(self, prepared: Any, sizes: Sequence[int], seed: int, threads: int = 1) -> list[Fitted]:
        """Grow the most trees once; return for each size what a fit of so many would have returned, bit by bit."""
        ...

    def grow(self, prepared: Any, trees: int, state: Any, seed: int, threads: int = 1) -> Grown:
        """Grow from a state (None: from nothing) to so many trees; what ran in between makes no difference."""
        ...


def prepare(estimator: Any, rows: Split, threads: int) -> Any:
    """Return rows as an estimator shares them."""
    return estimator.prepared(rows, threads) if isinstance(estimator, Shares) else rows


def sharing(estimator: Any) -> Hashable:
    """Return what the shared rows depend on."""
    return estimator.sharing if isinstance(estimator, Shares) else None


def fit(estimator: Any, prepared: Any, seed: int, threads: int = 1) -> Fitted:
    """Fit on shared rows."""
    if isinstance(estimator, Shares):
        return estimator.fit_prepared(prepared, seed, threads)
    fitted: Fitted = estimator.fit(prepared.x, prepared.y, prepared.validation, seed, threads)
    return fitted


def grows(estimator: Any) -> bool:
    """Tell whether an estimator's trees can be cut and grown on."""
    return isinstance(estimator, Grows) and estimator.trees is not None
