"""The trials of a sweep as child runs: opened, written with one batch and closed by the driver
alone.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, final
from urllib.parse import quote

from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from tipcast.tracking.failures import release
from tipcast.tracking.run import ORIGIN, Run, context_tags
from tipcast.tracking.store import all_runs
from tipcast.tracking.writing import NONE, Curves, Facts, write

KEY = "trial.key"
"""Tag of a child: the name that the trial has in every attempt."""
NUMBER = "trial.number"
"""Tag of a child: the trial's place in the order of proposal, from 0."""
ATTEMPT = "trial.attempt"
"""Tag of a child: how often the trial was begun, from 1."""
PROPOSED = "trial.params"
"""Tag of a child: the trial's parameters as JSON."""


@final
class Children:
    """The child runs of a parent."""

    def __init__(self, parent: Run) -> None:
        self._parent = parent
        tags = parent.stored().data.tags
        self._tags = context_tags() | {
            name: value for name, value in tags.items() if name.startswith(ORIGIN)
        }

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
        run = self._parent.store.create_run(
            self._parent.experiment_id, run_name=f"trial {number:03d}", tags=tags
        )
        return str(run.info.run_id)

    def end(
        self,
        run_id: str,
        status: str,
        *,
        tags: Facts = NONE,
        params: Facts = NONE,
        curves: Curves = NONE,
    ) -> None:
        """Write what came of an attempt in one batch, and close its run. All values are finite."""
        write(self._parent.store, run_id, tags=tags, params=params, curves=curves)
        self._parent.store.set_terminated(run_id, status)

    @contextlib.contextmanager
    def closing_open(self, reason: str) -> Iterator[None]:
        """Close children that are still open as KILLED when the block ends with an exception."""
        try:
            yield
        except BaseException as problem:
            release(problem)
            # A store that fails now must not hide the first problem.
            with contextlib.suppress(Exception):
                self.close_open(reason)
            raise

    def close_open(self, reason: str) -> None:
        """Close all that is open as KILLED; the next command closes what the store refuses."""
        for run in self.runs():
            if run.info.status == "RUNNING":
                self.end(run.info.run_id, "KILLED", tags={"error.message": reason})

    def runs(self) -> list[Any]:
        """Return the child runs as the store has them, by number and attempt."""
        trials = [run for run in children_of(self._parent) if NUMBER in run.data.tags]
        return sorted(
            trials, key=lambda run: (int(run.data.tags[NUMBER]), int(run.data.tags[ATTEMPT]))
        )

    def charts(self, metric: str, *, maximize: bool = True) -> str:
        """Return the page that shows the children as charts, best first, relative to those of the
        store's server.
        """
        wanted = quote(f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{self._parent.id}'", safe="")
        order = quote(f"metrics.`{metric}`", safe="")
        return (
            f"#/experiments/{self._parent.experiment_id}/runs?searchFilter={wanted}"
            f"&orderByKey={order}&orderByAsc={str(not maximize).lower()}"
            "&compareRunsMode=CHART&workflowType=machine_learning"
        )


def children_of(run: Run) -> list[Any]:
    """Return the active runs below a run of the current store: MLflow keeps them in its
    experiment.
    """
    return all_runs(f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run.id}'", run.experiment_id)
