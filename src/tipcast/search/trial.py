"""Trials of a sweep: what is tried, what a worker does for it on the rows that it keeps, and what happens to it."""

from __future__ import annotations

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
from tipcast.datasets.base import Counts, Fragment, Part
from tipcast.datasets.rows import Recipe, counted, draw_all, prepare_fragment
from tipcast.models.base import Split, joined
from tipcast.models.build import build

SLOT = "trial"
"""Resource of a worker: how many trials it runs at once."""
MOST_PREPARED = 4
"""Ways in which rows are held prepared at once."""


@dataclass(frozen=True)
class Proposal:
    """Parameters to try."""

    number: int
    """From 0, in the order of proposal."""
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """How good predictions of the validation rows are, as one process measures it."""

    metrics: Mapping[str, float]
    curve: Sequence[float] = ()
    """To draw trials together: of two classes, true-positive rates at even false-positive rates from 0 to 1."""


@dataclass(frozen=True)
class Objective:
    """What trials are called and ranked by."""

    study: str
    """Digest of the data, the task, the model and the search: the same for sweeps that may be compared."""
    metric: str
    """Of the validation rows."""
    maximize: bool
    """Whether more of it is better."""

    def key(self, number: int) -> str:
        """Return the name that a trial has in every attempt and every resumed sweep."""
        return f"{self.study}-{number:04d}"

    def rank(self, trial: Trial) -> tuple[float, int]:
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
    categorical: tuple[str, ...]
    seed: int
    measure: Callable[[Array, Array], Measured]
    """Of predictions and targets; importable on the workers."""
    again: bool
    """Whether rows are needed again once they are prepared for a fit: another may want them otherwise."""

    @property
    def topic(self) -> str:
        """Of Dask's events that trials report by."""
        return f"tipcast-{self.sweep}"


@dataclass(frozen=True)
class Trial:
    """What came of a trial."""

    key: str
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
    facts: Mapping[str, str | float] = field(default_factory=dict)
    """What the fit says of itself: device, best round."""

    @property
    def seconds(self) -> float:
        """Seconds of fitting and measuring."""
        return sum(seconds for phase, seconds in self.phases.items() if phase != "wait")


@dataclass(frozen=True)
class Begun:
    """A worker has been given a trial."""

    proposal: Proposal
    attempt: int


@dataclass(frozen=True)
class Ended:
    """A trial is done."""

    trial: Trial


@dataclass(frozen=True)
class Lost:
    """A worker died with its trial, which will be retried."""

    number: int
    reason: str


@dataclass(frozen=True)
class Failed:
    """A trial has failed for good."""

    number: int
    problem: TipcastError


Event = Begun | Ended | Lost | Failed


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
                self.rows = rows if self.study.again else None
                while len(self.prepared) > MOST_PREPARED:
                    self.prepared.popitem(last=False)
            self.prepared.move_to_end(key)
            assert self.validation is not None  # noqa: S101 - read with the others
            return self.prepared[key], self.validation

    def _read(self, threads: int) -> Split:
        """Read all fragments, each copied into place and dropped, so that rows are in memory about once."""
        study = self.study

        def read(fragment: Fragment) -> tuple[Part, ...]:
            return prepare_fragment(fragment, study.frames, study.recipe)

        with ThreadPoolExecutor(threads) as pool:
            parts = draw_all(list(pool.map(read, study.fragments)), study.recipe)
        self.counts = tuple(map(counted, parts))
        sides = [[both[side] for both in parts] for side in (0, 1)]
        parts.clear()
        self.validation = _joined(sides.pop(), study)
        return Split(*_joined(sides.pop(), study), self.validation)


CACHES: dict[str, WorkerCache] = {}
"""Sweep -> what this process keeps of it."""


@final
class TrialSlots(WorkerPlugin):
    """Makes a worker, also one that comes later, run a sweep's trials; clears up when it is taken away."""

    idempotent = True

    def __init__(self, study: Study, per_gpu: int) -> None:
        self.name = study.topic
        self._study, self._per_gpu = study, per_gpu

    async def setup(self, worker: Any) -> None:
        """Keep what all trials have in common, and say how many may run at once."""
        CACHES.setdefault(self._study.sweep, WorkerCache(self._study))
        number = worker.state.nthreads if self._study.device == "cpu" else self._per_gpu
        await worker.set_resources(**{SLOT: number})

    def teardown(self, worker: Any) -> None:
        """Free the rows."""
        CACHES.pop(self._study.sweep, None)
        gc.collect()


