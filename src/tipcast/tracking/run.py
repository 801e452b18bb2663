"""The life of a run: opened or joined, written by the driver alone, closed in every ending; found
again by name.
"""

import hashlib
import json
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.dataset_source_registry import resolve_dataset_source
from mlflow.data.meta_dataset import MetaDataset
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.mlflow_tags import (
    MLFLOW_DATASET_CONTEXT,
    MLFLOW_LOGGED_ARTIFACTS,
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN_NOTE,
    MLFLOW_SOURCE_NAME,
)

from tipcast.config.disk import temporary_folder, writing
from tipcast.config.environment import concealed
from tipcast.config.errors import TipcastError, failed_to
from tipcast.config.plain import redact_address, without_login
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import process
from tipcast.tracking.store import (
    ABSENT,
    absent,
    all_runs,
    check_artifacts,
    check_not_moved,
    failures,
    first_line,
    open_store,
    release,
    resolve,
)

LOG = logging.getLogger("tipcast")

GIVEN_NAME = re.compile(r"[a-z]+-[a-z]+-\d{1,3}")
"""A name that MLflow's launcher made up, which a better one may replace."""
SAMPLING_S = 5
"""Seconds between two samples of the system's metrics."""
KILLED = "a run that was open is closed as KILLED"
"""Note on the interruption that did it, for the last line of the job."""
MAX_NAME = 250
MAX_PARAM = 6000
MAX_TAG = 8000
MAX_DIGEST = 36
MAX_DATASET = 500
"""Characters of a name, of values of parameters and tags, and of digest and name of a dataset."""
REFUSED = re.compile(r"[^/\w.\- :]|(?<![^/])(?:\.\.|\.?(?=/|\Z))")
"""What no name may have: other characters, and parts between slashes that a path would not keep."""
VERSIONS = "versions.yaml"
FILES = "data/files.yaml"
"""Artifacts of a run."""
BEST = "sweep.best.params"
"""Tag of a sweep's best parameters, as JSON."""
VIEW = "mlflow.sharedViewState.tipcast"
RUNS = "#/experiments/{}/runs?viewStateShareKey=tipcast&workflowType=machine_learning"
"""Tag of an experiment with the columns that its table of runs has by that key, and the table:
MLflow hides metrics.
"""
HEADLINES = ("auc", "log_loss", "rmse", "inertia", "adjusted_rand")
COLUMNS = [f"metrics.`{side}/{name}`" for name in HEADLINES for side in ("test", "validation")]
LAST = "last"
"""What stands for the newest run."""
GIT = "mlflow.source.git."
"""How MLflow's tags of a repository begin."""
ORIGIN = (GIT, "tipcast.version", "tipcast.commit", "tipcast.dirty")
"""How tags begin that say which code a run's result comes from."""
NAME = "MLFLOW_EXPERIMENT_NAME"
ID = "MLFLOW_EXPERIMENT_ID"
DEFAULT = "tipcast"
Facts = Mapping[str, object]
Curves = Mapping[str, Mapping[int, float]]
NONE: Mapping[str, Any] = MappingProxyType({})


def name_of(text: str) -> str:
    """Return a name that stores take; one that had to be changed ends with a digest, so that two
    names stay two.
    """
    name = REFUSED.sub("_", text)
    if name == text and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return f"{name[: MAX_NAME - 7]}-{digest[:6]}"


