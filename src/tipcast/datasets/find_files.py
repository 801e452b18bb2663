"""Finding of data files that a user names by paths, globs, folders or addresses."""

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dask.utils import natural_sort_key
from fsspec import AbstractFileSystem

from tipcast.compute.base import count
from tipcast.config.data_schema import TableData
from tipcast.config.errors import TipcastError, needs_value
from tipcast.datasets import address
from tipcast.datasets.dialect import dialect_of
from tipcast.datasets.listing import AnyScan, FileInfo, FileScan, Listing, ScanRequest
from tipcast.datasets.packing import unpacked_name, with_packings
from tipcast.datasets.parts import Part

PARQUET = (".parquet", ".parq", ".pq")
ENDINGS = {
    "parquet": PARQUET,
    "csv": with_packings((".csv", ".tsv")),
    "feather": (".feather", ".arrow"),
    "jsonl": with_packings((".jsonl", ".ndjson")),
}
"""Format -> how names of its files end."""
WORDS = {
    "parquet": "Parquet (*.parquet)",
    "csv": "CSV (*.csv, *.tsv, also .gz, .zst or .zip)",
    "feather": "Feather (*.feather, *.arrow)",
    "jsonl": "JSON lines (*.jsonl, *.ndjson, also .gz, .zst or .zip)",
}
"""Format -> its name and endings for messages."""
USUAL = ("parquet", "csv")
"""Formats of files whose columns are known, as trips; of tables all formats are read."""
ROWLESS = "D009"
"""Code of a file without rows, which is passed over beside others: Spark writes one where a
partition is empty.
"""
LOGS = {"Delta": "_delta_log/*", "Hudi": ".hoodie/*", "Iceberg": "metadata/[v0-9]*.metadata.json"}
"""Format of tables whose log alone tells which of their files count -> the files of the log."""


def scan_files(
    named: Any, request: ScanRequest, key: str, scan: Callable[[str, ScanRequest], AnyScan]
) -> tuple[list[AnyScan], tuple[str, ...]]:
    """Find the files that are named, and ``scan`` each; also return lines worth a log line.

    Files without rows are passed over where a folder or glob has others.

    Raises C004, D001, D002, D021, D022, D025 and what ``scan`` raises, with the file or the
    configuration's ``key``.
    """
    groups = [expand(pattern, request) for pattern in patterns(named, key)]
    uris = list(dict.fromkeys(uri for group in groups for uri in group.values()))
    alone = {uri for group in groups if len(group) == 1 for uri in group.values()}
    check_partitions(uris, os.path.commonprefix(uris).rpartition("/")[0], request)

    def look(uri: str) -> AnyScan | TipcastError:
        try:
            return scan(uri, request)
        except TipcastError as problem:
            if problem.code != ROWLESS or uri in alone:
                raise
            return problem

    with ThreadPoolExecutor(address.AT_ONCE) as pool:
        outcomes = list(pool.map(look, uris))

    rowless = [outcome for outcome in outcomes if isinstance(outcome, TipcastError)]
    scans = [outcome for outcome in outcomes if not isinstance(outcome, TipcastError)]
    if not scans:
        raise rowless[0]
    if not rowless:
        return scans, ()

    note = f"{count(len(rowless), 'file')} without rows skipped, such as {rowless[0].where}"
    return scans, (note,)


def request_of(
    spec: object, columns: Sequence[str] = (), optional: Sequence[str] = (), **more: Any
) -> ScanRequest:
    """Return what is asked of the files that a configuration of data names; ``more`` as
    ``ScanRequest`` has it.

    Raises C003 for a decimal sign or an encoding that is not known.
    """
    keys = {"block_bytes": "block_bytes", "storage": "storage_options", "names": "columns"}
    given = {field: getattr(spec, key) for field, key in keys.items() if hasattr(spec, key)}
    prefix = more.get("key", ScanRequest.key).removesuffix("columns")
    return ScanRequest(
        tuple(columns),
        tuple(optional),
        dialect=dialect_of(spec, prefix),
        any_columns=isinstance(spec, TableData),
        **given,
        **more,
    )


