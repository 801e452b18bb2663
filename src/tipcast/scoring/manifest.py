"""The manifest of a folder of scores: which model scored which files, and how each can be known again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.datasets import address

MANIFEST = "_manifest.json"
"""Readers of whole folders pass over names that begin with an underscore."""
KIND, VERSION = "tipcast scores", 1
PIECE = 8 << 20
MARKS = ("ETag", "Content-MD5", "Digest", "LastModified")
"""What stores and servers tell of a content, the best first."""


@dataclass(frozen=True)
class Entry:
    """What the manifest says of one scored file."""

    input: str
    """The file that was scored, without credentials."""
    input_stamp: str
    """What it looked like from outside, see ``file_stamp``."""
    input_sha256: str
    recipe: str
    """Digest of all that the scored file depends on beside its input."""
    rows: int
    bytes: int
    sha256: str
    stamp: str = ""
    unscored: Mapping[str, int] = field(default_factory=dict)
    """Reason -> rows whose probability is null."""


@dataclass(frozen=True)
class Manifest:
    """All of a folder."""

    files: Mapping[str, Entry]
    """Path in the folder -> entry."""
    about: Mapping[str, Any]
    """Model, configuration, run, and the files that were refused."""


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return a manifest as it is written."""
    files = {name: asdict(manifest.files[name]) for name in sorted(manifest.files)}
    rows = sum(entry.rows for entry in manifest.files.values())
    head = {"kind": KIND, "version": VERSION, "rows": rows, **manifest.about}
    return json.dumps({**head, "files": files}, indent=2).encode()


def read_manifest(content: bytes) -> Manifest | None:
    """Read a manifest; None where it is none of ours."""
    try:
        about = json.loads(content)
        if about.pop("kind") != KIND or about.pop("version") != VERSION:
            return None
        files = {str(name): Entry(**entry) for name, entry in about.pop("files").items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Manifest(files, about)


def file_stamp(uri: str, storage: Mapping[str, Any], *, strict: bool) -> str | None:
    """Return what a file looks like without reading it, None where there is none.

    ``strict`` looks at the time of the last change of anything too, which no copying tool sets back.

    Raises
    ------
    TipcastError
        D022 a store that does not answer.

    """
    if not address.scheme(uri):
        try:
            found = Path(uri).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return f"{found.st_size}-{found.st_mtime_ns}" + (f"-{found.st_ctime_ns}" if strict else "")
    try:
        with address.reaching(uri):
            store = address.filesystem(uri, storage)
            store.invalidate_cache(uri)
            told = store.info(uri)
    except TipcastError as problem:
        if problem.code != "D001":
            raise
        return None
    mark = next((str(told[name]).strip('"') for name in MARKS if told.get(name)), "")
    return f"{told.get('size')}-{mark}"


def file_sha256(uri: str, storage: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a file's content, read in pieces.

    Raises
    ------
    TipcastError
        D001 gone, D022 not reached.

    """
    found = hashlib.sha256()
    with address.opened(uri, storage) as file, address.reaching(uri):
        while piece := file.read(PIECE):
            found.update(piece)
    return found.hexdigest()


def unchanged_file(uri: str, storage: Mapping[str, Any], known: str, digest: str, *, strict: bool) -> str | None:
    """Return the stamp of a file that is what it was, by its looks or a local one by its content; None for others."""
    now = file_stamp(uri, storage, strict=strict)
    if now is None or now == known:
        return now if now and not now.endswith("-") else None  # a server that tells the size alone tells too little
    return now if not address.scheme(uri) and file_sha256(uri, storage) == digest else None
