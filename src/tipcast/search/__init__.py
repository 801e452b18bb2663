"""Search: proposing parameters, trying them as tasks on the workers, and giving up on the worst early."""

MOST = 10_000
"""Trials of a search, and combinations of a grid; here, where it costs the check before a job no library."""
