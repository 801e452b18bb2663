"""The dialect of a text file: its separator of fields, its decimal sign and its encoding."""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tipcast.config.errors import TipcastError, must_be

SEPARATORS = {",": "commas", ";": "';'", "\t": "tabs", "|": "'|'"}
"""Separator of fields -> its name for messages; the usual one first."""
DECIMALS = (".", ",")
OPTIONS = ("decimal", "encoding")
"""Fields that a user sets by keys of the configuration, and that a saved model remembers."""
NAME_ENCODING = (
    "convert it, e.g. with iconv -f LATIN1 -t UTF-8, or, for a table, set its encoding: "
    "data.encoding=cp1252"
)
"""How to mend a text that is not UTF-8."""


@dataclass(frozen=True)
class Dialect:
    """How a text file is written, whatever its columns mean."""

    separator: str = ","
    """A key of ``SEPARATORS``; every file's scan finds its own."""
    decimal: str = "."
    """One of ``DECIMALS``."""
    encoding: str = "utf-8"
    """Name of one of Python's codecs."""

    @property
    def is_utf8(self) -> bool:
        """Whether the file's bytes are read as they are, with a byte order mark or without."""
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig")

    def with_options(self, options: Mapping[str, Any], prefix: str) -> Self:
        """Return the dialect with those of ``OPTIONS`` that are set: neither absent nor None.

        ``prefix`` is what their keys begin with in the configuration, as ``data.``.

        Raises C003 for another decimal sign than ``DECIMALS``, and for an unknown encoding.
        """
        chosen = {name: options[name] for name in OPTIONS if options.get(name) is not None}
        dialect = replace(self, **chosen)

        if dialect.decimal not in DECIMALS:
            fix = f"write {prefix}decimal=',' for numbers such as 1,5"
            raise must_be(f"{prefix}decimal", "'.' or ','", repr(dialect.decimal), fix)
        if not _is_encoding(dialect.encoding):
            what = f"unknown encoding {dialect.encoding!r}"
            fix = "use one that Python has, such as utf-8, latin-1, cp1252 or utf-16"
            raise TipcastError("C003", f"{prefix}encoding", what, fix)

        return dialect

    def to_manifest(self) -> dict[str, str]:
        """Return what a saved model remembers of its training files."""
        return {name: getattr(self, name) for name in OPTIONS}


def dialect_of(spec: object, prefix: str) -> Dialect:
    """Return the dialect that a configuration of data asks for. Raises C003."""
    return Dialect().with_options({name: getattr(spec, name, None) for name in OPTIONS}, prefix)


def _is_encoding(name: str) -> bool:
    """Whether Python decodes texts by a name; there are codecs of other things, as base64."""
    try:
        bytes(range(256)).decode(name, "replace")
    except (LookupError, ValueError):
        return False
    return bool(name)
