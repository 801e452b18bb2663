"""Features of tables: columns as they are; this file travels inside saved models and imports
nothing but NumPy.
"""

import contextlib
import functools
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import ModuleType
from typing import Any

import numpy as np

MISSING = -1.0
"""Code of a category that is missing or not known, for models that take no NaN."""
NOT_FINITE = "non_finite"
"""Why a row gets no score."""
LARGEST = float(np.finfo(np.float32).max)
FINITE = 1e300
"""Larger numbers are no categories."""


def needed_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the raw columns that features are made of: those of the same names."""
    return tuple(dict.fromkeys(names))


def compute(columns: Mapping[str, Any], names: Sequence[str], xp: ModuleType = np) -> Any:
    """Make features: (rows, features) float32, each column contiguous.

    ``columns`` are name -> (rows,) array of numbers or codes, NaN where a value is missing and the
    model takes that; other missing values were filled before. ``xp`` is the arrays' module, numpy
    or cupy.
    """
    rows = len(next(iter(columns.values())))
    matrix = xp.empty((rows, len(names)), dtype=np.float32, order="F")

    for at, name in enumerate(names):
        matrix[:, at] = columns[name]

    return matrix


def filled(
    values: Any, fill: float | None, indicator: str, xp: ModuleType = np
) -> tuple[Any, dict[str, Any]]:
    """Fill what is missing of a (rows,) column.

    Returns the column, with NaN where ``fill`` is None, and the feature ``indicator``, (rows,) bool
    of the rows whose value was missing; no feature where that name is empty.
    """
    if values.dtype.kind != "f":
        return values, {indicator: xp.zeros(len(values), dtype=bool)} if indicator else {}

    missing = values != values
    features = {indicator: missing} if indicator else {}
    return (values if fill is None else xp.where(missing, fill, values)), features


def impossible(
    columns: Mapping[str, Any], needed: Sequence[str], xp: ModuleType = np
) -> tuple[Any | None, dict[str, int]]:
    """Find rows with a number that is infinite, or too large for float32; what is missing is no
    such number.

    Returns (rows,) bool, None where there are none; and reason -> rows. Columns that are not there
    are passed over.
    """
    bad: Any | None = None
    for name in (name for name in needed if name in columns and columns[name].dtype.kind == "f"):
        found = abs(columns[name]) > LARGEST
        if bool(found.any()):
            bad = found if bad is None else bad | found

    return bad, {} if bad is None else {NOT_FINITE: int(xp.count_nonzero(bad))}


def codes(values: Sequence[Any], categories: Sequence[str]) -> list[float]:
    """Return the code of each value: the place of its text among the categories, NaN for none of
    them.

    A value that a reader has made of a text, a number, a boolean or a time, is held against what
    that text may have been. ValueError where it may have been another one, as 1234 for 01234. A
    reader that makes True of the text 1 makes booleans of a whole column: beside other values True
    is the text True.
    """
    places, numbers, lower = _lookups(tuple(categories))
    all_booleans = all(isinstance(value, bool | np.bool_) for value in values)
    found: list[float] = []

    for value in values:
        text = _one_form(str(value))
        alike: tuple[str, ...] = (text,) if text in places else ()
        doubtful = False
        if isinstance(value, bool | np.bool_):
            alike = lower.get(text.lower(), ())
            if all_booleans or not alike:
                alike = tuple(dict.fromkeys((*alike, *numbers.get(float(value), ()))))
            doubtful = len(alike) > 1
        elif isinstance(value, int | float | np.number | Decimal):
            number = value if isinstance(value, int) else float(value)  # which has no end
            alike = numbers.get(float(number), alike) if -FINITE < number < FINITE else ()
            if isinstance(value, int | np.integer):  # all of its digits are there
                alike = tuple(
                    each
                    for each in alike
                    if not each.strip().lstrip("+-").isdecimal() or int(each) == value
                )

            own = {text}
            if alike:
                own |= {
                    str(float(number)),
                    str(int(number)) if float(number).is_integer() else text,
                }

            doubtful = len(alike) > 1 or not own.issuperset(alike)
        elif hasattr(value, "isoformat"):
            alike = tuple(
                each
                for each in (text, text.removesuffix(" 00:00:00"), value.isoformat())
                if each in places
            )
            doubtful = value == value and not alike  # NaT is not itself

        if doubtful:
            meant = " or ".join(map(repr, alike)) or "written in another way"
            raise ValueError(f"{value} may have been {meant}: read the column as text")

        found.append(places[alike[0]] if alike else np.nan)

    return found


@functools.lru_cache(64)
def _lookups(
    categories: tuple[str, ...],
) -> tuple[Mapping[str, int], Mapping[float, tuple[str, ...]], Mapping[str, tuple[str, ...]]]:
    """Return each category's code; and number, and text in small letters, -> the categories that
    may be meant.
    """
    numbers: dict[float, tuple[str, ...]] = {}
    lower: dict[str, tuple[str, ...]] = {}
    texts = [_one_form(text) for text in categories]
    for text in texts:
        bare = text.strip().lower()
        lower[bare] = (*lower.get(bare, ()), text)
        with contextlib.suppress(ValueError, OverflowError):
            # pyarrow reads such as numbers
            number = float(int(bare, 16)) if bare.startswith("0x") else float(text)
            numbers[number] = (*numbers.get(number, ()), text)

    return {text: at for at, text in enumerate(texts)}, numbers, lower


def _one_form(text: str) -> str:
    """Return a text in the Unicode form that training reads values in."""
    return unicodedata.normalize("NFC", text)
