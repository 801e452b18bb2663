"""Files that a user names: paths, globs, folders, s3:// and https:// addresses, or lists of them, Parquet and CSV."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.data import address
from tipcast.data.fragments import Listing
from tipcast.data.sources.delimited import find_csv
from tipcast.data.sources.found import Found, Wanted
from tipcast.data.sources.parquet import find_parquet

PARQUET, CSV = (".parquet", ".parq", ".pq"), (".csv", ".csv.gz")
FORMATS = "name Parquet files *.parquet and CSV files *.csv or *.csv.gz"
_AT_ONCE = 8


def list_files(named: Any, wanted: Wanted, key: str) -> Listing:
    """Find files and the fragments in them.

    Parameters
    ----------
    named
        A path, glob, folder or address, or a list of them.
    wanted
        What is asked of every file.
    key
        The configuration's name for ``named``, for messages.

    Returns
    -------
    Listing
        Fragments in time order, then by name.

    Raises
    ------
    TipcastError
        D001 to D010, D016, D017, D021, D022, each naming the file.

    """
    uris, twice = _distinct(uri for pattern in patterns(named, key) for uri in expand(pattern, wanted))
    with ThreadPoolExecutor(min(_AT_ONCE, len(uris))) as pool:
        found = list(pool.map(lambda uri: find(uri, wanted), uris))
    return gather(found, wanted.colour, twice)


def patterns(named: Any, key: str) -> list[str]:
    """Return a path, glob, folder or address, or a list of them, as a list; C004 where it names nothing."""
    chosen = [named] if isinstance(named, str | Path) else list(named) if isinstance(named, Iterable) else []
    if not chosen or not all(isinstance(pattern, str | Path) and str(pattern) for pattern in chosen):
        raise TipcastError(
            "C004", key, "names no file", f"set {key} to a path, a glob, a folder, an address or a list of them"
        )
    return [str(pattern) for pattern in chosen]


def _distinct(uris: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    every = list(uris)
    distinct = list(dict.fromkeys(every))
    more = len(every) - len(distinct)
    return distinct, (f"{more} file{'s' if more > 1 else ''} named twice, read once",) if more else ()


def expand(pattern: str, wanted: Wanted) -> list[str]:
    """Return the addresses of the files that a path, glob, folder or address stands for, sorted.

    Raises
    ------
    TipcastError
        D001 nothing there, D002 a folder without data files, D021 D022 addresses.

    """
    kind = address.scheme(pattern)
    if kind == "s3":
        return _expand_s3(pattern, wanted)
    if kind:
        if address.last_name(pattern) == "" or pattern.endswith("/"):
            raise TipcastError(
                "D002", address.shown(pattern), "is no file", "name each file: folders and globs do not work over https"
            )
        return [pattern]
    try:
        path = Path(pattern.removeprefix("file://")).expanduser().absolute()
        path.stat()
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, ValueError) as problem:  # too long, a home of nobody's, a null character
        what = f"is no path: {getattr(problem, 'strerror', None) or problem}"
        raise TipcastError("D001", pattern, what, "check the path") from problem
    if path.is_dir():
        try:
            return _of_folder([str(file) for file in below(path) if file.is_file()], str(path), pattern)
        except OSError as problem:
            what = f"cannot be looked into: {problem.strerror}"
            fix = "change its permissions, or name the files"
            raise TipcastError("D001", str(problem.filename), what, fix) from problem
    if path.exists() and not path.is_file():
        raise TipcastError("D001", pattern, "is no regular file", "name a file that can be read more than once")
    if path.exists() or not glob.has_magic(pattern):
        return [str(path)]
    if path.parent.is_dir():  # its name may have brackets that are no pattern
        path = Path(glob.escape(str(path.parent)), path.name)
    found = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob would find hidden files
    matches = sorted(match for match in found if Path(match).is_file())
    if not matches:
        raise TipcastError("D001", pattern, "no file matches", "check the pattern")
    return matches


def below(folder: Path) -> Iterator[Path]:
    """Find all files below a folder; OSError where one may not be looked into, which is not to say that it is empty."""

    def refuse(problem: OSError) -> None:
        raise problem

    for above, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(above, name) for name in sorted(names))


def _expand_s3(pattern: str, wanted: Wanted) -> list[str]:
    storage = address.storage(pattern, wanted.storage)
    with address.reaching(pattern):
        store = address.filesystem(pattern, storage)
        if glob.has_magic(pattern):
            matches = sorted(f"s3://{match}" for match in store.glob(pattern))
            if not matches:
                raise TipcastError(
                    "D001", address.shown(pattern), "no object matches", "check the bucket and the pattern"
                )
            return matches
        if pattern.endswith("/") or not pattern.lower().endswith((*PARQUET, *CSV)):
            return _of_folder([f"s3://{match}" for match in store.find(pattern)], pattern, address.shown(pattern))
    return [pattern]


def _of_folder(files: Sequence[str], folder: str, where: str) -> list[str]:
    """Return the data files below a folder, without hidden ones and those that start with an underscore."""
    found = [file for file in files if file.lower().endswith((*PARQUET, *CSV))]
    kept = [
        file for file in found if not any(step[:1] in {".", "_"} for step in file[len(folder) :].strip("/").split("/"))
    ]
    if not kept:
        raise TipcastError("D002", where, "holds no Parquet or CSV file", FORMATS)
    return sorted(kept)


def find(uri: str, wanted: Wanted) -> Found:
    """Look at one file's footer or header.

    Raises
    ------
    TipcastError
        D001 missing, D003 empty, D004 neither Parquet nor CSV; those of ``find_parquet`` and ``find_csv``.

    """
    name = address.last_name(uri).lower()
    if name.endswith(PARQUET):
        return find_parquet(uri, wanted)
    if name.endswith(CSV):
        return find_csv(uri, wanted)
    where = address.shown(uri)
    if address.size(uri, address.storage(uri, wanted.storage)) == 0:
        raise TipcastError("D003", where, "is empty", "remove it")
    raise TipcastError("D004", where, "is neither Parquet nor CSV by its name", FORMATS)


def gather(found: Sequence[Found], colour: str | None, notes: Sequence[str] = ()) -> Listing:
    """Make one listing of many files.

    Raises
    ------
    TipcastError
        D007 files of both colours.

    """
    coloured = [file for file in found if file.colour]
    other = next((file for file in coloured if file.colour != coloured[0].colour), None)
    if other is not None and colour is None:
        what = f"is a {other.colour}-taxi file (its columns have other names) among {coloured[0].colour}-taxi files"
        raise TipcastError("D007", address.shown(other.uri), what, "read one colour at a time")
    ordered = sorted(found, key=lambda file: (file.period[0], file.uri))
    said = dict.fromkeys((*notes, *(note for file in ordered for note in file.notes)))
    return Listing(
        fragments=tuple(fragment for file in ordered for fragment in file.fragments),
        period=(min(file.period[0] for file in ordered), max(file.period[1] for file in ordered)),
        uris=tuple(address.shown(file.uri) for file in ordered),
        digest=hashlib.sha256("\n".join(file.digest for file in ordered).encode()).hexdigest(),
        colour=colour or (coloured[0].colour if coloured else None) or "yellow",
        notes=tuple(said),
    )