def listing_of(
    scans: Sequence[FileScan], name: str, info: FileInfo, notes: Sequence[str] = ()
) -> Listing:
    """Make one listing of files: in time order where they have periods, then by name, part.9 before
    part.10.
    """
    ordered = sorted(scans, key=lambda file: (file.period or (0, 0), natural_sort_key(file.uri)))
    starts = [file.period[0] for file in ordered if file.period]
    stops = [file.period[1] for file in ordered if file.period]
    parts = [part for file in ordered for part in file.parts]
    names = next((part.column_names for part in parts if part.column_names), None)
    all_notes = dict.fromkeys((*notes, *(note for file in ordered for note in file.notes)))

    return Listing(
        parts=tuple(parts),
        period=(min(starts), max(stops)) if starts else None,
        uris=tuple(address.shown(file.uri) for file in ordered),
        digest=hashlib.sha256("\n".join(file.digest for file in ordered).encode()).hexdigest(),
        name=name,
        info=replace(info, column_names=dict(names)) if names else info,
        notes=tuple(all_notes),
    )


def named_by(spec: object, which: str) -> Any:
    """Return what a configuration of data names under a key. Raises C004 if it is nothing."""
    named = getattr(spec, which)
    if named is None or named == "???":
        raise needs_value(f"data.{which}")
    return named


def patterns(named: Any, key: str) -> list[str]:
    """Return a path, glob, folder or address, or a list of them, as a list.

    Raises C004 if it names nothing.
    """
    if isinstance(named, str | Path):
        chosen = [named]
    else:
        chosen = list(named) if isinstance(named, Iterable) else []

    if not chosen or not all(
        isinstance(pattern, str | Path) and str(pattern) for pattern in chosen
    ):
        fix = f"set {key} to a path, a glob, a folder, an address or a list of them"
        raise TipcastError("C004", key, "does not name a file", fix)

    return [str(pattern) for pattern in chosen]


@dataclass(frozen=True)
class _Location:
    """What a path, glob, folder or address of s3 names."""

    name: str
    """The name as the user writes it."""
    prefix: str
    """``s3://``, of a local path nothing."""
    path: str
    """The path as fsspec takes it; a local path is absolute."""

    @property
    def glob_at(self) -> int | None:
        """The offset in the path of the first sign of a glob; None: there is none."""
        sign = re.search(r"[*?[]", self.path)
        return None if sign is None else sign.start()


def expand(pattern: str, request: ScanRequest) -> dict[str, str]:
    """Return path below the folder, or the glob's fixed part -> address of the files that a name
    stands for, sorted.

    Of a folder or glob all files of the formats that are read but hidden ones, to which in a folder
    those belong that begin with an underscore.

    Raises D001 if nothing is there, D002 for a folder without data files, D021 and D022 for
    addresses, D025 for a table that its log describes.
    """
    if address.scheme(pattern) in ("http", "https"):
        return _file_of_server(pattern)

    location = _location_of(pattern)
    formats = formats_of(request)
    with address.reaching(location.prefix + location.path):
        store = address.filesystem(pattern, address.storage(pattern, request.storage))
        folder = _is_folder(store, location, endings_of(formats))
        # a file's name may have brackets that are no pattern
        if not folder and (location.glob_at is None or store.isfile(location.path)):
            return _file_of_path(store, location)

        start, files = _all_below(store, location) if folder else _all_matches(store, location)
        hidden = (".", "_") if folder else (".",)
        data = _data_files(files, start, location, hidden, endings_of(formats))
        _check_logs(store, data, location)

    if not data:
        raise _no_data(pattern, formats, folder=folder)

    uris = {file[len(start) + 1 :]: location.prefix + file for file in data}
    # here too: one partition alone, and files to be scored
    check_partitions(uris.values(), location.prefix + start, request)
    return uris


