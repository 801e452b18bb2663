"""A worker's part in a sweep: read the rows once, keep what fits share, fit and evaluate trials."""

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

from distributed import Worker, WorkerPlugin, get_worker, secede

from tipcast.compute.base import Frame, out_of_memory
from tipcast.config.errors import TipcastError, travelling
from tipcast.config.gate import gate
from tipcast.datasets.counts import Counts
from tipcast.datasets.parts import Part
from tipcast.datasets.prepare import (
    PreparedRows,
    PreparedSplits,
    counted,
    draw_all,
    prepare_part,
)
from tipcast.evaluation import evaluator_of
from tipcast.evaluation.base import bounds
from tipcast.models.base import Estimator, Fitted, Split
from tipcast.models.native import Scorer
from tipcast.search.trial import Proposal, SweepSetup, TrialResult

SLOT = "trial"
"""Resource of a worker: how many trials it runs at once."""
MAX_PREPARED = 4
"""Most forms of prepared rows that are kept at once."""


@dataclass
class WorkerCache:
    """What one process keeps for one sweep; threads wait while another fills it."""

    sweep_setup: SweepSetup
    lock: threading.Lock = field(default_factory=threading.Lock)
    rows: Split | None = None
    validation: tuple[Any, Any] | None = None
    counts: tuple[tuple[Counts, ...], ...] = ()
    """Counts of each part's rows, before the cutoff and from it on."""
    prepared: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    fits: dict[int, Any] = field(default_factory=dict)
    """Trial -> the state of its fit, from which the next rung goes on."""
    ranks: dict[int, tuple[int, float, int]] = field(default_factory=dict)
    """Trial -> its place among those of this process, see ``Objective.rank``."""

    def ready(self, estimator: Estimator, threads: int) -> tuple[Any, tuple[Any, Any]]:
        """Return what fits of a model with these parameters share, and the validation rows."""
        key = estimator.sharing
        with self.lock:
            if key not in self.prepared:
                rows = self.rows or self._read(threads)
                self.prepared[key] = estimator.prepared(rows, threads)
                self.rows = None  # XGBoost's bins may be enough for all trials
                if self.sweep_setup.keep_rows:
                    self.rows = rows
                while len(self.prepared) > MAX_PREPARED:
                    self.prepared.popitem(last=False)

            self.prepared.move_to_end(key)
            assert self.validation is not None  # noqa: S101 - read with the others
            return self.prepared[key], self.validation

    def keep(self, trial: TrialResult, state: Any) -> None:
        """Keep the state of a fit, and of all states only those of the best trials: no more than
        survive the first rung.
        """
        objective = self.sweep_setup.objective
        rungs = objective.rungs
        if rungs is None or rungs.is_last(rungs.of(trial.number)):
            return

        most = rungs.survivors(rungs.trials)
        with self.lock:
            self.fits[trial.number] = state
            self.ranks[trial.number] = objective.rank(trial)
            ranked = sorted(self.fits, key=self.ranks.__getitem__)
            for number in ranked[most:]:
                del self.fits[number]

    def fit(self, estimator: Estimator, prepared: Any, number: int) -> Fitted:
        """Fit a trial; by halving, go on from its fit of the rung before if this process has it."""
        seed = self.sweep_setup.seed
        rungs = self.sweep_setup.objective.rungs
        if rungs is None:
            return estimator.fit(prepared, seed)

        with self.lock:
            earlier = self.fits.pop(number - rungs.trials, None)
        return estimator.continue_fit(prepared, seed, earlier)

    def _read(self, threads: int) -> Split:
        """Read all parts. Each is copied into place and dropped, so that rows are in memory
        about once.
        """
        sweep_setup = self.sweep_setup

        def read(part: Part) -> PreparedSplits:
            return prepare_part(part, sweep_setup.frames, sweep_setup.recipe)

        with ThreadPoolExecutor(threads) as pool:
            prepared = draw_all(list(pool.map(read, sweep_setup.parts)), sweep_setup.recipe)

        self.counts = tuple(map(counted, prepared))
        training = [splits[0] for splits in prepared]
        validation = [splits[1] for splits in prepared]
        prepared.clear()  # both lists hold the rows now, and ``join_parts`` empties them
        self.validation = join_parts(validation, sweep_setup)
        return Split(*join_parts(training, sweep_setup), self.validation)


def join_parts(parts: list[PreparedRows], sweep_setup: SweepSetup) -> tuple[Frame, Frame | None]:
    """Join parts into one frame and one series (None if nothing is predicted); empties the list on
    the way.
    """
    xp = sweep_setup.frames.xp
    names = list(sweep_setup.recipe.task.features)
    rows = sum(part.counts.rows for part in parts)
    # The order that a fit on the parts themselves would have.
    order = "C" if parts[0].x.values.flags.c_contiguous else "F"
    x = xp.empty((rows, len(names)), dtype=xp.float32, order=order)
    y = None
    if parts[0].y is not None:
        y = xp.empty(rows, dtype=parts[0].y.dtype)

    start = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        stop = start + part.counts.rows
        x[start:stop] = part.x.values
        if y is not None and part.y is not None:
            y[start:stop] = part.y.values
        start = stop

    frame = sweep_setup.frames.frame(x, names)
    if y is None:
        return frame, None
    return frame, sweep_setup.frames.series(y, "target")


CACHES: dict[str, WorkerCache] = {}
"""Id of a sweep -> what this process keeps for it."""


