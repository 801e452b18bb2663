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
from tipcast.config.errors import TipcastError
from tipcast.config.jobs import JOBS, find_job
from tipcast.config.streams import check_folder, end_error, show, tell
from tipcast.measure.progress import shown

if TYPE_CHECKING:
    from tipcast.commands import ComposedJob

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
    """Run the job of a command line and return the exit code.

    ``arguments`` come without the program's name. None means those of the process.
    """
    DEBUG.clear()
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word not in LEVELS]
    if VERSION & set(words[:2]) or not words or words[0] in {"--help", "-h"}:
        return _guarded(lambda: _explain(words))

    if arguments is None:
        OWN_PROCESS.set()
        # Child processes import nothing that lies in their working folder.
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


def _run(name: str, arguments: list[str]) -> int:
    """Run the job of a name with the words that follow it, or print what completes a line."""
    if COMPLETION & {name, *arguments[:1]}:
        from tipcast.config.compose import complete

        complete([word for word in (name, *arguments) if "=" in word])
        return 0

    job = find_job(name)
    check_folder()
    from tipcast.commands import compose_jobs
    from tipcast.compute.forkserver import waiting

    os.environ.update(waiting())  # before any OpenMP library is loaded; inherited by the workers

    for composed in compose_jobs(name, arguments):
        if composed.config.debug:
            DEBUG.set()
        if OWN_PROCESS.is_set():
            _load_ahead(composed)
        if "MLFLOW_RUN_ID" in os.environ and not job.has_run:
            from tipcast.jobs.run_context import run_names
            from tipcast.tracking.lifecycle import mark_launched

            mark_launched(name=run_names([(name, composed.command)])[0])
        composed.run()

    return 0


def _load_ahead(composed: "ComposedJob") -> None:
    """Let the libraries of worker processes load while this process loads its own."""
    from tipcast.compute import forkserver
    from tipcast.config import dask_settings

    dask_settings.check()  # worker processes would fail on a bad value
    forkserver.own_process = True

    if JOBS[composed.name].needs_workers:
        config = composed.config
        # The configuration is not checked yet, and a repeated run may have named the class.
        classes = (
            {"cpu": config.model.cpu, "gpu": config.model.gpu} if hasattr(config, "model") else {}
        )
        model_class = classes.get(config.backend.name) or ""
        module = (
            model_class.rpartition(".")[0]
            if model_class.startswith("tipcast.models.")
            else "tipcast.models.library"
        )
        forkserver.start_ahead(config.cluster, [module])


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
    """Let SIGTERM, and SIGHUP and SIGINT that nobody handles, call ``stop``.

    Returns the handlers before, by signal; none in a thread, which may set no handler.
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
    """Say a mistake in one line, mark the run that `mlflow run` opened, return the exit code."""
    if DEBUG.is_set():
        traceback.print_exc()
    if "MLFLOW_RUN_ID" in os.environ:  # `mlflow run` opened a run that no job has joined yet
        from tipcast.tracking.lifecycle import mark_launched

        mark_launched(problem=problem)

    tell(problem)
    return problem.exit_code


def _say_ending(problem: BaseException) -> int:
    """Say that a signal ended the job, and which runs it closed; return the exit code."""
    notes: list[str] = []  # what was said when the run was closed
    cause: BaseException | None = problem
    while cause:  # closing may have failed in turn
        notes += getattr(cause, "__notes__", [])
        cause = cause.__context__

    interrupted = isinstance(problem, KeyboardInterrupt)
    tell(": ".join(["interrupted" if interrupted else "terminated", *dict.fromkeys(notes)]))
    return INTERRUPTED if interrupted else TERMINATED


class _Terminated(SystemExit):
    """SIGTERM arrived.

    It is raised in the main thread so that runs and clusters are closed on the way out.
    """


ENDINGS = (KeyboardInterrupt, _Terminated)
"""What signals that end the job are raised as."""


@final
class _Stop:
    """Handles the signals that end the job.

    The first one is raised; others must not cut the closing off. A library may swallow what is
    raised: in an ``except BaseException``, or in a callback of the garbage collector, where Python
    drops it. The signal is then sent again.
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
        """Say what Python has dropped, unless a signal came.

        What a signal cut off may fail to clean up after itself.
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
    active: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    # Python 3.11 gives type, value and traceback
    problem: BaseException | None = active[1] if isinstance(active, tuple) else active
    while problem and not isinstance(problem, ENDINGS):
        problem = problem.__context__
    return problem is not None


def _launched() -> bool:
    """Tell whether `mlflow run` started this process.

    Others that set MLFLOW_RUN_ID may leave a job to itself.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        return any(
            "mlflow" in word for above in psutil.Process().parents() for word in above.cmdline()[:3]
        )
    return False


def _follow(parent: int) -> None:
    """Terminate this process once `mlflow run`, its parent, is gone.

    A signal to the launcher does not reach this process.
    """
    while os.getppid() == parent:
        time.sleep(FOLLOW_S)
    os.kill(os.getpid(), signal.SIGTERM)
