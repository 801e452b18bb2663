"""A worker's part in a sweep: read the rows once, keep what fits share, fit and evaluate trials."""

import asyncio
import dataclasses
import gc
import json
import math
import statistics
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, final

from distributed import Worker, WorkerPlugin, get_worker, secede

from tipcast.compute.base import out_of_memory
from tipcast.config.errors import TipcastError, travelling
from tipcast.config.gate import gate
from tipcast.datasets.class_weights import balanced_weight
from tipcast.datasets.counts import Counts, total
from tipcast.datasets.folds import Folds
from tipcast.datasets.limits import check_split
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
from tipcast.evaluation.folds import fold_metrics
from tipcast.models.base import Estimator, Split
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
    rows: Sequence[Split] = ()
    """Rows for each model of a trial, with those that it is tested on as ``validation``: a model
    for each fold, or one.
    """
    counts: tuple[tuple[Counts, ...], ...] = ()
    """Counts of each part's rows, before the cutoff and from it on."""
    prepared: OrderedDict[Hashable, list[tuple[Any, Split]]] = field(default_factory=OrderedDict)
    """What fits share -> what ``ready`` returns."""
    fits: dict[int, Sequence[Any]] = field(default_factory=dict)
    """Trial -> the states of its models' fits, from which the next rung goes on."""
    ranks: dict[int, tuple[int, float, int]] = field(default_factory=dict)
    """Trial -> its place among those of this process, see ``Objective.rank``."""

    def ready(self, estimator: Estimator, threads: int) -> list[tuple[Any, Split]]:
        """Return for each model of a trial what fits with these parameters share, and the rows that
        it is tested on.
        """
        key = estimator.sharing
        with self.lock:
            if key not in self.prepared:
                rows = self.rows or self._read(threads)
                self.prepared[key] = [
                    (estimator.prepared(split, threads), split.validation)
                    for split in rows
                    if split.validation
                ]
                self.rows = ()  # XGBoost's bins may be enough for all trials
                if self.sweep_setup.keep_rows:
                    self.rows = rows
                while len(self.prepared) > MAX_PREPARED:
                    self.prepared.popitem(last=False)

            self.prepared.move_to_end(key)
            return self.prepared[key]

    def keep(self, trial: TrialResult, states: Sequence[Any]) -> None:
        """Keep the states of a trial's fits, and of all states only those of the best trials: no
        more than survive the first rung.
        """
        objective = self.sweep_setup.objective
        rungs = objective.rungs
        if rungs is None or rungs.is_last(rungs.of(trial.number)):
            return

        most = rungs.survivors(rungs.trials)
        with self.lock:
            self.fits[trial.number] = states
            self.ranks[trial.number] = objective.rank(trial)
            ranked = sorted(self.fits, key=self.ranks.__getitem__)
            for number in ranked[most:]:
                del self.fits[number]

    def take_earlier(self, number: int, models: int) -> Sequence[Any]:
        """Return the states of a trial's fits in the rung before, one for each of its models, and
        forget them; None each if this process has none.
        """
        rungs = self.sweep_setup.objective.rungs
        nothing = [None] * models
        if rungs is None:
            return nothing
        with self.lock:
            return self.fits.pop(number - rungs.trials, nothing)

    def _read(self, threads: int) -> list[Split]:
        """Read all parts. Each is copied into place and dropped, so that rows are in memory about
        once, or once for each fold.

        Raises D014 and D015 for folds from which nothing can be learned or measured.
        """
        sweep_setup = self.sweep_setup
        recipe = sweep_setup.recipe

        def read(part: Part) -> PreparedSplits:
            return prepare_part(part, sweep_setup.frames, recipe)

        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(read, sweep_setup.parts))
            prepared = draw_all(parts, recipe)

        self.counts = tuple(map(counted, prepared))
        if recipe.has_folds:
            return self._folds([splits[0] for splits in prepared])

        training = [splits[0] for splits in prepared]
        validation = [splits[1] for splits in prepared]
        prepared.clear()  # both lists hold the rows now, and ``join_parts`` empties them
        return [self._joined(training, validation)]

    def _folds(self, whole: Sequence[PreparedRows]) -> list[Split]:
        """Return the rows of each fold's model, joined, from those of each part.

        Folds are checked here, because rows that lack a class may not be prepared for a fit. All
        rows are checked before them: what these lack, fewer folds do not mend.
        """
        recipe = self.sweep_setup.recipe
        limits = self.sweep_setup.limits
        check_split("data.train", total([part.counts for part in whole]), recipe.task, limits)

        folds = Folds.of(recipe)
        rows = []
        for fold in range(folds.number):
            train, test = folds.sides_of(whole, fold)
            trained, tested = (total([part.counts for part in side]) for side in (train, test))
            folds.check(fold, trained, tested, limits)
            rows.append(self._joined(train, test))
        return rows

    def _joined(self, training: list[PreparedRows], validation: list[PreparedRows]) -> Split:
        """Join the parts of a model's training rows, and of the rows that it is tested on."""
        sweep_setup = self.sweep_setup
        class_sums = total([part.counts for part in training]).class_sums
        held_out = join_parts(validation, sweep_setup)
        rows = join_parts(training, sweep_setup)
        if sweep_setup.balanced:
            weight = balanced_weight(rows.y, rows.weight, class_sums, sweep_setup.frames)
            rows = dataclasses.replace(rows, weight=weight)
        return dataclasses.replace(rows, validation=held_out)


