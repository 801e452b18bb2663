"""Waiting for a tracking server or a database that does not answer, up to a total time."""

import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar, final

from tipcast.config.errors import is_ending

T = TypeVar("T")

LOG = logging.getLogger("tipcast")
LOOK_S = 2.0
"""Seconds between two looks whether a store answers."""
ENDING_S = 8.0
"""Seconds that are left once Ctrl-C or SIGTERM ends the job."""
AWAY = re.compile(
    r"API request to \S+ failed with (?!.*too many (?:408|429|500) error)"
    r"|failed with error code 50[234]"
)
"""Text of MLflow's errors when a server, or the proxy before it, is away."""


class Outage(Exception):
    """A store has not answered for longer than a job waits. Its cause is the last error, if any."""


@final
class Patience:
    """The seconds that a job still waits for a store.

    ``answers`` asks the store for a sign of life, and returns within seconds. The time in which
    there is none is counted over all calls of the job, up to ``seconds``.
    """

    def __init__(self, answers: Callable[[], bool], seconds: float) -> None:
        self._answers = answers
        self._seconds = seconds
        self._left = seconds
        self._is_away = False

    def call(self, function: Callable[[], T], *, again: bool = True) -> T:
        """Return what a function of a store's client returns.

        It is called ``again`` after an outage. It runs in a thread, which is left behind where a
        frozen server holds it. Raises ``Outage`` when no time is left.
        """
        while True:
            call = _started(function)
            looked = self._wait(call)
            problem = call.exception()
            if problem is None:
                self._say_back()
                return call.result()
            if not (again and is_away(problem)):
                raise problem

            time.sleep(LOOK_S)
            self._spend(time.monotonic() - looked, problem)

    def _wait(self, call: "Future[T]") -> float:
        """Wait for a call as long as the store answers; return when that was last looked at.

        Raises ``Outage`` when no time is left.
        """
        looked = time.monotonic()
        while not wait([call], LOOK_S).done:
            if not self._answers():
                self._spend(time.monotonic() - looked)
            looked = time.monotonic()
        return looked

    def _say_back(self) -> None:
        """Log that a store answers again."""
        if self._is_away:
            LOG.info("the tracking store answers again")
        self._is_away = False

    def _spend(self, seconds: float, problem: BaseException | None = None) -> None:
        """Count seconds without an answer; raise ``Outage`` when they are too many."""
        if not self._is_away:
            LOG.warning("the tracking store does not answer; waiting")
        self._is_away = True
        if is_ending(threading.get_ident()):
            self._left = min(self._left, ENDING_S)
        self._left -= seconds
        if self._left <= 0:
            raise Outage(f"has not answered for {self._seconds:g} s") from problem


def _started(function: Callable[[], T]) -> "Future[T]":
    """Call a function in a thread that does not keep the process alive."""
    call: Future[T] = Future()

    def run() -> None:
        try:
            call.set_result(function())
        except BaseException as problem:
            call.set_exception(problem)

    threading.Thread(target=run, name="store", daemon=True).start()
    return call


def is_away(problem: BaseException) -> bool:
    """Tell whether an error says that a server or a database is not there for now.

    A database that restarts refuses connections and cuts those that it had.
    """
    import mlflow.exceptions
    import requests
    import sqlalchemy.exc

    if isinstance(problem, requests.ConnectionError | requests.Timeout):
        return True
    if isinstance(problem, sqlalchemy.exc.OperationalError | sqlalchemy.exc.InterfaceError):
        return True
    if isinstance(problem, mlflow.exceptions.MlflowException):
        lost = isinstance(problem.__cause__, sqlalchemy.exc.InterfaceError)
        is_unavailable = problem.error_code == "TEMPORARILY_UNAVAILABLE"
        return lost or is_unavailable or bool(AWAY.search(str(problem)))
    return False
