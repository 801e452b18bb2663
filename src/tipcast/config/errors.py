"""The one kind of error that tipcast reports."""

import difflib
import functools
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, final

P = ParamSpec("P")
T = TypeVar("T")

EXIT_CODES = {"C": 2, "D": 3, "K": 4, "T": 5, "M": 6, "S": 7}
"""First letter of an error code -> exit code of the process (docs/errors.md lists them all)."""

MAX_LINE = 300


@final
class TipcastError(Exception):
    """A mistake that the user can correct, or a failure outside tipcast, in one line.

    Parameters
    ----------
    code : str
        A letter and three digits. The letter is C for configuration, D for data, K for the cluster,
        T for tracking and artifact stores, M for models and the registry, and S for a sweep or
        scoring that finished with failures. docs/errors.md lists all codes.
    where : object
        File, key, address or model that the error is about.
    what : str
        What is wrong there.
    fix : str
        What the user can do.

    Examples
    --------
    >>> import tipcast
    >>> try:
    ...     tipcast.train(model="xgbost")
    ... except tipcast.TipcastError as error:
    ...     print(error.code, error.fix)
    C002 did you mean model=xgboost?
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
        parts = [" ".join(part.split())[:MAX_LINE] for part in (self.where, self.what, self.fix)]
        parts[1] = parts[1].rstrip(".")
        while sum(map(len, parts)) > MAX_LINE - len(f"error[{self.code}] : . Fix: "):
            longest = max(range(len(parts)), key=lambda at: len(parts[at]))
            parts[longest] = f"{parts[longest][:-4]}..."
        return f"error[{self.code}] {parts[0]}: {parts[1]}. Fix: {parts[2]}"


def ending_of(problem: BaseException | None) -> BaseException | None:
    """Return the Ctrl-C or SIGTERM during whose handling an exception was raised, or that it is."""
    while problem and not isinstance(problem, KeyboardInterrupt | SystemExit):
        problem = problem.__context__
    return problem


def is_ending(thread: int | None) -> bool:
    """Tell whether a thread is in an ``except``, ``finally`` or ``__exit__`` of such an ending."""
    active: Any = sys._current_exceptions().get(thread or 0)
    if isinstance(active, tuple):  # Python 3.11 gives type, value and traceback
        active = active[1]
    return ending_of(active) is not None


def must_be(
    where: object, rule: str, got: object, fix: str = "correct the value", code: str = "C003"
) -> TipcastError:
    """Return the error of a value that breaks a rule, such as ``at least 1``."""
    return TipcastError(code, where, f"must be {rule}, got {got}", fix)


def needs_value(where: object, fix: str = "", code: str = "C004") -> TipcastError:
    """Return the error of a key or flag without a value."""
    return TipcastError(code, where, "needs a value", fix or f"add {where}=...")


def unknown(
    where: object, what: str, name: str, choices: Collection[str], code: str, prefix: str = ""
) -> TipcastError:
    """Return the error of a name that is not among the choices.

    It suggests the nearest choice, with ``prefix`` before it, or else lists them all.
    """
    fix = f"use one of {', '.join(choices)}"
    if near := difflib.get_close_matches(name, choices, 1):
        fix = f"did you mean {prefix}{near[0]}?"
    return TipcastError(code, where, f"unknown {what} '{name}'", fix)


def missing(where: object, what: str, fix: str, code: str) -> TipcastError:
    """Return the error of a file, folder or package that does not exist."""
    return TipcastError(code, where, f"missing {what}", fix)


def incompatible(
    where: object, other: str, fix: str = "leave one of the two out", code: str = "C003"
) -> TipcastError:
    """Return the error of two settings that exclude each other."""
    return TipcastError(code, where, f"cannot be combined with {other}", fix)


def failed_to(verb: str, where: object, why: object, fix: str, code: str) -> TipcastError:
    """Return the error of something that cannot be read, written or parsed.

    ``verb`` is the participle, as ``read``. The error has the first line of ``why``.
    """
    reason = str(why).strip().partition("\n")[0]
    return TipcastError(code, where, f"cannot be {verb}: {reason}", fix)


def left_offline(file: str | Path) -> TipcastError:
    """Return the error of a job whose server has gone away, and left its run to an offline store.

    The job may have ended well.
    """
    path = os.path.relpath(file)
    what = "the tracking server went away; the run is in this store"
    return TipcastError("T011", path, what, f"when the server is back: tipcast replay {path}")


def travelling(task: Callable[P, T]) -> Callable[P, T]:
    """Wrap a worker's task so that its TipcastError reaches the driver.

    The error travels without the exceptions that it came from: tblib, which Dask loads, would take
    them along, and some cannot be pickled.
    """

    @functools.wraps(task)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return task(*args, **kwargs)
        except TipcastError as problem:
            bare = TipcastError(*problem.args)
        raise bare

    return run
