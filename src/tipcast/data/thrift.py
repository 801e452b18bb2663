"""Structs of Thrift's compact protocol, in which Parquet writes its footers, as lists that can be changed and written.

The protocol: thrift.apache.org/docs, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

import struct
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

Field = list[Any]
"""Id, type, value. Numbers are ints, text is bytes, a struct is a list of fields, a list or set is (type, values)."""


class Reader:
    """Reads one struct from bytes."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def struct(self) -> list[Field]:
        """Return the fields of the struct that begins here."""
        fields: list[Field] = []
        last = 0
        while head := self._byte():
            kind = head & 15
            last = last + (head >> 4) if head >> 4 else self._number()
            fields.append([last, kind, self._value(kind)])
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == BYTE:
            return self._byte()
        if kind in (I16, I32, I64):
            return self._number()
        if kind == DOUBLE:
            return struct.unpack("<d", self._bytes(8))[0]
        if kind == BINARY:
            return self._bytes(self._size())
        if kind in (LIST, SET):
            head = self._byte()
            size = head >> 4 if head >> 4 < 15 else self._size()
            return head & 15, [self._item(head & 15) for _ in range(size)]
        if kind == STRUCT:
            return self.struct()
        raise ValueError(f"a Parquet footer has no values of Thrift's type {kind}")

    def _item(self, kind: int) -> Any:
        return self._byte() == TRUE if kind in (TRUE, FALSE) else self._value(kind)

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._content):
            raise ValueError("a Parquet footer ends early")
        return self._content[self._at - size : self._at]

    def _size(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
        return value | byte << shift

    def _number(self) -> int:
        folded = self._size()
        return (folded >> 1) ^ -(folded & 1)


def write(fields: list[Field]) -> bytes:
    """Return a struct as bytes."""
    out = bytearray()
    last = 0
    for at, kind, value in fields:
        kind = (TRUE if value else FALSE) if kind in (TRUE, FALSE) else kind
        if 0 < at - last < 16:
            out.append((at - last) << 4 | kind)
        else:
            out.append(kind)
            out += _number(at)
        last = at
        if kind not in (TRUE, FALSE):
            out += _written(kind, value)
    out.append(0)
    return bytes(out)


def _written(kind: int, value: Any) -> bytes:
    if kind == BYTE:
        return bytes([value])
    if kind in (I16, I32, I64):
        return _number(value)
    if kind == DOUBLE:
        return struct.pack("<d", value)
    if kind == BINARY:
        return _size(len(value)) + bytes(value)
    if kind == STRUCT:
        return write(value)
    inner, items = value
    head = bytes([len(items) << 4 | inner]) if len(items) < 15 else bytes([0xF0 | inner]) + _size(len(items))
    if inner in (TRUE, FALSE):
        return head + bytes(TRUE if item else FALSE for item in items)
    return head + b"".join(_written(inner, item) for item in items)


def _size(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(value: int) -> bytes:
    return _size(value << 1 if value >= 0 else (-value << 1) - 1)


def get(fields: list[Field], at: int) -> Any:
    """Return the value of the field with an id, None where there is none."""
    return next((value for number, _, value in fields if number == at), None)


def put(fields: list[Field], at: int, value: Any) -> None:
    """Set the value of a field that is there."""
    next(field for field in fields if field[0] == at)[2] = value
