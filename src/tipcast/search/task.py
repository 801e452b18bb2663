"""What a worker does for a trial: fit on the rows that its process keeps for all, measure on the validation rows."""

from __future__ import annotations

import dataclasses
import gc
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from distributed import WorkerPlugin, get_worker, secede

from tipcast.config.errors import TipcastError, travelling
from tipcast.config.gate import gate
from tipcast.datasets.base import Counts, Fragment, Part
from tipcast.datasets.rows import counted, prepare_fragment
from tipcast.models.base import Fitted, Grown, Split
from tipcast.models.build import build
from tipcast.search.trial import Proposal, Study, Trial, Work

SLOT = "trial"
"""Resource of a worker: how many trials it runs at once."""
MOST_PREPARED = 4
"""Ways in which rows are held prepared at once."""
MOST_GROWN = 256
"""Trials whose trees are kept at once, to be grown on; those of others are grown again."""
OUT_OF_MEMORY = ("out of memory", "bad_alloc", "cudaErrorMemoryAllocation")


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
    grown: dict[int, tuple[float, int, Any]] = field(default_factory=dict)
    """Trial -> its score, its trees so far and their state."""

    def ready(self, estimator: Any, threads: int, turn: int = 0) -> tuple[Any, tuple[Any, Any]]:
        """Return what fits of a model with these parameters share, and the validation rows."""
        key = turn, estimator.sharing
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

    def keep(self, number: int, grown: Grown, score: float, most: int) -> None:
        """Keep trees that may be grown on, which are fewer than the most; of too many trials the better ones."""
        self.grown.pop(number, None)
        if grown.over or grown.trees >= most:
            return
        self.grown[number] = score, grown.trees, grown.state
        while len(self.grown) > MOST_GROWN:
            scores = {each: kept[0] for each, kept in list(self.grown.items())}
            worst = (min if self.study.objective.maximize else max)(scores, key=scores.__getitem__)
            self.grown.pop(worst, None)

    def _read(self, threads: int) -> Split:
        """Read all fragments, each copied into place and dropped, so that rows are in memory about once."""
        study = self.study

        def read(fragment: Fragment) -> tuple[Part, ...]:
            return prepare_fragment(fragment, study.frames, study.recipe)

        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(read, study.fragments))
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


@travelling
def load(sweep: str) -> tuple[tuple[Counts, ...], ...]:
    """Read the rows of a sweep into this process; return what was read of each fragment's parts."""
    cache = CACHES[sweep]
    cache.ready(_estimator(cache.study, {}, 0), _threads())
    return cache.counts


@travelling
def run(sweep: str, work: Work, attempt: int) -> None:
    """Fit, measure and report.

    What came of it, one trial for each proposal as JSON, goes out as an event, ahead of the word that the task is done:
    a result that Dask held on the worker would be lost with it, and the task computed again. M010 a prediction or
    metric that is not finite, S005 no memory; those of the estimator.
    """
    secede()  # the worker's resource alone says how many run at once, whatever number of threads it has
    cache = CACHES[sweep]
    gate(f"trial-{work.numbers[0]}")
    try:
        trials = RunningWork(cache, work, attempt).trials()
        get_worker().log_event(cache.study.topic, [trial.to_json() for trial in trials])
    except Exception as problem:
        raise failure(problem, cache.study.objective.key(work.numbers[0])) from problem
    finally:
        gc.collect(0)


def failure(problem: Exception, where: str) -> TipcastError:
    """Return what is told of a trial that failed."""
    if isinstance(problem, TipcastError):
        return TipcastError(*problem.args)  # alone: what it came from may not travel
    said = str(problem).strip().partition("\n")[0]
    if not isinstance(problem, MemoryError) and not any(word in str(problem) for word in OUT_OF_MEMORY):
        return TipcastError("S006", where, f"{type(problem).__name__}: {said}", "see the trial's parameters")
    fix = "give workers more memory, run fewer trials at once, or search smaller values"
    return TipcastError("S005", where, f"out of memory: {said}", fix)


def not_finite(where: str) -> TipcastError:
    """Return what is told of a trial whose predictions are no numbers."""
    what = "non-finite metric: the model's predictions, or what is computed of them, are not finite"
    return TipcastError("M010", where, what, "search a smaller learning rate, or rank by another search.metric")


