"""What the columns of a trip file mean: canonical names, their spellings, and the eras that cannot
be used.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from tipcast.compute.base import count
from tipcast.config.errors import TipcastError, unknown

COLOURS = ("yellow", "green")
"""Of the cabs whose trips have tips."""

TIMES = ("pickup", "dropoff")
"""Canonical columns that hold New York wall-clock times; all others hold numbers."""

ZONES = ("PULocationID", "DOLocationID")

COLUMNS = (
    *TIMES,
    "VendorID",
    "passenger_count",
    "trip_distance",
    "RatecodeID",
    *ZONES,
    "payment_type",
    "fare_amount",
    "extra",
    "mta_tax",
    "tip_amount",
    "tolls_amount",
    "ehail_fee",
    "improvement_surcharge",
    "total_amount",
    "trip_type",
    "congestion_surcharge",
    "airport_fee",
    "cbd_congestion_fee",
)
"""Canonical names in the TLC's order; text columns are never read."""

_TLC = {
    **{name: {name} for name in COLUMNS},
    "pickup": {"tpep_pickup_datetime", "lpep_pickup_datetime"},
    "dropoff": {"tpep_dropoff_datetime", "lpep_dropoff_datetime", "Lpep_dropoff_datetime"},
    "RatecodeID": {"RatecodeID", "RateCodeID"},
    "airport_fee": {"airport_fee", "Airport_fee"},
}
"""Canonical name -> the TLC's own spellings, which need no remark."""

SPELLINGS = tuple(
    dict.fromkeys(spelling for spellings in _TLC.values() for spelling in sorted(spellings))
)
"""Of all columns, by the TLC."""

REQUIRED = ("pickup", "fare_amount", "tip_amount", *ZONES)
"""Columns without which a file of trips is of no use."""

_OTHERS = {
    "pickupdatetime": "pickup",
    "dropoffdatetime": "dropoff",
    "pickuplocationid": "PULocationID",
    "dropofflocationid": "DOLocationID",
    "ratecode": "RatecodeID",
}
"""Folded names given by other vendors -> canonical name."""

_COORDINATES = {"startlon", "startlat", "pickuplongitude", "pickuplatitude"}


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_FOLDED = {
    _fold(spelling): name for name, spellings in _TLC.items() for spelling in (name, *spellings)
} | _OTHERS


def check_colour(colour: object, key: str = "data.colour") -> str:
    """Return a colour of cabs. Raises C003 for another one."""
    if colour not in COLOURS:
        raise unknown(key, "colour", str(colour), COLOURS, "C003")
    return str(colour)


def tlc_name(name: str, colour: str) -> str:
    """Return the TLC's name of a canonical column in the files of a colour."""
    if name in TIMES:
        return f"{'lpep' if colour == 'green' else 'tpep'}_{name}_datetime"
    return name


def map_columns(
    names: Sequence[str],
    where: str,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    key: str = "data.columns",
) -> dict[str, str]:
    """Return canonical name -> a file's own, of all columns needed, and of those that are optional
    where they are.

    D006 a column that is there twice, D007 one that is missing, D017 an era without zone ids;
    ``where`` is the file, ``key`` is of the configuration, which maps a user's names.
    """
    wanted = tuple(dict.fromkeys((*needed, *optional)))
    mapping: dict[str, str] = {}
    for name in names:
        canonical = _FOLDED.get(_fold(name))
        if canonical not in wanted:  # nobody reads it, even if two columns have its name
            continue
        if canonical in mapping:
            what = f"columns {mapping[canonical]!r} and {name!r} are the same"
            raise TipcastError("D006", where, what, "drop or rename one of them")
        mapping[canonical] = name

    if missing := [name for name in needed if name not in mapping]:
        # before its names: what a file before 2016-07 lacks cannot be mapped
        refuse_coordinates(names if set(missing) & set(ZONES) else (), where)
        usual = [tlc_name(name, colour_of(names) or "yellow") for name in missing]
        what = f"missing column{'s' if usual[1:] else ''} {', '.join(map(repr, usual))}"
        fix = f"map its own names with {key}={{{usual[0]}: ITS_NAME}}"
        raise TipcastError("D007", where, f"{what} ({count(len(names), 'column')} found)", fix)

    return {name: mapping[name] for name in wanted if name in mapping}


def refuse_coordinates(names: Iterable[str], where: str) -> None:
    """Refuse a file that has longitudes and latitudes in place of taxi zones. Raises D017."""
    if {_fold(name) for name in names} & _COORDINATES:
        what = (
            "has longitudes and latitudes but no zone ids (PULocationID, DOLocationID), like "
            "files from before 2016-07"
        )
        raise TipcastError("D017", where, what, "use months from 2016-07 or later")


def colour_of(names: Iterable[str]) -> str | None:
    """Return ``yellow`` or ``green`` as the name of the pickup column says, None where it does
    not.
    """
    folded = {_fold(name) for name in names}
    return next((colour for colour in COLOURS if _fold(tlc_name("pickup", colour)) in folded), None)


def remarks(mapping: Mapping[str, str]) -> list[str]:
    """Return one line saying which names are not the TLC's own, or nothing."""
    strange = [
        f"{spelling} as {name}"
        for name, spelling in mapping.items()
        if spelling not in (name, *_TLC[name])
    ]
    return [f"columns read under other names: {', '.join(strange)}"] if strange else []
