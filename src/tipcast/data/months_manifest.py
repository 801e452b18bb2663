"""The manifest of prepared months: what each file holds, so that a second run does nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import filelock
import fsspec
from fsspec.implementations.local import LocalFileSystem

from tipcast.config.errors import TipcastError

MANIFEST = "manifest.json"
VERSION = 1
LOCK = ".manifest.json.lock"
LOCK_S = 60.0
"""How long another job may keep the manifest to itself: it needs milliseconds."""


@dataclass(frozen=True)
class Written:
    """What the manifest says of a file."""

    rows: int
    bytes: int
    sha256: str
    row_groups: int
    recipe: str
    """Digest of everything the file depends on."""
    dropped: Mapping[str, int]


def read_manifest(out: str) -> dict[str, Written]:
    """Return file name -> what the manifest in ``out`` says of it; empty where there is none.

    Raises
    ------
    TipcastError
        D020 a manifest that is not ours or not whole.

    """
    filesystem, folder = fsspec.core.url_to_fs(out)
    path = f"{folder.rstrip('/')}/{MANIFEST}"
    try:
        files = json.loads(filesystem.cat_file(path))["files"]
        return {name: Written(**entry) for name, entry in files.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise TipcastError(
            "D020",
            path,
            "is no manifest of prepared months",
            "choose another folder, or delete the file to prepare again",
        ) from problem


def add_to_manifest(out: str, entries: Mapping[str, Written]) -> None:
    """Add entries to the manifest in ``out``, which is replaced as a whole.

    In a folder a file lock keeps other jobs out meanwhile. An object store has no locks: what another job writes
    between our reading and writing is lost, so give all entries of a job each time, not only the newest.

    Parameters
    ----------
    out
        Folder, which exists, or address.
    entries
        File name -> what is to be said of it.

    Raises
    ------
    TipcastError
        D020 a manifest that is not ours or not whole.
    OSError
        It cannot be written, or another job keeps the lock.

    """
    filesystem, folder = fsspec.core.url_to_fs(out)
    path = f"{folder.rstrip('/')}/{MANIFEST}"
    # mode: whoever shares the folder by its group can take the lock
    lock = filelock.FileLock(f"{folder.rstrip('/')}/{LOCK}", timeout=LOCK_S, mode=0o664)
    with lock if isinstance(filesystem, LocalFileSystem) else contextlib.nullcontext():
        files = read_manifest(out) | dict(entries)
        plain = {"version": VERSION, "files": {name: asdict(files[name]) for name in sorted(files)}}
        unfinished = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
        filesystem.pipe_file(unfinished, json.dumps(plain, indent=2).encode())
        filesystem.mv(unfinished, path)


def is_current(out: str, name: str, recipe: str, manifest: Mapping[str, Written]) -> bool:
    """Whether a file is there, made by the same recipe, and unchanged since (by SHA-256)."""
    entry = manifest.get(name)
    if entry is None or entry.recipe != recipe:
        return False
    filesystem, folder = fsspec.core.url_to_fs(out)
    path = f"{folder.rstrip('/')}/{name}"
    return (
        bool(filesystem.exists(path))
        and filesystem.size(path) == entry.bytes
        and sha256(filesystem, path) == entry.sha256
    )


def sha256(filesystem: Any, path: str) -> str:
    """Return the SHA-256 of a file on an fsspec file system, in hexadecimal digits."""
    with filesystem.open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