def join_parts(parts: list[PreparedRows], sweep_setup: SweepSetup) -> Split:
    """Join parts into one frame, and one series each of targets and weights, if any; empties the
    list on the way.
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
    weight = None
    if parts[0].weight is not None:
        weight = xp.empty(rows, dtype=parts[0].weight.dtype)

    start = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        stop = start + part.counts.rows
        x[start:stop] = part.x.values
        if y is not None and part.y is not None:
            y[start:stop] = part.y.values
        if weight is not None and part.weight is not None:
            weight[start:stop] = part.weight.values
        start = stop

    frames = sweep_setup.frames
    return Split(
        frames.frame(x, names),
        None if y is None else frames.series(y, "target"),
        weight=None if weight is None else frames.series(weight, "weight"),
    )


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
    """Fit a trial's parameters, and evaluate the model on the validation rows; with folds a model
    for each.
    """
    sweep_setup = cache.sweep_setup
    worker = get_worker()

    began = time.perf_counter()
    estimator = sweep_setup.estimator(proposal.params)
    rows_of_models = cache.ready(estimator, int(worker.state.nthreads))
    wait_s = time.perf_counter() - began

    earlier = cache.take_earlier(proposal.number, len(rows_of_models))
    models = [
        fit_model(sweep_setup, estimator, prepared, held_out, state)
        for (prepared, held_out), state in zip(rows_of_models, earlier, strict=True)
    ]
    metrics, folds = metrics_of_models(sweep_setup, models)
    trial = TrialResult(
        number=proposal.number,
        params=proposal.params,
        score=check_score(sweep_setup, proposal, metrics),
        metrics=metrics,
        phases={
            "wait": wait_s,
            "fit": sum(model.fit_s for model in models),
            "score": sum(model.score_s for model in models),
        },
        worker=str(worker.address),
        attempt=process_attempt,
        curve=mean_curve([model.curve for model in models]),
        fit_info=mean_info([model.info for model in models]),
        folds=folds,
    )
    cache.keep(trial, [model.state for model in models])
    return trial


@dataclass(frozen=True)
class TrialModel:
    """A model of a trial, measured on rows that it has not learned from."""

    metrics: Mapping[str, float]
    """Empty if a prediction is not finite."""
    curve: Sequence[float]
    """See ``TrialResult.curve``."""
    info: Mapping[str, str | float]
    """See ``Fitted.info``."""
    state: Any
    """See ``Fitted.state``."""
    fit_s: float
    score_s: float


def fit_model(
    sweep_setup: SweepSetup, estimator: Estimator, prepared: Any, held_out: Split, earlier: Any
) -> TrialModel:
    """Fit a model on rows that are prepared for it, and evaluate it on those held out.

    By halving the fit goes on from the state ``earlier``, that of the rung before, if it is not
    None.
    """
    began = time.perf_counter()
    if sweep_setup.objective.rungs is None:
        fitted = estimator.fit(prepared, sweep_setup.seed)
    else:
        fitted = estimator.continue_fit(prepared, sweep_setup.seed, earlier)
    had_model = time.perf_counter()

    metrics, curve = evaluate_trial(sweep_setup, fitted.scorer, held_out)
    ended = time.perf_counter()
    return TrialModel(
        metrics, curve, fitted.info, fitted.state, had_model - began, ended - had_model
    )


def evaluate_trial(
    sweep_setup: SweepSetup, scorer: Scorer, rows: Split
) -> tuple[Mapping[str, float], Sequence[float]]:
    """Evaluate predictions of the validation rows; return metrics, and a curve at even steps if the
    kind of task has one.

    There are no metrics if a prediction is not finite. Clusters have no target, and are evaluated
    on the rows. With two classes the threshold is the most accurate one; with folds, or if classes
    count the same in the fit, it is the one that a training uses for these.
    """
    predictions = scorer.score(rows.x)
    if not bool(sweep_setup.frames.xp.isfinite(predictions).all()):
        return {}, ()

    evaluator = evaluator_of(sweep_setup.recipe.task.kind)
    targets = rows.y
    if targets is None:
        targets = scorer.one_hot_rows(rows.x)
    threshold = None
    if sweep_setup.recipe.has_folds or sweep_setup.balanced:
        threshold = evaluator.threshold
    evaluation = evaluator.evaluate_here(predictions, targets, rows.weight, threshold)

    metrics = {**evaluation.metrics, **bounds(evaluation.interval, evaluator.headline_metric.name)}
    return metrics, tuple(evaluation.trial_curve)


def metrics_of_models(
    sweep_setup: SweepSetup, models: Sequence[TrialModel]
) -> tuple[Mapping[str, float], Mapping[str, Sequence[float]]]:
    """Return a trial's metrics; with folds their means, and the values of each fold."""
    if len(models) == 1:
        return models[0].metrics, {}

    of_folds = fold_metrics(sweep_setup.recipe.task.kind, [model.metrics for model in models])
    return of_folds.summary(), of_folds.values


def mean_curve(curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the mean of curves at each step; empty if any is."""
    if not all(curves):
        return ()
    return tuple(map(statistics.fmean, zip(*curves, strict=True)))


def mean_info(infos: Sequence[Mapping[str, str | float]]) -> dict[str, str | float]:
    """Return the means of the numbers that all fits tell, and the texts of the first."""
    means: dict[str, str | float] = {}
    for name, value in infos[0].items():
        if isinstance(value, str):
            means[name] = value
        elif all(name in info for info in infos):
            means[name] = statistics.fmean(float(info[name]) for info in infos)
    return means


def check_score(sweep_setup: SweepSetup, proposal: Proposal, metrics: Mapping[str, float]) -> float:
    """Return the metric that trials are ranked by; M010 if it is not finite."""
    score = float(metrics.get(sweep_setup.objective.metric, math.nan))
    if math.isfinite(score):
        return score

    what = (
        "non-finite metric: the model's predictions, or values computed from them, are not finite"
    )
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
