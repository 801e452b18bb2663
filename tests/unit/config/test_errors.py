"""The one-line error form."""

import pickle
import threading

import pytest

from tipcast.config.errors import EXIT_CODES, MAX_LINE, TipcastError, travelling


@pytest.mark.parametrize(
    ("what", "fix", "kept"),
    [
        ("x " * 500, "mend it", "Fix: mend it"),
        (
            "unknown parameter",
            "choose from " + "abc, " * 100,
            "model.foo: unknown parameter. Fix: choose from abc",
        ),
    ],
)
def test_the_longest_part_gives_way(what: str, fix: str, kept: str) -> None:
    error = TipcastError("C001", "model.foo", what, fix)
    assert len(str(error)) == MAX_LINE
    assert kept in str(error)


def example_error(letter: str) -> TipcastError:
    return TipcastError(f"{letter}001", "a/file.parquet", "something\n  is wrong.", "mend it")


@pytest.fixture(params=EXIT_CODES)
def letter(request: pytest.FixtureRequest) -> str:
    """The first letter of an error's code."""
    letter: str = request.param
    return letter


@pytest.fixture
def worker_error(letter: str) -> TipcastError:
    """An error as it comes from a worker."""

    @travelling
    def task() -> None:
        # of a library's own error, which cannot be pickled
        raise example_error(letter) from OSError(threading.Lock())

    with pytest.raises(TipcastError) as raised:
        task()
    received: TipcastError = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - our own bytes
    return received


def test_an_error_is_one_line_with_its_code_first(letter: str) -> None:
    line = f"error[{letter}001] a/file.parquet: something is wrong. Fix: mend it"
    assert str(example_error(letter)) == line


def test_an_error_of_a_worker_keeps_its_line(letter: str, worker_error: TipcastError) -> None:
    assert str(worker_error) == str(example_error(letter))


def test_an_error_of_a_worker_keeps_its_exit_code(letter: str, worker_error: TipcastError) -> None:
    assert worker_error.exit_code == EXIT_CODES[letter]
