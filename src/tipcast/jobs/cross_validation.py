"""Cross-validation of a training: a model for each fold of the training rows, tested on the rows
that it has not learned from.

Folds are fitted side by side, each on one worker, if the rows of a fold fit into the memory of each
worker; otherwise one after another, each by all workers.
"""

import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tipcast.compute.base import Session
from tipcast.compute.cluster import worker_info
from tipcast.config.schema import TrainConfig
from tipcast.datasets.class_weights import balanced
from tipcast.datasets.folds import Folds
from tipcast.datasets.rows import Rows
from tipcast.evaluation import evaluator_of
from tipcast.evaluation.base import Evaluation
from tipcast.evaluation.folds import FoldMetrics, fold_metrics
from tipcast.jobs.predicted_rows import PredictedRows
from tipcast.jobs.train_plan import Plan, fixed_threshold
from tipcast.models import healing
from tipcast.models.base import Estimator
from tipcast.models.fit import send_fitted_scorer

if TYPE_CHECKING:
    from distributed import Client

SHARE_OF_MEMORY = 0.25
"""Share of a worker's memory limit that the rows of a fold may take for the fold to be fitted on
that worker alone.
"""


@dataclass(frozen=True)
class FoldResult:
    """The model of one fold, measured on the rows that it has not learned from."""

    train_rows: int
    evaluation: Evaluation
    info: Mapping[str, str | float]
    """See ``Fitted.info``."""
    predicted: PredictedRows
    """The fold's test rows."""
    numbers: Sequence[Any]
    """Futures of ``PreparedRows.fold`` of their parts."""


@dataclass(frozen=True)
class CrossValidation:
    """All folds, and what they say together."""

    results: Sequence[FoldResult]
    metrics: FoldMetrics
    out_of_fold: Evaluation
    """Evaluation of all test rows together, each predicted by its fold's model. Its threshold is
    the most accurate one, unless classes count the same in the fit.
    """

    def refitted(self, estimator: Estimator) -> Estimator:
        """Return the estimator for all rows."""
        return estimator.after_folds([result.info for result in self.results])

    def table(self, headline: str) -> list[list[str]]:
        """Return a line for each fold: its number, rows, and the headline."""
        lines = []
        for number, result in enumerate(self.results, 1):
            rows = [f"{result.train_rows:,}", f"{result.evaluation.rows:,}"]
            lines.append([str(number), *rows, f"{result.evaluation.metrics[headline]:.4f}"])
        return lines


def cross_validate(
    session: Session,
    config: TrainConfig,
    plan: Plan,
    estimator: Estimator,
    rows: Rows,
    show: Callable[[int, int], None],
) -> CrossValidation:
    """Fit and test a model for each fold of the training rows; ``show`` gets the number of folds
    done, and of all.

    Raises D014 and D015 for a fold from which nothing can be learned or measured, and what a fit
    raises.
    """
    folds = Folds.of(plan.recipe)
    homes: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    places = fold_homes(session, rows)
    for place in places:
        homes.put(place)

    def run_fold(fold: int) -> FoldResult:
        home = homes.get()
        try:
            return fit_fold(session, config, plan, estimator, rows, folds, fold, home)
        finally:
            homes.put(home)

    results = []
    pool = ThreadPoolExecutor(len(places), "fold")
    try:
        for result in pool.map(run_fold, range(folds.number)):
            results.append(result)
            show(len(results), folds.number)
    finally:
        # If the training is stopped, its running fits end when the client is closed.
        pool.shutdown(wait=False, cancel_futures=True)

    metrics = fold_metrics(plan.task.kind, [result.evaluation.metrics for result in results])
    fixed = fixed_threshold(config, plan.task.kind)
    together = evaluate_together(session.client, plan, results, fixed)
    return CrossValidation(results, metrics, together)


def fold_homes(session: Session, rows: Rows) -> list[str | None]:
    """Return the workers that each fit a fold alone; one None: all workers fit each fold."""
    workers = worker_info(session.client)
    if session.device == "cuda" or len(workers) == 1:
        return [None]

    limits = [worker["memory_limit"] for worker in workers.values()]
    if any(limit and rows.counts.bytes > SHARE_OF_MEMORY * limit for limit in limits):
        return [None]
    return list(workers)


def fit_fold(
    session: Session,
    config: TrainConfig,
    plan: Plan,
    estimator: Estimator,
    rows: Rows,
    folds: Folds,
    fold: int,
    home: str | None,
) -> FoldResult:
    """Fit a fold's model, and test it on the rows that it has not learned from."""
    client = session.client
    train, test = folds.split(client, rows, fold, home)
    folds.check(fold, train.counts, test.counts, config.data.limits)

    if config.task.class_weight is not None:
        train = balanced(session, train)
    healed = healing.fit(
        client,
        estimator,
        {"train": train, "validation": test},
        config.seed,
        recoveries=config.cluster.recoveries,
        wait_s=config.cluster.wait_s,
    )
    scorer = send_fitted_scorer(client, healed.fitted.scorer)
    predicted = PredictedRows.of(client, scorer, test)

    evaluator = evaluator_of(plan.task.kind)
    evaluation = predicted.evaluate(
        client, evaluator, threshold=evaluator.threshold, where=folds.name(fold)
    )
    return FoldResult(train.counts.rows, evaluation, healed.fitted.info, predicted, test.fold)


def evaluate_together(
    client: "Client", plan: Plan, results: Sequence[FoldResult], threshold: float | None
) -> Evaluation:
    """Evaluate the test rows of all folds together; with two classes at the ``threshold``, or if it
    is None at the most accurate one for them.
    """
    predicted = PredictedRows.joined([result.predicted for result in results])
    evaluation: Evaluation = predicted.evaluate(
        client, evaluator_of(plan.task.kind), threshold=threshold, where="all folds"
    )
    return evaluation
