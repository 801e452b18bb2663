"""Features that have one value in all rows: a model learns nothing from them."""

import math
from collections.abc import Sequence
from typing import Any


def constant_features(client: Any, x: Sequence[Any]) -> list[str]:
    """Return the features that have one value, or none at all, in every row of ``x``, futures of
    (rows, features).

    A part is asked only for the features that are constant in the first one: of most tables there
    are none.
    """
    if not x:
        return []

    first: dict[str, float] = client.submit(_constants, x[0], pure=False).result()
    if not first:
        return []

    rest = client.map(_constants, x[1:], names=[*first], pure=False, key="constants")
    parts: list[dict[str, float]] = client.gather(rest)
    return [
        name for name, value in first.items() if all(_same(part.get(name), value) for part in parts)
    ]


def _constants(x: Any, names: Sequence[str] | None = None) -> dict[str, float]:
    """Return feature -> its one value in a part, NaN for a feature without any."""
    constants = {}
    for name in x.columns if names is None else names:
        column = x[name]
        low = column.min()
        high = column.max()
        missing = int(column.isna().sum())
        if missing == len(column):
            constants[str(name)] = math.nan
        elif missing == 0 and low == high:
            constants[str(name)] = float(low)

    return constants


def _same(one: float | None, other: float) -> bool:
    """Tell whether two parts have the same value, or both have none."""
    if one is None:
        return False
    return one == other or (math.isnan(one) and math.isnan(other))
