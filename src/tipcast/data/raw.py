"""Raw trips under the TLC's own column names, as a model's user has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tipcast.backends.base import Array
from tipcast.backends.cpu import CpuFrames
from tipcast.config.errors import travelling
from tipcast.data import features, validate
from tipcast.data.fragments import Fragment
from tipcast.data.read import read_fragment
from tipcast.data.schema import tlc_name


@travelling
def raw_trips(
    fragment: Fragment, columns: Sequence[str], colour: str, rows: int
) -> tuple[dict[str, Array], pd.DataFrame]:
    """Read the first clean trips of a fragment, on the host, where a model's user has them.

    Parameters
    ----------
    fragment
        Where to read.
    columns
        Canonical names.
    colour
        ``yellow`` or ``green``: decides the names of the time columns.
    rows
        Most rows to return.

    Returns
    -------
    tuple
        The canonical columns, and the same rows as a pandas DataFrame with the TLC's names and timestamps.

    """
    read = read_fragment(fragment, CpuFrames(), columns)
    keep, _ = validate.clean(read, fragment.period, np)
    good = np.ones(len(read["pickup"]), dtype=bool) if keep is None else keep
    bad, _ = features.impossible(read, columns)  # a distance, which is no reason to drop a row
    if bad is not None:
        good &= ~bad
    read = {name: values[good][:rows] for name, values in read.items()}
    return read, to_frame(read, colour)


def to_frame(columns: Mapping[str, Array], colour: str) -> pd.DataFrame:
    """Return canonical host columns as a DataFrame with the TLC's names; times become datetime64[us]."""
    return pd.DataFrame(
        {
            tlc_name(name, colour): values.view("datetime64[us]") if _is_time(name) else np.asarray(values)
            for name, values in columns.items()
        }
    )


def _is_time(name: str) -> bool:
    return name in {"pickup", "dropoff"}
