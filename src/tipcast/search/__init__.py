"""Search: proposing parameters, and trying them as tasks on the workers."""

MAX_TRIALS = 10_000
"""Trials of a search, and combinations of a grid; here, where it costs the check before a job no
library.
"""
