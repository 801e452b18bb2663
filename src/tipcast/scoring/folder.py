"""A folder of scores: what may be in it, its manifest, and one job at a time."""

import contextlib
import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tipcast.config import disk
from tipcast.config.errors import TipcastError, needs_value
from tipcast.config.gate import gate
from tipcast.datasets import address
from tipcast.datasets.find_files import PARQUET
from tipcast.scoring.writing import UNFINISHED, atomic_write, remove_file, write_errors

LOG = logging.getLogger("tipcast")

MANIFEST = "_manifest.json"
FOOTER = b"tipcast"
"""Key of ``ManifestEntry.footer`` in a scored Parquet file's metadata."""
ROW_GROUP = 1_000_000
"""Most rows of a row group that is written."""
KIND = {"kind": "tipcast scores", "version": 1}
"""Keys of the manifest by which it is recognized as tipcast's."""


@dataclass(frozen=True, kw_only=True)
class ManifestEntry:
    """The manifest's entry for one scored file; the file's footer has some of it too."""

    input: str = ""
    """The file that was scored, without credentials."""
    input_stamp: str = ""
    """Its stamp when it was scored, see ``file_stamp``."""
    input_sha256: str = ""
    recipe: str
    """The scoring's digest: of all that the scored file depends on, except its input. Manifests and
    footers have it under this name.
    """
    rows: int = 0
    bytes: int = 0
    sha256: str = ""
    unscored: Mapping[str, int] = field(default_factory=dict)
    """Reason -> rows whose prediction is null."""

    @property
    def footer(self) -> dict[str, Any]:
        """What the scored file itself holds, so that its rows are not scored again after an
        interrupted job.
        """
        return {"recipe": self.recipe, "input_sha256": self.input_sha256, "unscored": self.unscored}


@dataclass(frozen=True)
class ScoreFolder:
    """A folder of scores, as it is on its disk or store."""

    path: str
    """Its absolute path or address."""
    files: Mapping[str, ManifestEntry] = field(default_factory=dict)
    """Path in the folder -> entry."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest holds besides the entries: model, configuration, run, refused files. Empty
    without a manifest that names exactly these files.
    """


def read_folder(output: str, options: Mapping[str, object]) -> ScoreFolder:
    """Read which scores a folder has; change nothing.

    ``options`` are the user's options for fsspec. Raises C004 or C011 if the folder must not get
    scores, T008 or D022 if it cannot be read.
    """
    path = _absolute(output)
    storage = address.storage(path, options)
    files = {}

    with write_errors(path):
        uris = _list_files(output, path, storage)
        entries, about = _read_manifest(f"{path}/{MANIFEST}", storage)

        for uri in uris:
            name = uri.removeprefix(f"{path}/")
            unfinished = any(step.startswith(UNFINISHED) for step in name.split("/"))
            if unfinished or (name == MANIFEST and about):
                continue

            entry = entries.get(name) or _read_footer(uri, storage)
            if entry is None:
                what = f"holds {name}, which tipcast did not write"
                fix = "use a new or empty folder, or move the file away"
                raise bad_output(output, what, fix)
            files[name] = entry

    if files.keys() != entries.keys():
        about = {}
    return ScoreFolder(path, files, about)


def _absolute(output: str) -> str:
    """Return the absolute path or address of a folder that could hold scores."""
    if not output.strip():
        raise needs_value("output", "add output=FOLDER or output=s3://BUCKET/PREFIX")

    if address.scheme(output):
        if not re.fullmatch("s3://[^/]+/.*[^/].*", output):  # a whole bucket is somebody's home
            raise bad_output(output, "cannot hold scores", "use a folder or s3://BUCKET/PREFIX")
        return output.rstrip("/")

    path = Path(output.removeprefix("file://")).expanduser().resolve()
    if path.exists() and not path.is_dir():
        raise bad_output(output, "is a file", "use a folder")
    return str(path)


def bad_output(output: str, what: str, fix: str) -> TipcastError:
    """Return the error of a folder that must not get scores."""
    return TipcastError("C011", f"output {address.shown(output)}", what, fix)