def _file_of_server(url: str) -> dict[str, str]:
    """Return the one file of an address of https. Raises D002 if it ends as a folder."""
    name = address.last_name(url)
    if url.endswith("/") or not name:
        fix = "name each file: folders and globs do not work over https"
        raise TipcastError("D002", address.shown(url), "is not a file", fix)
    return {name: url}


def _location_of(pattern: str) -> _Location:
    if address.scheme(pattern):
        return _Location(pattern, "s3://", pattern.removeprefix("s3://"))
    # It leaves ~NAME as it is if there is no such user.
    path = os.path.expanduser(pattern.removeprefix("file://"))  # noqa: PTH111
    return _Location(pattern, "", str(Path(path).absolute()))


def formats_of(request: ScanRequest) -> tuple[str, ...]:
    """Return the formats, keys of ``ENDINGS``, of the files that are read."""
    return tuple(ENDINGS) if request.any_columns else USUAL


def endings_of(formats: Collection[str]) -> tuple[str, ...]:
    """Return how names of files of some formats end."""
    return tuple(itertools.chain.from_iterable(ENDINGS[name] for name in formats))


def _is_folder(store: AbstractFileSystem, location: _Location, endings: tuple[str, ...]) -> bool:
    """Whether a location is a folder: in a store, which has none, as its name looks."""
    path = location.path
    if not location.prefix:
        return bool(store.isdir(path))
    return path.endswith("/") or not (
        location.glob_at is not None or path.lower().endswith(endings)
    )


def _file_of_path(store: AbstractFileSystem, location: _Location) -> dict[str, str]:
    """Return the one file of a location. Raises D001 if a local one is not there."""
    path = location.path
    if not location.prefix and not store.isfile(path):
        raise address.no_file(Path(path))
    return {address.last_name(path): location.prefix + path}


def _all_below(store: AbstractFileSystem, location: _Location) -> tuple[str, list[str]]:
    """Return the path of a folder, and those of all files below it."""
    if location.prefix:
        files = list(store.find(location.path))
    else:
        files = [str(file) for file in below(Path(location.path))]
    return location.path.rstrip("/"), files


def _all_matches(store: AbstractFileSystem, location: _Location) -> tuple[str, list[str]]:
    """Return the fixed part of a glob's path, and the files that match; ``**`` before an ending
    means files at any depth.

    Raises D001 for a pattern that fsspec does not take: ``**`` is a whole step of a path to it.
    """
    start = location.path[: location.glob_at or 0].rpartition("/")[0]
    pattern = re.sub(r"(?<=/)\*\*(?=[^/*])", "**/*", location.path)
    try:
        return start, list(store.glob(pattern))
    except ValueError as problem:
        where = address.shown(location.name)
        fix = "write ** between slashes, as in folder/**/*.parquet"
        raise TipcastError("D001", where, f"is not a pattern: {problem}", fix) from problem


def _data_files(
    files: Iterable[str],
    start: str,
    location: _Location,
    hidden: tuple[str, ...],
    endings: tuple[str, ...],
) -> list[str]:
    """Return the files with some endings, sorted, that are not hidden in any step below ``start``.

    Raises D001 for a link that leads nowhere.
    """
    data = sorted(
        file
        for file in files
        if file.lower().endswith(endings)
        and not any(step.startswith(hidden) for step in file[len(start) + 1 :].split("/"))
    )
    if location.prefix:
        return data
    return [file for file in data if _is_there(Path(file))]


def _is_there(path: Path) -> bool:
    """Whether a path is that of a regular file.

    Raises D001 for a link that leads nowhere, whose rows would be missing.
    """
    if path.is_symlink() and not path.exists():
        raise address.no_file(path)
    return path.is_file()


def _check_logs(store: AbstractFileSystem, data: Sequence[str], location: _Location) -> None:
    """Refuse files of a table that its log describes, in any folder above them. Raises D025."""
    folders = {str(folder) for file in data for folder in Path(file).parents if folder.name}
    for folder, (name, log) in itertools.product(sorted(folders), LOGS.items()):
        if store.glob(f"{folder}/{log}"):
            where = address.shown(location.prefix + folder)
            what = f"is a table of {name}: only its log says which rows of its files count"
            fix = "read it with a library for that format, and write one Parquet file"
            raise TipcastError("D025", where, what, fix)


