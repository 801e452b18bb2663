"""Features of tables: columns as they are; this file travels inside saved models and imports
nothing but NumPy.
"""

import contextlib
import functools
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

UNKNOWN_CODE = -1.0
"""Code of a category that is missing or not known, for models that take no NaN."""
NOT_FINITE = "non_finite"
"""Why a row gets no score."""
LARGEST = float(np.finfo(np.float32).max)
FINITE = 1e300
"""Larger numbers are no categories."""
Number = int | float | np.number[Any] | Decimal
"""What a reader may make of a text that says a number."""


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
        too_large = abs(columns[name]) > LARGEST
        if bool(too_large.any()):
            bad = too_large if bad is None else bad | too_large

    return bad, {} if bad is None else {NOT_FINITE: int(xp.count_nonzero(bad))}


def codes(values: Sequence[Any], categories: Sequence[str]) -> list[float]:
    """Return the code of each value: the place of its text among the categories, NaN for none of
    them.

    A value that a reader has made of a text, a number, a boolean or a time, is held against what
    that text may have been. ValueError where it may have been another one, as 1234 for 01234. A
    reader that makes True of the text 1 makes booleans of a whole column: beside other values True
    is the text True.
    """
    vocabulary = _vocabulary(tuple(categories))
    all_booleans = all(isinstance(value, bool | np.bool_) for value in values)
    return [_code(value, vocabulary, all_booleans=all_booleans) for value in values]


class _Vocabulary(NamedTuple):
    """The categories of a column, by what their texts may be read as."""

    codes: Mapping[str, int]
    """Text -> code."""
    numbers: Mapping[float, tuple[str, ...]]
    """Number -> the texts that say it."""
    lower: Mapping[str, tuple[str, ...]]
    """Text in small letters, without blanks around it -> the texts."""


@functools.lru_cache(64)
def _vocabulary(categories: tuple[str, ...]) -> _Vocabulary:
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

    return _Vocabulary({text: at for at, text in enumerate(texts)}, numbers, lower)


def _code(value: Any, vocabulary: _Vocabulary, *, all_booleans: bool) -> float:
    """Return the code of a value, NaN where no category may be meant; ValueError as ``codes``."""
    text = _one_form(str(value))
    if isinstance(value, bool | np.bool_):
        texts = _texts_of_boolean(value, text, vocabulary, all_booleans=all_booleans)
        is_doubtful = len(texts) > 1
    elif isinstance(value, int | float | np.number | Decimal):
        texts = _texts_of_number(value, text, vocabulary)
        is_doubtful = len(texts) > 1 or not _spellings(value, text).issuperset(texts)
    elif hasattr(value, "isoformat"):
        texts = _texts_of_time(value, text, vocabulary)
        is_doubtful = value == value and not texts  # NaT is not itself
    else:
        texts = _same_text(text, vocabulary)
        is_doubtful = False

    if is_doubtful:
        meant = " or ".join(map(repr, texts)) or "written in another way"
        raise ValueError(f"{value} may have been {meant}: read the column as text")

    return vocabulary.codes[texts[0]] if texts else np.nan


def _same_text(text: str, vocabulary: _Vocabulary) -> tuple[str, ...]:
    return (text,) if text in vocabulary.codes else ()


def _texts_of_boolean(
    value: bool | np.bool_, text: str, vocabulary: _Vocabulary, *, all_booleans: bool
) -> tuple[str, ...]:
    """Return the categories that were read as a boolean: 1 and 0 where all values are booleans."""
    texts = vocabulary.lower.get(text.lower(), ())
    if texts and not all_booleans:
        return texts
    return tuple(dict.fromkeys((*texts, *vocabulary.numbers.get(float(value), ()))))


def _texts_of_number(value: Number, text: str, vocabulary: _Vocabulary) -> tuple[str, ...]:
    """Return the categories that were read as a number."""
    number = value if isinstance(value, int) else float(value)  # an int may be beyond all floats
    if not -FINITE < number < FINITE:
        return ()

    texts = vocabulary.numbers.get(float(number), _same_text(text, vocabulary))
    if not isinstance(value, int | np.integer):
        return texts

    # all of its digits are there
    return tuple(
        text for text in texts if not text.strip().lstrip("+-").isdecimal() or int(text) == value
    )


def _spellings(value: Number, text: str) -> set[str]:
    """Return the usual texts of a number: a reader loses nothing of them."""
    number = value if isinstance(value, int) else float(value)
    spellings = {text}
    if -FINITE < number < FINITE:
        spellings.add(str(float(number)))
        if float(number).is_integer():
            spellings.add(str(int(number)))

    return spellings


def _texts_of_time(value: Any, text: str, vocabulary: _Vocabulary) -> tuple[str, ...]:
    """Return the categories that were read as a time or a day."""
    forms = (text, text.removesuffix(" 00:00:00"), value.isoformat())
    return tuple(form for form in forms if form in vocabulary.codes)


def _one_form(text: str) -> str:
    """Return a text in the Unicode form that training reads values in."""
    return unicodedata.normalize("NFC", text)
