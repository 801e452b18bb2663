"""The trials of a sweep as child runs: opened, written with one batch and closed by the driver alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final
from urllib.parse import quote

from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_SOURCE_NAME

from tipcast.tracking import process
from tipcast.tracking.run import Run, metric_points, param_values, run_tags
from tipcast.tracking.store import pages, release

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
        }
        run = self._parent.client.create_run(self._parent.experiment_id, run_name=f"trial {number:03d}", tags=tags)
        return str(run.info.run_id)

    def end(
        self,
        run_id: str,
        *,
        params: Mapping[str, Any],
        metrics: Mapping[str, float],
        curves: Mapping[str, Mapping[int, float]],
    ) -> None:
        """Write what came of a trial with one batch, all finite, and close its run as FINISHED.

        ``curves`` has metric -> step -> value.
        """
        points = [(name, value, 0) for name, value in metrics.items()]
        points += [(name, value, at) for name, of in curves.items() for at, value in of.items()]
        self._close(run_id, "FINISHED", {}, metrics=metric_points(points), params=param_values(params))

    def fail(self, run_id: str, code: str, message: object) -> None:
        """Close the run of a trial that failed for good."""
        self._close(run_id, "FAILED", {"error.code": code, "error.message": message})

    def kill(self, run_id: str, reason: str) -> None:
        """Close the run of an attempt that was cut off."""
        self._close(run_id, "KILLED", {"error.message": reason})

    def _close(self, run_id: str, status: str, tags: Mapping[str, object], **batch: Any) -> None:
        self._parent.client.log_batch(run_id, tags=run_tags(tags), **batch)
        self._parent.client.set_terminated(run_id, status)

    @contextlib.contextmanager
    def closed(self, reason: str) -> Iterator[None]:
        """Close what is left open as KILLED, when a block ends otherwise than well."""
        try:
            yield
        except BaseException as problem:
            release(problem)
            with contextlib.suppress(Exception):  # a store that fails now must not hide the first problem
                self.close_open(reason)
            raise

    def close_open(self, reason: str) -> None:
        """Close all that is open as KILLED, also what a signal kept from coming back.

        The next command closes what is left open where the store fails.
        """
        for child in self.found():
            if child.status == "RUNNING":
                self.kill(child.run_id, reason)

    def found(self) -> list[Child]:
        """Return the children that the store has, by number and attempt."""
        parent = self._parent.client.get_run(self._parent.id)
        children = [
            Child(
                run_id=run.info.run_id,
                number=int(run.data.tags[NUMBER]),
                attempt=int(run.data.tags[ATTEMPT]),
                status=run.info.status,
                params=json.loads(run.data.tags[PROPOSED]),
                metrics=run.data.metrics,
                tags=run.data.tags,
            )
            for run in children_of(self._parent.client, parent)
            if NUMBER in run.data.tags
        ]
        return sorted(children, key=lambda child: (child.number, child.attempt))

    def charts(self, metric: str, *, maximize: bool = True) -> str:
        """Return the page that shows the children as charts, best first, relative to those of the store's server."""
        wanted = quote(f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{self._parent.id}'", safe="")
        order = quote(f"metrics.`{metric}`", safe="")
        return (
            f"#/experiments/{self._parent.experiment_id}/runs?searchFilter={wanted}&orderByKey={order}"
            f"&orderByAsc={str(not maximize).lower()}&compareRunsMode=CHART&workflowType=machine_learning"
        )


def children_of(client: Any, run: Any) -> list[Any]:
    """Return the active runs below a run."""
    wanted = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run.info.run_id}'"
    return list(pages(client.search_runs, [run.info.experiment_id], wanted))
