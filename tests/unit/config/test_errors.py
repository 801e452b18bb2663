"""The one-line error form."""

import pytest

from tipcast.config.errors import MAX_LINE, TipcastError


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
