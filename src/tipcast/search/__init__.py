"""Search: proposing parameters, and trying them as tasks on the workers."""

MAX_TRIALS = 10_000
"""Most trials of a search, and most combinations of a grid. It is here so that the check before a
job loads no library.
"""
TREES = "n_estimators"
"""Parameter that search=halving raises from rung to rung."""
