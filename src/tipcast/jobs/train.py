"""`tipcast train`: read two sides of the data, fit on the first, test on the second, log and
register the model.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special  # noqa: F401 - see below

from tipcast.compute.base import Session
from tipcast.compute.session import peaks, write_performance_report
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrainJobConfig
from tipcast.datasets.base import raw_columns
from tipcast.datasets.class_weights import balanced
from tipcast.datasets.constant_features import constant_features
from tipcast.datasets.listing import FileInfo
from tipcast.datasets.prepare import held_out_rows
from tipcast.datasets.rows import Rows
from tipcast.evaluation import evaluator_of
from tipcast.jobs import end_job
from tipcast.jobs.cross_validation import CrossValidation, cross_validate
from tipcast.jobs.placement import placed
from tipcast.jobs.predicted_rows import PredictedRows
from tipcast.jobs.repeat import REPEATS, original
from tipcast.jobs.run_context import run_context, run_names, run_params
from tipcast.jobs.train_plan import (
    WHERE,
    Plan,
    ReadRows,
    Splits,
    check_model,
    fixed_threshold,
    make_plan,
    read_rows,
)
from tipcast.jobs.train_record import Record, Trained, planned_params
from tipcast.jobs.train_resume import previous_training, saying_how_to_go_on, training_digest
from tipcast.measure.progress import Clock, progress
from tipcast.models import healing
from tipcast.models.base import Estimator, Fitted
from tipcast.models.build import build_for_task
from tipcast.models.fit import (
    drawn_rows,
    score_every_way,
    send_fitted_scorer,
    send_saved_scorer,
)
from tipcast.tasks.kinds import named_by
from tipcast.tracking import portable_model
from tipcast.tracking.checkpoints import RunCheckpoints
from tipcast.tracking.run import Run

if TYPE_CHECKING:
    from distributed import Client

# SciPy is loaded before Dask and MLflow: on import, skops looks for each of SciPy's functions in
# all modules in their order, which takes seconds if SciPy comes after thousands of others. Workers
# do not need it.

CHECK_ROWS = 1000
"""Most held-out rows that the portable model must score as the estimator does."""
SET_UP_S = 1.0
"""Seconds in which the driver sets up a fit by several GPUs; then it waits for them."""
COUNTED = ("rounds", "trees", "iterations")
"""Keys of a fit's info that are counts."""


