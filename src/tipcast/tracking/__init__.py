"""Tracking: the only room that talks to MLflow: run life cycle, registry and the portable model."""

import os

# MLflow makes its telemetry client while it is imported, so this comes before any of the room's
# modules.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