def cut(value: object, most: int = MAX_TAG) -> str:
    """Return a value's text, which ends with an ellipsis where it is longer than what stores
    keep.
    """
    # bytes of a path that are no UTF-8
    text = str(value).encode(errors="backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"


def taken(tags: Facts) -> dict[str, str]:
    """Return tags of a run or a version as stores take them."""
    return {name_of(name): cut(value) for name, value in tags.items()}


def write(
    client: Any, run_id: str, *, tags: Facts = NONE, params: Facts = NONE, curves: Curves = NONE
) -> None:
    """Write to a run with one call, as stores take it: ``curves`` has metric -> step -> value.

    Parameters may be shortened: the configuration, an artifact of the run, has them whole.
    """
    now = int(time.time() * 1000)
    points = [
        (name_of(name), value, step)
        for name, values in curves.items()
        for step, value in values.items()
    ]
    client.log_batch(
        run_id,
        metrics=[Metric(name, float(value), now, step) for name, value, step in points],
        params=[
            Param(name_of(name), cut(recorded(value), MAX_PARAM)) for name, value in params.items()
        ],
        tags=[
            RunTag(name, value)
            for name, value in taken({key: recorded(tag) for key, tag in tags.items()}).items()
        ],
    )


def recorded(value: object) -> str:
    """Return a value as stores may have it: without user information, and without what is of the
    environment.
    """
    return without_login(concealed(str(value)))


def error_tags(problem: Exception) -> dict[str, object]:
    """Return the tags of a run that failed."""
    # SQLAlchemy's have codes too
    code = problem.code if isinstance(problem, TipcastError) else type(problem).__name__
    return {"error.code": code, "error.message": problem}


def claim(client: Any, run_id: str) -> None:
    """Open a run again for this process; its tags first: one that is RUNNING must not name an ended
    process.
    """
    write(client, run_id, tags=process.tags())
    client.update_run(run_id, status="RUNNING")


@dataclass(frozen=True)
class Run:
    """An open run; every method writes at once."""

    id: str
    experiment_id: str
    store: str
    """URI of the tracking store."""
    client: Any

    def log_params(self, params: Facts) -> None:
        """Log parameters; those that the launcher has logged already are left: MLflow takes no
        second value.
        """
        logged = self.client.get_run(self.id).data.params
        new = {name: value for name, value in params.items() if name_of(name) not in logged}
        write(self.client, self.id, params=new)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Log metrics in their order, in one batch; M010 for a value that is not finite: MLflow
        would rank it first.
        """
        self.log_curves({name: {0: value} for name, value in metrics.items()})

    def log_curves(self, curves: Curves) -> None:
        """Log metric -> step -> value in one batch; M010 for a value that is not finite."""
        for name, value in (
            (name, value) for name, values in curves.items() for value in values.values()
        ):
            if not math.isfinite(value):
                raise TipcastError(
                    "M010",
                    name,
                    f"non-finite metric {value}",
                    "look at the data and the learning rate",
                )
        write(self.client, self.id, curves=curves)

    def set_tags(self, tags: Facts) -> None:
        """Set tags."""
        write(self.client, self.id, tags=tags)

    def note(self, markdown: str) -> None:
        """Set the description that the run's page shows."""
        self.set_tags({MLFLOW_RUN_NOTE: markdown})

    def log_dataset(self, uri: str, digest: str, name: str, context: str, profile: Facts) -> None:
        """Log a dataset input of a ``context``: ``train``, ``validation`` or ``test``.

        ``uri`` is of its first file, or what stands for a source that is made; the digest is over
        all of its files; the profile tells rows and other facts, kept with the dataset.
        """
        uri = redact_address(concealed(uri))
        source = None
        if "://" not in uri or uri.startswith(("s3://", "https://", "http://", "file://")):
            with warnings.catch_warnings():
                # a path may be read as two kinds of source; the first is right
                warnings.simplefilter("ignore")
                source = resolve_dataset_source(uri)

        made = source or CodeDatasetSource(tags={"made_by": uri})
        dataset = MetaDataset(made, cut(name, MAX_DATASET), digest[:MAX_DIGEST]).to_dict()
        entity = Dataset(**dataset, profile=json.dumps(dict(profile), allow_nan=False))
        self.client.log_inputs(
            self.id, [DatasetInput(entity, [InputTag(MLFLOW_DATASET_CONTEXT, context)])]
        )

    def log_bytes(self, content: bytes, path: str) -> None:
        """Log an artifact such as a picture."""
        # not by log_stream, which does not tell whose disk is full
        with temporary_folder() as folder:
            file = folder / Path(path).name
            with writing(folder):
                file.write_bytes(content)
            try:
                self.client.log_artifact(
                    self.id, str(file), str(Path(path).parent) if "/" in path else None
                )
            # Python names the file that it opens, and not one that outgrows its disk
            except OSError as problem:
                root = self.client.get_run(self.id).info.artifact_uri
                problem.filename = problem.filename or f"{local_file_uri_to_path(root)}/{path}"
                raise

    def log_text(self, text: str, path: str) -> None:
        """Log text as an artifact."""
        self.log_bytes(recorded(text).encode("utf-8"), path)

    def log_table(self, columns: Mapping[str, Sequence[object]], path: str) -> None:
        """Log a table that MLflow's page shows as one, with null for what is not finite; an earlier
        one is replaced.
        """
        table = {"columns": list(columns), "data": [*zip(*columns.values(), strict=True)]}
        # a browser reads no Infinity and no NaN
        table = json.loads(json.dumps(table), parse_constant=lambda _: None)
        self.log_text(json.dumps(table, allow_nan=False), path)
        # Not by MLflow's log_table: it adds rows to an earlier table, as of a sweep that goes on.
        tables = json.loads(
            self.client.get_run(self.id).data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]")
        )
        if (entry := {"path": path, "type": "table"}) not in tables:
            self.set_tags({MLFLOW_LOGGED_ARTIFACTS: json.dumps([*tables, entry])})

    def page(self, run_id: str) -> str:
        """Return the address of a run of this experiment, relative to the store's server."""
        return f"#/experiments/{self.experiment_id}/runs/{run_id}?workflowType=machine_learning"

    def address(self, page: str) -> str:
        """Return the address of a page of the store's server, or of the one that `mlflow ui`
        starts.
        """
        server = self.store if self.store.startswith("http") else "http://127.0.0.1:5000"
        return f"{redact_address(server).rstrip('/')}/{page}"

    @property
    def link(self) -> str:
        """Where a browser shows the run, or how to start MLflow's pages for it."""
        start = f" after `mlflow ui --backend-store-uri {redact_address(self.store)}`"
        return self.address(self.page(self.id)) + ("" if self.store.startswith("http") else start)


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
    joined = resume or os.environ.get("MLFLOW_RUN_ID")
    store = resolve(spec)
    client = open_store(spec)

    try:
        with failures(store):
            process.close_abandoned(client, store, keep=joined)
    except Exception as problem:  # others' runs never stop one's own
        LOG.warning(
            "runs that ended without closing stay open: %s",
            " ".join(str(problem).split()) or repr(problem),
        )

    with failures(store):
        if resume:
            claim(client, resume)
            # of an earlier ending
            for tag in {"error.code", "error.message"} & set(client.get_run(resume).data.tags):
                client.delete_tag(resume, tag)
        run = _join(client, joined, spec, name) if joined else create(client, spec, name, parent)

    os.environ.pop("MLFLOW_RUN_ID", None)
    opened = Run(run.info.run_id, run.info.experiment_id, store, client)
    try:
        LOG.info("%-9s%s", "run", opened.link)
        LOG.info("%-9s%s", "runs", opened.address(RUNS.format(opened.experiment_id)))
        with failures(store), ExitStack() as stack:
            with suppress(MlflowException):  # another process may set it at the same time
                client.set_experiment_tag(
                    opened.experiment_id, VIEW, json.dumps({"selectedColumns": COLUMNS})
                )

            check_artifacts(run.info.artifact_uri, store, insecure=spec.insecure)
            check_not_moved(run.info.artifact_uri, store)
            opened.set_tags({**tags, **spec.tags, **process.tags()})
            opened.log_params(params)
            if spec.system_metrics:
                monitor = SystemMetricsMonitor(
                    opened.id, SAMPLING_S, resume_logging=bool(resume), tracking_uri=store
                )
                # raises nothing, and its thread reads the run: it ends before the run
                stack.callback(monitor.finish)
                # A transaction that was cut off keeps the database that the thread waits for.
                stack.push(lambda _, problem, __: release(problem) if problem else None)
                monitor.start()

            yield opened
            stack.close()
            client.set_terminated(opened.id, "FINISHED")
    except BaseException as problem:
        release(problem)
        _close(opened, problem)
        raise