def run(config: TrainJobConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    clock = Clock()
    with previous_training(config, command) as previous:
        if previous is None:
            result = run_training(config, command, clock)
        else:
            result = previous.finished_result() or run_training(
                previous.config, previous.command, clock, previous.run
            )

    return end_job(result, config.print)


def run_training(
    config: TrainJobConfig, command: str, clock: Clock, resume: Run | None = None
) -> dict[str, Any]:
    """Plan, open a run or the one to ``resume``, train; return the job's result."""
    check_model(config, named_by(config.task.kind))
    with clock.phase("list"), progress("list"):
        plan = make_plan(config)  # dataset and task

    digest = training_digest(config, plan)
    has_checkpoint = False
    if resume:
        checkpoints = RunCheckpoints(resume, digest)
        checkpoints.check()
        has_checkpoint = checkpoints.kept

    repeated = original(config, plan)
    tags = {}
    if repeated:
        tags[REPEATS] = repeated.run_id

    (name,) = run_names([(config.model.name, command)])
    with run_context(
        config,
        command,
        job="train",
        name=name,
        params=run_params(config) | planned_params(plan),
        tags=tags,
        clock=clock,
        resume=resume,
    ) as context:
        record = Record(context, config, plan, original=repeated, resumed=resume is not None)
        checkpoints = RunCheckpoints(context.run, digest, kept=has_checkpoint)
        with saying_how_to_go_on(context.run, checkpoints, config.tracking):
            session = context.start_workers()
            return train(session, record, checkpoints=checkpoints)


def train(
    session: Session,
    record: Record,
    read: ReadRows = read_rows,
    checkpoints: RunCheckpoints | None = None,
) -> dict[str, Any]:
    """Read, fit, test and record, on running workers, in an open run; return the job's result.

    The run keeps ``checkpoints``, if given, until all is recorded: for a run that another process
    may resume.
    """
    context = record.context
    report_wanted = record.config.cluster.performance_report
    estimator = build_for_task(record.config.model, session.device, record.plan.task)
    session = placed(session, record.config, record.plan, estimator)

    with write_performance_report(session.client, context.folder / "dask.html", report_wanted):
        splits = read_splits(session, record, estimator, read)
        folded = None
        if record.plan.task.folds:
            folded = fit_folds(session, record, estimator, splits["train"])
            estimator = folded.refitted(estimator)

        fitted = fit_model(session, record, estimator, splits, checkpoints)
        trained = evaluate_model(session, record, fitted, splits, folded)

    with context.clock.phase("log") as notes, progress("log"):
        logged, difference = record_model(session, record, trained)
        notes.append(logged.uri)

    record.finish_page(trained, context.clock.seconds, peaks(session.client))
    registered = record.register(logged, difference, trained)  # last: its run is whole
    if checkpoints:
        checkpoints.remove()
    return trained_result(record, trained, registered)


def load_modules(session: Session, plan: Plan, estimator: Estimator) -> None:
    """Load modules of the fit while workers read, and then those of logging, unless several GPUs
    train: see ``loading_logging``.
    """
    # A fit that needs the modules raises the error again.
    with contextlib.suppress(Exception):
        estimator.load_fit(session.n_workers, plan.train.known_rows)

    if session.device == "cpu" or session.n_workers == 1:
        load_logging()


@functools.cache
def load_logging() -> None:
    """Load modules of logging on a thread, once."""
    # An executor's thread: the process, which must not end during an import, waits for it.
    thread = ThreadPoolExecutor(1, "modules")
    thread.submit(import_module, "tipcast.evaluation.plots")  # Matplotlib
    thread.submit(portable_model.list_packages)
    thread.shutdown(wait=False)


@contextlib.contextmanager
def loading_logging() -> Iterator[None]:
    """Load modules of logging once a fit by several GPUs, the block, is set up or has ended.

    Imported earlier, they would delay the driver, which sets up the fit, by 1 to 1.8 s. In other
    fits they are loaded already.
    """
    timer = threading.Timer(SET_UP_S, load_logging)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    load_logging()


def read_splits(session: Session, record: Record, estimator: Estimator, read: ReadRows) -> Splits:
    """Read all rows on the workers, and log how many each split has."""
    load = partial(load_modules, session, record.plan, estimator)
    with record.context.clock.phase("read") as notes:
        splits = read(session, record.config, record.plan, load)
        notes += [f"{rows.counts.rows:,} {name} rows" for name, rows in splits.items()]

    return splits


def fit_folds(
    session: Session,
    record: Record,
    estimator: Estimator,
    rows: Rows,
) -> CrossValidation:
    """Fit and test a model for each fold of the training rows."""
    headline = record.evaluator.headline_metric.name
    with record.context.clock.phase("folds") as notes, progress("folds") as show_folds:
        folded = cross_validate(session, record.config, record.plan, estimator, rows, show_folds)
        mean = folded.metrics.means[headline]
        error = folded.metrics.errors[headline]
        notes.append(f"{len(folded.results)} folds")
        notes.append(f"validation/{headline} {mean:.4f} ± {error:.4f}")

    return folded


def fit_model(
    session: Session,
    record: Record,
    estimator: Estimator,
    splits: Splits,
    checkpoints: RunCheckpoints | None,
) -> Fitted:
    """Fit on the training rows; log how long the fit is, and how often it lost a worker.

    A run that is resumed goes on from its newest checkpoint. Rows that had to be moved to another
    worker are replaced in ``splits``, unless a copy of these was fitted on for class weights.
    """
    config = record.config
    name = config.model.name
    checkpoint = b""
    keep = None
    if checkpoints:
        keep = checkpoints.keep
    if checkpoints and record.resumed:
        checkpoint = checkpoints.newest(estimator.newest_checkpoint)

    with (
        record.context.clock.phase("fit") as notes,
        progress(f"fit {name}") as show_steps,
        loading_logging(),
    ):
        if config.task.class_weight is not None:
            splits = {**splits, "train": balanced(session, splits["train"])}
        healed = healing.fit(
            session.client,
            estimator,
            splits,
            config.seed,
            show_steps,
            recoveries=config.cluster.recoveries,
            wait_s=config.cluster.wait_s,
            checkpoint=checkpoint,
            keep=keep,
        )
        notes.append(name)
        notes += fit_notes(healed.fitted.info, splits["train"].counts.rows)

    if healed.recoveries:
        tags = {"recoveries": healed.recoveries, "recovery_s": round(healed.waited_s, 1)}
        record.context.run.set_tags(tags)
    return healed.fitted


def fit_notes(info: Mapping[str, Any], train_rows: int) -> list[str]:
    """Return how long a fit was, and how many of the training rows it used, if it tells."""
    notes = [f"{info[key]:,} {key}" for key in COUNTED if key in info]
    if "rows" in info:
        of_all = f" of {train_rows:,}" if info["rows"] < train_rows else ""
        notes.append(f"{info['rows']:,}{of_all} rows")
    return notes


def evaluate_model(
    session: Session,
    record: Record,
    fitted: Fitted,
    splits: Splits,
    folded: CrossValidation | None,
) -> Trained:
    """Measure the model on validation and test rows, and log the headline."""
    with record.context.clock.phase("evaluate") as notes, progress("evaluate"):
        fixed = fixed_threshold(record.config, record.plan.task.kind)
        trained = evaluate(session.client, record.plan, fitted, splits, folded, threshold=fixed)
        constant = list_constant_features(session.client, record.plan, splits)
        notes.append(
            f"test/{record.evaluator.headline_metric.name} {trained.test.headline_value:.4f}"
        )

    return dataclasses.replace(trained, constant=constant)


def evaluate(
    client: "Client",
    plan: Plan,
    fitted: Fitted,
    splits: Splits,
    folded: CrossValidation | None = None,
    *,
    threshold: float | None = None,
) -> Trained:
    """Measure on validation rows, where a threshold is chosen, and then on test rows.

    With folds the threshold is that of the rows that they test together. A ``threshold`` that is
    given is used for validation and test rows, and none is chosen.
    """
    evaluator = evaluator_of(plan.task.kind)
    scorer = send_fitted_scorer(client, fitted.scorer)
    validation = None
    test_threshold = evaluator.threshold
    if folded:
        test_threshold = folded.out_of_fold.threshold

    rows = splits.get("validation")
    if rows:
        predicted = PredictedRows.of(client, scorer, rows)
        validation = predicted.evaluate(
            client, evaluator, threshold=threshold, where=WHERE["validation"]
        )
        test_threshold = validation.threshold

    test_rows = splits["test"]
    predicted = PredictedRows.of(client, scorer, test_rows)
    test = predicted.evaluate(client, evaluator, threshold=test_threshold, where=WHERE["test"])

    baseline = evaluator.baseline(test, splits["train"].counts, test_rows.counts)
    return Trained(splits, fitted, validation, test, baseline, folded=folded)


def list_constant_features(client: "Client", plan: Plan, splits: Splits) -> list[str]:
    """Return the features that have one value, or none, in all training rows.

    Features with an indicator are left out: the model learns from their missing values.
    """
    columns = raw_columns(plan.dataset, plan.task.features, FileInfo())
    with_indicator = {column.name for column in columns if column.indicator}
    constant = constant_features(client, splits["train"].x)
    return [name for name in constant if name not in with_indicator]


def record_model(
    session: Session, record: Record, trained: Trained
) -> tuple[portable_model.PortableModel, float]:
    """Record rows, metrics and figures, and log the model; return the logged model, and the largest
    difference between its scores and those of any other way to score it.
    """
    client = session.client
    plan = record.plan
    fitted = trained.fitted

    record.data(trained.splits)
    record.metrics(trained)
    record.figures(trained)
    if trained.folded:
        record.folds(client, trained.folded)

    saved = fitted.save(record.context.folder)
    if fitted.format == "xgboost-ubj":
        scorer = send_saved_scorer(client, saved, fitted.format, session.device)
        record.contributions(client, scorer, drawn_rows(saved), trained)

    columns, raw = held_out(session, plan)
    x = plan.dataset.compute(columns, plan.task.features, np)
    scores = score_every_way(client, fitted, saved, x)
    return record.model(saved, trained, raw, scores, device=session.device)


def held_out(session: Session, plan: Plan) -> tuple[Any, Any]:
    """Return some raw rows of the test side, as canonical columns and under their raw names."""
    for part in plan.test.parts:
        columns, raw = session.client.submit(
            held_out_rows, part, plan.test_recipe, plan.train.info, CHECK_ROWS, pure=False
        ).result()
        if len(raw):
            return columns, raw

    what = "has no clean row to check the model with"
    raise TipcastError("M011", "data.test", what, "test on other rows")


def trained_result(
    record: Record, trained: Trained, logged: portable_model.PortableModel
) -> dict[str, Any]:
    """Return the job's result: the model's address, its metrics, and the seconds of each phase."""
    baseline = {f"baseline/{name}": value for name, value in trained.baseline.items()}
    repeats = {}
    if record.original:
        repeats["repeats"] = record.original.run_id
    return record.context.result(
        model_uri=logged.registered or logged.uri,
        metrics=record.headline_values(trained) | record.fold_values(trained) | baseline,
        phases=record.context.clock.seconds,
        **repeats,
    )
