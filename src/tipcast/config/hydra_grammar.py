"""Words in the grammar of Hydra's overrides: which it takes, which need quotes, and how keys with
letters of any alphabet pass through it.

The grammar takes letters beyond ASCII only within quotes, and quotes only around values. So values
get quotes, and keys that name a user's columns are encoded in ASCII and decoded later.
"""

import re
import unicodedata
from collections.abc import Mapping

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

COLUMN_MAPPINGS = {"columns", "data.columns", "data.types"}
"""Keys whose value is a mapping with keys that the user names after columns."""
COLUMN_KEYS = {
    "task.target",
    "task.features",
    "task.categorical",
    "data.time",
    "keep",
    *COLUMN_MAPPINGS,
}
"""Keys whose values name columns."""

QUOTE = "'"
"""The quote that ``quoted`` puts around a text."""
QUOTES = "'\""
"""All quotes of the grammar."""
QUOTED_TEXT = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
"""Matches a text in quotes, in which a backslash escapes a quote."""
TEXT_OR_WORD = re.compile(
    QUOTED_TEXT
    + r"""|(?P<word>[^\[\]{}(),:=\\'"]*[^\x00-\x7f\[\]{}(),:=\\'"][^\[\]{}(),:=\\'"]*)"""
)
"""Matches a text in quotes, or as the group ``word`` what stands outside quotes and has a letter
beyond ASCII.
"""
TEXT_OR_KEY = re.compile(QUOTED_TEXT + r"""|(?<=[{,])(?P<key>(?:\\.|[^\\{}\[\],:'"])+)(?=:)""")
"""Matches a text in quotes, or as the group ``key`` a key of a mapping ``{key: value}``."""
SYNTAX = re.compile(r"[\\()\[\]{}:=, \t]")
"""Matches a character that has a meaning in the grammar, to be escaped in a mapping's keys."""
WITH_BACKSLASH = r"\\\g<0>"
"""Replacement of such a character: itself after a backslash."""
TO_ENCODE = re.compile(r"[^\x00-\x7f]|\$(?=u[0-9a-f]+\$)")
"""Matches a letter beyond ASCII, and a dollar sign that would look like the beginning of a code."""
CODE = re.compile(r"\$u([0-9a-f]+)\$")
"""Matches the code that ``encode_keys`` puts in place of a letter: its number in base 16."""


def parsed(override: str) -> Override | None:
    """Return an override as Hydra's grammar reads it; None if the grammar does not take it.

    ``seed=1`` becomes an ``Override`` with the value 1, ``data.train=[a`` becomes None. Keys that
    name columns may have any letters, as they are encoded for the grammar.
    """
    try:
        return OverridesParser.create().parse_override(encode_keys(override))
    except HydraException:
        return None


def encode_keys(override: str) -> str:
    """Return an override with ASCII codes for the letters of keys that name columns.

    ``data.types={größe: category}`` becomes ``data.types={gr$uf6$$udf$e: category}``. Overrides of
    other keys than ``COLUMN_MAPPINGS`` stay, and so do values. Letters get one Unicode form (NFC)
    first. The way back is ``decode_keys``.
    """
    key, equals, value = override.partition("=")
    name = key.lstrip("+~")
    below = tuple(f"{mapping}." for mapping in COLUMN_MAPPINGS)
    if name not in COLUMN_MAPPINGS and not name.startswith(below):
        return override

    def encoded(text: str) -> str:
        text = unicodedata.normalize("NFC", text)
        return TO_ENCODE.sub(lambda letter: f"$u{ord(letter[0]):x}$", text)

    def encoded_key(match: re.Match[str]) -> str:
        if match["key"]:
            return encoded(match[0])
        return match[0]  # a text in quotes

    return f"{encoded(key)}{equals}{TEXT_OR_KEY.sub(encoded_key, value)}"


def decode_keys(text: str) -> str:
    """Return a text with the letters that ``encode_keys`` replaced by codes.

    ``gr$uf6$$udf$e`` becomes ``größe``. The text may be a key or a whole override.
    """
    return CODE.sub(lambda code: chr(int(code[1], 16)), text)


def quoted(text: str) -> str:
    r"""Return a text in quotes, which Hydra's grammar reads as this very text.

    ``a b`` becomes ``'a b'``, ``it's`` becomes ``'it\'s'``. Backslashes are doubled only before a
    quote or at the end, where they would escape the quote.
    """
    doubled = re.sub(r"(\\+)(?='|$)", r"\1\1", text)
    escaped = doubled.replace("'", r"\'")
    return f"'{escaped}'"


def with_quoted_words(override: str) -> str:
    """Return an override with quotes around the words of its value that are not ASCII.

    ``task.features=[größe, a]`` becomes ``task.features=['größe', a]``. An override that the
    grammar takes stays as it is, and so does one that quotes do not help. Names of columns get one
    Unicode form (NFC), as names in files do.
    """
    key, equals, value = override.partition("=")
    if key.lstrip("+") in COLUMN_KEYS:
        value = unicodedata.normalize("NFC", value)
    override = f"{key}{equals}{value}"
    if value.isascii() or parsed(override) is not None:
        return override

    def with_quotes(match: re.Match[str]) -> str:
        word = (match["word"] or "").strip()
        if not word:
            return match[0]
        return match[0].replace(word, quoted(word))

    # Keys are encoded meanwhile: they take no quotes.
    key, _, value = encode_keys(override).partition("=")
    improved = decode_keys(f"{key}{equals}{TEXT_OR_WORD.sub(with_quotes, value)}")
    if parsed(improved) is None:
        return override
    return improved


def literal(value: object) -> str:
    r"""Return a value of Python as the grammar writes it.

    None becomes ``null``, True becomes ``true``, ``["a", 1]`` becomes ``['a', 1]``, and
    ``{"size (m)": 2}`` becomes ``{size\ \(m\): 2}``. Texts get quotes, so that the grammar does not
    read ``1e3`` as a number; other objects, such as a path, become text.
    """
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return str(value).lower()  # true
    if isinstance(value, Mapping):
        items = [
            f"{SYNTAX.sub(WITH_BACKSLASH, str(name))}: {literal(item)}"
            for name, item in value.items()
        ]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    return quoted(str(value))
