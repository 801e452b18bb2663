"""The command `tipcast JOB key=value ...`: compose the configuration, run the job, end with a documented exit code."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from tipcast import __version__
from tipcast.config.errors import TipcastError

JOBS = {
    "train": "fit a model on one period of trips, test it on a later one, log and register it",
    "sweep": "try many parameters in parallel, fit the best, log it with a leaderboard of all",
    "promote": "move an alias, as champion, to a registered version that is not worse than its holder",
    "compare": "say what differs between two runs: tipcast compare RUN RUN",
    "score": "score trips with a registered model, over all workers, and swap the scores in as a whole",
    "prepare": "write trips as Parquet months that spread over workers",
    "doctor": "say what would fail with this configuration on this machine, and how to mend it",
}
"""Job name (conf/NAME.yaml, tipcast.jobs.NAME) -> what it does."""

DOCTOR = "doctor"

DEBUG = threading.Event()
"""Set once a configuration asks for tracebacks."""
INTERRUPTED = 130
TERMINATED = 143
AGAIN_S = 0.05
"""After how many seconds a signal that was dropped is sent again."""
FOLLOW_S = 0.5
"""How often a job that `mlflow run` started looks whether its launcher is still there, in seconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job and return the exit code of the process.

    Parameters
    ----------
    arguments
        The command line without the program's name; by default that of the process.

    """
    DEBUG.clear()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in {"--version", "-V"}:
        print(f"tipcast {__version__}")
        return 0
    if not words or words[0] in {"--help", "-h"}:
        print(usage())
        return 0 if words else 2
    return _guarded(lambda: _run(words[0], words[1:]))


def usage() -> str:
    """Return the text of `tipcast --help`."""
    jobs = "\n".join(f"  {name:<9} {what}" for name, what in JOBS.items())
    return (
        f"tipcast {__version__}: experiment tracking for taxi-tip models\n\n"
        f"usage: tipcast JOB [key=value ...]\n\njobs\n{jobs}\n\n"
        "tipcast JOB --help      the job's configuration groups and keys\n"
        "tipcast JOB --cfg job   the composed configuration, nothing is run\n"
        "tipcast --version"
    )


def _run(job: str, arguments: list[str]) -> int:
    if job not in JOBS:
        raise TipcastError("C008", job, "no such job", f"use one of {', '.join(JOBS)}; see tipcast --help")
    from tipcast.backends import gpus
    from tipcast.backends.waiting import waiting
    from tipcast.config.arguments import as_given, named, to_overrides
    from tipcast.config.compose import compose, to_object
    from tipcast.config.plain import redact

    os.environ.update(waiting())  # before any OpenMP library is loaded; inherited by the workers
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("tipcast").setLevel(logging.INFO)
    overrides = to_overrides(named(job, arguments))
    for composed in compose(job, overrides):
        specification = to_object(composed.config)
        if specification.debug:
            DEBUG.set()
        if job != DOCTOR and hasattr(specification, "cluster"):  # the doctor tells it in its table
            gpus.check(specification.backend, specification.cluster)  # before seconds go by loading libraries
        run: Callable[[Any, str], None] = importlib.import_module(f"tipcast.jobs.{job}").run
        given = [redact(as_given(override)) for override in composed.overrides]
        run(specification, shlex.join(["tipcast", job, *given]))
    return 0


def _guarded(run: Callable[[], int]) -> int:
    """Turn every ending into one line on standard error and an exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, _terminate)
    if "MLFLOW_RUN_ID" in os.environ and _launched():
        threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    dropped, sys.unraisablehook = sys.unraisablehook, _again
    try:
        return run()
    except TipcastError as problem:
        if DEBUG.is_set():
            traceback.print_exc()
        if "MLFLOW_RUN_ID" in os.environ:  # `mlflow run` opened a run that no job has joined yet
            from tipcast.tracking.failure import tag_run

            tag_run(problem)
        print(problem, file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one must not change how the process ends
        print("interrupted: a run that was open is closed as KILLED", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _Terminated:
        print("terminated: a run that was open is closed as KILLED", file=sys.stderr)
        return TERMINATED
    finally:
        sys.unraisablehook = dropped


class _Terminated(SystemExit):
    """SIGTERM arrived; raised in the main thread so that runs and clusters are closed on the way out."""


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise _Terminated(128 + number)


def _again(dropped: sys.UnraisableHookArgs) -> None:
    """Send a signal again that came in a callback of the garbage collector, where Python drops what is raised."""
    if isinstance(dropped.exc_value, KeyboardInterrupt | _Terminated):
        number = signal.SIGINT if isinstance(dropped.exc_value, KeyboardInterrupt) else signal.SIGTERM
        threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, number)).start()
    else:
        sys.__unraisablehook__(dropped)


def _launched() -> bool:
    """Tell whether `mlflow run` started this process: others that set MLFLOW_RUN_ID may leave a job to itself."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return any("mlflow" in word for above in psutil.Process().parents() for word in above.cmdline()[:3])
    return False


def _follow(parent: int) -> None:
    """Terminate this process once `mlflow run`, its parent, is gone: a signal to the launcher does not reach us."""
    while os.getppid() == parent:
        time.sleep(FOLLOW_S)
    os.kill(os.getpid(), signal.SIGTERM)
