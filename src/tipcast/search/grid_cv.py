"""scikit-learn's own GridSearchCV over joblib's Dask backend, heard of as the events of a sweep."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, final

import joblib
import numpy as np
from distributed import Client, get_worker
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, PredefinedSplit

from tipcast.compute.base import Array
from tipcast.config.errors import TipcastError
from tipcast.models.base import Split
from tipcast.search.task import failure, not_finite
from tipcast.search.trial import Begun, Ended, Event, Failed, Lost, Proposal, Study, Trial, Work

LOOK_S = 1.0
"""How long nothing may be heard of a search that is over, in seconds."""
BEGUN, ENDED, FAILED = "begun", "ended", "failed"

Reports = queue.SimpleQueue[Sequence[Any]]
"""What trials report: what happened, their number, where, and more of it."""
_REPORTS: dict[str, Reports] = {}
"""Topic -> where a search of this process hears of its trials."""


@final
class Reporting(MetaEstimatorMixin, BaseEstimator):
    """An estimator that reports from its worker that its fit begins, and why it failed.

    The search sets the trial's number together with its parameters; the study is what all trials have in common.
    """

    def __init__(self, estimator: Any = None, number: int = -1, study: Study | None = None) -> None:
        self.estimator, self.number, self.study = estimator, number, study

    def fit(self, x: Array, y: Array) -> Reporting:
        """Fit, with what scikit-learn would do in parallel one after another: the trials keep the workers busy."""
        self.report(BEGUN)
        start = time.perf_counter()
        with self.failures(), joblib.parallel_config("sequential"):
            self.fitted_ = clone(self.estimator).fit(x, y)
        self.seconds_ = time.perf_counter() - start
        return self

    def predictions(self, x: Array) -> Array:
        """Predict as every model does: P(1) of two classes, (n, classes) of more, values."""
        if not hasattr(self.fitted_, "predict_proba"):
            return self.fitted_.predict(x)
        found = self.fitted_.predict_proba(x)
        return found[:, 1] if found.shape[1] == 2 else found

    def report(self, what: str, *more: str) -> None:
        """Report to the driver."""
        assert self.study is not None  # noqa: S101 - scikit-learn wants a default
        message = [what, self.number, _here(), *more]
        try:
            get_worker().log_event(self.study.topic, message)
        except ValueError:  # joblib sends nothing to a cluster of one thread
            _REPORTS[self.study.topic].put(message)

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Report what goes wrong in a block; scikit-learn gives the trial no score then, and goes on."""
        assert self.study is not None  # noqa: S101 - see ``report``
        try:
            yield
        except Exception as problem:
            told = failure(problem, self.study.objective.key(self.number))
            self.report(FAILED, told.code, told.where, told.what, told.fix)
            raise


def score(reporting: Reporting, x: Array, y: Array) -> float:
    """Measure a trial on the validation rows, as every trial is, and report it."""
    study = reporting.study
    assert study is not None  # noqa: S101 - see ``Reporting.report``
    start = time.perf_counter()
    with reporting.failures():
        predictions = reporting.predictions(x)
        if not np.isfinite(predictions).all():
            raise not_finite(study.objective.key(reporting.number))
        measured = study.measure(predictions, y)
        if not np.isfinite(measured.metrics[study.objective.metric]):
            raise not_finite(study.objective.key(reporting.number))
    trial = Trial(
        key=study.objective.key(reporting.number),
        number=reporting.number,
        params={},
        score=float(measured.metrics[study.objective.metric]),
        metrics=measured.metrics,
        phases={"fit": reporting.seconds_, "score": time.perf_counter() - start},
        worker=_here(),
        attempt=1,
        curve=measured.curve,
        facts={"device": device(reporting.fitted_, study)},
    )
    reporting.report(ENDED, trial.to_json())
    return trial.score


def device(fitted: Any, study: Study) -> str:
    """Return what an estimator computed on: XGBoost's says it, and may have fallen back to the processor."""
    if not hasattr(fitted, "get_booster"):
        return study.device
    from tipcast.models.xgboost import configured_device  # a model of another library does without

    return configured_device(fitted.get_booster())


