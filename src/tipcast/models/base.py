"""The interface of estimators, and the result of a fit."""

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from tipcast.compute.base import Array, Frame, module_of
from tipcast.config.disk import writing
from tipcast.config.errors import TipcastError, must_be, unknown
from tipcast.models import native
from tipcast.tasks.kinds import BINARY, Kind

if TYPE_CHECKING:
    from distributed import Client, Future

Parts = Sequence["Future[Any]"]
"""Futures of parts of a frame, of their targets or of predictions of them."""

History = Mapping[str, Mapping[int, float]]
"""Rows and metric, as ``validation_logloss`` -> round or iteration -> value."""

Progress = Callable[[int, int], None] | None
"""Called with the number of steps done and of all, by estimators that report progress."""


RESERVED = {
    "random_state": "seed=...",
    "n_jobs": "cluster.threads_per_worker",
    "verbose": "nothing: the progress bar shows progress",
    "warm_start": "nothing: every fit starts anew",
}
"""Parameters of scikit-learn's estimators that tipcast sets -> what to use in their place."""
STEPS = ("n_estimators", "max_iter", "n_init", "n_clusters")
"""Parameters that say how long a fit goes on, or how many rows it needs. A small value is enough to
check the others.
"""
PER_COLUMN = ("monotonic_cst", "categorical_features")
"""Parameters that only the real columns fit."""
TRIED_ROWS = 256
"""Rows that parameters are tried on."""
TRIED_COLUMNS = 64
"""Columns of these rows: more than any choice of features."""


@dataclass(frozen=True)
class Fitted:
    """The result of a fit, the same for every library and device."""

    scorer: native.Scorer
    """Local, picklable, one thread per call."""
    info: Mapping[str, str | float]
    """Facts for the run: the device really used, rounds, best_iteration."""
    format: str
    """One of ``native.FILES``: ``xgboost-ubj``, ``treelite`` or ``skops``."""
    content: Callable[[Any], bytes]
    """Makes the content of the model's file from the scorer."""
    importance: Mapping[str, float] = field(default_factory=dict)
    """Feature -> share, for all features. They sum to 1, or to 0 if the model uses none; empty if
    the model has no importances.
    """
    importance_kind: str = ""
    """The measure that importances are shares of, as ``gain``."""
    history: History = field(default_factory=dict)
    state: Any = None
    """What ``Estimator.continue_fit`` goes on from, for a fit of more trees."""

    def save(self, folder: Path) -> Path:
        """Write the model's file into a folder that exists; ``native.load`` reads it."""
        path = folder / native.FILES[self.format]
        with writing(path):
            # A library that writes by itself may not notice a full disk.
            path.write_bytes(self.content(self.scorer))
        return path


@dataclass(frozen=True)
class Split:
    """Rows to fit on, and validation rows for early stopping.

    In one process (n, features) float32 frames and (n,) Series of int32 classes or values, or lists
    of their parts; over all workers lists of futures of these parts. A side that rows lack is None.
    """

    x: Any
    y: Any = None
    """Targets; None if nothing is predicted."""
    validation: "Split | None" = None
    """None without validation rows."""
    weight: Any = None
    """Like ``y``, of floats of at least 0: the weight of each row; None if all count alike."""


