"""How each job begins and ends: its run is opened before any worker starts, and closed after the
last worker has ended.
"""

import contextlib
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tipcast.compute.base import Session
from tipcast.compute.session import open_session
from tipcast.config.arguments import command_words, key_of, with_words
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.hydra_grammar import QUOTES
from tipcast.config.plain import flatten, redact_address, to_plain
from tipcast.config.schema import DataJobConfig, ScoreConfig, TrackingSpec
from tipcast.evaluation import report
from tipcast.measure import origin
from tipcast.measure.progress import Clock, progress
from tipcast.tracking.artifacts import CONFIG
from tipcast.tracking.batches import stored_param, without_secrets
from tipcast.tracking.failures import store_errors
from tipcast.tracking.lasting_client import offline_file
from tipcast.tracking.lifecycle import open_run
from tipcast.tracking.run import VERSIONS, Run
from tipcast.tracking.run_lease import check_free, leased
from tipcast.tracking.run_lookup import find_run
from tipcast.tracking.store import open_store, resolve

if TYPE_CHECKING:
    from tipcast.tracking.mlflow_types import MlflowRun

OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w.@/]*=")
"""Beginning of an override of the configuration."""
NOT_IN_NAME = (
    "print",
    "debug",
    "tracking",
    "cluster",
    "search",
    "multirun",
    "resume",
    "other_data",
    "model_uri",
    "output",
)
"""First parts of keys that a run's name does not show: they say nothing of what is trained, or the
name begins with their value.
"""
LONGEST_NAME = 60
"""Most characters of a name, without the number that makes it unique."""
LONGEST_VALUE = 24
"""Most characters of a value in it."""
SOURCES = ("data=files", "data=table")
"""Overrides that a run's name does not show: the names of files imply them."""
SECTIONS = ("backend", "cluster", "data", "task", "model", "search", "seed")
"""Parts of the configuration that runs are compared by."""
NOT_PARAMS = (
    "cluster.wait_s",
    "cluster.worker_ttl_s",
    "cluster.allowed_failures",
    "cluster.recoveries",
    "cluster.connect_timeout_s",
    "cluster.performance_report",
    "cluster.dashboard",
    "data.limits",
    "task.kind",
    "task.function",
    "task.columns",
    "task.params",
    "task.classes",
    "task.description",
    "model.fit.checkpoint_s",
    "model.kinds",
    "model.cpu",
    "model.gpu",
    "model.space",
    "model.tiny",
)
"""Keys by which runs are not compared, with all keys below them; the whole configuration is an
artifact.
"""


RESUMED_WITH = "resumed.with"
"""Tag of a resumed run: how its backend and cluster are not those of its parameters."""
PER_PROCESS = ("backend", "cluster")
"""Parts of the configuration that each process of a run has for itself."""


@dataclass(frozen=True)
class RunContext:
    """A job's open run, and what the job needs until the run is closed."""

    run: Run
    config: DataJobConfig | ScoreConfig
    command: str
    """Command that repeats the job."""
    clock: Clock
    folder: Path
    """Folder of files that will be uploaded to MLflow."""
    stack: ExitStack
    """Contexts that are closed before the run."""
    code: origin.Origin = field(default_factory=origin.Origin)
    """The code that the result comes from, as it was when the run was opened."""

    def start_workers(self) -> Session:
        """Open the workers, which are closed before the run is."""
        with self.clock.phase("cluster") as notes, progress("cluster"):
            session = self.stack.enter_context(
                open_session(self.config.backend, self.config.cluster)
            )
            notes.append(session.size)
        self.run.log_params(session.devices)
        return session

    def result(self, **entries: Any) -> dict[str, Any]:
        """Return the job's result: the run, ``entries``, and the command."""
        return result_of(self.run, self.command, **entries)

    def table(
        self,
        rows: Sequence[Mapping[str, Any]],
        path: str,
        columns: Sequence[str] = (),
        most: int | None = None,
    ) -> str:
        """Log rows as a table; return ``columns`` of the first ``most`` rows as Markdown.

        The first cell of a row with a ``run_id`` links to the run.
        """
        names = list(dict.fromkeys(name for row in rows for name in row))
        self.run.log_table({name: [row.get(name) for row in rows] for name in names}, path)

        lines = []
        for row in rows[:most]:
            cells = [_cell(row.get(name)) for name in columns or names]
            if row.get("run_id"):
                cells[0] = f"[{cells[0]}]({self.run.page(row['run_id'])})"
            lines.append(cells)

        return report.table(columns or names, lines)


