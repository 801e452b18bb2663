"""A configuration as plain values: for the artifact that keeps it and the parameters that a run is compared by."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any

from tipcast.config.arguments import SECRET

HIDDEN = "***"
ADDRESS = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?:[^/@\s'\"]*@)?(?P<rest>[^?\s'\",\]]*(?:\?(?![^\s'\",\]]*=)[^?\s'\",\]]*)*)(?:\?[^\s'\",\]]*)?",
    re.IGNORECASE,
)
"""An address; a question mark of a glob is no query, which has an equals sign."""
READER_OPTIONS = "storage_options"
"""What fsspec gets: every file system has its own names for its secrets, so no text of it is shown."""


def to_plain(value: Any, hidden: bool = False) -> Any:
    """Return dataclasses, enums and sequences as dicts, strings and lists, with secrets, or all texts, hidden."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {
            str(name): HIDDEN
            if SECRET.search(str(name)) and item
            else to_plain(item, hidden or str(name) == READER_OPTIONS)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [to_plain(item, hidden) for item in value]
    if isinstance(value, str) and value:
        return HIDDEN if hidden else redact(value)
    return value


def redact(text: str) -> str:
    """Return text with the user information and the query of every address in it taken out."""
    return ADDRESS.sub(r"\g<scheme>\g<rest>", text)


def flatten(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one with dotted keys; empty ones and nulls are left out."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = value
    return flat
