"""Files of JSON lines: an object in each line, whose values say the types of columns."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.json

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.arrow_part import ArrowPart
from tipcast.datasets.csv_bytes import pieces
from tipcast.datasets.dialect import NAME_ENCODING
from tipcast.datasets.listing import ScanRequest, seen_names

_BLOCK = 1 << 20
"""Bytes that the parser works on at once; a longer line makes it larger."""
_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number"}
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class JsonPart(ArrowPart):
    """All rows of a file of JSON lines."""

    schema: pa.Schema
    """All columns, as the whole file has them."""
    encoding: str = "utf-8"
    file_format = "JSON lines"

    def table(self, names: Sequence[str]) -> pa.Table:
        text = _text_of(self.uri, self.storage, self.encoding)
        schema = pa.schema([self.schema.field(name) for name in names])
        table = _parsed(text, address.shown(self.uri), schema)
        if table.num_rows != self.rows:
            raise address.changed(self.uri)
        return table.select(list(names))

    def place(self, row: int) -> str:
        lines = _text_of(self.uri, self.storage, self.encoding).split(b"\n")
        filled = [number for number, line in enumerate(lines, 1) if line.strip()]
        return f"line {filled[row]}" if len(filled) == self.rows else ""


def scan_json_lines(uri: str, request: ScanRequest) -> JsonPart:
    """Read a whole file for its columns, their types and its rows.

    Raises D003 for an empty file, D005 with the line for what does not parse, D006 and D007 for its
    columns, D009 without rows, D016 for a text that is not of its encoding.
    """
    where = address.shown(uri)
    storage = address.storage(uri, request.storage)
    encoding = request.dialect.encoding
    text = _text_of(uri, storage, encoding)
    address.refuse_pointer(uri, text)
    if not text.strip():
        raise TipcastError("D003", where, "is empty", "remove it or download it again")

    table = _parsed(text, where)
    if not table.num_columns:
        raise TipcastError("D009", where, "has no rows with a value", "download it again")

    part = JsonPart(
        uri=uri,
        digest=hashlib.sha256(text).hexdigest(),
        storage=storage,
        column_names=dict(request.names),
        names=tuple(table.column_names),
        schema=table.schema,
        encoding=encoding,
        rows=table.num_rows,
    )
    return replace(part, columns=dict(seen_names(table.column_names, request, where)))


def _text_of(uri: str, storage: Mapping[str, Any], encoding: str) -> bytes:
    return b"".join(pieces(uri, storage, encoding)).removeprefix(_BOM)


def _parsed(text: bytes, where: str, schema: pa.Schema | None = None) -> pa.Table:
    """Parse lines; of a ``schema`` its columns alone. Raises D005 with the line, D016."""
    longest = _longest_line(text)
    reading = pa.json.ReadOptions(use_threads=False, block_size=max(_BLOCK, longest + 1))
    form = pa.json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
    )
    try:
        return pa.json.read_json(pa.BufferReader(text), reading, form)
    except (ValueError, NotImplementedError) as problem:
        raise _fault_of(text, where, problem) from problem


def _longest_line(text: bytes) -> int:
    """Return the bytes of the longest line; no second copy of the text is made."""
    longest = 0
    start = 0
    while (stop := text.find(b"\n", start)) >= 0:
        longest = max(longest, stop - start)
        start = stop + 1
    return max(longest, len(text) - start)


def _fault_of(text: bytes, where: str, problem: Exception) -> TipcastError:
    """Return the error of the first line that does not fit, D005 or D016."""
    fix = "write one object per line, with values of one type in each column"
    types: dict[str, str] = {}
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.strip():
            continue

        try:
            row = json.loads(line)
        except UnicodeDecodeError:
            return TipcastError("D016", where, f"line {number} is not UTF-8", NAME_ENCODING)
        except ValueError as fault:
            return TipcastError("D005", where, f"line {number} cannot be parsed: {fault}", fix)

        if not isinstance(row, dict):
            return TipcastError("D005", where, f"line {number} is not an object", fix)
        for name, value in row.items():
            value_type = _TYPES.get(type(value), "number")
            if value is not None and types.setdefault(name, value_type) != value_type:
                what = f"line {number}: column {name!r}: a {value_type} after a {types[name]}"
                return TipcastError("D005", where, what, fix)

    reason = re.sub(r" in row \d+$", "", str(problem))  # a row of a block, not of the file
    return TipcastError("D005", where, f"cannot be parsed: {reason}", fix)
