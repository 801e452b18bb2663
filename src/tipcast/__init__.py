"""tipcast: training, search and scoring of models, tracked by MLflow, from two CPU cores to many
GPUs.
"""

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("tipcast")
except PackageNotFoundError:  # run from a checkout with PYTHONPATH=src
    __version__ = "0.2.0"

__all__ = [
    "Result",
    "TipcastError",
    "__version__",
    "ladder",
    "prepare",
    "promote",
    "run_job",
    "score",
    "sweep",
    "train",
]


def end_quietly(*_: object) -> None:
    """Handle Ctrl-C while the command loads: nothing has begun that must be closed."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def __getattr__(name: str) -> Any:
    """Import the jobs' functions on first use: what they need takes seconds."""
    if name in __all__:
        return getattr(import_module("tipcast.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, of which some are not imported yet."""
    return __all__
