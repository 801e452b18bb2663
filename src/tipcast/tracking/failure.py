"""What a failure leaves: a run that `mlflow run` opened and that no job has joined, and a transaction of SQLite's."""

from __future__ import annotations

import contextlib
import os
import traceback

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


def release(problem: BaseException) -> None:
    """Free what the calls that ended with an exception still hold.

    A signal in mid-statement leaves SQLAlchemy's cursor to the traceback's frames, and SQLite keeps the transaction of
    a closed connection, and with it the database's lock, until its last cursor is gone.
    """
    cause: BaseException | None = problem
    while cause:
        traceback.clear_frames(cause.__traceback__)  # leaves frames that still run
        cause = cause.__context__
