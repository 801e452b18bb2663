"""Trials of a sweep as child runs, which only the driver opens, writes and closes."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from tipcast.tracking.batches import NONE, Curves, Facts, write
from tipcast.tracking.failures import clear_frames
from tipcast.tracking.run import ORIGIN, Run, context_tags
from tipcast.tracking.store import all_runs
from tipcast.tracking.views import VIEW, charts_view

KEY = "trial.key"
"""Tag of a child: the name that the trial has in every attempt."""
NUMBER = "trial.number"
"""Tag of a child: the trial's place in the order of proposal, from 0."""
ATTEMPT = "trial.attempt"
"""Tag of a child: the number of the attempt, from 1."""
PROPOSED = "trial.params"
"""Tag of a child: the trial's parameters as JSON."""


@final
class Children:
    """The child runs of a parent."""

    def __init__(self, parent: Run) -> None:
        self._parent = parent
        tags = parent.mlflow_run().data.tags
        self._tags = context_tags() | {
            name: value for name, value in tags.items() if name.startswith(ORIGIN)
        }

    def begin(self, number: int, key: str, attempt: int, params: Mapping[str, object]) -> str:
        """Open the run of an attempt at a trial; return its id."""
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
        """Write the result of an attempt in one batch, and close its run. All values are finite."""
        write(self._parent.store, run_id, tags=tags, params=params, curves=curves)
        self._parent.store.set_terminated(run_id, status)

    @contextlib.contextmanager
    def closing_open(self, reason: str) -> Iterator[None]:
        """Close children that are still open as KILLED when the block ends with an exception."""
        try:
            yield
        except BaseException as problem:
            clear_frames(problem)
            # A store that fails now must not hide the first problem.
            with contextlib.suppress(Exception):
                self.close_open(reason)
            raise

    def close_open(self, reason: str) -> None:
        """Close open children as KILLED. The next command closes those that the store refuses."""
        for run in self.runs():
            if run.info.status == "RUNNING":
                self.end(run.info.run_id, "KILLED", tags={"error.message": reason})

    def runs(self) -> list[MlflowRun]:
        """Return the child runs as the store has them, by number and attempt."""
        trials = [run for run in children_of(self._parent) if NUMBER in run.data.tags]
        return sorted(
            trials, key=lambda run: (int(run.data.tags[NUMBER]), int(run.data.tags[ATTEMPT]))
        )

    def charts(self, metric: str, params: Sequence[str], *, maximize: bool = True) -> str:
        """Let MLflow's page of the children begin with charts of a metric against parameters.

        Returns the page's address, relative to the store's server. The best children come first.
        """
        parent = self._parent
        view = charts_view(_is_below(parent), metric, params, maximize=maximize)
        with contextlib.suppress(MlflowException):  # another process may set a tag at the same time
            parent.store.set_experiment_tag(parent.experiment_id, VIEW + parent.id, view)

        return (
            f"#/experiments/{parent.experiment_id}/runs?viewStateShareKey={parent.id}"
            "&compareRunsMode=CHART&workflowType=machine_learning"
        )


def children_of(run: Run) -> list[MlflowRun]:
    """Return the active runs below a run of the current store, all of them in its experiment."""
    return all_runs(run.store, _is_below(run), run.experiment_id)


def _is_below(run: Run) -> str:
    """Return MLflow's condition for the runs below a run."""
    return f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run.id}'"
