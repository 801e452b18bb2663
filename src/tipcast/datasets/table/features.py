"""Features of tables: columns as they are, and of a date four numbers; this file travels inside
saved models and imports nothing but NumPy.
"""

import contextlib
import datetime
import functools
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
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
DATE_FEATURES = ("weekday", "month", "dayofyear", "days")
"""What is made of a date: 0 on a Monday to 6, 1 to 12, 1 to 366, and the days since 1970-01-01."""
EPOCH = datetime.date(1970, 1, 1).toordinal()
CYCLE = 146_097
"""Days of 400 years, after which weekdays, months and leap years repeat."""
YEAR_FIRST = re.compile(r"(\d{4})(?:-(\d{1,2})-|/(\d{1,2})/)(\d{1,2})", re.ASCII)
YEAR_LAST = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})", re.ASCII)
DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})", re.ASCII)
"""Day, month and year, as most of Europe writes them."""
CLOCK = (
    r"(?:[ T] *(?:(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?"
    r"|(?:0?[1-9]|1[0-2]):[0-5][0-9](?::[0-5][0-9])? ?(?i:[AP]M))"
    r"(?: ?(?:UTC|Z|[-+]00(?::?00)?))?)$"
)
"""The time of the day at the end of a text, which may be marked as UTC."""
ZONE = re.compile(r":\d\d(\.\d+)? ?[-+]\d\d(:?\d\d)?$", re.ASCII)
UTC = frozenset(("None", "UTC", "Etc/UTC", "+00:00", "GMT", "tzutc()"))
"""Zones of a time whose day is taken as it is written, none among them."""
NO_DATE = "is not a date"
OTHER_ZONE = "is a time in a zone other than UTC"


def needed_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the raw columns that features are made of: those of the same names."""
    return tuple(dict.fromkeys(names))


def compute(columns: Mapping[str, Any], names: Sequence[str], xp: ModuleType = np) -> Any:
    """Make features: (rows, features) float32, each column contiguous.

    ``columns`` are name -> (rows,) array of numbers, codes or days, NaN where a value is missing
    and the model takes that; other missing values were filled before. A name that no column has is
    one of ``date_names``. ``xp`` is the arrays' module, numpy or cupy.
    """
    rows = len(next(iter(columns.values())))
    matrix = xp.empty((rows, len(names)), dtype=np.float32, order="F")

    for at, name in enumerate(names):
        if name in columns:
            matrix[:, at] = columns[name]
        else:
            column, _, part = name.rpartition("_")
            matrix[:, at] = date_feature(columns[column], part, xp)

    return matrix


def date_names(column: str) -> tuple[str, ...]:
    """Return the names of the features of a column of dates."""
    return tuple(f"{column}_{part}" for part in DATE_FEATURES)


def date_feature(days: Any, part: str, xp: ModuleType = np) -> Any:
    """Return one of ``DATE_FEATURES`` of (rows,) float64 days since 1970-01-01, NaN where the date
    is missing.
    """
    if part == "days":
        return days
    if part == "weekday":
        return (days + 3) % 7  # the first day was a Thursday

    missing = days != days
    day_of_cycle = xp.where(missing, 0, days % CYCLE).astype(np.int64)
    values = xp.asarray(_calendar()[part])[day_of_cycle]
    return xp.where(missing, np.nan, values)


@functools.cache
def _calendar() -> dict[str, Any]:
    """Return the month and the day of the year of each day of ``CYCLE`` from 1970-01-01 on."""
    days = np.arange(CYCLE).astype("datetime64[D]")
    months = days.astype("datetime64[M]").astype(np.int64)
    years = days.astype("datetime64[Y]")
    return {
        "month": months % 12 + 1,
        "dayofyear": (days - years).astype(np.int64) + 1,
    }


def days(
    values: Sequence[Any], dates: str, missing: Collection[str] = ()
) -> tuple[list[float], int | None, str]:
    """Return the days from 1970-01-01 to each date, time or text that says one, NaN for a text that
    is ``missing``.

    ``dates`` says how dates with slashes are written: ``month_first`` or ``day_first``; they are
    refused where it is anything else. If a value is not a date, its place comes second, and third
    what it is.
    """
    numbers: list[float] = []
    for at, value in enumerate(values):
        try:
            numbers.append(_day(value, dates, missing))
        except ValueError as problem:
            return numbers, at, str(problem)

    return numbers, None, ""


def _day(value: Any, dates: str, missing: Collection[str]) -> float:
    if isinstance(value, str):
        text = value.strip()
        return np.nan if text in missing else float(_day_of_text(text, dates))
    if not isinstance(value, datetime.date):
        raise ValueError(NO_DATE)
    if str(getattr(value, "tzinfo", None)) not in UTC:
        raise ValueError(OTHER_ZONE)
    return float(value.toordinal() - EPOCH)


def _day_of_text(text: str, dates: str) -> int:
    written = re.sub(CLOCK, "", text)
    if match := YEAR_FIRST.fullmatch(written):
        year, *months, day_of_month = match.groups()
        month = months[0] or months[1]
    elif match := DOTTED.fullmatch(written):
        day_of_month, month, year = match.groups()
    elif match := YEAR_LAST.fullmatch(written):
        if dates == "month_first":
            month, day_of_month, year = match.groups()
        elif dates == "day_first":
            day_of_month, month, year = match.groups()
        else:
            raise ValueError("may be day/month or month/day: training files have no slashes")
    else:
        raise ValueError(OTHER_ZONE if ZONE.search(written) else NO_DATE)

    try:
        return datetime.date(int(year), int(month), int(day_of_month)).toordinal() - EPOCH
    except ValueError:
        raise ValueError("is a day that does not exist") from None


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