def _list_files(output: str, path: str, storage: Mapping[str, object]) -> Iterator[str]:
    """List the paths or addresses of all files below a folder; C011 if there is a link."""
    if address.scheme(path):
        store = address.filesystem(path, storage)
        store.invalidate_cache()  # fsspec keeps old listings
        return (f"s3://{key}" for key in store.find(path))

    _refuse_link(output, Path(path), Path(path, MANIFEST))
    # One folder after another: in a home folder, the first that is refused ends the listing.
    return _walk_files(output, Path(path))


def _walk_files(output: str, folder: Path) -> Iterator[str]:
    """Yield all files below a folder that may not exist.

    Raises C011 at a link, as files written through it would be elsewhere, and OSError if a folder
    cannot be read: it may not be empty.
    """
    if not folder.exists():
        return

    for above, folders, names in os.walk(folder, onerror=_raise):
        for name in sorted([*folders, *names]):
            _refuse_link(output, folder, Path(above, name))
        yield from (str(Path(above, name)) for name in sorted(names))


def _raise(error: OSError) -> None:
    raise error


def _refuse_link(output: str, folder: Path, path: Path) -> None:
    if path.is_symlink():
        what = f"holds {path.relative_to(folder)}, a link to another location"
        raise bad_output(output, what, "use a new or empty folder, or remove the link")


def _read_manifest(
    uri: str, storage: Mapping[str, object]
) -> tuple[Mapping[str, ManifestEntry], Mapping[str, Any]]:
    """Read a manifest: its entries, and what else it holds; both are empty if it is missing or is
    not tipcast's.
    """
    try:
        with address.opened(uri, storage) as file:
            content = file.read()
        about = json.loads(content)
        if KIND.items() <= about.items():
            files = about.pop("files").items()
            return {str(name): ManifestEntry(**entry) for name, entry in files}, about
    except TipcastError as problem:
        if problem.code != "D001":
            raise
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # not tipcast's: the files in the folder decide whether it may get scores

    return {}, {}


def _read_footer(uri: str, storage: Mapping[str, object]) -> ManifestEntry | None:
    """Return the entry in a scored file's footer; None for any other file."""
    if not uri.lower().endswith(PARQUET):
        return None

    with address.opened(uri, storage) as file:
        try:
            metadata = pq.read_metadata(file)
            return ManifestEntry(
                rows=metadata.num_rows, **json.loads((metadata.metadata or {})[FOOTER])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def write_manifest(
    folder: ScoreFolder, obsolete: Collection[str], options: Mapping[str, object]
) -> None:
    """Replace the manifest of a folder in one step, then remove obsolete scores."""
    gate("manifest")
    storage = address.storage(folder.path, options)
    files = {name: asdict(entry) for name, entry in sorted(folder.files.items())}
    rows = sum(entry.rows for entry in folder.files.values())
    content = {**KIND, "rows": rows, **folder.about, "files": files}

    with atomic_write(f"{folder.path}/{MANIFEST}", storage) as file:
        file.write(json.dumps(content, indent=2).encode())

    for name in obsolete:
        remove_file(f"{folder.path}/{name}", storage)

    if obsolete:
        LOG.warning(
            "removed %d files of scores whose input is no longer given or was refused",
            len(obsolete),
        )


@contextlib.contextmanager
def locked_output(path: str) -> Iterator[None]:
    """Keep other jobs out of a folder on a disk, and remove unfinished files of killed jobs.

    Raises S011 if another job scores into it, T008 if the disk refuses. Stores, and disks without
    locks, keep nobody out.
    """
    if address.scheme(path):
        yield
        return

    with contextlib.ExitStack() as stack:
        with write_errors(path):
            lock = disk.locked_folder(Path(path), "another job is scoring to it")
            locked = stack.enter_context(lock)
            if locked:  # without a lock, an unfinished file may be another job's
                stack.callback(_remove_unfinished, path)
                _remove_unfinished(path)
        yield


def _remove_unfinished(folder: str) -> None:
    """Remove unfinished files, and their folders below that one if they are empty then: they were
    made for the files.
    """
    for path in [*Path(folder).rglob(f"{UNFINISHED}*")]:
        with contextlib.suppress(OSError):  # a folder cannot be unlinked
            path.unlink(missing_ok=True)
            if path.parent != Path(folder):
                path.parent.rmdir()