def _close(run: Run, problem: BaseException) -> None:
    """Give a run that failed its final state; a store that fails now must not hide the first
    problem.
    """
    try:
        run.client.set_terminated(run.id, "FAILED" if isinstance(problem, Exception) else "KILLED")
        if isinstance(problem, Exception):
            run.set_tags(error_tags(problem))
        else:
            problem.add_note(KILLED)
    except Exception:  # a lock was waited for as long as tracking.wait_s allows
        LOG.warning(
            "run %s could not be closed: the next train, sweep, score or promote on this machine "
            "does",
            run.id,
        )


def _join(client: Any, run_id: str, spec: TrackingSpec, name: str) -> Any:
    """Return the run that `mlflow run` opened, named as far as nobody has named it; T004 where
    there is none.
    """
    run = find_run(client, run_id)
    if spec.run_name or GIVEN_NAME.fullmatch(run.info.run_name or ""):
        client.update_run(run_id, name=recorded(spec.run_name or name))
    return run


def create(client: Any, spec: TrackingSpec, name: str, parent: Run | None = None) -> Any:
    """Make a run, and its experiment where there is none; T004 where that was deleted."""
    below = {MLFLOW_PARENT_RUN_ID: parent.id} if parent else {}
    return client.create_run(
        parent.experiment_id if parent else experiment_id(client, spec),
        run_name=recorded(spec.run_name or name),
        tags={**context_tags(), **below},
    )


