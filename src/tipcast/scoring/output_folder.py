"""Where scores go: which folders may be replaced, the files in one, and the manifest of which model scored what."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.base import ScanRequest
from tipcast.datasets.listing import CSV, PARQUET, below, expand, patterns
from tipcast.scoring.writing import failures

MANIFEST = "_manifest.json"
"""Readers of whole folders pass over names that begin with an underscore."""
KIND, VERSION = "tipcast scores", 1
PIECE = 8 << 20
MARKS = ("ETag", "Content-MD5", "Digest", "LastModified")
"""What stores and servers tell of a content, the best first."""
STORE_PREFIX = "_tipcast-"
"""Begins the names of unfinished work within an object store's prefix."""


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
    """Return what a file looks like without reading it, None where there is none; D022 of a store that does not answer.

    ``strict`` looks at the time of the last change of anything too, which no copying tool sets back.
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
    """Return the SHA-256 of a file's content, read in pieces."""
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


def check_output_folder(output: str, inputs: Sequence[str], storage: Mapping[str, Any]) -> tuple[str, Manifest | None]:
    """Refuse (C004, C011, D022) a folder that must not be replaced, and change nothing.

    Returns the folder's absolute path or address, and its manifest where it has one.
    """
    if not output.strip():
        raise TipcastError("C004", "output", "needs a value", "add output=FOLDER or output=s3://BUCKET/PREFIX")
    steps = output.removeprefix("file://").split("/")
    if ".." in steps:
        raise _refused(output, "has .. in it, which leads upwards", "write the path without .. in it")
    if address.scheme(output) == "s3":
        return _check_s3(output.rstrip("/"), inputs, storage)
    if address.scheme(output):
        raise _refused(address.shown(output), "cannot be written to", "use a folder or s3://BUCKET/PREFIX")
    path = Path(output.removeprefix("file://")).expanduser()
    folder = path if path.is_absolute() else Path.cwd() / path
    _check_local(folder, path, output)
    _check_apart(str(folder.resolve()), inputs, output)
    with failures(output):
        entries = [entry.name for entry in folder.iterdir()] if folder.exists() else []
        manifest = _ours(entries, lambda: (folder / MANIFEST).read_bytes(), output)
        foreign = _foreign(folder, manifest) if manifest else None
    if foreign:
        what = f"holds {foreign}, which is none of its scores and would go with them"
        raise _refused(output, what, "move it away, or name another folder")
    return str(folder), manifest


def _check_local(folder: Path, path: Path, shown: str) -> None:
    here, home = Path.cwd().resolve(), Path.home().resolve()
    real = folder.resolve()
    if real in (here, *here.parents) or real in (home, *home.parents):
        raise _refused(shown, "is the working folder, your home or above one of them", "name a folder of its own")
    if folder.is_symlink():
        raise _refused(shown, "is a symbolic link", "name the folder that it leads to")
    if not path.is_absolute() and not real.is_relative_to(here):
        raise _refused(shown, "leads out of the working folder by a symbolic link", "write the folder's own path")
    if folder.exists() and not folder.is_dir():
        raise _refused(shown, "is a file", "name a folder")
    if os.path.ismount(folder):
        raise _refused(shown, "is where a disk is mounted, which cannot be replaced", "name a folder in it")


def _foreign(folder: Path, manifest: Manifest) -> str | None:
    """Return a file of a folder of scores that its manifest does not name; the folder is replaced as a whole."""
    every = (file.relative_to(folder).as_posix() for file in below(folder))
    return next((file for file in every if file != MANIFEST and file not in manifest.files), None)


def _check_apart(folder: str, inputs: Sequence[str], shown: str) -> None:
    """Refuse scores among the files that they are of: they would be read as such the next time."""
    for named in inputs:
        if _reaches(_steps(named), folder.split("/")):
            what = f"and the input are one folder, or one lies in the other: {address.shown(named)}"
            raise _refused(shown, what, "name a folder beside it")


