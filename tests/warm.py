"""`tipcast ...` in processes forked from one that has loaded the libraries: what a job does,
without its imports.

The server process is :mod:`multiprocessing`'s own. It starts no thread before it forks but
OpenBLAS's, which survive.
"""

import atexit
import contextlib
import multiprocessing.context
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import dask
import pytest
import scipy.special  # noqa: F401 - early, see tipcast.jobs.train

from tipcast import cli
from tipcast.config import disk
from tipcast.evaluation.plots import page
from tipcast.models import native
from tipcast.tracking import model_fetch

ROOT = Path(__file__).resolve().parent.parent
PRELOADED = (
    "bokeh.plotting",
    "matplotlib.backends.backend_agg",
    "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.pyfunc",
    "mlflow.store.model_registry.sqlalchemy_store",
    "pyarrow.parquet",
    "skops.io",
    "sklearn.ensemble",
    "xgboost",
    *(f"tipcast.jobs.{job}" for job in ("train", "sweep", "score", "promote", "prepare")),
)

BLANK = b""
"""A picture of 60 pixels, in the server and what is forked from it."""


class Job(multiprocessing.context.ForkServerProcess):
    """With what tests use of a :class:`subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that ended the process; None while it runs."""
        return self.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; :class:`subprocess.TimeoutExpired` after so many seconds."""
        self.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("tipcast", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def environment() -> dict[str, str]:
    """Return the environment without MLflow's variables, in which tipcast can be imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    return kept | {
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))
        )
    }


def serve() -> None:
    """Start the process that others are forked from, where it does not run: Dask's workers may be
    too.
    """
    forkserver.set_forkserver_preload([__name__])
    with pytest.MonkeyPatch.context() as patch:  # it keeps the variables that it starts with
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
        patch.setenv("TIPCAST_WARM", "1")
        forkserver.ensure_running()


def start(
    arguments: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    before: Callable[[], None] | None = None,
) -> Job:
    """Start ``tipcast ARGUMENTS``, or the script that they begin with, in a folder, with these
    variables and no others.

    The process leads a session of its own and writes ``stdout`` and ``stderr`` into the folder; it
    calls ``before`` first, which must be importable.
    """
    serve()
    process = Job(target=_run, args=(list(arguments), folder, dict(variables), before))
    process.start()
    return process


def _run(
    arguments: list[str],
    folder: Path,
    variables: dict[str, str],
    before: Callable[[], None] | None = None,
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    dask.config.refresh()  # it has read other variables
    tempfile.tempdir = None
    disk.SHARED = Path(tempfile.gettempdir())
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    model_fetch._parsed = parsed_here
    # no such test looks at pictures, and drawing is half of what a small job computes
    page.png = lambda _: BLANK
    script = arguments[0].endswith(".py")
    sys.argv = arguments if script else ["tipcast", *arguments]
    if before:
        before()
    try:
        if script:
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            sys.exit(cli.main())
    finally:
        atexit._run_exitfuncs()  # multiprocessing's children leave them out


def parsed_here(path: Path, format: str, where: str) -> dict[str, Any]:
    """Parse a model without the process of its own that a file of unknown origin gets."""
    return native.describe_model(path, format)


if os.environ.get("TIPCAST_WARM"):  # in the server, before it forks
    import gc
    import importlib

    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)

    from mlflow.utils import requirements_utils
    from sqlalchemy.orm import configure_mappers

    from tipcast.config.compose import compose

    # what each process would make for itself: the schemas and Hydra's parser, MLflow's tables and
    # its list of packages
    page.DPI = 10
    BLANK = page.png(page.page("", "", "", "")[0])
    compose("train", [])
    configure_mappers()
    requirements_utils._init_packages_to_modules_map()
    gc.collect()
    gc.freeze()  # what is loaded stays
    gc.enable()
