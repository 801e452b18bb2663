"""Estimators: looked up by model and device, and the few classes that libraries lack."""
