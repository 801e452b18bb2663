"""tipcast: MLflow experiment tracking for taxi-tip models, from two CPU cores to many GPUs."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tipcast")
except PackageNotFoundError:  # run from a checkout with PYTHONPATH=src
    __version__ = "0.1.0"