def context_tags() -> dict[str, str]:
    """Return the tags that MLflow gives a new run, and those of this process.

    MLflow's commit is left out: it is of the repository that the command's file lies in, which need
    not be the user's.
    """
    return without_commit(resolve_tags({MLFLOW_SOURCE_NAME: "tipcast", **process.tags()}))


def without_commit(tags: Mapping[str, str]) -> dict[str, str]:
    """Return MLflow's own tags without those of a commit."""
    return {name: value for name, value in tags.items() if not name.startswith(GIT)}


def mark_launched(*, name: str = "", problem: TipcastError | None = None) -> None:
    """Name the run of MLFLOW_RUN_ID, which no job joins, or set its tags ``error.code`` and
    ``error.message``.

    A store that fails is passed over: a mistake is told on standard error anyway.
    """
    with suppress(Exception):
        # it was just used
        run_id = os.environ["MLFLOW_RUN_ID"]
        spec = TrackingSpec(max_retries=0, wait_s=5.0)
        client = open_store(spec)
        if problem:
            write(client, run_id, tags=error_tags(problem))
        else:
            _join(client, run_id, spec, name)


def check_store(spec: TrackingSpec) -> str:
    """Open the store as a job does, write a run with an artifact into the configured experiment,
    and delete the run.

    The experiment is made where it is not there yet. A store keeps what is deleted, out of sight,
    until ``mlflow gc``. It says where runs and artifacts go. T001 to T003 tell of the store, T004
    of an experiment that was deleted, T005 of the artifact.
    """
    store = resolve(spec)
    client = open_store(spec)
    with failures(store):
        run = create(client, replace(spec, run_name=None), "tipcast-doctor").info
        try:
            check_not_moved(run.artifact_uri, store)
            client.log_text(run.run_id, "written by tipcast doctor\n", "doctor.txt")
        except TipcastError:
            raise
        except Exception as problem:  # every kind of artifact store has its own
            fix = (
                "check rights and free space of the artifact store, or use another "
                "tracking.experiment"
            )
            raise failed_to(
                "written", redact_address(run.artifact_uri), first_line(problem), fix, "T005"
            ) from problem
        finally:
            client.set_terminated(run.run_id)
            client.delete_run(run.run_id)

        client.search_registered_models(max_results=1)

    artifacts = redact_address(run.artifact_uri.partition(run.run_id)[0])
    return f"{redact_address(store)} takes runs, and {artifacts} takes artifacts"