@final
class TrialSlots(WorkerPlugin):
    """Plugin of all workers of a sweep, also of those that join later: makes them run its trials,
    and frees the rows when it is removed.
    """

    idempotent = True

    def __init__(self, sweep_setup: SweepSetup, per_gpu: int) -> None:
        self.name = sweep_setup.topic
        self._sweep_setup = sweep_setup
        self._per_gpu = per_gpu

    async def setup(self, worker: Worker) -> None:
        """Keep what all trials have in common, and set how many may run at once."""
        CACHES.setdefault(self._sweep_setup.sweep_id, WorkerCache(self._sweep_setup))
        slots = self._per_gpu
        if self._sweep_setup.device == "cpu":
            slots = worker.state.nthreads
        # Set by the plugin: a worker that was restarted has lost its resources.
        await worker.set_resources(**{SLOT: slots})

    def teardown(self, worker: Worker) -> None:
        """Free the rows."""
        CACHES.pop(self._sweep_setup.sweep_id, None)
        gc.collect()


async def load_rows(sweep_id: str, dask_worker: Worker) -> tuple[tuple[Counts, ...], ...]:
    """Read the rows of a sweep into this process, beside its event loop; return the counts of each
    part.
    """
    return await asyncio.to_thread(_fill_cache, CACHES[sweep_id], int(dask_worker.state.nthreads))


@travelling
def _fill_cache(cache: WorkerCache, threads: int) -> tuple[tuple[Counts, ...], ...]:
    # In a thread: loading a library here would hold up the event loop's heartbeats.
    cache.ready(cache.sweep_setup.estimator({}), threads)
    return cache.counts


@travelling
def run_trial(sweep_id: str, proposal: Proposal, process_attempt: int) -> None:
    """Fit, evaluate, and report by an event: a result that Dask held would be lost with its worker.

    Raises M010 for a prediction or metric that is not finite, S005 without memory, S006 for an
    error of the library, and the estimator's own errors.
    """
    # The worker's resource limits how many trials run at once; its thread pool must not.
    secede()
    cache = CACHES[sweep_id]
    gate(f"trial-{proposal.number}")

    try:
        trial = fit_trial(cache, proposal, process_attempt)
        # Dask takes as an event only what msgpack can write.
        get_worker().log_event(cache.sweep_setup.topic, json.dumps(dataclasses.asdict(trial)))
    except TipcastError:
        raise
    except Exception as problem:
        raise trial_error(cache.sweep_setup.objective.key(proposal.number), problem) from problem
    finally:
        gc.collect(0)


def fit_trial(cache: WorkerCache, proposal: Proposal, process_attempt: int) -> TrialResult:
    """Fit a trial's parameters, and evaluate the model on the validation rows."""
    sweep_setup = cache.sweep_setup
    worker = get_worker()

    began = time.perf_counter()
    estimator = sweep_setup.estimator(proposal.params)
    prepared, (x, y) = cache.ready(estimator, int(worker.state.nthreads))
    had_rows = time.perf_counter()

    fitted = cache.fit(estimator, prepared, proposal.number)
    had_model = time.perf_counter()

    metrics, curve = evaluate_trial(sweep_setup, fitted.scorer, x, y)
    ended = time.perf_counter()

    trial = TrialResult(
        number=proposal.number,
        params=proposal.params,
        score=check_score(sweep_setup, proposal, metrics),
        metrics=metrics,
        phases={
            "wait": had_rows - began,
            "fit": had_model - had_rows,
            "score": ended - had_model,
        },
        worker=str(worker.address),
        attempt=process_attempt,
        curve=curve,
        fit_info=fitted.info,
    )
    cache.keep(trial, fitted.state)
    return trial


def evaluate_trial(
    sweep_setup: SweepSetup, scorer: Scorer, x: Frame, y: Frame | None
) -> tuple[Mapping[str, float], Sequence[float]]:
    """Evaluate predictions of the validation rows; return metrics, and a curve at even steps if the
    kind of task has one.

    There are no metrics if a prediction is not finite. Clusters have no target, and are evaluated
    on the rows.
    """
    predictions = scorer.score(x)
    if not bool(sweep_setup.frames.xp.isfinite(predictions).all()):
        return {}, ()

    evaluator = evaluator_of(sweep_setup.recipe.task.kind)
    targets = y
    if y is None:
        targets = scorer.one_hot_rows(x)
    evaluation = evaluator.evaluate_here(predictions, targets)

    metrics = {**evaluation.metrics, **bounds(evaluation.interval, evaluator.headline_metric.name)}
    return metrics, tuple(evaluation.trial_curve)


def check_score(sweep_setup: SweepSetup, proposal: Proposal, metrics: Mapping[str, float]) -> float:
    """Return the metric that trials are ranked by; M010 if it is not finite."""
    score = float(metrics.get(sweep_setup.objective.metric, math.nan))
    if math.isfinite(score):
        return score

    what = "non-finite metric: the model's predictions, or what is computed of them, are not finite"
    fix = "search a smaller learning rate, or rank by another search.metric"
    raise TipcastError("M010", sweep_setup.objective.key(proposal.number), what, fix)


def trial_error(where: str, problem: Exception) -> TipcastError:
    """Return the error of a trial whose library failed: S005 for a full memory, otherwise S006."""
    text = str(problem).strip().partition("\n")[0]
    if not out_of_memory(problem):
        what = f"{type(problem).__name__}: {text}"
        return TipcastError("S006", where, what, "see the trial's parameters")

    fix = "give workers more memory, run fewer trials at once, or search smaller values"
    return TipcastError("S005", where, f"out of memory: {text}", fix)
