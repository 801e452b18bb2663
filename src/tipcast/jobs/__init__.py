"""Jobs: one page per command that reads top to bottom."""

# Before MLflow: skops, when it is imported, looks for each of SciPy's functions in all modules in their order, which
# takes seconds where SciPy comes after thousands of others.
import scipy.special  # noqa: F401