def events(client: Any, study: Study, estimator: Any, rows: Split, proposals: Sequence[Proposal]) -> Iterator[Event]:
    """Search with scikit-learn's own estimator, in a thread, and yield what happens to the trials.

    The rows are arrays on the driver. What ended the search before all trials were over, as that no worker is left, is
    raised.
    """
    reports: Reports = queue.SimpleQueue()
    ended: list[BaseException] = []

    def search() -> None:
        try:
            _search(client, study, estimator, rows, proposals)
        except BaseException as problem:
            ended.append(problem)

    _REPORTS[study.topic] = reports
    client.subscribe_topic(study.topic, lambda event: reports.put(event[1]))
    thread = threading.Thread(target=search, daemon=True)
    with warnings.catch_warnings():  # the trials' runs say it
        warnings.simplefilter("ignore", FitFailedWarning)
        warnings.filterwarnings("ignore", "One or more of the test scores are non-finite")
        warnings.filterwarnings("ignore", "Scoring failed")  # scikit-learn passes filters on to the workers
        thread.start()
        try:
            yield from _events(proposals, reports, thread, ended)
            thread.join()
        finally:
            del _REPORTS[study.topic]
            with contextlib.suppress(Exception):  # a cluster that is gone holds nothing
                client.unsubscribe_topic(study.topic)


def _search(client: Any, study: Study, estimator: Any, rows: Split, proposals: Sequence[Proposal]) -> None:
    """Search a grid of one point for each trial, for a resumed sweep lacks some of them.

    The client is the search's own: joblib's keys are hashes of the rows, which the last search may still release.
    """
    held_out, target = rows.validation
    x, y = np.concatenate([rows.x, held_out]), np.concatenate([rows.y, target])
    (split,) = PredefinedSplit(np.repeat([-1, 0], [len(rows.y), len(target)])).split()
    names = {name: f"estimator__{path(estimator, name)}" for proposal in proposals for name in proposal.params}
    grid = [
        {"number": [proposal.number], **{names[name]: [value] for name, value in proposal.params.items()}}
        for proposal in proposals
    ]
    reporting = Reporting(estimator, study=dataclasses.replace(study, fragments=()))  # it travels with every trial
    everywhere = [x, y, *split]  # or they would be lost with the one worker that holds them
    with (
        Client(client.scheduler.address, security=client.security, set_as_default=False) as own,
        _copies(own),
        joblib.parallel_config("dask", client=own, scatter=everywhere),
    ):
        GridSearchCV(reporting, grid, scoring=score, cv=[split], refit=False, error_score=np.nan).fit(x, y)


@contextlib.contextmanager
def _copies(client: Any) -> Iterator[None]:
    """Keep every worker's copy in a block: Dask's active memory manager leaves one of them after two seconds."""
    managed = client.amm.running()
    client.amm.stop()
    try:
        yield
    finally:
        if managed:
            with contextlib.suppress(OSError):  # the scheduler is gone
                client.amm.start()


def _events(
    proposals: Sequence[Proposal], reports: Reports, thread: threading.Thread, ended: Sequence[BaseException]
) -> Iterator[Event]:
    works = {proposal.number: Work((proposal,)) for proposal in proposals}
    attempts: Counter[int] = Counter()
    running: dict[int, str] = {}
    while works:
        alive = thread.is_alive()
        try:
            what, number, worker, *more = reports.get(timeout=LOOK_S)
        except queue.Empty:
            if alive:
                continue
            raise ended[0] if ended else RuntimeError(f"nothing was heard of trials {list(works)}") from None
        if number not in works:  # it is computed again: a worker was lost before its result had been fetched
            continue
        if what == BEGUN:
            if number in running:
                yield Lost(works[number], f"worker {running[number]} died")
            attempts[number] += 1
            running[number] = worker
            yield Begun(works[number], attempts[number])
            continue
        work = works.pop(number)
        if what == FAILED:
            yield Failed(work, TipcastError(*more))
            continue
        trial = Trial.of_json(more[0])
        yield Ended(work, [dataclasses.replace(trial, params=work.proposals[0].params, attempt=attempts[number])])


def _here() -> str:
    try:
        return str(get_worker().address)
    except ValueError:
        return "local://driver"


def path(classifier: Any, name: str) -> str:
    """Return a parameter's name from outside of a pipeline: ``step__name``, the shortest where there are several."""
    return str(min((each for each in classifier.get_params() if f"__{each}".endswith(f"__{name}")), key=len))