@dataclass(frozen=True)
class Estimator(ABC):
    """Base of all estimators; see ``build.build``."""

    params: Mapping[str, Any]
    """Parameters by the library's own names."""
    fit_settings: Mapping[str, Any]
    """Settings of the fit rather than of the model: ``model.fit`` of the configuration."""
    device: str
    """``cpu`` or ``cuda``."""
    categorical: tuple[str, ...] = ()
    kind: Kind = BINARY
    classes: int = 0
    """Number of classes. ``check`` alone does not need it: 0 will do."""
    missing: float = -1.0
    """What stands for a missing value in features that are categories. NaN is missing in any
    feature.
    """

    @abstractmethod
    def check(self) -> None:
        """Refuse unknown parameters (C001) and bad values (C003); needs no workers."""

    @abstractmethod
    def fit(self, rows: Any, seed: int, threads: int = 1) -> Fitted:
        """Fit inside one process, on rows or on the result of ``prepared``, with bit-identical
        results.
        """

    @abstractmethod
    def fit_distributed(
        self, client: "Client", rows: Split, seed: int, progress: Progress = None
    ) -> Fitted:
        """Fit over all workers, on lists of futures."""

    @property
    def continues(self) -> bool:
        """Whether a fit can go on with the trees of a fit that had fewer."""
        return False

    def continue_fit(self, rows: Any, seed: int, earlier: Any) -> Fitted:
        """Fit as ``fit`` does, and with the same result, on from the ``Fitted.state`` of a fit that
        differs in having fewer trees; from the beginning if ``earlier`` is None.

        Its info has ``grown_trees``, the trees that are new. Only if the model ``continues``.
        """
        raise NotImplementedError

    @property
    def checkpoint_s(self) -> float | None:
        """Least seconds between two checkpoints of a fit, from which another can go on; None for a
        model that keeps none.
        """
        return None

    def newest_checkpoint(self, contents: Iterable[bytes]) -> bytes:
        """Return the checkpoint of the most steps; empty if none is whole."""
        return b""

    def resuming(self, checkpoint: bytes, keep_in: str) -> "Estimator":
        """Return the estimator whose fit goes on from a checkpoint, or begins if that is empty.

        The fit keeps its own checkpoints in the variable ``keep_in`` of Dask's scheduler.
        """
        return self

    def after_folds(self, infos: Sequence[Mapping[str, str | float]]) -> "Estimator":
        """Return the estimator for all rows, from what the fits of folds have found (their
        ``Fitted.info``): where to stop, for a model that stops early.
        """
        return self

    def stuck_workers(self, client: "Client") -> list[str]:
        """Return the workers that have not left a fit which has lost another worker."""
        return []

    @property
    def takes_categories(self) -> bool:
        """Whether it supports ``task.categorical``."""
        return False

    @property
    def takes_missing(self) -> bool:
        """Whether it learns from NaN; otherwise the dataset fills in missing values."""
        return False

    @property
    def takes_weights(self) -> bool:
        """Whether rows may have weights."""
        return False

    def gains_from(self, gpus: int, rows: int, features: int) -> bool:
        """Whether so many GPUs fit so many rows faster than one does, by benchmarks/growth.py; no
        for a model that it has not shown to gain.
        """
        return False

    def load_fit(self, workers: int, rows: int) -> None:  # noqa: B027 - most load nothing
        """Import, in the driver, what a fit of so many rows by so many workers needs."""

    @property
    def bins_parts(self) -> bool:
        """Whether a fit on a GPU takes rows part by part from the host, so that the GPU need not
        hold them all.
        """
        return False

    @property
    def one_hot(self) -> bool:
        """Whether each value of a category must become a column of 0 and 1, as its codes have no
        order.
        """
        return False

    # Most estimators have nothing to refuse.
    def check_width(self, values: Mapping[str, int]) -> None:  # noqa: B027
        """Refuse (C003) categories that have too many values for the model.

        ``values`` maps each category to the number of its values.
        """

    @property
    def sharing(self) -> Hashable:
        """Parameters that ``prepared`` depends on; None if fits share plain rows."""
        return None

    def prepared(self, rows: Split, threads: int) -> Any:
        """Return rows in a form that several fits of one process can share."""
        return rows

    def need_classes(self, labels: Array) -> None:
        """Refuse (D015) labels that lack a class: a library would leave it out of the model."""
        if not self.kind.has_classes:
            return

        xp = module_of(labels)
        n_classes = self.classes or 2
        n_present = int(xp.count_nonzero(xp.bincount(labels)))
        if n_present < n_classes:
            what = f"{n_present} of {n_classes} classes have training rows"
            fix = "check the target, or use more rows or fewer workers"
            raise TipcastError("D015", "training rows", what, fix)


def shares(names: Sequence[str], weights: Iterable[float]) -> dict[str, float]:
    """Scale non-negative weights of features to sum 1."""
    values = [float(weight) for weight in weights]
    total = sum(values) or 1.0
    return {name: value / total for name, value in zip(names, values, strict=True)}


def sides_of(rows: Split) -> dict[str, Any]:
    """Return the features ``x`` and, if the rows have them, the targets ``y`` and ``weight``."""
    sides = {"x": rows.x, "y": rows.y, "weight": rows.weight}
    return {name: side for name, side in sides.items() if side is not None}


