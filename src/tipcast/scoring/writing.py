"""Files of scores, written whole or not at all, and their folder: its manifest, and one job at a
time.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tipcast.config import disk
from tipcast.config.disk import FULL, free
from tipcast.config.errors import TipcastError, failed_to, needs_value
from tipcast.config.gate import gate
from tipcast.datasets import address
from tipcast.datasets.listing import PARQUET
from tipcast.datasets.parquet import Hashed

LOG = logging.getLogger("tipcast")

UNFINISHED = "_tipcast-"
"""Begins the names of unfinished files; readers of whole folders pass over an underscore."""
MANIFEST = "_manifest.json"
MARKS = ("ETag", "Content-MD5", "Digest", "LastModified", "created")
"""What stores and servers tell of a content, the best first; last a disk's time of any change,
which no copy sets.
"""
FOOTER = b"tipcast"
"""Of a scored Parquet file's metadata: the key of what the file says of itself."""
KIND = {"kind": "tipcast scores", "version": 1}
"""Of the manifest: what tells it from a file of others."""


def file_stamp(uri: str, storage: Mapping[str, Any]) -> str:
    """Return what a file looks like unread, D001 D022; it ends in a dash where a server tells the
    size alone.
    """
    with address.reaching(uri):
        store = address.filesystem(uri, storage)
        store.invalidate_cache(uri)  # fsspec keeps what a store once said of a file
        # not the time of a link
        info = store.info(uri if address.scheme(uri) else os.path.realpath(uri))
    mark = next((str(info[name]).strip('"') for name in MARKS if info.get(name)), "")
    return f"{info.get('size')}-{mark}"


