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
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, final

from tipcast import __version__, end_quietly
from tipcast.config.disk import use_own_folder
from tipcast.config.errors import TipcastError, is_ending, left_offline
from tipcast.config.jobs import JOBS, find_job
from tipcast.config.streams import check_folder, end_error, show, tell
from tipcast.measure.progress import logging_to_stderr

if TYPE_CHECKING:
    from tipcast.commands import ComposedJob

LOG = logging.getLogger("tipcast")
LEVELS = {
    "-q": logging.WARNING,
    "--quiet": logging.WARNING,
    "-v": logging.DEBUG,
    "--verbose": logging.DEBUG,
}
"""Flag, anywhere on the command line -> level of the log on standard error; the last flag
counts.
"""
VERSION = {"--version", "-V"}
COMPLETION = {"--shell-completion", "-sc"}

DEBUG = threading.Event()  # set once a configuration asks for tracebacks
OWN_PROCESS = threading.Event()  # set where the command has the process to itself
INTERRUPTED = 130
TERMINATED = 143
LOOK_S = 0.25
"""Seconds between two checks that what a signal has raised still ends the job."""
CLOSING_S = 20.0
"""Seconds after Ctrl-C or SIGTERM in which another one is ignored: runs and clusters are closed
meanwhile.
"""
FOLLOW_S = 0.5
"""Seconds between two checks whether the `mlflow run` that started a job still runs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job of a command line and return the exit code.

    ``arguments`` come without the program's name. None means those of the process.
    """
    DEBUG.clear()
    command_line = list(sys.argv[1:])
    if arguments is not None:
        command_line = list(arguments)

    words = [word for word in command_line if word not in LEVELS]
    if VERSION & set(words[:2]) or not words or words[0] in {"--help", "-h"}:
        return _guarded(lambda: _explain(words))

    if arguments is None:
        OWN_PROCESS.set()
        # Child processes import nothing that lies in their working folder.
        os.environ["PYTHONSAFEPATH"] = "1"
        use_own_folder()
        # At its end Python would search all objects of the libraries for garbage, for a second.
        atexit.register(gc.freeze)

    levels = [LEVELS[word] for word in command_line if word in LEVELS]
    with logging_to_stderr([logging.INFO, *levels][-1]):
        return _guarded(lambda: _run(words[0], words[1:]))


def _explain(words: list[str]) -> int:
    """Print the version, or how the command is used."""
    if VERSION & set(words[:2]):
        show(f"tipcast {__version__}")
        return 0
    from tipcast.config.help import usage

    show(usage())
    if not words:
        return 2
    return 0


def _run(name: str, arguments: list[str]) -> int:
    """Run the job of a name with the words that follow it, or print what completes a line."""
    if COMPLETION & {name, *arguments[:1]}:
        from tipcast.config.completion import complete

        complete([word for word in (name, *arguments) if "=" in word])
        return 0

    job = find_job(name)
    check_folder()
    from tipcast.commands import compose_jobs
    from tipcast.compute.forkserver import waiting

    os.environ.update(waiting())  # before any OpenMP library is loaded; inherited by the workers

    jobs = compose_jobs(name, arguments)
    for number, composed in enumerate(jobs, 1):
        if composed.config.debug:
            DEBUG.set()
        if OWN_PROCESS.is_set():
            _load_worker_libraries(composed)
        if "MLFLOW_RUN_ID" in os.environ and not job.has_run:
            _name_launched_run(composed)
        details = composed.run()
        if file := details.get("offline"):
            _name_those_not_run(jobs[number:])
            raise left_offline(file)

    return 0


def _name_those_not_run(jobs: Sequence["ComposedJob"]) -> None:
    """Log the jobs of ``--multirun`` that are not run because the tracking server went away."""
    if jobs:
        commands = "; ".join(job.command for job in jobs)
        LOG.warning("not run because the tracking server went away: %s", commands)


def _name_launched_run(composed: "ComposedJob") -> None:
    """Name the run that `mlflow run` opened for a job that records none of its own."""
    from tipcast.jobs.run_context import run_names
    from tipcast.tracking.lifecycle import mark_launched

    (run_name,) = run_names([(composed.name, composed.command)])
    mark_launched(name=run_name)


def _load_worker_libraries(composed: "ComposedJob") -> None:
    """Let the libraries of worker processes load while this process loads its own."""
    from tipcast.compute import forkserver
    from tipcast.config import dask_settings

    dask_settings.check()  # worker processes would fail on a bad value
    forkserver.own_process = True

    if JOBS[composed.name].needs_workers:
        forkserver.start_ahead(composed.config.cluster, [_model_module(composed.config)])


