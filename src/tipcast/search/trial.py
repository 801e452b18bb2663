"""Trials of a sweep: what is tried, what a worker does for it on the rows that it keeps, and what
happens to it.
"""

import asyncio
import dataclasses
import gc
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, final

from distributed import WorkerPlugin, get_worker, secede

from tipcast.compute.base import Array, Frames, out_of_memory
from tipcast.config.errors import TipcastError, travelling
from tipcast.config.gate import gate
from tipcast.config.schema import ModelSpec
from tipcast.datasets.counts import Counts
from tipcast.datasets.parts import Fragment
from tipcast.datasets.prepare import (
    PreparedPart,
    Recipe,
    counted,
    draw_all,
    prepare_fragment,
)
from tipcast.models.base import Split
from tipcast.models.build import build_for_task

SLOT = "trial"
"""Resource of a worker: how many trials it runs at once."""
MOST_PREPARED = 4
"""Ways in which rows are held prepared at once."""


@dataclass(frozen=True)
class Proposal:
    """Parameters to try, and their place in the order of proposal, from 0."""

    number: int
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Objective:
    """What trials are called and ranked by."""

    study: str
    """Digest of the data, the task, the model and the search: the same for sweeps that may be
    compared.
    """
    metric: str
    """Of the validation rows."""
    maximize: bool
    """Whether more of it is better."""

    def key(self, number: int) -> str:
        """Return the name that a trial has in every attempt and every resumed sweep."""
        return f"{self.study}-{number:04d}"

    def rank(self, trial: "Trial") -> tuple[float, int]:
        """Return what trials are sorted by, the best first; of equals the first."""
        return -trial.score if self.maximize else trial.score, trial.number


@dataclass(frozen=True)
class Study:
    """What all trials of a sweep have in common; every worker gets it once."""

    objective: Objective
    sweep: str
    """This sweep alone: what its workers keep their rows by."""
    fragments: tuple[Fragment, ...]
    recipe: Recipe
    frames: Frames
    model: ModelSpec
    device: str
    seed: int
    measure: Callable[[Array, Array], tuple[Mapping[str, float], Sequence[float]]]
    """Of predictions and targets: metrics, and a curve of even steps, if the kind of task has one.
    Importable on the workers."""
    again: bool = True
    """Whether rows are needed again once they are prepared for a fit: another may want them
    otherwise.
    """

    @property
    def topic(self) -> str:
        """Of Dask's events that trials report by."""
        return f"tipcast-{self.sweep}"

    def estimator(self, params: Mapping[str, Any]) -> Any:
        """Make what fits the model with these parameters in place of its own."""
        model = dataclasses.replace(self.model, params={**self.model.params, **params})
        return build_for_task(model, self.device, self.recipe.task)


@dataclass(frozen=True)
class Trial:
    """What came of a trial that ended well."""

    number: int
    params: Mapping[str, Any]
    score: float
    """The metric that trials are ranked by."""
    metrics: Mapping[str, float]
    """Of the validation rows."""
    phases: Mapping[str, float]
    """Phase -> seconds of its worker's thread."""
    worker: str
    attempt: int
    """From 1: how often it was begun."""
    curve: Sequence[float] = ()
    """To draw trials together: of two classes, true-positive rates at even false-positive rates
    from 0 to 1.
    """
    facts: Mapping[str, str | float] = field(default_factory=dict)
    """What the fit says of itself: device, best round."""

    @property
    def seconds(self) -> float:
        """Seconds of fitting and measuring."""
        return sum(seconds for phase, seconds in self.phases.items() if phase != "wait")


@dataclass(frozen=True)
class Failed:
    """A trial has failed, for good or, where its worker died, until it is retried."""

    number: int
    problem: TipcastError
    retried: bool = False


Event = Proposal | Trial | Failed
"""What happens to a trial: a worker has been given it, it ended well, it failed."""


@dataclass
class WorkerCache:
    """What one process keeps of one sweep; threads that come while it is made wait for it."""

    study: Study
    lock: threading.Lock = field(default_factory=threading.Lock)
    rows: Split | None = None
    validation: tuple[Any, Any] | None = None
    counts: tuple[tuple[Counts, ...], ...] = ()
    """What was read of each fragment, before and from the cutoff."""
    prepared: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)

    def ready(self, estimator: Any, threads: int) -> tuple[Any, tuple[Any, Any]]:
        """Return what fits of a model with these parameters share, and the validation rows."""
        key = estimator.sharing
        with self.lock:
            if key not in self.prepared:
                rows = self.rows or self._read(threads)
                self.prepared[key] = estimator.prepared(rows, threads)
                # else XGBoost's bins are all that is held
                self.rows = rows if self.study.again else None
                while len(self.prepared) > MOST_PREPARED:
                    self.prepared.popitem(last=False)
            self.prepared.move_to_end(key)
            assert self.validation is not None  # noqa: S101 - read with the others
            return self.prepared[key], self.validation

    def _read(self, threads: int) -> Split:
        """Read all fragments, each copied into place and dropped, so that rows are in memory about
        once.
        """
        study = self.study

        def read(fragment: Fragment) -> tuple[PreparedPart, ...]:
            return prepare_fragment(fragment, study.frames, study.recipe)

        with ThreadPoolExecutor(threads) as pool:
            parts = draw_all(list(pool.map(read, study.fragments)), study.recipe)
        self.counts = tuple(map(counted, parts))
        sides = [[both[side] for both in parts] for side in (0, 1)]
        parts.clear()  # the lists of both sides hold the parts now, and ``_joined`` empties them
        self.validation = _joined(sides.pop(), study)
        return Split(*_joined(sides.pop(), study), self.validation)


