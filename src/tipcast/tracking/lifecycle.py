"""The life of a run: opened or joined, written by the driver alone, closed in every ending."""

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from tipcast.config.errors import TipcastError, failed_to
from tipcast.config.gate import gate
from tipcast.config.plain import redact_address
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import run_lease
from tipcast.tracking.batches import Facts, without_secrets, write
from tipcast.tracking.failures import clear_frames, first_line, store_errors
from tipcast.tracking.lasting_client import outliving
from tipcast.tracking.run import Run, context_tags, error_tags
from tipcast.tracking.run_lookup import experiment_id, find_run
from tipcast.tracking.store import open_store, resolve
from tipcast.tracking.uri_checks import check_artifacts, check_not_moved
from tipcast.tracking.views import VIEW, table_view

LOG = logging.getLogger("tipcast")
RANDOM_NAME = re.compile(r"[a-z]+-[a-z]+-\d{1,3}")
"""A name that MLflow's launcher made up, which a better one may replace."""
SAMPLING_S = 5
"""Seconds between two samples of the system's metrics."""
FINISH_S = 30
"""Most seconds to wait for the last sample."""
KILLED = "the open run is closed as KILLED"
"""Note on the exception that ended the run, for the last line of the job."""
TABLE = "tipcast"
"""Name of the view of an experiment's runs as a table."""
RUNS = f"#/experiments/{{}}/runs?viewStateShareKey={TABLE}&workflowType=machine_learning"
"""Address of that table."""


@contextmanager
def open_run(
    spec: TrackingSpec,
    *,
    name: str,
    tags: Facts,
    params: Facts,
    resume: Run | None = None,
    parent: Run | None = None,
) -> Iterator[Run]:
    """Open a run, or join the one that `mlflow run` opened or that is resumed, and close it in
    every ending.

    A run with a ``parent`` is shown below it, in its experiment. It ends as FINISHED; as FAILED
    with the tags ``error.code`` and ``error.message`` after an exception; as KILLED after Ctrl-C or
    SIGTERM. It outlives a server that goes away, see ``LastingClient``. Open it before a Dask
    cluster: workers must not inherit MLFLOW_RUN_ID. Raises C009 if a password or token would be
    sent to the artifacts in the clear, and T001 to T005 if the store fails.
    """
    store = _store_for(spec, resume or parent)
    resumed_id = resume.id if resume else None
    _close_abandoned(store, keep=resumed_id or os.environ.get("MLFLOW_RUN_ID"))

    with ExitStack() as stack:
        stack.enter_context(outliving(store))
        with store_errors(store.tracking_uri):
            mlflow_run = _join_or_create(store, spec, name, resumed_id, parent)
            store.get_experiment(mlflow_run.info.experiment_id)  # an offline store needs its name

        os.environ.pop("MLFLOW_RUN_ID", None)
        run = Run(mlflow_run.info.run_id, mlflow_run.info.experiment_id, store)
        stack.enter_context(_closing(run))
        LOG.info("%-9s%s", "run", run.link)
        LOG.info("%-9s%s", "runs", run.address(RUNS.format(run.experiment_id)))
        with store_errors(store.tracking_uri), ExitStack() as monitoring:
            _check_and_describe(run, mlflow_run.info.artifact_uri, spec, tags, params)
            if spec.system_metrics:
                _start_monitor(run, monitoring, resumed=bool(resume))

            gate("run")
            yield run
            monitoring.close()
            store.set_terminated(run.id, "FINISHED")


def _store_for(spec: TrackingSpec, related: Run | None) -> MlflowClient:
    """Return the client of the run that is resumed or that is the parent, else a new one."""
    if related:
        return related.store
    return open_store(spec)


def _check_and_describe(
    run: Run, artifact_uri: str, spec: TrackingSpec, tags: Facts, params: Facts
) -> None:
    """Refuse artifacts that must not be written, then write the tags and parameters of a run."""
    _show_metrics(run)
    check_artifacts(artifact_uri, run.store_uri, insecure=spec.insecure)
    check_not_moved(artifact_uri, run.store_uri)
    run.set_tags({**tags, **spec.tags, **run_lease.tags()})
    run.log_params(params)


def _close_abandoned(store: MlflowClient, keep: str | None) -> None:
    """Close runs whose process has ended.

    A failure is only logged: old runs never stop a new one.
    """
    try:
        with store_errors(store.tracking_uri):
            run_lease.close_abandoned(store, keep=keep)
    except Exception as problem:
        LOG.warning(
            "runs whose process ended stay open: %s",
            " ".join(str(problem).split()) or repr(problem),
        )


def _join_or_create(
    store: MlflowClient, spec: TrackingSpec, name: str, resume: str | None, parent: Run | None
) -> MlflowRun:
    """Return the run that is resumed, else the one that `mlflow run` opened, else a new one."""
    if resume:
        _reopen(store, resume)
        return _join(store, resume, spec, name)
    if launched := os.environ.get("MLFLOW_RUN_ID"):
        return _join(store, launched, spec, name)
    return create(store, spec, name, parent)


