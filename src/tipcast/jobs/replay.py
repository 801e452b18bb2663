"""`tipcast replay FILE`: bring what a job has written to an offline store to its server."""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact_address
from tipcast.config.schema import ReplayConfig, TrackingSpec
from tipcast.jobs import end_job
from tipcast.tracking.failures import store_errors
from tipcast.tracking.lasting_client import server_of
from tipcast.tracking.replay import replay as replay_runs
from tipcast.tracking.store import open_store

LOG = logging.getLogger("tipcast")


def run(config: ReplayConfig, command: str) -> Mapping[str, Any]:
    """Bring the runs of an offline store to a server; return what was brought.

    The server is that of ``tracking.uri``, of MLFLOW_TRACKING_URI, or the one that went away.
    Raises T012 for a file that is no offline store, S002 if a job still writes to it, and T001 to
    T005 if the server fails.
    """
    file = Path(config.file)
    source_spec = TrackingSpec(uri=f"sqlite:///{file.absolute()}")
    if not file.is_file():
        raise TipcastError("T012", file, "is not there", "give the mlflow.db of an offline store")

    chosen = config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")  # MLflow will set it
    source = open_store(source_spec)
    with store_errors(source.tracking_uri):
        server = chosen or server_of(source)
    if server is None:
        fix = "give the mlflow.db of a folder tipcast-offline-..., or set tracking.uri"
        raise TipcastError("T012", file, "names no server that went away", fix)

    target = open_store(replace(config.tracking, uri=server))
    with store_errors(server):
        replayed = replay_runs(source, target)

    if not replayed.runs:
        LOG.info("%s already has all of this", redact_address(server))
    result = {
        "tracking_uri": redact_address(server),
        "runs": replayed.runs,
        "models": replayed.models,
        "registered": replayed.versions,
        "command": command,
    }
    lines = {"runs": len(replayed.runs), "models": len(replayed.models)}
    return end_job(result, config.print, lines={**lines, "registered": replayed.versions})