class RunningWork:
    """One task's way through its phases."""

    def __init__(self, cache: WorkerCache, work: Work, attempt: int) -> None:
        self._cache, self._study, self._attempt = cache, cache.study, attempt
        self.work = work
        self._phases: dict[str, float] = {}

    def trials(self) -> list[Trial]:
        """Fit once, measure for each of the trials."""
        work = self.work
        turn = self._study.turn(work.numbers[0])
        estimator = _estimator(self._study, work.proposals[0].params, turn)
        with self._phase("wait"):
            prepared, validation = self._cache.ready(estimator, _threads(), turn)
        if work.rounds is not None:
            return [self._grown(estimator, prepared, validation, work.rounds)]
        with self._phase("fit"):
            if work.sizes:
                fits = estimator.cut(prepared, work.sizes, self._study.seed)
            else:
                fits = [estimator.fit(prepared, self._study.seed)]
        sizes, spent = work.sizes or (1,), self._phases["fit"]
        found: list[Trial] = []
        for proposal, fitted, size in zip(work.proposals, fits, sizes, strict=True):
            self._phases["fit"] = spent * size / sum(sizes)  # of one fit that answers several each has its part
            self._phases["wait"] = self._phases["wait"] if not found else 0.0
            found.append(self._trial(proposal, fitted, validation))
        return found

    def _grown(self, estimator: Any, prepared: Any, validation: tuple[Any, Any], rounds: int) -> Trial:
        proposal = self.work.proposals[0]
        _, before, state = self._cache.grown.pop(proposal.number, (0.0, 0, None))
        with self._phase("fit"):
            for stop in (stop for stop in self.work.stops if stop > before):  # its trees were lost
                state = estimator.grow(prepared, stop, state, self._study.seed).state
            grown = estimator.grow(prepared, rounds, state, self._study.seed)
        trial = self._trial(proposal, grown.fitted, validation)
        self._cache.keep(proposal.number, grown, trial.score, estimator.trees)
        return dataclasses.replace(trial, rounds=grown.trees, grown=grown.trees - before, over=grown.over)

    def _trial(self, proposal: Proposal, fitted: Fitted, validation: tuple[Any, Any]) -> Trial:
        with self._phase("score"):
            predictions = fitted.scorer.score(validation[0])
            finite = bool(self._study.frames.xp.isfinite(predictions).all())
            x, y = validation  # clusters are judged by the rows themselves
            measured = self._study.measure(predictions, x if y is None else y) if finite else None
        score = measured.metrics[self._study.objective.metric] if measured else math.nan
        if measured is None or not math.isfinite(score):
            raise not_finite(self._study.objective.key(proposal.number))
        return Trial(
            key=self._study.objective.key(proposal.number),
            number=proposal.number,
            params=proposal.params,
            score=float(score),
            metrics=measured.metrics,
            phases=dict(self._phases),
            worker=str(get_worker().address),
            attempt=self._attempt,
            curve=measured.curve,
            facts=fitted.info,
        )

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._phases[name] = time.perf_counter() - start


def _estimator(study: Study, params: Mapping[str, Any], turn: int) -> Any:
    model = (study.model, *study.others)[turn]
    model = dataclasses.replace(model, params={**model.params, **params})
    task = study.recipe.task
    return build(model, study.device, study.categorical, task.kind, len(task.classes))


def _threads() -> int:
    return int(get_worker().state.nthreads)


def _joined(parts: list[Part], study: Study) -> tuple[Any, Any]:
    """Join parts into one frame and one series (None where nothing is predicted), emptying the list on the way."""
    xp = study.frames.xp
    names = list(study.recipe.features)
    rows = sum(part.counts.rows for part in parts)
    order = "C" if parts[0].x.values.flags.c_contiguous else "F"  # as a fit on the parts themselves would have it
    x, at = xp.empty((rows, len(names)), dtype=xp.float32, order=order), 0
    y = None if parts[0].y is None else xp.empty(rows, dtype=parts[0].y.dtype)
    parts.reverse()
    while parts:
        part = parts.pop()
        x[at : at + part.counts.rows] = part.x.values
        if y is not None and part.y is not None:
            y[at : at + part.counts.rows] = part.y.values
        at += part.counts.rows
    return study.frames.frame(x, names), None if y is None else study.frames.series(y, "target")