def file_sha256(uri: str, storage: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a file's content."""
    with address.opened(uri, storage) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


class Output(Hashed):
    """A file that tells in one line what its disk or store refuses."""

    def __init__(self, uri: str, file: Any) -> None:
        super().__init__(file)
        self.uri = uri

    def write(self, content: Any) -> None:
        with failures(self.uri):
            super().write(content)


@contextlib.contextmanager
def written(uri: str, storage: Mapping[str, Any]) -> Iterator[Output]:
    """Open a file for writing; it appears whole or not at all, and on a disk outlasts a power cut.

    ``uri`` is an address, or a path in a folder that exists: one that a job has given up must not
    come back. T008 a disk that is full or may not be written to, D022 a store that is away; what
    the block raises passes as it is.
    """
    remote = address.scheme(uri)
    path = Path(uri)
    unfinished = path.with_name(f"{UNFINISHED}{uuid.uuid4().hex[:8]}")

    with failures(uri):
        file: Any = (
            address.filesystem(uri, storage).open(uri, "wb") if remote else unfinished.open("xb")
        )

    try:
        yield Output(uri, file)
        with failures(uri):
            if not remote:
                file.flush()
                os.fsync(file.fileno())  # a name may reach the disk before the content does
            file.close()  # an object appears with this
            if not remote:
                unfinished.replace(path)
    except BaseException:
        # of a full disk, or a store that is away, which has been told
        with contextlib.suppress(Exception):
            file.discard() if remote else file.close()
        if remote:
            # or fsspec writes it, as far as it came, when the object is collected
            file.closed = True
        else:
            unfinished.unlink(missing_ok=True)
        raise


def remove(uri: str, storage: Mapping[str, Any]) -> None:
    """Remove a file that may be gone already."""
    with failures(uri), contextlib.suppress(FileNotFoundError):
        address.filesystem(uri, storage).rm_file(uri)


@contextlib.contextmanager
def failures(uri: str) -> Iterator[None]:
    """Tell in one line what a disk (T008) or a store (D022) refuses."""
    try:
        with address.reaching(uri) if address.scheme(uri) else contextlib.nullcontext():
            yield
    except OSError as problem:
        space = f", {free(uri)}" if problem.errno in FULL else ""
        why = f"{problem.strerror or problem}{space}"
        fix = "free space or change its rights, and repeat the command, or name another folder"
        raise failed_to("written", address.shown(uri), why, fix, "T008") from problem


def of_store(problem: TipcastError) -> TipcastError:
    """Return the error of an object store as one of the artifact store; any other as it is."""
    if problem.code != "D022" or not problem.where.startswith("s3://"):
        return problem
    return TipcastError(
        "T009", problem.where, problem.what, "check the store and the access to it, then repeat"
    )


# The folder of scores: its manifest, what else may be in it, and one job at a time


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the manifest says of one scored file; the file itself knows recipe, input's digest, and
    rows.
    """

    input: str = ""
    """The file that was scored, without credentials."""
    input_stamp: str = ""
    """What it looked like from outside, see ``file_stamp``."""
    input_sha256: str = ""
    recipe: str
    """Digest of all that the scored file depends on beside its input."""
    rows: int = 0
    bytes: int = 0
    sha256: str = ""
    unscored: Mapping[str, int] = field(default_factory=dict)
    """Reason -> rows whose prediction is null."""

    @property
    def footer(self) -> dict[str, Any]:
        """What the scored file says of itself, so that an interrupted job does not score its rows
        again.
        """
        return {"recipe": self.recipe, "input_sha256": self.input_sha256, "unscored": self.unscored}


@dataclass(frozen=True)
class Scores:
    """A folder of scores."""

    folder: str
    """Its absolute path or address."""
    files: Mapping[str, Entry] = field(default_factory=dict)
    """Path in the folder -> entry."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Model, configuration, run, refused files; empty without a manifest that names exactly these
    files.
    """


def write_manifest(scores: Scores, obsolete: Collection[str], options: Mapping[str, Any]) -> None:
    """Replace the manifest of a folder in one step, then remove the scores that it does not name
    any more.
    """
    gate("manifest")
    storage = address.storage(scores.folder, options)
    files = {name: asdict(entry) for name, entry in sorted(scores.files.items())}
    rows = sum(entry.rows for entry in scores.files.values())
    content = {**KIND, "rows": rows, **scores.about, "files": files}
    with written(f"{scores.folder}/{MANIFEST}", storage) as file:
        file.write(json.dumps(content, indent=2).encode())

    for name in obsolete:
        remove(f"{scores.folder}/{name}", storage)

    if obsolete:
        LOG.warning(
            "%d files of scores removed whose input is not named any more or is refused",
            len(obsolete),
        )


def look(output: str, options: Mapping[str, Any]) -> Scores:
    """Look into the folder for scores, and change nothing; C004, C011 it must not be one, T008,
    D022 unreadable.
    """
    folder = _located(output)
    storage = address.storage(folder, options)
    with failures(folder):
        if address.scheme(folder):
            store = address.filesystem(folder, storage)
            store.invalidate_cache()  # fsspec keeps listings, also of other jobs' past
            paths: Iterator[str] = (f"s3://{path}" for path in store.find(folder))
        else:  # one after another: the first that is refused ends the listing of a home
            _refuse_link(output, Path(folder), Path(folder, MANIFEST))
            paths = _files(output, Path(folder))

        named, about = _read_manifest(f"{folder}/{MANIFEST}", storage)
        files = {}
        for path in paths:
            name = path.removeprefix(f"{folder}/")
            if (name == MANIFEST and about) or any(
                step.startswith(UNFINISHED) for step in name.split("/")
            ):
                continue
            entry = named.get(name) or _read_footer(path, storage)
            if entry is None:
                what = f"holds {name}, which is none of tipcast's scores"
                raise refused(output, what, "name a new or an empty folder, or move the file away")
            files[name] = entry

    return Scores(folder, files, about if files.keys() == named.keys() else {})


def _files(output: str, folder: Path) -> Iterator[str]:
    """Find all files below a folder that may not exist; C011 a link, as what is written through it
    is elsewhere.
    """
    for above, folders, names in _walk(folder) if folder.exists() else ():
        for path in (Path(above, name) for name in sorted([*folders, *names])):
            _refuse_link(output, folder, path)
        yield from (str(Path(above, name)) for name in sorted(names))


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Give each folder from one down, with the names of folders and of files in it, and follow no
    links.

    OSError where one may not be looked into, which is not to say that it is empty.
    """

    def refuse(problem: OSError) -> None:
        raise problem

    return os.walk(folder, onerror=refuse)


def _refuse_link(output: str, folder: Path, path: Path) -> None:
    if path.is_symlink():
        what = f"holds {path.relative_to(folder)}, a link to what is elsewhere"
        raise refused(output, what, "name a new or an empty folder, or remove the link")


def _located(output: str) -> str:
    """Return the absolute path or address of a folder that could hold scores."""
    if not output.strip():
        raise needs_value("output", "add output=FOLDER or output=s3://BUCKET/PREFIX")
    if address.scheme(output):
        if not re.fullmatch("s3://[^/]+/.*[^/].*", output):  # a whole bucket is somebody's home
            raise refused(output, "cannot get scores", "use a folder or s3://BUCKET/PREFIX")
        return output.rstrip("/")
    path = Path(output.removeprefix("file://")).expanduser().resolve()
    if path.exists() and not path.is_dir():
        raise refused(output, "is a file", "name a folder")
    return str(path)


def refused(output: str, what: str, fix: str) -> TipcastError:
    """Return the error of a folder that must not get scores."""
    return TipcastError("C011", f"output {address.shown(output)}", what, fix)


def _read_manifest(
    uri: str, storage: Mapping[str, Any]
) -> tuple[Mapping[str, Entry], Mapping[str, Any]]:
    """Read a manifest's files and what it says beside them; nothing where it is missing or another
    file's.
    """
    try:
        with address.opened(uri, storage) as file:
            content = file.read()
        about = json.loads(content)
        if KIND.items() <= about.items():
            return {str(name): Entry(**entry) for name, entry in about.pop("files").items()}, about
    except TipcastError as problem:
        if problem.code != "D001":
            raise
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # whoever wrote it: what is in the folder decides whether it may get scores

    return {}, {}


def _read_footer(uri: str, storage: Mapping[str, Any]) -> Entry | None:
    """Return what a file of scores says of itself; None of any other file."""
    if not uri.lower().endswith(PARQUET):
        return None
    with address.opened(uri, storage) as file:
        try:
            metadata = pq.read_metadata(file)
            return Entry(rows=metadata.num_rows, **json.loads((metadata.metadata or {})[FOOTER]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
    """Keep other jobs out of a folder on a disk, and remove what killed jobs or workers left
    unfinished.

    S011: another job scores into it. Stores, and disks that have no locks, keep nobody out.
    """
    if address.scheme(folder):
        yield
        return

    with disk.alone(Path(folder), "another job is scoring into it") as locked:
        try:
            if locked:  # without a lock it may be another job's that looks unfinished
                _clear(folder)
            yield
        finally:
            if locked:
                _clear(folder)


def _clear(folder: str) -> None:
    """Remove unfinished files, with the folders below that one that hold nothing else: they were
    made for them.
    """
    for path in [*Path(folder).rglob(f"{UNFINISHED}*")]:
        with contextlib.suppress(OSError):  # a folder of that name is nobody's unfinished file
            path.unlink(missing_ok=True)
            if path.parent != Path(folder):
                path.parent.rmdir()