async def load(sweep: str, dask_worker: Any) -> tuple[tuple[Counts, ...], ...]:
    """Read the rows of a sweep into this process, beside its event loop; return what was read of each fragment."""
    return await asyncio.to_thread(_load, CACHES[sweep], int(dask_worker.state.nthreads))


@travelling
def _load(cache: WorkerCache, threads: int) -> tuple[tuple[Counts, ...], ...]:
    cache.ready(_estimator(cache.study, {}), threads)
    return cache.counts


@travelling
def run(sweep: str, proposal: Proposal, attempt: int) -> None:
    """Fit, measure, and report by an event: a result that Dask held would be lost with its worker.

    M010 a prediction or metric that is not finite, S005 no memory, S006 an error of the library; those of the
    estimator.
    """
    secede()  # the worker's resource alone says how many run at once, whatever number of threads it has
    cache = CACHES[sweep]
    gate(f"trial-{proposal.number}")
    try:
        trial = fit(cache, proposal, attempt)
        get_worker().log_event(cache.study.topic, json.dumps(dataclasses.asdict(trial)))
    except Exception as problem:
        raise failure(problem, cache.study.objective.key(proposal.number)) from problem
    finally:
        gc.collect(0)


def fit(cache: WorkerCache, proposal: Proposal, attempt: int) -> Trial:
    """Fit a trial's parameters, and measure on the validation rows."""
    study, worker, clock = cache.study, get_worker(), [time.perf_counter()]
    estimator = _estimator(study, proposal.params)
    prepared, (x, y) = cache.ready(estimator, int(worker.state.nthreads))
    clock.append(time.perf_counter())
    fitted = estimator.fit(prepared, study.seed)
    clock.append(time.perf_counter())
    predictions = fitted.scorer.score(x)
    finite = bool(study.frames.xp.isfinite(predictions).all())
    measured = study.measure(predictions, x if y is None else y) if finite else None  # rows themselves judge clusters
    clock.append(time.perf_counter())
    key = study.objective.key(proposal.number)
    score = measured.metrics[study.objective.metric] if measured else math.nan
    if measured is None or not math.isfinite(score):
        what = "non-finite metric: the model's predictions, or what is computed of them, are not finite"
        raise TipcastError("M010", key, what, "search a smaller learning rate, or rank by another search.metric")
    return Trial(
        key=key,
        number=proposal.number,
        params=proposal.params,
        score=float(score),
        metrics=measured.metrics,
        phases={name: clock[at + 1] - clock[at] for at, name in enumerate(("wait", "fit", "score"))},
        worker=str(worker.address),
        attempt=attempt,
        curve=measured.curve,
        facts=fitted.info,
    )


def failure(problem: Exception, where: str) -> TipcastError:
    """Return what is told of a trial that failed."""
    if isinstance(problem, TipcastError):
        return TipcastError(*problem.args)  # alone: what it came from may not travel
    said = str(problem).strip().partition("\n")[0]
    if not out_of_memory(problem):
        return TipcastError("S006", where, f"{type(problem).__name__}: {said}", "see the trial's parameters")
    fix = "give workers more memory, run fewer trials at once, or search smaller values"
    return TipcastError("S005", where, f"out of memory: {said}", fix)


def _estimator(study: Study, params: Mapping[str, Any]) -> Any:
    model = dataclasses.replace(study.model, params={**study.model.params, **params})
    task = study.recipe.task
    return build(model, study.device, study.categorical, task.kind, len(task.classes))


def _joined(parts: list[Part], study: Study) -> tuple[Any, Any]:
    """Join parts into one frame and one series (None where nothing is predicted), emptying the list on the way."""
    x, y = [part.x for part in parts], [part.y for part in parts if part.y is not None]
    order = "C" if x[0].values.flags.c_contiguous else "F"  # as a fit on the parts themselves would have it
    parts.clear()
    frame = study.frames.frame(joined(x, order), list(study.recipe.features))
    return frame, study.frames.series(joined(y), "target") if y else None