def find_experiment(client: Any, spec: TrackingSpec) -> tuple[str, Any]:
    """Return name and entity of an experiment; None for the entity where there is none of the name
    yet.

    It is that of ``tracking.experiment``, of MLFLOW_EXPERIMENT_ID, of MLFLOW_EXPERIMENT_NAME or
    else ``tipcast``; T004 for an id that is not there.
    """
    if not spec.experiment and (number := os.environ.get(ID)):
        with absent(
            "T004", f"{ID} {number}", "is not there", "unset it, or set tracking.experiment"
        ):
            experiment = client.get_experiment(number)
            return experiment.name, experiment

    name = spec.experiment or os.environ.get(NAME) or DEFAULT
    return name, client.get_experiment_by_name(name)


def beside(client: Any, spec: TrackingSpec, run_id: str | None) -> TrackingSpec:
    """Return where to record what uses a model: in the experiment of the run that trained it, if
    nobody names another.

    The usual experiment stays where that run, or its experiment, is not there any more.
    """
    if spec.experiment or os.environ.get(NAME) or os.environ.get(ID) or run_id is None:
        return spec

    try:
        experiment = client.get_experiment(client.get_run(run_id).info.experiment_id)
    except MlflowException as problem:
        if problem.error_code not in ABSENT:
            raise
        return spec

    return (
        replace(spec, experiment=experiment.name)
        if experiment.lifecycle_stage == "active"
        else spec
    )


def experiment_id(client: Any, spec: TrackingSpec) -> str:
    """Return the id of the experiment, which is made where there is none of its name; T004 where it
    was deleted.
    """
    name, found = find_experiment(client, spec)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except Exception:  # another process may have made it meanwhile
            found = client.get_experiment_by_name(name)
            if found is None:
                raise

    if found.lifecycle_stage != "active":
        fix = f"`mlflow experiments restore -x {found.experiment_id}`, or set tracking.experiment"
        raise TipcastError("T004", f"experiment {name}", "was deleted", fix)

    return str(found.experiment_id)


def find_run(
    client: Any, name: str, spec: TrackingSpec | None = None, job: str | None = None
) -> Any:
    """Return the run that a user names, as MLflow has it; T004 for no run, or for several.

    That is by a whole id, also of a deleted run; by the beginning of one, of at least 4 characters;
    or, with a ``spec``, ``last``: the newest run of its experiment and of a job, as ``sweep``, else
    of anything but a trial.
    """
    if re.fullmatch("[0-9a-f]{4,31}", name):
        begun = all_runs(f"attributes.run_id LIKE '{name}%'")
        if len(begun) > 1:
            names = ", ".join(f"{run.info.run_id} ({run.info.run_name})" for run in begun)
            what = f"stands for {len(begun)} runs, as {names}"
            raise TipcastError("T004", f"run {name}", what, "name more of its id")
        name = begun[0].info.run_id if begun else name

    if name == LAST and spec is not None:
        experiment, entity = find_experiment(client, spec)
        wanted = f"tags.job = '{job}'" if job else "tags.job != 'trial'"
        newest = ["attributes.start_time DESC"]
        for run in (
            client.search_runs([entity.experiment_id], wanted, max_results=1, order_by=newest)
            if entity
            else ()
        ):
            return run
        what = f"experiment {experiment} has no {job or 'run'}"
        raise TipcastError(
            "T004", f"run {name}", what, "name a run by its id, or set tracking.experiment"
        )

    fix = "name the id of a run, or its first 4 characters or more, or unset MLFLOW_RUN_ID"
    with absent("T004", f"run {name}", "is not there", fix):
        return client.get_run(name)