def _model_module(config: Any) -> str:
    """Return the module of the class that a job's model has on its backend."""
    classes: dict[str, str | None] = {}
    if hasattr(config, "model"):
        classes = {"cpu": config.model.cpu, "gpu": config.model.gpu}

    # The configuration is not checked yet, and a repeated run may have named the class.
    model_class = classes.get(config.backend.name) or ""
    if model_class.startswith("tipcast.models."):
        return model_class.rpartition(".")[0]
    return "tipcast.models.library"


def _guarded(run: Callable[[], int]) -> int:
    """Run, and turn every ending into one line on standard error and an exit code."""
    with _stoppable() as stop:
        try:
            return run()
        except TipcastError as problem:
            return _refuse(problem)
        except ENDINGS as problem:
            stop.end()
            return _say_ending(problem)
        except BrokenPipeError:  # the reader of our output has left, like `head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


@contextlib.contextmanager
def _stoppable() -> Iterator["_Stop"]:
    """Let signals end the block. In a process that goes on afterwards, put their handlers back."""
    stop = _Stop()
    handlers = _handle_signals(stop)
    if "MLFLOW_RUN_ID" in os.environ and _launched():
        threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    dropped = sys.unraisablehook
    sys.unraisablehook = stop.dropped

    try:
        yield stop
    finally:
        stop.end()
        end_error()
        if not OWN_PROCESS.is_set():
            sys.unraisablehook = dropped
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _handle_signals(stop: "_Stop") -> dict[int, Any]:
    """Let SIGTERM call ``stop``, and SIGHUP and SIGINT unless they are handled already.

    Returns the earlier handlers by signal; none in a thread, which may set no handler.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}

    handlers: dict[int, Any] = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    }
    for number, handler in handlers.items():
        # nohup leaves SIGHUP ignored: that stays so.
        unset = handler in {signal.SIG_DFL, signal.default_int_handler, end_quietly}
        if number == signal.SIGTERM or unset:
            signal.signal(number, stop)

    return handlers


def _refuse(problem: TipcastError) -> int:
    """Print an error in one line, mark the run that `mlflow run` opened, return the exit code."""
    if DEBUG.is_set():
        traceback.print_exc()
    if "MLFLOW_RUN_ID" in os.environ:  # `mlflow run` opened a run that no job has joined yet
        from tipcast.tracking.lifecycle import mark_launched

        mark_launched(problem=problem)

    tell(problem)
    return problem.exit_code


def _say_ending(problem: BaseException) -> int:
    """Print that a signal ended the job, and which runs it closed; return the exit code."""
    notes: list[str] = []  # those that were added when runs were closed
    cause: BaseException | None = problem
    while cause:  # closing may have failed in turn
        notes += getattr(cause, "__notes__", [])
        cause = cause.__context__

    word = "terminated"
    exit_code = TERMINATED
    if isinstance(problem, KeyboardInterrupt):
        word = "interrupted"
        exit_code = INTERRUPTED

    tell(": ".join([word, *dict.fromkeys(notes)]))
    return exit_code


class _Terminated(SystemExit):
    """SIGTERM arrived.

    It is raised in the main thread so that runs and clusters are closed on the way out.
    """


ENDINGS = (KeyboardInterrupt, _Terminated)
"""Exceptions that signals raise to end the job."""


@final
class _Stop:
    """Handles the signals that end the job.

    The first one raises an exception; others must not cut the closing off. A library may swallow
    the exception: in an ``except BaseException``, or in a callback of the garbage collector, where
    Python drops it. The signal is then sent again.
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

        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise _Terminated(128 + number)

    def end(self) -> None:
        """Send no signal again: the job has ended."""
        self._over.set()

    def dropped(self, what: "sys.UnraisableHookArgs") -> None:
        """Report an exception that Python has dropped, unless a signal came.

        Code that a signal has cut off may fail to clean up after itself.
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
    """Tell whether the main thread is in an ``except``, ``finally`` or ``__exit__`` of a signal."""
    return is_ending(threading.main_thread().ident)


def _launched() -> bool:
    """Tell whether `mlflow run` started this process.

    Other programs that set MLFLOW_RUN_ID may end before the job does.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        for parent in psutil.Process().parents():
            if any("mlflow" in word for word in parent.cmdline()[:3]):
                return True
    return False


def _follow(parent: int) -> None:
    """Terminate this process once `mlflow run`, its parent, is gone.

    A signal to the launcher does not reach this process.
    """
    while os.getppid() == parent:
        time.sleep(FOLLOW_S)
    os.kill(os.getpid(), signal.SIGTERM)
