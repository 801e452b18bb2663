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


@pytest.mark.parametrize("letter", EXIT_CODES)
def test_form_exit_code_and_the_way_from_a_worker(letter: str) -> None:
    error = TipcastError(f"{letter}001", "a/file.parquet", "something\n  is wrong.", "mend it")

    @travelling
    def task() -> None:
        raise error from OSError(threading.Lock())  # a library's own, which cannot be pickled

    with pytest.raises(TipcastError) as caught:
        task()
    came = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert (
        str(came)
        == str(error)
        == f"error[{letter}001] a/file.parquet: something is wrong. Fix: mend it"
    )
    assert came.exit_code == EXIT_CODES[letter]
