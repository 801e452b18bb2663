"""The command `tipcast JOB key=value ...`: compose the configuration, run the job, end with a
documented exit code.
"""

import atexit
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, final

from tipcast import __version__, end_quietly
from tipcast.config.disk import use_own_folder
from tipcast.config.errors import TipcastError, unknown
from tipcast.config.schema import JOBS
from tipcast.config.streams import check_folder, end_error, show, tell
from tipcast.measure.progress import shown

if TYPE_CHECKING:
    from tipcast.api import Composed

LEVELS = {
    "-q": logging.WARNING,
    "--quiet": logging.WARNING,
    "-v": logging.DEBUG,
    "--verbose": logging.DEBUG,
}
"""Flag, anywhere on the command line -> level of what is logged to standard error; the last one
counts.
"""
VERSION = {"--version", "-V"}
COMPLETION = {"--shell-completion", "-sc"}

DEBUG = threading.Event()  # set once a configuration asks for tracebacks
OWN_PROCESS = threading.Event()  # set where the command has the process to itself
# jobs that are sure to need workers; `score` looks at its files first
AHEAD = {"train", "sweep", "promote"}
# jobs without a run of their own, which `mlflow run` gives one
UNRECORDED = {"prepare", "doctor", "inspect"}
INTERRUPTED = 130
TERMINATED = 143
LOOK_S = 0.25
"""How often it is looked whether what a signal has raised still ends the job, in seconds."""
CLOSING_S = 20.0
"""For how many seconds after Ctrl-C or SIGTERM another one is ignored: runs and clusters are closed
meanwhile.
"""
FOLLOW_S = 0.5
"""How often a job that `mlflow run` started looks whether its launcher is still there, in
seconds.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job of a command line without the program's name, by default the process's; return
    the exit code.
    """
    DEBUG.clear()
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word not in LEVELS]
    if VERSION & set(words[:2]) or not words or words[0] in {"--help", "-h"}:
        return _guarded(lambda: _explain(words))

    if arguments is None:
        OWN_PROCESS.set()
        # no process that is started imports what lies in its working folder
        os.environ["PYTHONSAFEPATH"] = "1"
        use_own_folder()
        # Python looks for garbage among all that the libraries made, for a second, at its end
        atexit.register(gc.freeze)

    with shown(next((LEVELS[word] for word in reversed(given) if word in LEVELS), logging.INFO)):
        return _guarded(lambda: _run(words[0], words[1:]))


def _explain(words: list[str]) -> int:
    """Print the version, or how the command is used."""
    if VERSION & set(words[:2]):
        show(f"tipcast {__version__}")
        return 0
    from tipcast.config.help import usage

    show(usage())
    return 0 if words else 2


def _run(job: str, arguments: list[str]) -> int:
    if COMPLETION & {job, *arguments[:1]}:
        from tipcast.config.compose import complete

        complete([word for word in (job, *arguments) if "=" in word])
        return 0
    if job not in JOBS:
        raise unknown("tipcast", "job", job, JOBS, "C008")
    check_folder()
    from tipcast.api import compose_jobs
    from tipcast.compute.forkserver import waiting

    os.environ.update(waiting())  # before any OpenMP library is loaded; inherited by the workers
    for composed in compose_jobs(job, arguments):
        if composed.config.debug:
            DEBUG.set()
        if OWN_PROCESS.is_set():
            _load_ahead(composed)
        if "MLFLOW_RUN_ID" in os.environ and job in UNRECORDED:
            from tipcast.jobs.run_context import run_names
            from tipcast.tracking.lifecycle import mark_launched

            mark_launched(name=run_names([(job, composed.command)])[0])
        composed.run()
    return 0


def _load_ahead(composed: "Composed") -> None:
    """Let the libraries of worker processes load while this process loads its own."""
    from tipcast.compute import forkserver
    from tipcast.config import dask_settings

    dask_settings.check()  # which those processes would end at
    forkserver.own_process = True
    if composed.job in AHEAD:
        config = composed.config
        # not checked yet, and a repeated run may have named it
        classes = (
            {"cpu": config.model.cpu, "gpu": config.model.gpu} if hasattr(config, "model") else {}
        )
        named = classes.get(config.backend.name) or ""
        module = (
            named.rpartition(".")[0]
            if named.startswith("tipcast.models.")
            else "tipcast.models.library"
        )
        forkserver.start_ahead(config.cluster, [module])


