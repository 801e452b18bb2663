"""The one-line error form."""

import pickle
import re

import pytest

from tipcast.config.errors import EXIT_CODES, MAX_LINE, TipcastError


@pytest.mark.parametrize("letter", EXIT_CODES)
def test_form_exit_code_and_the_way_from_a_worker(letter: str) -> None:
    error = TipcastError(f"{letter}001", "a/file.parquet", "something\n  is wrong.", "mend it")
    assert re.match(r"^error\[[CDKTMS]\d{3}\] \S.* Fix: .+", str(error))
    assert str(error) == f"error[{letter}001] a/file.parquet: something is wrong. Fix: mend it"
    assert error.exit_code == EXIT_CODES[letter]
    came = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (came.code, came.where, came.what, came.fix) == (error.code, error.where, error.what, error.fix)


@pytest.mark.parametrize(
    ("what", "fix", "kept"),
    [
        ("x " * 500, "mend it", "Fix: mend it"),
        ("unknown parameter", "choose from " + "abc, " * 100, "model.foo: unknown parameter. Fix: choose from abc"),
    ],
)
def test_the_longest_part_gives_way(what: str, fix: str, kept: str) -> None:
    error = TipcastError("C001", "model.foo", what, fix)
    assert len(str(error)) == MAX_LINE
    assert kept in str(error)
