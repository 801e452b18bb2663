"""The life of a run: opened or joined, written by the driver alone, closed in every ending."""

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from mlflow import MlflowClient
from mlflow.entities import Run as StoredRun
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from tipcast.config.errors import TipcastError, failed_to
from tipcast.config.plain import redact_address
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import process
from tipcast.tracking.addresses import check_artifacts, check_not_moved
from tipcast.tracking.failures import failures, first_line, release
from tipcast.tracking.lookup import experiment_id, find_run
from tipcast.tracking.run import Run, context_tags, error_tags
from tipcast.tracking.store import open_store, resolve
from tipcast.tracking.writing import Facts, without_secrets, write

LOG = logging.getLogger("tipcast")
GIVEN_NAME = re.compile(r"[a-z]+-[a-z]+-\d{1,3}")
"""A name that MLflow's launcher made up, which a better one may replace."""
SAMPLING_S = 5
"""Seconds between two samples of the system's metrics."""
KILLED = "a run that was open is closed as KILLED"
"""Note on the interruption that did it, for the last line of the job."""
VIEW = "mlflow.sharedViewState.tipcast"
RUNS = "#/experiments/{}/runs?viewStateShareKey=tipcast&workflowType=machine_learning"
"""Tag of an experiment with the columns that its table of runs has by that key, and the table:
MLflow hides metrics.
"""
HEADLINES = ("auc", "log_loss", "rmse", "inertia", "adjusted_rand")
COLUMNS = [f"metrics.`{side}/{name}`" for name in HEADLINES for side in ("test", "validation")]


@contextmanager
def open_run(
    spec: TrackingSpec,
    *,
    name: str,
    tags: Facts,
    params: Facts,
    resume: str | None = None,
    parent: Run | None = None,
) -> Iterator[Run]:
    """Open a run, or join the one that `mlflow run` opened or that is resumed, and close it in
    every ending.

    One with a ``parent`` is shown below it, in its experiment. It ends as FINISHED; as FAILED with
    the tags ``error.code`` and ``error.message`` after an exception; as KILLED after Ctrl-C or
    SIGTERM. Open it before a Dask cluster: workers must not inherit MLFLOW_RUN_ID. Errors are C009
    for artifacts that a password or token would go to in the clear, and T001 to T005 where the
    store fails.
    """
    uri = resolve(spec)
    store = open_store(spec)
    joined = resume or os.environ.get("MLFLOW_RUN_ID")
    _close_abandoned(store, uri, keep=joined)

    with failures(uri):
        if resume:
            _reopen(store, resume)
        stored = _join(store, joined, spec, name) if joined else create(store, spec, name, parent)

    os.environ.pop("MLFLOW_RUN_ID", None)
    run = Run(stored.info.run_id, stored.info.experiment_id, uri, store)
    try:
        LOG.info("%-9s%s", "run", run.link)
        LOG.info("%-9s%s", "runs", run.address(RUNS.format(run.experiment_id)))
        with failures(uri), ExitStack() as stack:
            _show_metrics(run)
            check_artifacts(stored.info.artifact_uri, uri, insecure=spec.insecure)
            check_not_moved(stored.info.artifact_uri, uri)
            run.set_tags({**tags, **spec.tags, **process.tags()})
            run.log_params(params)
            if spec.system_metrics:
                _start_monitor(run, stack, resumed=bool(resume))

            yield run
            stack.close()
            store.set_terminated(run.id, "FINISHED")
    except BaseException as problem:
        release(problem)
        _close(run, problem)
        raise


def _close_abandoned(store: MlflowClient, uri: str, keep: str | None) -> None:
    """Close runs whose process has ended; log a warning where that fails: others' runs never stop
    one's own.
    """
    try:
        with failures(uri):
            process.close_abandoned(store, uri, keep=keep)
    except Exception as problem:
        LOG.warning(
            "runs that ended without closing stay open: %s",
            " ".join(str(problem).split()) or repr(problem),
        )


def _reopen(store: MlflowClient, run_id: str) -> None:
    """Claim a run that is resumed, and remove the tags of its earlier failure."""
    claim(store, run_id)
    for tag in {"error.code", "error.message"} & set(store.get_run(run_id).data.tags):
        store.delete_tag(run_id, tag)


def _show_metrics(run: Run) -> None:
    """Let the experiment's table of runs show the headline metrics, which MLflow hides."""
    with suppress(MlflowException):  # another process may set it at the same time
        selected = json.dumps({"selectedColumns": COLUMNS})
        run.store.set_experiment_tag(run.experiment_id, VIEW, selected)