CACHES: dict[str, WorkerCache] = {}
"""Sweep -> what this process keeps of it."""


@final
class TrialSlots(WorkerPlugin):
    """Makes a worker, also one that comes later, run a sweep's trials; clears up when it is taken
    away.
    """

    idempotent = True

    def __init__(self, study: Study, per_gpu: int) -> None:
        self.name = study.topic
        self._study = study
        self._per_gpu = per_gpu

    async def setup(self, worker: Any) -> None:
        """Keep what all trials have in common, and say how many may run at once."""
        CACHES.setdefault(self._study.sweep, WorkerCache(self._study))
        number = worker.state.nthreads if self._study.device == "cpu" else self._per_gpu
        # here, as a worker that is started anew has none
        await worker.set_resources(**{SLOT: number})

    def teardown(self, worker: Any) -> None:
        """Free the rows."""
        CACHES.pop(self._study.sweep, None)
        gc.collect()


async def load(sweep: str, dask_worker: Any) -> tuple[tuple[Counts, ...], ...]:
    """Read the rows of a sweep into this process, beside its event loop; return what was read of
    each fragment.
    """
    return await asyncio.to_thread(_load, CACHES[sweep], int(dask_worker.state.nthreads))


@travelling
def _load(cache: WorkerCache, threads: int) -> tuple[tuple[Counts, ...], ...]:
    # which loads a library, too long for the loop's heartbeats
    cache.ready(cache.study.estimator({}), threads)
    return cache.counts


@travelling
def run(sweep: str, proposal: Proposal, attempt: int) -> None:
    """Fit, measure, and report by an event: a result that Dask held would be lost with its worker.

    M010 a prediction or metric that is not finite, S005 no memory, S006 an error of the library;
    those of the estimator.
    """
    # the worker's resource alone says how many run at once, whatever number of threads it has
    secede()
    cache = CACHES[sweep]
    gate(f"trial-{proposal.number}")

    try:
        trial = fit(cache, proposal, attempt)
        # Dask takes as an event only what msgpack can write.
        get_worker().log_event(cache.study.topic, json.dumps(dataclasses.asdict(trial)))
    except TipcastError:
        raise
    except Exception as problem:
        where = cache.study.objective.key(proposal.number)
        text = str(problem).strip().partition("\n")[0]
        if not out_of_memory(problem):
            what = f"{type(problem).__name__}: {text}"
            raise TipcastError("S006", where, what, "see the trial's parameters") from problem
        fix = "give workers more memory, run fewer trials at once, or search smaller values"
        raise TipcastError("S005", where, f"out of memory: {text}", fix) from problem
    finally:
        gc.collect(0)


def fit(cache: WorkerCache, proposal: Proposal, attempt: int) -> Trial:
    """Fit a trial's parameters, and measure on the validation rows."""
    study = cache.study
    worker = get_worker()
    clock = [time.perf_counter()]
    estimator = study.estimator(proposal.params)
    prepared, (x, y) = cache.ready(estimator, int(worker.state.nthreads))
    clock.append(time.perf_counter())
    fitted = estimator.fit(prepared, study.seed)
    clock.append(time.perf_counter())
    predictions = fitted.scorer.score(x)
    metrics: Mapping[str, float] = {}
    curve: Sequence[float] = ()

    if bool(study.frames.xp.isfinite(predictions).all()):
        metrics, curve = study.measure(
            predictions, fitted.scorer.judged(x) if y is None else y
        )  # rows themselves judge clusters

    clock.append(time.perf_counter())
    score = float(metrics.get(study.objective.metric, math.nan))
    if not math.isfinite(score):
        what = (
            "non-finite metric: the model's predictions, or what is computed of them, are not "
            "finite"
        )
        fix = "search a smaller learning rate, or rank by another search.metric"
        raise TipcastError("M010", study.objective.key(proposal.number), what, fix)

    phases = {name: clock[at + 1] - clock[at] for at, name in enumerate(("wait", "fit", "score"))}
    where = str(worker.address)
    return Trial(
        proposal.number, proposal.params, score, metrics, phases, where, attempt, curve, fitted.info
    )


def _joined(parts: list[PreparedPart], study: Study) -> tuple[Any, Any]:
    """Join parts into one frame and one series (None where nothing is predicted), emptying the list
    on the way.
    """
    xp = study.frames.xp
    names = list(study.recipe.task.features)
    rows = sum(part.counts.rows for part in parts)
    # as a fit on the parts themselves would have it
    order = "C" if parts[0].x.values.flags.c_contiguous else "F"
    x = xp.empty((rows, len(names)), dtype=xp.float32, order=order)
    at = 0
    y = None if parts[0].y is None else xp.empty(rows, dtype=parts[0].y.dtype)
    parts.reverse()

    while parts:
        part = parts.pop()
        x[at : at + part.counts.rows] = part.x.values
        if y is not None and part.y is not None:
            y[at : at + part.counts.rows] = part.y.values
        at += part.counts.rows

    return study.frames.frame(x, names), None if y is None else study.frames.series(y, "target")
