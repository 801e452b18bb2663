"""Tracking: the only room that talks to MLflow: run life cycle, registry and the portable model."""
