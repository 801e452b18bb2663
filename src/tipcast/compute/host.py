"""Arrays and frames of any device: where they are, and bringing them home as their twins in host memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def to_host(value: Any) -> Any:
    """Return a CuPy array as a NumPy array and a cuDF frame as a pandas one; whatever is on the host as it is."""
    home = _HOME.get(type(value).__module__.partition(".")[0])
    return value if home is None else home(value)


_HOME: dict[str, Callable[[Any], Any]] = {"cupy": lambda array: array.get(), "cudf": lambda frame: frame.to_pandas()}
"""Library of a device -> how its objects come home; looked up by name, so that nothing is imported for it."""


def device_of(array: Any) -> str:
    """Return where an array is: ``cpu`` or, as XGBoost says it, ``cuda:0``."""
    return f"cuda:{array.device.id}" if type(array).__module__.partition(".")[0] == "cupy" else "cpu"


def module_of(array: Any) -> Any:
    """Return the array module (numpy, cupy) that an array belongs to."""
    return sys.modules[type(array).__module__.partition(".")[0]]