def _reopen(store: MlflowClient, run_id: str) -> None:
    """Claim a run that is resumed, and remove the tags of its earlier failure."""
    claim(store, run_id)
    for tag in {"error.code", "error.message"} & set(store.get_run(run_id).data.tags):
        store.delete_tag(run_id, tag)


def _show_metrics(run: Run) -> None:
    """Let the experiment's table of runs show the headline metrics, which MLflow hides."""
    with suppress(MlflowException):  # another process may set it at the same time
        run.store.set_experiment_tag(run.experiment_id, VIEW + TABLE, table_view())


def _start_monitor(run: Run, stack: ExitStack, *, resumed: bool) -> None:
    """Sample the system's metrics until the stack is closed, which is before the run is."""
    monitor = SystemMetricsMonitor(
        run.id, SAMPLING_S, resume_logging=resumed, tracking_uri=run.store_uri
    )
    stack.callback(_finish, monitor)
    stack.push(_end_transaction)
    monitor.start()


def _finish(monitor: SystemMetricsMonitor) -> None:
    """End the monitor before its run, which its thread reads; a frozen server is left waiting."""
    finishing = threading.Thread(target=monitor.finish, daemon=True)
    finishing.start()
    finishing.join(FINISH_S)


def _end_transaction(_kind: object, problem: BaseException | None, _trace: object) -> None:
    """End a transaction that an exception has cut off: the monitor's thread waits for the database.

    The arguments are those of ``__exit__``.
    """
    if problem:
        clear_frames(problem)


@contextmanager
def _closing(run: Run) -> Iterator[None]:
    """Close a run if the block ends with an exception."""
    try:
        yield
    except BaseException as problem:
        clear_frames(problem)
        _close(run, problem)
        raise


def _close(run: Run, problem: BaseException) -> None:
    """Close a run that ended with an exception as FAILED or KILLED.

    A store that fails now must not hide the first problem.
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


def _join(store: MlflowClient, run_id: str, spec: TrackingSpec, name: str) -> MlflowRun:
    """Return a run that exists, and name it unless a user has named it; T004 if it does not."""
    run = find_run(store, run_id)
    if spec.run_name or RANDOM_NAME.fullmatch(run.info.run_name or ""):
        store.update_run(run_id, name=without_secrets(spec.run_name or name))
    return run


def create(
    store: MlflowClient, spec: TrackingSpec, name: str, parent: Run | None = None
) -> MlflowRun:
    """Make a run, and its experiment if that does not exist; T004 if the experiment was deleted."""
    tags = context_tags()
    if parent:
        experiment = parent.experiment_id
        tags[MLFLOW_PARENT_RUN_ID] = parent.id
    else:
        experiment = experiment_id(store, spec)

    run_name = without_secrets(spec.run_name or name)
    return store.create_run(experiment, run_name=run_name, tags=tags)


def claim(store: MlflowClient, run_id: str) -> None:
    """Open a run again for this process.

    The tags come first: a run that is RUNNING must not name an ended process.
    """
    write(store, run_id, tags=run_lease.tags())
    store.update_run(run_id, status="RUNNING")


def mark_launched(*, name: str = "", problem: TipcastError | None = None) -> None:
    """Name the run of MLFLOW_RUN_ID, which no job joins, or set its tags ``error.code`` and
    ``error.message``.

    Errors of the store are ignored: standard error shows the problem anyway.
    """
    with suppress(Exception):
        run_id = os.environ["MLFLOW_RUN_ID"]
        # No retries: `mlflow run` has just used the store.
        spec = TrackingSpec(max_retries=0, wait_s=5.0)
        store = open_store(spec)
        if problem:
            write(store, run_id, tags=error_tags(problem))
        else:
            _join(store, run_id, spec, name)


def check_store(spec: TrackingSpec) -> str:
    """Open the store as a job does, write a run with an artifact into the configured experiment,
    and delete the run.

    Returns a sentence on where runs and artifacts go. The experiment is made if it does not exist.
    The store hides a deleted run, and keeps it until ``mlflow gc``. Raises T001 to T003 if the
    store fails, T004 if the experiment was deleted, and T005 if the artifact cannot be written.
    """
    uri = resolve(spec)
    store = open_store(spec)
    with store_errors(uri):
        run = create(store, replace(spec, run_name=None), "tipcast-doctor").info
        try:
            check_not_moved(run.artifact_uri, uri)
            store.log_text(run.run_id, "written by tipcast doctor\n", "doctor.txt")
        except TipcastError:
            raise
        except Exception as problem:  # each kind of artifact store raises its own
            fix = (
                "check permissions and free space of the artifact store, or use another "
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
