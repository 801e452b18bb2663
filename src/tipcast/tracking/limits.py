"""What every store of MLflow's takes: names of some characters, and values of some length."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping

from mlflow.entities import Metric, Param, RunTag

MAX_NAME, MAX_PARAM, MAX_TAG, MAX_DIGEST, MAX_DATASET = 250, 6000, 8000, 36, 500
"""Characters of a name, of values of parameters and tags, and of digest and name of a dataset."""
REFUSED = re.compile(r"[^/\w.\- :]|(?<![^/])(?:\.\.|\.?(?=/|\Z))")
"""What no name may have: other characters, and parts between slashes that a path would not keep."""


def name_of(text: str) -> str:
    """Return a name that stores take; one that had to be changed ends with a digest, so that two names stay two."""
    name = REFUSED.sub("_", text)
    if name == text and len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 7]}-{hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()[:6]}"


def cut(value: object, most: int = MAX_TAG) -> str:
    """Return a value's text, which ends with an ellipsis where it is longer than what stores keep."""
    text = str(value).encode(errors="backslashreplace").decode()  # bytes of a path that are no UTF-8
    return text if len(text) <= most else f"{text[: most - 1]}…"


def taken(tags: Mapping[str, object]) -> dict[str, str]:
    """Return tags of a run or a version as stores take them."""
    return {name_of(name): cut(value) for name, value in tags.items()}


def run_tags(tags: Mapping[str, object]) -> list[RunTag]:
    """Return tags of a run for ``log_batch``."""
    return [RunTag(name, value) for name, value in taken(tags).items()]


def params(values: Mapping[str, object]) -> list[Param]:
    """Return parameters for ``log_batch``; the configuration, an artifact of the run, has them whole."""
    return [Param(name_of(name), cut(value, MAX_PARAM)) for name, value in values.items()]


def metrics(points: Iterable[tuple[str, float, int]]) -> list[Metric]:
    """Return values of metrics by name, value and step for ``log_batch``."""
    now = int(time.time() * 1000)
    return [Metric(name_of(name), float(value), now, step) for name, value, step in points]