def result_of(run: Run, command: str, **entries: Any) -> dict[str, Any]:
    """Return a job's result: where its run is, ``entries``, and the command that repeats it.

    ``offline`` is there if the server has gone away: the file of the store that has the run.
    """
    result = {
        "run_id": run.id,
        "experiment_id": run.experiment_id,
        "run": run.address(run.page(run.id)),
        "tracking_uri": redact_address(run.store_uri),
        **entries,
        "command": command,
    }
    if file := offline_file(run.store):
        result["offline"] = str(file)
    return result


def _cell(value: object) -> str:
    """Return a value of a table. Small numbers have four digits too, as a learning rate of
    0.0001234.
    """
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if abs(value) < 0.1:
        return f"{value:.4g}"
    return report.number(value)


@contextlib.contextmanager
def previous_run(spec: TrackingSpec, name: str, job: str) -> Iterator[tuple[Run, "MlflowRun"]]:
    """Find the run of a job that a user names, and hold its lease; C003, S002, S003, T004.

    Yields the run, and the run as MLflow has it. Nothing of it changes until it is opened.
    """
    if not name:
        fix = "write resume=RUN, or leave it out to start a new run"
        raise TipcastError("C003", "resume", "does not name a run", fix)

    uri = resolve(spec)
    store = open_store(spec)
    with store_errors(uri):
        mlflow_run = find_run(store, name, spec, job)
        if mlflow_run.data.tags.get("job") != job or mlflow_run.info.lifecycle_stage != "active":
            where = f"run {mlflow_run.info.run_id}"
            raise TipcastError("S003", where, f"is not a run of {job}", f"give a run of {job}")

        run = Run(mlflow_run.info.run_id, mlflow_run.info.experiment_id, store)
        with leased(store, run.id):
            yield run, run.mlflow_run()  # as its last process left it


def resume_command(job: str, run: Run, spec: TrackingSpec) -> str:
    """Return the command that resumes a run of a job."""
    words = [f"tipcast {job} resume={run.id}"]
    if spec.uri:
        words.append(f"tracking.uri={without_secrets(spec.uri)}")
    return " ".join(words)


@contextlib.contextmanager
def run_context(
    config: DataJobConfig | ScoreConfig,
    command: str,
    *,
    job: str,
    name: str,
    params: Mapping[str, object],
    tags: Mapping[str, object] | None = None,
    clock: Clock | None = None,
    resume: Run | None = None,
    lease: bool = False,
    parent: Run | None = None,
) -> Iterator[RunContext]:
    """Open a job's run, record configuration, versions and code, and close the run in every ending;
    see ``open_run``.

    ``clock`` has measured earlier phases. ``lease`` keeps other processes off a new run; a run to
    ``resume`` has its lease already. Raises S002 if another machine has opened that run meanwhile.
    """
    clock = clock or Clock()
    if resume:
        check_free(resume.store, resume.id)

    code = origin.origin()
    tags = {"job": job, "command": command, **code.tags, **(tags or {})}
    if resume:
        tags |= resumed_with(resume, config)

    with (
        temporary_folder() as folder,
        open_run(
            config.tracking, name=name, tags=tags, params=params, resume=resume, parent=parent
        ) as run,
        ExitStack() as stack,
    ):
        run.log_text(yaml.safe_dump(to_plain(config), sort_keys=False), CONFIG)
        run.log_text(yaml.safe_dump(origin.versions(), sort_keys=False), VERSIONS)
        if lease and not resume:
            stack.enter_context(leased(run.store, run.id))
        yield RunContext(run, config, command, clock, folder, stack, code)


