"""The trials of a sweep as child runs: opened, written with one batch and closed by the driver alone."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final
from urllib.parse import quote, urlsplit

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_SOURCE_NAME

from tipcast.config.errors import TipcastError
from tipcast.tracking import process
from tipcast.tracking.abandoned import STATE, pages
from tipcast.tracking.run import MAX_PARAM, MAX_TAG, Run, set_tags
from tipcast.tracking.store import is_locked, redact, release

KEY, NUMBER, ATTEMPT, PROPOSED = "trial.key", "trial.number", "trial.attempt", "trial.params"
"""Tags of a child: its name in every attempt, its place, the attempt, its parameters as JSON."""


@dataclass(frozen=True)
class Child:
    """A child run as the store has it."""

    run_id: str
    number: int
    attempt: int
    status: str
    params: Mapping[str, Any]
    """As proposed."""
    metrics: Mapping[str, float]
    tags: Mapping[str, str]


@final
class Children:
    """The child runs of a parent."""

    def __init__(self, parent: Run) -> None:
        self._parent = parent
        self._tags = resolve_tags({MLFLOW_SOURCE_NAME: "tipcast", **process.tags()})
        self.open: dict[int, str] = {}
        """Trial -> its run that is not closed."""
        self._rests: set[str] = set()
        """Runs that were finished before and opened again."""

    def begin(self, number: int, key: str, attempt: int, params: Mapping[str, Any]) -> str:
        """Open the run of an attempt at a trial."""
        tags = {
            **self._tags,
            MLFLOW_PARENT_RUN_ID: self._parent.id,
            "job": "trial",
            KEY: key,
            NUMBER: str(number),
            ATTEMPT: str(attempt),
            PROPOSED: json.dumps(dict(params)),
            STATE: "running",
        }
        run = self._parent.client.create_run(self._parent.experiment_id, run_name=f"trial {number:03d}", tags=tags)
        self.open[number] = str(run.info.run_id)
        return self.open[number]

    def reopen(self, number: int, run_id: str) -> None:
        """Go on with a trial that was given more to do."""
        set_tags(self._parent.client, run_id, process.tags())
        self._parent.client.update_run(run_id, status="RUNNING")
        self.open[number], self._rests = run_id, self._rests | {run_id}

    def rest(self, number: int) -> str:
        """Close the run of a trial that was given more to do and did not come to it: what it has stays."""
        return self._close(number, "FINISHED", tags=_tags({STATE: "finished"}))

    def end(
        self,
        number: int,
        *,
        params: Mapping[str, Any],
        metrics: Mapping[str, float],
        tags: Mapping[str, object],
        curves: Mapping[str, Mapping[int, float]],
        step: int = 0,
    ) -> str:
        """Write what came of a trial with one batch, and close its run as FINISHED.

        Parameters
        ----------
        number
            Of the trial.
        params, metrics, tags
            All finite.
        curves
            Metric -> step -> value.
        step
            Of ``metrics``.

        Returns
        -------
        str
            The run.

        """
        now = int(time.time() * 1000)
        points = [Metric(name, float(value), now, step) for name, value in metrics.items()]
        points += [Metric(name, float(value), now, at) for name, of in curves.items() for at, value in of.items()]
        return self._close(
            number,
            "FINISHED",
            metrics=points,
            params=[Param(name, str(value)[:MAX_PARAM]) for name, value in params.items()],
            tags=_tags({STATE: "finished", **tags}),
        )

    def fail(self, number: int, code: str, message: object) -> str:
        """Close the run of a trial that failed for good."""
        return self._close(
            number, "FAILED", tags=_tags({STATE: "failed", "error.code": code, "error.message": message})
        )

    def kill(self, number: int, reason: str) -> str:
        """Close the run of an attempt that was cut off; a trial that was given more to do keeps what it has."""
        if self.open[number] in self._rests:
            return self.rest(number)
        return self._close(number, "KILLED", tags=_tags({STATE: "killed", "error.message": reason}))

    def _close(self, number: int, status: str, **batch: Any) -> str:
        run_id = self.open[number]
        self._parent.client.log_batch(run_id, **batch)
        self._parent.client.set_terminated(run_id, status)
        del self.open[number]
        return run_id

    @contextlib.contextmanager
    def closed(self, reason: str) -> Iterator[None]:
        """Close whatever is open as KILLED, when a block ends otherwise than well."""
        try:
            yield
        except BaseException as problem:
            release(problem)
            with contextlib.suppress(Exception):  # a store that fails now must not hide the first problem
                self._end_all(reason)
            raise

    def _end_all(self, reason: str) -> None:
        """Close all that is open; of a database that stays locked one call waits, and the next command closes the rest.

        Raises
        ------
        mlflow.exceptions.MlflowException
            The database is locked, or strays cannot be found.

        """
        for number in list(self.open):
            try:
                self.kill(number, reason)
            except MlflowException as problem:  # such as of a child that was deleted
                if is_locked(problem):
                    raise
        self._end_strays(reason)

    def _end_strays(self, reason: str) -> None:
        """Close children that were made, but whose id a signal kept from coming back."""
        for child in self.found():
            if child.status == "RUNNING" and child.run_id not in self.open.values():
                self.open[child.number] = child.run_id
                self.kill(child.number, reason)

    def found(self) -> list[Child]:
        """Return the children that the store has, by number and attempt."""
        parent = self._parent.client.get_run(self._parent.id)
        runs = children_of(self._parent.client, parent)
        children = [_child(run) for run in runs if NUMBER in run.data.tags]
        return sorted(children, key=lambda child: (child.number, child.attempt))

    def curve(self, run_id: str, name: str) -> list[float]:
        """Return a curve's values, by their steps."""
        points = self._parent.client.get_metric_history(run_id, name)
        return [float(point.value) for point in sorted(points, key=lambda point: (point.step, point.timestamp))]

    def link(self, run_id: str) -> str:
        """Return a child's address, relative to the pages of the store's server."""
        return f"#/experiments/{self._parent.experiment_id}/runs/{run_id}?workflowType=machine_learning"

    def charts(self, metric: str, *, maximize: bool = True) -> str:
        """Return where a browser compares the children as charts, best first."""
        page = charts(self._parent.experiment_id, self._parent.id, metric, maximize=maximize)
        if urlsplit(self._parent.store).scheme in {"http", "https"}:
            return f"{redact(self._parent.store).rstrip('/')}/{page}"
        return f"http://127.0.0.1:5000/{page}"


