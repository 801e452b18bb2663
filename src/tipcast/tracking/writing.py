"""How values come into MLflow: under names that stores take, shortened to what they keep, and
without secrets.
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
MAX_PARAM = 6000
MAX_TAG = 8000
MAX_DIGEST = 36
MAX_DATASET = 500
"""Characters of a name, of values of parameters and tags, and of digest and name of a dataset."""
REFUSED = re.compile(r"[^/\w.\- :]|(?<![^/])(?:\.\.|\.?(?=/|\Z))")
"""What no name may have: other characters, and parts between slashes that a path would not keep."""
Facts = Mapping[str, object]
Curves = Mapping[str, Mapping[int, float]]
NONE: Mapping[str, Any] = MappingProxyType({})


def write(
    store: MlflowClient,
    run_id: str,
    *,
    tags: Facts = NONE,
    params: Facts = NONE,
    curves: Curves = NONE,
) -> None:
    """Write to a run with one call, as stores take it: ``curves`` has metric -> step -> value.

    Parameters may be shortened: the configuration, an artifact of the run, has them whole.
    """
    now = int(time.time() * 1000)
    plain_tags = {name: without_secrets(value) for name, value in tags.items()}
    store.log_batch(
        run_id,
        metrics=[
            Metric(storable_name(name), float(value), now, step)
            for name, values in curves.items()
            for step, value in values.items()
        ],
        params=[
            Param(storable_name(name), shorten(without_secrets(value), MAX_PARAM))
            for name, value in params.items()
        ],
        tags=[RunTag(name, value) for name, value in storable_tags(plain_tags).items()],
    )


def without_secrets(value: object) -> str:
    """Return a value's text without user names and passwords in addresses, and with expressions in
    place of what they read from the environment.
    """
    return without_login(concealed(str(value)))


def storable_tags(tags: Facts) -> dict[str, str]:
    """Return tags of a run or a version with names and values that stores take."""
    return {storable_name(name): shorten(value) for name, value in tags.items()}


def storable_name(text: str) -> str:
    """Return a name that stores take; one that had to be changed ends with a digest, so that two
    names stay two.
    """
    name = REFUSED.sub("_", text)
    if name == text and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return f"{name[: MAX_NAME - 7]}-{digest[:6]}"


def shorten(value: object, most: int = MAX_TAG) -> str:
    """Truncate a value's text to what stores keep, with an ellipsis."""
    # A path may have bytes that are not UTF-8.
    text = str(value).encode(errors="backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"
