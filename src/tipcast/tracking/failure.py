"""The run that `mlflow run` opened, told about a mistake that was found before the job joined it."""

from __future__ import annotations

import contextlib
import os

from tipcast.config.errors import TipcastError


def tag_run(problem: TipcastError) -> None:
    """Set the tags ``error.code`` and ``error.message`` on the run of MLFLOW_RUN_ID.

    Does nothing where the variable is not set: then no run waits, or the job has joined it and closes it itself. A
    store that fails is passed over, for the mistake is told on standard error anyway.

    Parameters
    ----------
    problem
        The mistake.

    """
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if not run_id:
        return
    with contextlib.suppress(Exception):
        from tipcast.config.schema import TrackingSpec
        from tipcast.tracking.run import Run
        from tipcast.tracking.store import open_store, resolve

        spec = TrackingSpec(max_retries=0, wait_s=5.0)  # the launcher has just used the store: no patience
        Run(run_id, "", resolve(spec), open_store(spec)).set_tags(
            {"error.code": problem.code, "error.message": problem}
        )