def _guarded(run: Callable[[], int]) -> int:
    """Turn every ending into one line on standard error and an exit code."""
    stop = _Stop()
    before = dict[int, Any]()
    if threading.current_thread() is threading.main_thread():  # no other may
        before = {
            number: signal.getsignal(number)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        }
        for number, handler in before.items():
            # nohup ignores
            unset = handler in {signal.SIG_DFL, signal.default_int_handler, end_quietly}
            if number == signal.SIGTERM or unset:
                signal.signal(number, stop)
    if "MLFLOW_RUN_ID" in os.environ and _launched():
        threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    dropped = sys.unraisablehook
    sys.unraisablehook = stop.dropped
    try:
        return run()
    except TipcastError as problem:
        if DEBUG.is_set():
            traceback.print_exc()
        if "MLFLOW_RUN_ID" in os.environ:  # `mlflow run` opened a run that no job has joined yet
            from tipcast.tracking.lifecycle import mark_launched

            mark_launched(problem=problem)
        tell(problem)
        return problem.exit_code
    except ENDINGS as problem:
        stop.end()
        notes: list[str] = []  # that a run was closed
        cause: BaseException | None = problem
        while cause:  # closing may have failed in turn
            notes += getattr(cause, "__notes__", [])
            cause = cause.__context__
        interrupted = isinstance(problem, KeyboardInterrupt)
        tell(": ".join(["interrupted" if interrupted else "terminated", *dict.fromkeys(notes)]))
        return INTERRUPTED if interrupted else TERMINATED
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        stop.end()
        end_error()
        if not OWN_PROCESS.is_set():  # the process goes on after the job
            sys.unraisablehook = dropped
            for number, handler in before.items():
                signal.signal(number, handler)


class _Terminated(SystemExit):
    """SIGTERM arrived; raised in the main thread so that runs and clusters are closed on the way
    out.
    """


ENDINGS = (KeyboardInterrupt, _Terminated)
"""What signals that end the job are raised as."""


@final
class _Stop:
    """The handler of signals that end the job: the first one is raised, others must not cut the
    closing off.

    A library may swallow what is raised: in an ``except BaseException``, or in a callback of the
    garbage collector, where Python drops it. The signal is then sent again.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._over = threading.Event()

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        first = not self._until
        if time.monotonic() < self._until and not self._lost():
            return
        self._until = time.monotonic() + CLOSING_S
        if first:
            threading.Thread(target=self._watch, args=(number,), daemon=True).start()
        raise KeyboardInterrupt if number == signal.SIGINT else _Terminated(128 + number)

    def end(self) -> None:
        """Send no signal again: the job has ended."""
        self._over.set()

    def dropped(self, what: "sys.UnraisableHookArgs") -> None:
        """Say what Python has dropped, unless a signal came: what it has cut off may fail to clean
        up after itself.
        """
        if not self._until:
            sys.__unraisablehook__(what)

    def _watch(self, number: int) -> None:
        main = threading.main_thread().ident
        while main and not self._over.wait(LOOK_S):
            if self._lost():
                signal.pthread_kill(main, number)

    def _lost(self) -> bool:
        """Tell whether the job goes on as if no signal had come."""
        return not (self._over.is_set() or _unwinding())


def _unwinding() -> bool:
    """Tell whether the main thread is in an ``except``, ``finally`` or ``__exit__`` that a signal
    has led to.
    """
    active: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    # Python 3.11 gives type, value and traceback
    problem: BaseException | None = active[1] if isinstance(active, tuple) else active
    while problem and not isinstance(problem, ENDINGS):
        problem = problem.__context__
    return problem is not None


def _launched() -> bool:
    """Tell whether `mlflow run` started this process: others that set MLFLOW_RUN_ID may leave a job
    to itself.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        return any(
            "mlflow" in word for above in psutil.Process().parents() for word in above.cmdline()[:3]
        )
    return False


def _follow(parent: int) -> None:
    """Terminate this process once `mlflow run`, its parent, is gone: a signal to the launcher does
    not reach us.
    """
    while os.getppid() == parent:
        time.sleep(FOLLOW_S)
    os.kill(os.getpid(), signal.SIGTERM)
