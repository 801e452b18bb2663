"""Batches of parameters, tags and metrics for MLflow: under names that stores accept, shortened to
their limits, and without secrets.
"""

import hashlib
import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from tipcast.config.environment import concealed
from tipcast.config.plain import without_login

MAX_NAME = 250
"""Most characters of the name of a parameter, tag or metric."""
MAX_PARAM = 6000
"""Most characters of a parameter's value."""
MAX_TAG = 8000
"""Most characters of a tag's value."""
MAX_DIGEST = 36
"""Most characters of a dataset's digest."""
MAX_DATASET = 500
"""Most characters of a dataset's name."""
REFUSED = re.compile(r"[^/\w.\- :]|(?<![^/])(?:\.\.|\.?(?=/|\Z))")
"""Characters that no name may have, and parts between slashes that a path would not keep."""
Facts = Mapping[str, object]
"""Name of a parameter or tag -> value."""
Curves = Mapping[str, Mapping[int, float]]
"""Metric -> step -> value."""
NONE: Mapping[str, Any] = MappingProxyType({})
"""No parameters, tags or curves."""


def write(
    store: MlflowClient,
    run_id: str,
    *,
    tags: Facts = NONE,
    params: Facts = NONE,
    curves: Curves = NONE,
) -> None:
    """Write to a run with one call, in the form that stores accept.

    Parameters may be shortened: the configuration, an artifact of the run, has them whole.
    """
    now_ms = int(time.time() * 1000)
    metric_entities = [
        Metric(storable_name(name), float(value), now_ms, step)
        for name, values in curves.items()
        for step, value in values.items()
    ]
    param_entities = [
        Param(storable_name(name), stored_param(value)) for name, value in params.items()
    ]
    safe_tags = {name: without_secrets(value) for name, value in tags.items()}
    tag_entities = [RunTag(name, value) for name, value in storable_tags(safe_tags).items()]

    store.log_batch(run_id, metrics=metric_entities, params=param_entities, tags=tag_entities)


def stored_param(value: object) -> str:
    """Return the value of a parameter as stores have it."""
    return shorten(without_secrets(value), MAX_PARAM)


def without_secrets(value: object) -> str:
    """Return a value's text without user names and passwords in addresses.

    Values of the environment are replaced by the expressions that read them.
    """
    return without_login(concealed(str(value)))


def storable_tags(tags: Facts) -> dict[str, str]:
    """Return tags of a run or a version with names and values that stores accept."""
    return {storable_name(name): shorten(value) for name, value in tags.items()}


def storable_name(text: str) -> str:
    """Return a name that stores accept.

    A name that must be changed gets a digest at its end, so that different names stay different.
    """
    name = REFUSED.sub("_", text)
    if name == text and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return f"{name[: MAX_NAME - 7]}-{digest[:6]}"


def shorten(value: object, most: int = MAX_TAG) -> str:
    """Truncate a value's text to MLflow's limit, with an ellipsis."""
    # A path may have bytes that are not UTF-8.
    text = str(value).encode(errors="backslashreplace").decode()
    if len(text) > most:
        return f"{text[: most - 1]}…"
    return text
