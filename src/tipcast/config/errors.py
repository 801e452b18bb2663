"""The one kind of error that tipcast reports: a code, a place, a fact and a remedy on one line."""

from __future__ import annotations

from typing import Any, final

EXIT_CODES = {"C": 2, "D": 3, "K": 4, "T": 5, "M": 6, "S": 7}
"""First letter of an error code -> exit code of the process (docs/errors.md lists them all)."""

MAX_LINE = 300


@final
class TipcastError(Exception):
    """A mistake the user can mend, or a failure outside tipcast, told in one line.

    Parameters
    ----------
    code
        Letter and three digits. C configuration, D data, K cluster, T tracking or artifact store,
        M model or registry, S sweep or score finished with failures.
    where
        The file, key, address or model the error is about.
    what
        What is wrong there.
    fix
        What the user can do about it.

    """

    def __init__(self, code: str, where: object, what: str, fix: str) -> None:
        super().__init__(code, str(where), what, fix)
        self.code = code
        self.where = str(where)
        self.what = what
        self.fix = fix

    @property
    def exit_code(self) -> int:
        """The exit code that the process ends with."""
        return EXIT_CODES[self.code[0]]

    def __str__(self) -> str:
        """Return ``error[D007] WHERE: WHAT. Fix: HOW`` on one line of at most 300 characters."""
        head = f"error[{self.code}] {_flat(self.where)}: "
        tail = f". Fix: {_flat(self.fix)}"
        what = _flat(self.what).rstrip(".")
        room = MAX_LINE - len(head) - len(tail)
        if len(what) > room:
            what = what[: max(room - 3, 0)] + "..."
        return (head + what + tail)[:MAX_LINE]

    def __reduce__(self) -> tuple[Any, ...]:
        return (TipcastError, (self.code, self.where, self.what, self.fix))


def _flat(text: str) -> str:
    return " ".join(text.split())