def by_part(sides: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return each part's sides, from the parts of each side."""
    return [dict(zip(sides, part, strict=True)) for part in zip(*sides.values(), strict=True)]


def columns(frame: Any) -> list[str]:
    """Return the column names of a frame or of its parts."""
    first: Frame = frame[0] if isinstance(frame, list) else frame
    return [str(name) for name in first.columns]


def parts(rows: Any) -> list[Any]:
    """Return rows as a list of parts."""
    if isinstance(rows, list):
        return rows
    return [rows]


def stacked(
    x: Frame | list[Frame], y: Frame | list[Frame], weight: Frame | list[Frame] | None = None
) -> tuple[Array, Array, Array | None]:
    """Return features as one array, column by column, targets as another, and weights, if any, as a
    third.

    Each is a frame, or a list of parts. A single part is not copied.
    """
    if weight is None:
        return _whole(x, "F"), _whole(y), None
    return _whole(x, "F"), _whole(y), _whole(weight)


def _whole(frames: Frame | list[Frame], order: str = "C") -> Array:
    """Return the values of a frame or of its parts; those of a single part are not copied."""
    frames = [*parts(frames)]
    if len(frames) == 1:
        return frames[0].values
    return joined(frames, order)


def joined(frames: list[Frame], order: str = "C", dtype: DTypeLike | None = None) -> Array:
    """Return the values of frames as one array.

    Empties the list on the way, so that the rows are in memory about once.
    """
    empty = frames[0].iloc[:0].values
    shape = (sum(map(len, frames)), *empty.shape[1:])
    whole = module_of(empty).empty(shape, dtype=dtype or empty.dtype, order=order)

    start = 0
    frames.reverse()
    while frames:
        part = frames.pop()
        whole[start : start + len(part)] = part.values
        start += len(part)
    return whole


def check_names(
    section: str, names: Iterable[str], valid: Iterable[str], hints: Mapping[str, str]
) -> None:
    """Refuse (C001) a name under ``params`` or ``fit`` that the library lacks, or that another key
    sets.
    """
    for name in names:
        where = f"model.{section}.{name}"
        if name not in valid and name in hints:
            raise TipcastError(
                "C001", where, "this model has no such parameter", f"use {hints[name]}"
            )
        if name not in valid:
            raise unknown(where, "parameter", name, sorted(valid), "C001", f"model.{section}.")


def below_params(names: Iterable[str]) -> dict[str, str]:
    """Return parameters of a model -> what to write in place of ``model.fit.NAME``."""
    return {name: f"model.params.{name}" for name in names}


def positive(key: str, value: Any, *, whole: bool = True) -> Any:
    """Return a whole number of at least 1, or any finite number above 0; C003 for anything else."""
    types: tuple[type, ...] = (int, float)
    rule = "a finite number above 0"
    if whole:
        types = (int,)
        rule = "a whole number of at least 1"

    is_number = isinstance(value, types) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise must_be(key, rule, repr(value))
    return value


def try_params(
    make: Callable[..., Any], params: Mapping[str, Any], kind: Kind, *, sparse: bool = False
) -> Any:
    """Fit on a few made rows, so that the library checks the parameters; return the fitted model.

    ``make`` returns an unfitted estimator with ``params``; its keyword arguments replace some of
    them. Raises C003 with the library's message.
    """
    small_steps = {
        name: 2 for name in STEPS if isinstance(params.get(name), int) and params[name] > 2
    }
    unset = {name: None for name in PER_COLUMN if name in params}
    x: Any = np.random.default_rng(0).random((TRIED_ROWS, TRIED_COLUMNS))
    if sparse:
        import scipy.sparse

        x = scipy.sparse.csr_array(x)

    y = kind.example_target(TRIED_ROWS)
    try:
        with warnings.catch_warnings(action="ignore"):
            return make(**small_steps, **unset).fit(x, y)
    except (ValueError, TypeError) as problem:
        # Whole words: the parameter C is a letter of SVC too.
        name = next((name for name in params if re.search(rf"\b{name}\b", str(problem))), "")
        where = f"model.params.{name}".rstrip(".")
        fix = "see the library's documentation"
        raise TipcastError("C003", where, str(problem), fix) from problem