def sweep_run(client: Any, run_id: str, job: str = "sweep") -> Any:
    """Return the run of a sweep, or of another job that has children.

    Raises
    ------
    TipcastError
        S003 where there is none of that id.

    """
    try:
        run = client.get_run(run_id)
    except MlflowException as problem:
        raise TipcastError("S003", f"run {run_id}", "is not there", f"name the run of a {job}") from problem
    if run.data.tags.get("job") != job or run.info.lifecycle_stage != "active":
        raise TipcastError("S003", f"run {run_id}", f"is no {job}", f"name the run of a {job}")
    return run


def children_of(client: Any, run: Any) -> list[Any]:
    """Return the active runs below a run."""
    wanted = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run.info.run_id}'"
    return list(pages(client.search_runs, [run.info.experiment_id], wanted))


def clear_problem(client: Any, run_id: str) -> None:
    """Take away what the run of a sweep says of how it ended before."""
    for name in {"error.code", "error.message"} & set(client.get_run(run_id).data.tags):
        client.delete_tag(run_id, name)


def charts(experiment_id: str, parent: str, metric: str, *, maximize: bool = True) -> str:
    """Return the page that shows a sweep's children as charts, best first."""
    wanted = quote(f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{parent}'", safe="")
    order = quote(f"metrics.`{metric}`", safe="")
    return (
        f"#/experiments/{experiment_id}/runs?searchFilter={wanted}&orderByKey={order}"
        f"&orderByAsc={str(not maximize).lower()}&compareRunsMode=CHART&workflowType=machine_learning"
    )


def _tags(tags: Mapping[str, object]) -> Sequence[RunTag]:
    return [RunTag(name, str(value)[:MAX_TAG]) for name, value in tags.items()]


def _child(run: Any) -> Child:
    tags = dict(run.data.tags)
    return Child(
        run_id=run.info.run_id,
        number=int(tags[NUMBER]),
        attempt=int(tags.get(ATTEMPT, 1)),
        status=run.info.status,
        params=json.loads(tags.get(PROPOSED, "{}")),
        metrics=dict(run.data.metrics),
        tags=tags,
    )
