"""Tracking, the only room that talks to MLflow: run life cycle, registry and the portable model."""

import os


def disable_telemetry() -> None:
    """Keep MLflow from sending telemetry, in this process and in those that it starts.

    If the user has set the variable, its value stays.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


# MLflow makes its telemetry client while it is imported, so this comes before any of the room's
# modules.
disable_telemetry()
