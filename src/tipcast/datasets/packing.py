"""Compression of text files: which endings of names say it, and streams of what is inside."""

import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

import pyarrow as pa

from tipcast.compute.base import count
from tipcast.config.errors import TipcastError
from tipcast.datasets import address


@dataclass(frozen=True)
class Packing:
    """A way to compress a file."""

    name: str
    ending: str
    """How names of such files end."""
    magic: tuple[bytes, ...]
    """How their content may begin."""
    open: Callable[[BinaryIO, str], Any]
    """Open file and its address -> file of what is inside."""
    faults: tuple[type[Exception], ...]
    """What reading raises for a file that is damaged, or not compressed so."""


def _open_gzip(file: BinaryIO, uri: str) -> Any:
    return gzip.GzipFile(fileobj=file)


def _open_zstd(file: BinaryIO, uri: str) -> Any:
    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")


def _open_zip(file: BinaryIO, uri: str) -> IO[bytes]:
    """Open the one file in an archive; what macOS adds beside it does not count. Raises D004."""
    where = address.shown(uri)
    address.seekable(uri, file)
    archive = zipfile.ZipFile(file)
    members = [
        member
        for member in archive.infolist()
        if not member.is_dir() and not member.filename.startswith("__MACOSX/")
    ]
    if len(members) != 1:
        what = f"contains {count(len(members), 'file')}, but a .zip must contain exactly one"
        raise TipcastError("D004", where, what, "unpack it, and pass its files or their folder")
    if members[0].flag_bits & 1:
        raise TipcastError("D004", where, "is encrypted", "unpack it with its password")

    try:
        return archive.open(members[0])
    except NotImplementedError as problem:
        what = f"uses an unsupported compression ({problem})"
        raise TipcastError("D004", where, what, "unpack it") from problem


PACKINGS = (
    Packing(
        name="gzip",
        ending=".gz",
        magic=(b"\x1f\x8b",),
        open=_open_gzip,
        faults=(gzip.BadGzipFile, EOFError, zlib.error),
    ),
    Packing(
        name="zstd",
        ending=".zst",
        magic=(b"\x28\xb5\x2f\xfd",),
        open=_open_zstd,
        faults=(OSError,),
    ),
    Packing(
        name="zip",
        ending=".zip",
        magic=(b"PK\x03\x04", b"PK\x05\x06"),
        open=_open_zip,
        faults=(zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError),
    ),
)
"""All ways that are read."""


def packing_of(uri: str) -> Packing | None:
    """Return how a file is compressed, as its name says; None: it is not."""
    name = address.last_name(uri).lower()
    return next((packing for packing in PACKINGS if name.endswith(packing.ending)), None)


def unpacked_name(uri: str) -> str:
    """Return an address without the ending that says how the file is compressed; as it is where a
    query follows.
    """
    packing = packing_of(uri)
    if packing is None or not uri.lower().endswith(packing.ending):
        return uri
    return uri[: -len(packing.ending)]


def with_packings(endings: tuple[str, ...]) -> tuple[str, ...]:
    """Return endings of names, each also followed by those of compressed files."""
    packed = ("", *(packing.ending for packing in PACKINGS))
    return tuple(f"{ending}{more}" for ending in endings for more in packed)