def _steps(named: str) -> list[str]:
    """Return the pattern of all files that a name stands for, step by step, without links in its fixed part."""
    magic = glob.has_magic(named)
    if address.scheme(named):
        whole = named.rstrip("/")
        folder = whole != named or not (magic or named.lower().endswith((*PARQUET, *CSV)))
    else:
        path = Path(named.removeprefix("file://")).expanduser().absolute()
        folder, base = path.is_dir(), root(named)
        whole = str(Path(base or "/").resolve()).rstrip("/") + str(path)[len(base) :] if magic else str(path.resolve())
    return [*whole.split("/"), *(["**"] if folder else [])]


def _reaches(pattern: Sequence[str], folder: Sequence[str]) -> bool:
    """Whether a pattern could match a file below a folder."""
    for at, step in enumerate(pattern):
        if step == "**" or at == len(folder):
            return True
        if step != folder[at] and not fnmatchcase(folder[at], step):
            return False
    return False


def _check_s3(output: str, inputs: Sequence[str], options: Mapping[str, Any]) -> tuple[str, Manifest | None]:
    bucket, _, prefix = output.removeprefix("s3://").partition("/")
    if not bucket or not prefix or "?" in output or "#" in output:
        raise _refused(address.shown(output), "is a whole bucket", "add a prefix, as s3://BUCKET/scored")
    _check_apart(output, inputs, output)
    storage = address.storage(output, options)
    with address.reaching(output):
        store = address.filesystem(output, storage)
        store.invalidate_cache()
        try:
            found = [entry.rstrip("/").rpartition("/")[2] for entry in store.ls(output, detail=False)]
        except FileNotFoundError:
            found = []
    entries = [name for name in found if not name.startswith(STORE_PREFIX)]

    def read() -> bytes:
        with address.reaching(output):
            content: bytes = store.cat_file(f"{output}/{MANIFEST}")
            return content

    return output, _ours(entries, read, output)


def _ours(entries: Sequence[str], read: Any, shown: str) -> Manifest | None:
    if not entries:
        return None
    manifest = read_manifest(read()) if MANIFEST in entries else None
    if manifest is None:
        raise _refused(shown, f"holds files but no {MANIFEST} of tipcast's", "name an empty folder, or a new one")
    return manifest


def _refused(output: str, what: str, fix: str) -> TipcastError:
    return TipcastError("C011", f"output {output}", what, fix)


def output_names(given: Any, request: ScanRequest, key: str) -> dict[str, str]:
    """Find the files of a path, glob, folder or address, or of a list of them; return name of the scores -> address.

    A folder's files keep their paths below it, those of a glob below its fixed part, others their last name; those of
    CSV files end in ``.parquet``. C003 where two files' scores would have one name; see ``expand`` for other errors.
    """
    found: dict[str, str] = {}
    for pattern in patterns(given, key):
        base = root(pattern)
        for uri in expand(pattern, request):
            name = output_name(uri, base)
            if set(name.split("/")) & {"", ".", ".."}:
                raise TipcastError("C003", key, f"scores of {address.shown(uri)} would leave their folder", "rename it")
            if found.setdefault(name, uri) != uri:
                what = f"scores of {address.shown(found[name])} and {address.shown(uri)} would both be {name}"
                raise TipcastError("C003", key, what, "score them into two folders, or name a folder above both")
    return dict(sorted(found.items()))


def root(pattern: str) -> str:
    """Return the address below which files of a pattern keep their paths, without a slash at its end."""
    if not address.scheme(pattern):
        path = Path(pattern.removeprefix("file://")).expanduser().absolute()
        if path.is_dir():
            return str(path)
        pattern = str(path)
    elif pattern.endswith("/") or not Path(address.last_name(pattern)).suffix:
        return pattern.rstrip("/")
    fixed = []
    for step in pattern.split("/")[:-1]:
        if glob.has_magic(step):
            break
        fixed.append(step)
    return "/".join(fixed)


def output_name(uri: str, base: str) -> str:
    """Return the name that a file's scores get below the folder of scores."""
    plain = uri.partition("?")[0] if address.scheme(uri).startswith("http") else uri
    name = plain[len(base) :].strip("/") if plain.startswith(f"{base}/") else address.last_name(uri)
    return name if name.lower().endswith(PARQUET) else f"{name}.parquet"
