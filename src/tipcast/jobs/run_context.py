"""How each job begins and ends: its run is opened before any worker starts, and closed after the
last has gone.
"""

import contextlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tipcast.compute.base import Session
from tipcast.compute.session import session
from tipcast.config.arguments import QUOTES, command_words, key_of, with_words
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact_address, to_plain
from tipcast.config.schema import DataJobConfig, ScoreConfig, TrackingSpec
from tipcast.evaluation import report
from tipcast.measure import origin
from tipcast.measure.progress import Clock, progress
from tipcast.tracking.artifacts import CONFIG
from tipcast.tracking.failures import store_errors
from tipcast.tracking.lifecycle import claim, open_run
from tipcast.tracking.lookup import find_run
from tipcast.tracking.process import leased
from tipcast.tracking.run import VERSIONS, Run
from tipcast.tracking.store import open_store, resolve

if TYPE_CHECKING:
    from tipcast.tracking.entities import StoredRun

OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w.@/]*=")
"""How an override of the configuration begins."""
UNTOLD = (
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
"""First parts of keys that say nothing of what is trained, or what the name begins with."""
LONGEST_NAME = 60
LONGEST_VALUE = 24
"""Characters of a name, without the number that sets it apart from others, and of a value in it."""
SOURCES = ("data=files", "data=table")
"""Overrides that go without saying where files are named."""


@dataclass(frozen=True)
class RunContext:
    """A job's open run, and what the job needs until the run is closed."""

    run: Run
    config: DataJobConfig | ScoreConfig
    command: str
    """What repeats the job."""
    clock: Clock
    folder: Path
    """Folder of files on their way to MLflow."""
    stack: ExitStack
    """What is closed before the run."""
    code: origin.Origin = field(default_factory=origin.Origin)
    """The code that the result comes from, as it was when the run was opened."""

    def start_workers(self) -> Session:
        """Open the workers, which are closed before the run is."""
        with self.clock.phase("cluster") as facts, progress("cluster"):
            workers = self.stack.enter_context(session(self.config.backend, self.config.cluster))
            facts.append(workers.size)
        self.run.log_params(workers.devices)
        return workers

    def result(self, **facts: Any) -> dict[str, Any]:
        """Return what the job says: the run, its own facts, and the command."""
        return result_of(self.run, self.command, **facts)

    def table(
        self,
        rows: Sequence[Mapping[str, Any]],
        path: str,
        columns: Sequence[str] = (),
        most: int | None = None,
    ) -> str:
        """Log rows as a table; return ``columns`` of the first ``most`` as Markdown, linked by
        ``run_id``.
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


def result_of(run: Run, command: str, **facts: Any) -> dict[str, Any]:
    """Return what a job says of a run: where it is, ``facts``, and the command that repeats it."""
    place = {"run": run.address(run.page(run.id)), "tracking_uri": redact_address(run.store_uri)}
    return {
        "run_id": run.id,
        "experiment_id": run.experiment_id,
        **place,
        **facts,
        "command": command,
    }


def _cell(value: object) -> str:
    """Return a value of a table: small parameters have four digits too, as a learning rate of
    0.0001234.
    """
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 0.1 else report.number(value)
    return "" if value is None else str(value)


@contextlib.contextmanager
def previous_run(spec: TrackingSpec, name: str, job: str) -> Iterator[tuple[Run, "StoredRun"]]:
    """Find the run of a job that a user names, and hold its lease; C003, S002, S003, T004.

    It comes with what MLflow knew of it, and is left as it was where nothing closes it.
    """
    if not name:
        raise TipcastError(
            "C003", "resume", "names no run", "write resume=RUN, or leave it out to begin anew"
        )

    uri = resolve(spec)
    store = open_store(spec)
    with store_errors(uri):
        stored = find_run(store, name, spec, job)
        if stored.data.tags.get("job") != job or stored.info.lifecycle_stage != "active":
            raise TipcastError(
                "S003", f"run {stored.info.run_id}", f"is not a {job}", f"name the run of a {job}"
            )

        run = Run(stored.info.run_id, stored.info.experiment_id, uri, store)
        with leased(store, run.id):
            stored = run.stored()  # as its last process left it
            claim(store, run.id)  # before its data are listed: other machines see that it is taken
            try:
                yield run, stored
            finally:
                with contextlib.suppress(Exception):
                    _close_unopened(run, stored)


def _close_unopened(run: Run, before: "StoredRun") -> None:
    """Give a run that was claimed and then not opened the status that it had before."""
    if run.stored().info.status != "RUNNING":
        return
    status = "KILLED" if before.info.status == "RUNNING" else before.info.status
    run.store.set_terminated(run.id, status, before.info.end_time)


@contextlib.contextmanager
def run_context(
    config: DataJobConfig | ScoreConfig,
    command: str,
    *,
    job: str,
    name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, object] | None = None,
    clock: Clock | None = None,
    resume: Run | None = None,
    lease: bool = False,
    parent: Run | None = None,
) -> Iterator[RunContext]:
    """Open a job's run, record configuration, versions and code, and close the run in every ending;
    see ``open_run``.

    ``clock`` has measured what came before. Other processes are kept off a run with ``lease``, as
    off one to resume.
    """
    clock = clock or Clock()
    resumed = resume.id if resume else None
    code = origin.origin()
    facts: dict[str, object] = {"job": job, "command": command, **code.tags, **(tags or {})}

    with (
        temporary_folder() as folder,
        open_run(
            config.tracking, name=name, tags=facts, params=params, resume=resumed, parent=parent
        ) as run,
        ExitStack() as stack,
    ):
        run.log_text(yaml.safe_dump(to_plain(config), sort_keys=False), CONFIG)
        run.log_text(yaml.safe_dump(origin.versions(), sort_keys=False), VERSIONS)
        if lease and not resume:
            stack.enter_context(leased(run.store, run.id))
        yield RunContext(run, config, command, clock, folder, stack, code)


def given_keys(command: str) -> list[str]:
    """Return the keys that a command line sets."""
    return [key_of(word) for word in command_words(command)]


def without_keys(command: str, *keys: str) -> str:
    """Return a command without some of its keys."""
    return with_words(
        command, [word for word in command_words(command) if key_of(word) not in keys]
    )


def run_names(runs: Sequence[tuple[str, str]], prefix: str = "") -> list[str]:
    """Return a name for each of some runs, of their models and commands, as ``xgboost seed=1
    max_depth=8``.

    It has what a command overrides, shortened, first what not every command has; no two names are
    the same. A model that the command names is called as there: one that is made from another may
    have the other's name.
    """
    words = [
        [word.lstrip("+") for word in command_words(command) if OVERRIDE.match(word)]
        for _, command in runs
    ]
    shared = set(words[0]).intersection(*words)
    names = list[str]()
    bases = list[str]()

    for (model, _), overrides in zip(runs, words, strict=True):
        texts: list[str] = []
        for word in sorted(overrides, key=lambda word: word in shared):
            key, _, value = word.partition("=")
            if key == "model":
                model = value
            elif (
                key.split(".")[0] not in UNTOLD
                and "storage_options" not in key
                and word not in SOURCES
            ):
                value = value[:8] if key == "from" else _short(value)  # the beginning of a run's id
                texts.append(f"{key.rpartition('.')[2]}={value}")

        name = textwrap.shorten(
            " ".join([f"{prefix}{model}", *texts]), LONGEST_NAME, placeholder=" ..."
        )
        bases.append(name)
        names.append(f"{name} ({bases.count(name)})" if name in bases[:-1] else name)

    return names


def _short(value: str) -> str:
    """Return a value as names have it: of a long path its end, of another text its beginning."""
    value = value.strip(QUOTES)
    if len(value) <= LONGEST_VALUE + 4:
        return value
    return f"…{value[-LONGEST_VALUE:]}" if "/" in value else f"{value[:LONGEST_VALUE]}…"