def resumed_with(run: Run, config: DataJobConfig | ScoreConfig) -> dict[str, str]:
    """Return a tag with the keys of backend and cluster that are not as the run's parameters say.

    MLflow keeps the first value of a parameter, which is that of the run's first process. A run
    without such parameters, as that of a multirun, gets no tag.
    """
    now = {name: stored_param(value) for name, value in run_params(config, PER_PROCESS).items()}
    logged = run.mlflow_run().data.params
    first = {
        name: value
        for name, value in logged.items()
        if name.partition(".")[0] in PER_PROCESS and not name.startswith(NOT_PARAMS)
    }
    if not first:
        return {}

    changed = [
        f"{name}={now.get(name, 'null')}"
        for name in sorted(first | now)
        if first.get(name) != now.get(name)
    ]
    return {RESUMED_WITH: ", ".join(changed) or "the same backend and cluster"}


def run_params(
    config: DataJobConfig | ScoreConfig,
    sections: Collection[str] = SECTIONS,
    later: Collection[str] = (),
) -> dict[str, Any]:
    """Return the parameters of a job's run by which runs are compared.

    They are the keys of some ``sections`` of the configuration, such as ``model.params.max_depth``,
    without those of ``NOT_PARAMS`` and those that the job logs ``later``.
    """
    plain = to_plain(config)
    flat = flatten({name: plain[name] for name in sections if name in plain})
    return {
        name: value
        for name, value in flat.items()
        if not name.startswith(NOT_PARAMS) and name not in later
    }


def given_keys(command: str) -> list[str]:
    """Return the keys that a command line sets."""
    return [key_of(word) for word in command_words(command)]


def given_keys_of(command: str, sections: Collection[str]) -> list[str]:
    """Return the keys that a command line sets in sections of the configuration.

    Those of ``data.storage_options`` are left out: they say how a machine reaches the data.
    """
    return [
        key
        for key in given_keys(command)
        if key.partition(".")[0] in sections and not key.startswith("data.storage_options")
    ]


def value_at(config: DataJobConfig, key: str) -> Any:
    """Return a configuration's value at a key; for a whole group, its name or source."""
    value: Any = to_plain(config)
    for name in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)

    is_group = "." not in key and isinstance(value, Mapping)
    if is_group:
        return value.get("name") or value.get("source")
    return value


def without_keys(command: str, *keys: str) -> str:
    """Return a command without some of its keys."""
    return with_words(
        command, [word for word in command_words(command) if key_of(word) not in keys]
    )


def run_names(runs: Sequence[tuple[str, str]], prefix: str = "") -> list[str]:
    """Return a name for each run, given its model and command, such as ``xgboost seed=1
    max_depth=8``.

    A name has the overrides of the command, shortened; overrides that not all commands have come
    first. No two names are the same. If a command names the model, that name is used: a model that
    is made from another may have the other's name.
    """
    commands = [
        [word.lstrip("+") for word in command_words(command) if OVERRIDE.match(word)]
        for _, command in runs
    ]
    shared = set(commands[0]).intersection(*commands)
    names = list[str]()
    bases = list[str]()

    for (model, _), overrides in zip(runs, commands, strict=True):
        ordered = sorted(overrides, key=lambda word: word in shared)
        name = _run_name(model, ordered, prefix)
        bases.append(name)
        if bases.count(name) > 1:
            name = f"{name} ({bases.count(name)})"
        names.append(name)

    return names


def _run_name(model: str, overrides: Sequence[str], prefix: str) -> str:
    """Return the name of a run with overrides; one of them may name another model."""
    texts: list[str] = []
    for word in overrides:
        key, _, value = word.partition("=")
        if key == "model":
            model = value
        elif (
            key.split(".")[0] not in NOT_IN_NAME
            and "storage_options" not in key
            and word not in SOURCES
        ):
            texts.append(f"{key.rpartition('.')[2]}={_short(key, value)}")

    name = " ".join([f"{prefix}{model}", *texts])
    return textwrap.shorten(name, LONGEST_NAME, placeholder=" ...")


def _short(key: str, value: str) -> str:
    """Return a value as names have it: the beginning of an id or a text, the end of a path."""
    if key == "from":
        return value[:8]

    value = value.strip(QUOTES)
    if len(value) <= LONGEST_VALUE + 4:
        return value
    if "/" in value:
        return f"…{value[-LONGEST_VALUE:]}"
    return f"{value[:LONGEST_VALUE]}…"
