"""What a worker does for the trials of a sweep: read the rows once, keep what fits share of them,
fit and evaluate.
"""

import asyncio
import dataclasses
import gc
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, final

from distributed import WorkerPlugin, get_worker, secede

from tipcast.compute.base import Frame, out_of_memory
from tipcast.config.errors import TipcastError, travelling
from tipcast.config.gate import gate
from tipcast.datasets.counts import Counts
from tipcast.datasets.parts import Fragment
from tipcast.datasets.prepare import (
    Prepared,
    PreparedPart,
    counted,
    draw_all,
    prepare_fragment,
)
from tipcast.evaluation import evaluator
from tipcast.evaluation.base import bounds
from tipcast.models.base import Split
from tipcast.models.native import Scorer
from tipcast.search.trial import Proposal, Study, Trial

SLOT = "trial"
"""Resource of a worker: how many trials it runs at once."""
MAX_PREPARED = 4
"""Ways in which rows are held prepared at once."""


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
                # The rows themselves go where XGBoost's bins are enough for all trials.
                self.rows = rows if self.study.keep_rows else None
                while len(self.prepared) > MAX_PREPARED:
                    self.prepared.popitem(last=False)

            self.prepared.move_to_end(key)
            assert self.validation is not None  # noqa: S101 - read with the others
            return self.prepared[key], self.validation

    def _read(self, threads: int) -> Split:
        """Read all fragments, each copied into place and dropped, so that rows are in memory about
        once.
        """
        study = self.study

        def read(fragment: Fragment) -> Prepared:
            return prepare_fragment(fragment, study.frames, study.recipe)

        with ThreadPoolExecutor(threads) as pool:
            parts = draw_all(list(pool.map(read, study.fragments)), study.recipe)

        self.counts = tuple(map(counted, parts))
        sides = [[both[side] for both in parts] for side in (0, 1)]
        parts.clear()  # the lists of both sides hold the parts now, and ``join_parts`` empties them
        self.validation = join_parts(sides.pop(), study)
        return Split(*join_parts(sides.pop(), study), self.validation)


def join_parts(parts: list[PreparedPart], study: Study) -> tuple[Frame, Frame | None]:
    """Join parts into one frame and one series (None where nothing is predicted), emptying the list
    on the way.
    """
    xp = study.frames.xp
    names = list(study.recipe.task.features)
    rows = sum(part.counts.rows for part in parts)
    # The order that a fit on the parts themselves would have.
    order = "C" if parts[0].x.values.flags.c_contiguous else "F"
    x = xp.empty((rows, len(names)), dtype=xp.float32, order=order)
    y = None if parts[0].y is None else xp.empty(rows, dtype=parts[0].y.dtype)

    start = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        stop = start + part.counts.rows
        x[start:stop] = part.x.values
        if y is not None and part.y is not None:
            y[start:stop] = part.y.values
        start = stop

    series = None if y is None else study.frames.series(y, "target")
    return study.frames.frame(x, names), series


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
        # Set by the plugin: a worker that was restarted has lost its resources.
        await worker.set_resources(**{SLOT: number})

    def teardown(self, worker: Any) -> None:
        """Free the rows."""
        CACHES.pop(self._study.sweep, None)
        gc.collect()


async def load_rows(sweep: str, dask_worker: Any) -> tuple[tuple[Counts, ...], ...]:
    """Read the rows of a sweep into this process, beside its event loop; return what was read of
    each fragment.
    """
    return await asyncio.to_thread(_fill_cache, CACHES[sweep], int(dask_worker.state.nthreads))


@travelling
def _fill_cache(cache: WorkerCache, threads: int) -> tuple[tuple[Counts, ...], ...]:
    # In a thread: loading a library here would hold up the event loop's heartbeats.
    cache.ready(cache.study.estimator({}), threads)
    return cache.counts


@travelling
def run_trial(sweep: str, proposal: Proposal, attempt: int) -> None:
    """Fit, evaluate, and report by an event: a result that Dask held would be lost with its worker.

    M010 a prediction or metric that is not finite, S005 no memory, S006 an error of the library;
    those of the estimator.
    """
    # The worker's resource alone limits how many trials run at once; its thread pool must not.
    secede()
    cache = CACHES[sweep]
    gate(f"trial-{proposal.number}")

    try:
        trial = fit_trial(cache, proposal, attempt)
        # Dask takes as an event only what msgpack can write.
        get_worker().log_event(cache.study.topic, json.dumps(dataclasses.asdict(trial)))
    except TipcastError:
        raise
    except Exception as problem:
        raise trial_error(cache.study.objective.key(proposal.number), problem) from problem
    finally:
        gc.collect(0)


def fit_trial(cache: WorkerCache, proposal: Proposal, attempt: int) -> Trial:
    """Fit a trial's parameters, and evaluate the model on the validation rows."""
    study = cache.study
    worker = get_worker()

    began = time.perf_counter()
    estimator = study.estimator(proposal.params)
    prepared, (x, y) = cache.ready(estimator, int(worker.state.nthreads))
    had_rows = time.perf_counter()

    fitted = estimator.fit(prepared, study.seed)
    had_model = time.perf_counter()

    metrics, curve = evaluate_trial(study, fitted.scorer, x, y)
    ended = time.perf_counter()

    return Trial(
        number=proposal.number,
        params=proposal.params,
        score=check_score(study, proposal, metrics),
        metrics=metrics,
        phases={
            "wait": had_rows - began,
            "fit": had_model - had_rows,
            "score": ended - had_model,
        },
        worker=str(worker.address),
        attempt=attempt,
        curve=curve,
        fit_info=fitted.info,
    )


def evaluate_trial(
    study: Study, scorer: Scorer, x: Frame, y: Frame | None
) -> tuple[Mapping[str, float], Sequence[float]]:
    """Evaluate predictions of the validation rows; return metrics, and a curve of even steps if
    the kind of task has one.

    There are no metrics where a prediction is not finite. Clusters, which have no target, are
    judged by the rows themselves.
    """
    predictions = scorer.score(x)
    if not bool(study.frames.xp.isfinite(predictions).all()):
        return {}, ()

    judge = evaluator(study.recipe.task.kind)
    targets = scorer.one_hot_rows(x) if y is None else y
    evaluation = judge.evaluate_here(predictions, targets)

    metrics = {**evaluation.metrics, **bounds(evaluation.interval, judge.headline.name)}
    return metrics, tuple(evaluation.trial_curve)


def check_score(study: Study, proposal: Proposal, metrics: Mapping[str, float]) -> float:
    """Return the metric that trials are ranked by; M010 where it is not finite."""
    score = float(metrics.get(study.objective.metric, math.nan))
    if math.isfinite(score):
        return score

    what = "non-finite metric: the model's predictions, or what is computed of them, are not finite"
    fix = "search a smaller learning rate, or rank by another search.metric"
    raise TipcastError("M010", study.objective.key(proposal.number), what, fix)


def trial_error(where: str, problem: Exception) -> TipcastError:
    """Return the error of a trial whose library failed: S005 of a full memory, else S006."""
    text = str(problem).strip().partition("\n")[0]
    if not out_of_memory(problem):
        what = f"{type(problem).__name__}: {text}"
        return TipcastError("S006", where, what, "see the trial's parameters")

    fix = "give workers more memory, run fewer trials at once, or search smaller values"
    return TipcastError("S005", where, f"out of memory: {text}", fix)