def _no_data(pattern: str, formats: Collection[str], *, folder: bool) -> TipcastError:
    """Return the error of a folder (D002) or a glob (D001) without files that are read."""
    where = address.shown(pattern)
    names = [WORDS[name].partition(" (")[0] for name in formats]
    listed = f"{', '.join(names[:-1])} or {names[-1]}"
    if folder:
        return TipcastError("D002", where, f"contains no {listed} file", _named_so(formats))
    return TipcastError("D001", where, f"no {listed} file matches", "check the pattern")


def _named_so(formats: Collection[str]) -> str:
    return f"name files of {', '.join(WORDS[name] for name in formats)}"


def below(folder: Path, passed: Sequence[Path] = ()) -> Iterator[Path]:
    """Find all files below a folder, also in folders that are links; a link back to a folder above
    is passed over.

    ``passed`` are the real folders on the way there. OSError where a folder may not be looked into,
    which is not to say that it is empty.
    """
    way = (*passed, folder.resolve())
    with os.scandir(folder) as scanned:
        entries = sorted(Path(entry.path) for entry in scanned)

    folders = []
    for entry in entries:
        if entry.is_dir():
            folders.append(entry)
        else:
            yield entry

    for entry in folders:
        target = entry.resolve()
        if not any(above.is_relative_to(target) for above in way):
            yield from below(entry, way)


def check_partitions(files: Iterable[str], folder: str, request: ScanRequest) -> None:
    """Refuse files below a folder in folders named KEY=VALUE, where the column KEY may be of use.
    Raises D025.
    """
    if not request.any_columns:
        return

    for file in files:
        keyed = [step for step in file[len(folder) :].split("/")[:-1] if "=" in step[1:]]
        if keyed:
            names = ", ".join(step.partition("=")[0] for step in keyed)
            what = (
                f"folder names such as {keyed[0]} hold what the files do not have: column {names}"
            )
            fix = (
                "read the folder with pandas.read_parquet or pyarrow.dataset, and write one "
                "Parquet file"
            )
            raise TipcastError("D025", address.shown(folder or file), what, fix)


def format_of(uri: str, formats: Collection[str]) -> str:
    """Return that of some formats, keys of ``ENDINGS``, that a name says. Raises D004 if it says
    none.
    """
    name = address.last_name(uri).lower()
    for file_format in formats:
        if name.endswith(ENDINGS[file_format]):
            return file_format
    what = "has a name without the ending of a supported format"
    raise TipcastError("D004", address.shown(uri), what, _named_so(formats))


def identical(parts: Iterable[Part]) -> tuple[str, ...]:
    """Return a line that names two files of equal digest, whose rows would count twice, and one
    that names a file beside itself compressed; nothing where there are none.
    """
    digests = {part.uri: part.digest for part in parts}
    copies = _alike(digests)
    packed = _alike({uri: unpacked_name(uri) for uri in digests})

    return (
        *_line_on(copies, "have the same content and are both read", "name one of them"),
        *_line_on(packed, "are both read", "name one of them if their rows are the same"),
    )


def _alike(facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return pairs of files that have their fact in common: the first such one, and another."""
    uris: dict[str, list[str]] = {}
    for uri, fact in facts.items():
        uris.setdefault(fact, []).append(uri)
    return [(same[0], other) for same in uris.values() for other in same[1:]]


def _line_on(pairs: Sequence[tuple[str, str]], what: str, fix: str) -> tuple[str, ...]:
    """Return a line on the first pair of files, or nothing."""
    if not pairs:
        return ()
    one, other = map(address.shown, pairs[0])
    more = f" (and {len(pairs) - 1} more such files)" if pairs[1:] else ""
    return (f"{one} and {other} {what}{more}: {fix}",)
