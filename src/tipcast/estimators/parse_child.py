"""What `first_parse` runs in a process of its own: load a model file, score two rows; imports nothing of tipcast."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import numpy as np


def facts(path: str, format: str, code: str) -> dict[str, Any]:
    """Load a model by the file that scores it; return its number of features, their names, and what two rows get."""
    specification = importlib.util.spec_from_file_location("native", code)
    assert specification and specification.loader  # noqa: S101 - a Python file
    native = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(native)
    scorer = native.load(path, format, "cpu", 1)
    number, names = shape(scorer)
    scores = np.asarray(scorer.score(np.zeros((2, number), dtype=np.float32)), dtype=np.float64)
    return {"number": number, "names": names, "predictions": scores.tolist()}


def shape(scorer: Any) -> tuple[int, list[str] | None]:
    """Return how many features a scorer of ``native`` takes, and their names where its file has them."""
    if hasattr(scorer, "booster"):
        return int(scorer.booster.num_features()), scorer.booster.feature_names
    if hasattr(scorer, "forest"):
        return int(scorer.forest.n_features_in_), None
    return int(scorer.model.num_feature if hasattr(scorer, "model") else len(scorer.mean)), None


if __name__ == "__main__":
    print(json.dumps(facts(*sys.argv[1:])))
