"""The folder or prefix of scores: its manifest, what else may be in it, and one job at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.listing import PARQUET, below
from tipcast.scoring.writing import UNFINISHED, failures, remove, written

MANIFEST = "_manifest.json"
"""Readers of whole folders pass over names that begin with an underscore."""
FOOTER = b"tipcast"
"""Of a scored Parquet file's metadata: the key of what the file says of itself."""
KIND, VERSION = "tipcast scores", 1


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the manifest says of one scored file, or the file of itself: then what has a default is not known."""

    input: str = ""
    """The file that was scored, without credentials."""
    input_stamp: str = ""
    """What it looked like from outside, see ``writing.file_stamp``."""
    input_sha256: str
    recipe: str
    """Digest of all that the scored file depends on beside its input."""
    rows: int
    bytes: int = 0
    sha256: str = ""
    stamp: str = ""
    unscored: Mapping[str, int]
    """Reason -> rows whose prediction is null."""

    @property
    def named(self) -> bool:
        """Whether a manifest names it; others are whole too, as an interrupted job leaves them."""
        return bool(self.stamp)

    @property
    def footer(self) -> dict[str, Any]:
        """What the scored file says of itself, so that an interrupted job does not score its rows again."""
        return {"recipe": self.recipe, "input_sha256": self.input_sha256, "unscored": self.unscored}


@dataclass(frozen=True)
class Scores:
    """A folder of scores."""

    folder: str
    """Its absolute path or address."""
    files: Mapping[str, Entry] = field(default_factory=dict)
    """Path in the folder -> entry."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Model, configuration, run, and the files that were refused; empty without a manifest."""


def manifest_bytes(scores: Scores) -> bytes:
    """Return a manifest as it is written."""
    files = {name: asdict(entry) for name, entry in sorted(scores.files.items())}
    rows = sum(entry.rows for entry in scores.files.values())
    return json.dumps(
        {"kind": KIND, "version": VERSION, "rows": rows, **scores.about, "files": files}, indent=2
    ).encode()


def read_manifest(folder: str, content: bytes) -> Scores:
    """Read a folder's manifest; without files where the content is another file's."""
    try:
        about = json.loads(content)
        if about.pop("kind") != KIND or about.pop("version") != VERSION:
            return Scores(folder)
        files = {str(name): Entry(**entry) for name, entry in about.pop("files").items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return Scores(folder)
    return Scores(folder, files, about)


def write_manifest(scores: Scores, options: Mapping[str, Any]) -> None:
    """Replace the manifest of a folder in one step."""
    path = f"{scores.folder}/{MANIFEST}"
    with written(path, address.storage(path, options)) as file:
        file.write(manifest_bytes(scores))


def look(output: str, options: Mapping[str, Any]) -> Scores:
    """Look into the folder for scores, and change nothing.

    C004, C011: it cannot be one or holds a file that is none of tipcast's scores; T008, T009: it cannot be read.
    """
    folder = _located(output)
    storage = address.storage(folder, options)
    with failures(folder):
        if address.scheme(folder):
            address.filesystem(folder, storage).invalidate_cache()
        found = _manifest(folder, storage)
        files, known = dict(found.files), [MANIFEST] if found.about else []
        for name in _names(folder, storage):
            if name in files or name in known or any(step.startswith(UNFINISHED) for step in name.split("/")):
                continue
            entry = _footer(f"{folder}/{name}", storage)
            if entry is None:
                what = f"holds {name}, which is none of tipcast's scores"
                raise refused(output, what, "name a new or an empty folder, or move the file away")
            files[name] = entry
    return replace(found, files=files)


def _located(output: str) -> str:
    """Return the absolute path or address of a folder that could hold scores."""
    if not output.strip():
        raise TipcastError("C004", "output", "needs a value", "add output=FOLDER or output=s3://BUCKET/PREFIX")
    if ".." in output.split("/"):
        raise refused(output, "has .. in it, which leads upwards", "write the path without .. in it")
    kind = address.scheme(output)
    if kind == "s3":
        bucket, _, prefix = output.removeprefix("s3://").rstrip("/").partition("/")
        if not bucket or not prefix or "?" in output or "#" in output:
            raise refused(output, "is a whole bucket", "add a prefix, as s3://BUCKET/scored")
        return output.rstrip("/")
    if kind:
        raise refused(output, "cannot be written to", "use a folder or s3://BUCKET/PREFIX")
    path = Path(output.removeprefix("file://")).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise refused(output, "is a file", "name a folder")
    return str(path)


def refused(output: str, what: str, fix: str) -> TipcastError:
    """Return the error of a folder that must not get scores."""
    return TipcastError("C011", f"output {address.shown(output)}", what, fix)


def _manifest(folder: str, storage: Mapping[str, Any]) -> Scores:
    try:
        with address.opened(f"{folder}/{MANIFEST}", storage) as file, address.reaching(folder):
            return read_manifest(folder, file.read())
    except TipcastError as problem:
        if problem.code != "D001":
            raise
        return Scores(folder)


def _names(folder: str, storage: Mapping[str, Any]) -> Iterator[str]:
    """List the files below a folder, one after another: the first that is refused ends the listing of a home."""
    if not address.scheme(folder):
        if Path(folder).exists():
            yield from (path.relative_to(folder).as_posix() for path in below(Path(folder)))
        return
    found = address.filesystem(folder, storage).find(folder)
    yield from (path.removeprefix(f"{folder.removeprefix('s3://')}/") for path in found)


def _footer(uri: str, storage: Mapping[str, Any]) -> Entry | None:
    """Return what a file of scores says of itself; None of any other file."""
    if not uri.lower().endswith(PARQUET):
        return None
    with address.opened(uri, storage) as file:
        try:
            found = pq.read_metadata(file)
            return Entry(rows=found.num_rows, **json.loads((found.metadata or {})[FOOTER]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
    """Keep other jobs out of a folder on a disk, and remove what a killed job or worker left unfinished.

    S011: another job scores into it. Stores, and disks that have no locks, keep nobody out.
    """
    if address.scheme(folder):
        yield
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    descriptor, locked = os.open(folder, os.O_RDONLY), True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            what, fix = "another job is scoring into it", "wait for it to end, or stop it"
            raise TipcastError("S011", f"output {folder}", what, fix) from problem
        except OSError:
            locked = False  # what looks unfinished may be another job's
        _clear(folder if locked else "")
        try:
            yield
        finally:
            _clear(folder if locked else "")
            for empty, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):  # others have scores
                    Path(empty).rmdir()
    finally:
        os.close(descriptor)


def _clear(folder: str) -> None:
    for path in [*Path(folder).rglob(f"{UNFINISHED}*")] if folder else ():
        path.unlink(missing_ok=True)


def remove_scores(folder: str, names: Collection[str], options: Mapping[str, Any]) -> None:
    """Remove scored files."""
    storage = address.storage(folder, options)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: remove(f"{folder}/{name}", storage), names))
