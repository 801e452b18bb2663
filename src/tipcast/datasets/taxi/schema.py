"""What the columns of a trip file mean: canonical names, their spellings, and the eras that cannot be used."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from tipcast.config.errors import TipcastError
from tipcast.datasets.address import last_name
from tipcast.datasets.base import counted

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

SPELLINGS = tuple(dict.fromkeys(spelling for spellings in _TLC.values() for spelling in sorted(spellings)))
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

_YEAR_2009 = "trippickupdatetime"
_COORDINATES = {"startlon", "startlat", "pickuplongitude", "pickuplatitude"}


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_FOLDED = {_fold(own): name for name, spellings in _TLC.items() for own in (name, *spellings)} | _OTHERS


def check_colour(colour: object) -> str:
    """Return a colour of cabs; C003 another one."""
    if colour not in COLOURS:
        raise TipcastError("C003", "data.colour", f"unknown colour {colour!r}", f"choose one of {', '.join(COLOURS)}")
    return str(colour)


def tlc_name(name: str, colour: str) -> str:
    """Return the TLC's name of a canonical column in the files of a colour."""
    if name in TIMES:
        return f"{'lpep' if colour == 'green' else 'tpep'}_{name}_datetime"
    return name


def map_columns(
    names: Sequence[str], where: str, needed: Sequence[str], optional: Sequence[str] = (), key: str = "data.columns"
) -> dict[str, str]:
    """Return canonical name -> a file's own, of all columns needed, and of those that are optional where they are.

    D006 a column that is there twice, D007 one that is missing, D017 an era without zone ids; ``where`` is the file,
    ``key`` is of the configuration, which maps a user's names.
    """
    wanted = tuple(dict.fromkeys((*needed, *optional)))
    found: dict[str, str] = {}
    for name in names:
        canonical = _FOLDED.get(_fold(name))
        if canonical not in wanted:
            continue
        if canonical in found:
            what = f"column {name!r} is there twice"
            if found[canonical] != name:
                what = f"columns {found[canonical]!r} and {name!r} are the same"
            raise TipcastError("D006", where, what, "drop or rename one of them")
        found[canonical] = name
    missing = [name for name in needed if name not in found]
    if missing:
        raise _missing(missing, names, where, needed, key)
    return {name: found[name] for name in wanted if name in found}


def _missing(missing: Sequence[str], names: Sequence[str], where: str, needed: Sequence[str], key: str) -> TipcastError:
    if _YEAR_2009 in map(_fold, names):
        what = "has the columns of 2009 (Trip_Pickup_DateTime), without zone ids"
        return TipcastError("D017", where, what, "use months from 2016-07 on")
    if set(missing) & set(ZONES):
        refuse_coordinates(names, where)
    colour = colour_of(names) or "yellow"
    own = [tlc_name(name, colour) for name in missing]
    hint = ""
    if len(own) < 3:  # of more, the names alone fill the line
        near = [match for name in own for match in difflib.get_close_matches(name, names, 1, 0.7)]
        hint = f", {' and '.join(map(repr, near))} among them" if near else ""
    several = f"column{'s' if len(own) > 1 else ''} {', '.join(map(repr, own))}"
    what = f"missing {several} ({counted(len(names), 'column')} found{hint})"
    others = [tlc_name(name, colour) for name in needed if name not in missing]
    more = f" (needed too: {', '.join(others)})" if others else ""
    return TipcastError("D007", where, what, f"map its own names by {key}={{{own[0]}: ITS_NAME}}{more}")


def refuse_coordinates(names: Iterable[str], where: str) -> None:
    """Refuse a file that has longitudes and latitudes in place of taxi zones; D017."""
    if {_fold(name) for name in names} & _COORDINATES:
        what = (
            "has longitudes and latitudes but no zone ids (PULocationID, DOLocationID): the TLC's files before 2016-07"
        )
        raise TipcastError("D017", where, what, "use months from 2016-07 on")


def colour_of(names: Iterable[str]) -> str | None:
    """Return ``yellow`` or ``green`` as the name of the pickup column says, None where it does not."""
    prefixes = {_fold(name)[:4] for name in names if _fold(name).endswith("pickupdatetime")}
    if "lpep" in prefixes:
        return "green"
    return "yellow" if "tpep" in prefixes else None


def remarks(mapping: Mapping[str, str]) -> tuple[str, ...]:
    """Return one line saying which names are not the TLC's own, or nothing."""
    strange = [f"{own} as {name}" for name, own in mapping.items() if own not in (name, *_TLC[name])]
    return (f"columns read under other names: {', '.join(strange)}",) if strange else ()


def colour_in(names: Iterable[str], uri: str, where: str, wanted: str | None) -> str | None:
    """Return a file's colour by its columns, else by its name; D007 it is not the one that is wanted."""
    by_columns = colour_of(names)
    if by_columns and wanted and by_columns != wanted:
        lacks, has = tlc_name("pickup", wanted), tlc_name("pickup", by_columns)
        what = f"missing column {lacks!r}: it has {has!r}, so it is a {by_columns}-taxi file"
        raise TipcastError("D007", where, what, f"ask for the colour {by_columns}, or name {wanted}-taxi files")
    name = last_name(uri).lower()
    return by_columns or next((colour for colour in ("green", "yellow") if colour in name), None)
