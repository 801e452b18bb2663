"""Profiles in manifests of models that were logged before profiles told the edges of their bins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

MILES = np.concatenate(([0.0], np.geomspace(0.1, 200, 96)))
"""Borders that distances were counted between: code i was from the one before to the i-th, code 0 was missing."""
DISTANCE = "trip_distance"


def in_edges(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile whose bins are edges or values, as ``evaluation.drift`` counts; one that is so stays as it is.

    Bins were ranges of codes: 0 for a missing value, else one more than a whole value, or a distance's place among
    ``MILES``. The first bin was of what is missing; an empty one stood for all values without a bin.
    """
    score = {"edges": np.linspace(0, 1, len(profile["score"]["histogram"]) + 1).tolist(), **profile["score"]}
    features = {
        name: each if "bins" not in each else _described(name, each) for name, each in profile["features"].items()
    }
    return {**profile, "features": features, "score": score} if features != profile["features"] else dict(profile)


def _described(name: str, old: Mapping[str, Any]) -> dict[str, Any]:
    codes = [each[0] for each in old["bins"] if each]
    values = [float(MILES[code - 1]) if name == DISTANCE else float(code - 1) for code in codes]
    if len(codes) < len(old["bins"]):
        return {"values": values, "shares": list(old["shares"])}
    return {"edges": values[1:], "shares": [*old["shares"], 0.0]}  # below the first edge is what is missing