def _start_monitor(run: Run, stack: ExitStack, *, resumed: bool) -> None:
    """Sample the system's metrics until the stack is closed, which is before the run is."""
    monitor = SystemMetricsMonitor(
        run.id, SAMPLING_S, resume_logging=resumed, tracking_uri=run.store_uri
    )
    # It raises nothing. Its thread reads the run, so it ends before the run does.
    stack.callback(monitor.finish)
    # A transaction that was cut off keeps the database that the thread waits for.
    stack.push(lambda _, problem, __: release(problem) if problem else None)
    monitor.start()


def _close(run: Run, problem: BaseException) -> None:
    """Give a run that failed its final state; a store that fails now must not hide the first
    problem.
    """
    try:
        if isinstance(problem, Exception):
            run.store.set_terminated(run.id, "FAILED")
            run.set_tags(error_tags(problem))
        else:
            run.store.set_terminated(run.id, "KILLED")
            problem.add_note(KILLED)
    except Exception:  # as when a lock is held for longer than tracking.wait_s
        LOG.warning(
            "run %s could not be closed: the next train, sweep, score or promote on this machine "
            "does",
            run.id,
        )


def _join(store: MlflowClient, run_id: str, spec: TrackingSpec, name: str) -> StoredRun:
    """Return the run that `mlflow run` opened, named as far as nobody has named it; T004 where
    there is none.
    """
    run = find_run(store, run_id)
    if spec.run_name or GIVEN_NAME.fullmatch(run.info.run_name or ""):
        store.update_run(run_id, name=without_secrets(spec.run_name or name))
    return run


def create(
    store: MlflowClient, spec: TrackingSpec, name: str, parent: Run | None = None
) -> StoredRun:
    """Make a run, and its experiment where there is none; T004 where that was deleted."""
    below = {MLFLOW_PARENT_RUN_ID: parent.id} if parent else {}
    return store.create_run(
        parent.experiment_id if parent else experiment_id(store, spec),
        run_name=without_secrets(spec.run_name or name),
        tags={**context_tags(), **below},
    )


def claim(store: MlflowClient, run_id: str) -> None:
    """Open a run again for this process; its tags first: one that is RUNNING must not name an ended
    process.
    """
    write(store, run_id, tags=process.tags())
    store.update_run(run_id, status="RUNNING")


def mark_launched(*, name: str = "", problem: TipcastError | None = None) -> None:
    """Name the run of MLFLOW_RUN_ID, which no job joins, or set its tags ``error.code`` and
    ``error.message``.

    A store that fails is passed over: a mistake is told on standard error anyway.
    """
    with suppress(Exception):
        # MLflow reads the id only once.
        run_id = os.environ["MLFLOW_RUN_ID"]
        spec = TrackingSpec(max_retries=0, wait_s=5.0)
        store = open_store(spec)
        if problem:
            write(store, run_id, tags=error_tags(problem))
        else:
            _join(store, run_id, spec, name)


def check_store(spec: TrackingSpec) -> str:
    """Open the store as a job does, write a run with an artifact into the configured experiment,
    and delete the run.

    The experiment is made where it is not there yet. A store keeps what is deleted, out of sight,
    until ``mlflow gc``. It says where runs and artifacts go. T001 to T003 tell of the store, T004
    of an experiment that was deleted, T005 of the artifact.
    """
    uri = resolve(spec)
    store = open_store(spec)
    with failures(uri):
        run = create(store, replace(spec, run_name=None), "tipcast-doctor").info
        try:
            check_not_moved(run.artifact_uri, uri)
            store.log_text(run.run_id, "written by tipcast doctor\n", "doctor.txt")
        except TipcastError:
            raise
        except Exception as problem:  # each kind of artifact store raises its own
            fix = (
                "check rights and free space of the artifact store, or use another "
                "tracking.experiment"
            )
            raise failed_to(
                "written", redact_address(run.artifact_uri), first_line(problem), fix, "T005"
            ) from problem
        finally:
            store.set_terminated(run.run_id)
            store.delete_run(run.run_id)

        store.search_registered_models(max_results=1)

    artifacts = redact_address(run.artifact_uri.partition(run.run_id)[0])
    return f"{redact_address(uri)} takes runs, and {artifacts} takes artifacts"
