"""Waiting for a store that does not answer."""

import threading
from collections.abc import Callable

import pytest
import requests
import sqlalchemy.exc
from mlflow.exceptions import MlflowException, RestException

from tipcast.tracking import patience
from tipcast.tracking.patience import Outage, Patience, is_away


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LOOK_S", 0.01)


def _failing(*problems: Exception) -> Callable[[], int]:
    """Return a function that raises these errors in turn, and then returns 7."""
    left = list(problems)

    def call() -> int:
        if left:
            raise left.pop(0)
        return 7

    return call


def test_a_result_comes_back_from_the_thread() -> None:
    assert Patience(lambda: True, 1.0).call(lambda: 7) == 7


def test_an_outage_within_the_patience_costs_nothing() -> None:
    call = _failing(requests.ConnectionError("refused"), requests.Timeout("late"))
    assert Patience(lambda: True, 10.0).call(call) == 7


def test_other_errors_are_raised_at_once() -> None:
    with pytest.raises(ValueError, match="wrong name"):
        Patience(lambda: True, 10.0).call(_failing(ValueError("wrong name"), OSError("again")))


def test_a_store_that_fails_as_it_is_opened_is_not_waited_for() -> None:
    with pytest.raises(requests.ConnectionError):
        Patience(lambda: True, 10.0).call(_failing(requests.ConnectionError()), again=False)


def test_the_patience_is_that_of_all_calls_together() -> None:
    waiting = Patience(lambda: True, 0.3)
    away = requests.ConnectionError("refused")
    with pytest.raises(Outage, match=r"has not answered for 0\.3 s"):
        for _ in range(100):  # each waits for 0.01 s at least
            waiting.call(_failing(away))


def test_a_call_that_a_frozen_store_holds_is_left_behind() -> None:
    thawed = threading.Event()
    with pytest.raises(Outage):
        Patience(lambda: False, 0.05).call(thawed.wait)
    thawed.set()


def test_a_slow_call_is_waited_for_while_the_store_answers() -> None:
    asked = threading.Event()

    def answers() -> bool:
        asked.set()
        return True

    # It ends after the first look, however long that takes.
    assert Patience(answers, 0.0).call(asked.wait) is True


@pytest.mark.parametrize(
    "problem",
    [
        requests.ConnectionError("Connection refused"),
        MlflowException("API request to http://h/x failed with exception Max retries exceeded"),
        MlflowException("API request to http://h/x failed with timeout exception Read timed out"),
        MlflowException("API request to endpoint /x failed with error code 503 != 200"),
        MlflowException("closed the connection", error_code=2),  # TEMPORARILY_UNAVAILABLE
        sqlalchemy.exc.OperationalError("select", {}, Exception("terminating connection")),
    ],
)
def test_a_store_that_is_away(problem: Exception) -> None:
    assert is_away(problem)


@pytest.mark.parametrize(
    "problem",
    [
        RestException({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such run"}),
        MlflowException("API request to endpoint /x failed with error code 403 != 200"),
        MlflowException("API request to http://h/x failed with exception too many 500 error"),
        sqlalchemy.exc.ProgrammingError("select", {}, Exception("no such table")),
        OSError("disk full"),
    ],
)
def test_a_store_that_refuses(problem: Exception) -> None:
    assert not is_away(problem)
