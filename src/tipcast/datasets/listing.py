"""Parquet and CSV files that a user names by paths, globs, folders or addresses: finding, listing and reading them."""

from __future__ import annotations

import filecmp
import glob
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TableData
from tipcast.datasets import address, delimited, parquet
from tipcast.datasets.base import FileScan, Fragment, Listing, ScanRequest, counted
from tipcast.datasets.column_names import NAMES

PARQUET, CSV = (".parquet", ".parq", ".pq"), (".csv", ".csv.gz")
FORMATS = "name Parquet files *.parquet and CSV files *.csv or *.csv.gz"
ROWLESS = "D009"
"""Code of a file without rows, which is passed over beside others: Spark writes one where a partition is empty."""
LOGS = {
    "Delta": ("_delta_log/*", "deltalake.DeltaTable(FOLDER).to_pandas()"),
    "Hudi": (".hoodie/*", "spark.read.format('hudi').load(FOLDER).toPandas()"),
    "Iceberg": ("metadata/[v0-9]*.metadata.json", "pyiceberg.table.StaticTable.from_metadata(FILE).scan().to_pandas()"),
}
"""Format of tables whose log alone tells which of their files count -> the files of the log, and what reads a table."""
_AT_ONCE = 8
BEGINNING = 64 << 10
"""Bytes of a local CSV file that are read before the whole is compared."""


def scan_files(
    named: Any, request: ScanRequest, key: str, scan: Callable[[str, ScanRequest], FileScan]
) -> tuple[list[FileScan], tuple[str, ...]]:
    """Find the files that are named, and look at the footer or header of each; also return lines worth a log line.

    Files without rows are passed over where a folder or glob has others. C004 D001 D002 D021 D022 D025 and the errors
    of ``scan``, each naming the file or the configuration's ``key``.
    """
    groups = [expand(pattern, request) for pattern in patterns(named, key)]
    every = [uri for group in groups for uri in group]
    uris, alone = list(dict.fromkeys(every)), {group[0] for group in groups if len(group) == 1}
    check_partitions(uris, os.path.commonprefix(uris).rpartition("/")[0], request)

    def look(uri: str) -> FileScan | TipcastError:
        try:
            return scan(uri, request)
        except TipcastError as problem:
            if problem.code != ROWLESS or uri in alone:
                raise
            return problem

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(look, uris))
    scans = [each for each in found if isinstance(each, FileScan)]
    rowless = [each for each in found if isinstance(each, TipcastError)]
    if not scans:
        raise rowless[0]
    more = len(every) - len(uris)
    notes = [f"{counted(more, 'file')} named twice, read once"] if more else []
    notes += [f"{counted(len(rowless), 'file')} without rows passed over, as {rowless[0].where}"] if rowless else []
    return scans, tuple(notes)


def request_of(spec: object, columns: Sequence[str] = (), optional: Sequence[str] = (), **more: Any) -> ScanRequest:
    """Return what is asked of the files that a configuration of data names; ``more`` as ``ScanRequest`` has it."""
    given = {"block_bytes": "block_bytes", "storage": "storage_options", "names": "columns"}
    own = {field: getattr(spec, key) for field, key in given.items() if hasattr(spec, key)}
    return ScanRequest(tuple(columns), tuple(optional), any_columns=isinstance(spec, TableData), **own, **more)


def gather(scans: Sequence[FileScan], name: str, facts: Mapping[str, Any], notes: Sequence[str] = ()) -> Listing:
    """Make one listing of one file or more: in time order where they have periods, then by name."""
    ordered = sorted(scans, key=lambda file: (file.period or (0, 0), file.uri))
    periods = [file.period for file in ordered if file.period]
    names = next((part.options[NAMES] for file in ordered for part in file.fragments if NAMES in part.options), None)
    said = dict.fromkeys((*notes, *(note for file in ordered for note in file.notes)))
    return Listing(
        fragments=tuple(fragment for file in ordered for fragment in file.fragments),
        period=(min(start for start, _ in periods), max(stop for _, stop in periods)) if periods else None,
        uris=tuple(address.shown(file.uri) for file in ordered),
        digest=hashlib.sha256("\n".join(file.digest for file in ordered).encode()).hexdigest(),
        name=name,
        facts=facts if names is None else {**facts, NAMES: names},
        notes=tuple(said),
    )


def named_by(spec: object, which: str) -> Any:
    """Return what a configuration of data names under a key; C004 nothing."""
    named = getattr(spec, which)
    if named is None or named == "???":
        raise TipcastError("C004", f"data.{which}", "needs a value", f"add data.{which}=...")
    return named


def patterns(named: Any, key: str) -> list[str]:
    """Return a path, glob, folder or address, or a list of them, as a list; C004 where it names nothing."""
    chosen = [named] if isinstance(named, str | Path) else list(named) if isinstance(named, Iterable) else []
    if not chosen or not all(isinstance(pattern, str | Path) and str(pattern) for pattern in chosen):
        fix = f"set {key} to a path, a glob, a folder, an address or a list of them"
        raise TipcastError("C004", key, "names no file", fix)
    return [str(pattern) for pattern in chosen]


def expand(pattern: str, request: ScanRequest) -> list[str]:
    """Return the addresses of the files that a path, glob, folder or address stands for, sorted.

    D001 nothing there, D002 a folder without data files, D021 D022 addresses, D025 a table that its log describes.
    """
    kind = address.scheme(pattern)
    if kind == "s3":
        return _expand_s3(pattern, request)
    if kind:
        if address.last_name(pattern) == "" or pattern.endswith("/"):
            fix = "name each file: folders and globs do not work over https"
            raise TipcastError("D002", address.shown(pattern), "is not a file", fix)
        return [pattern]
    try:
        path = Path(pattern.removeprefix("file://")).expanduser().absolute()
        path.stat()
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, ValueError) as problem:  # too long, a home of nobody's, a null character
        what = f"is not a path: {getattr(problem, 'strerror', None) or problem}"
        raise TipcastError("D001", pattern, what, "check the path") from problem
    if path.is_dir():
        try:
            _check_logs(_logs_beside(path))
            return _of_folder([str(file) for file in below(path) if file.is_file()], str(path), pattern, request)
        except OSError as problem:
            what, fix = f"cannot be looked into: {problem.strerror}", "change its permissions, or name the files"
            raise TipcastError("D001", str(problem.filename), what, fix) from problem
    if path.exists() and not path.is_file():
        raise TipcastError("D001", pattern, "is not a regular file", "name a file that can be read more than once")
    if path.exists() or not glob.has_magic(pattern):
        return [str(path)]
    if path.parent.is_dir():  # its name may have brackets that are no pattern
        path = Path(glob.escape(str(path.parent)), path.name)
    found = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob would find hidden files
    matches = sorted(match for match in found if Path(match).is_file())
    if not matches:
        raise TipcastError("D001", pattern, "no file matches", "check the pattern")
    for folder in {Path(match).parent for match in matches}:
        _check_logs(_logs_beside(folder))
    return matches


def below(folder: Path) -> Iterator[Path]:
    """Find all files below a folder; OSError where one may not be looked into, which is not to say that it is empty."""

    def refuse(problem: OSError) -> None:
        raise problem

    for above, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(above, name) for name in sorted(names))


def _expand_s3(pattern: str, request: ScanRequest) -> list[str]:
    storage = address.storage(pattern, request.storage)
    with address.reaching(pattern):
        store = address.filesystem(pattern, storage)
        if glob.has_magic(pattern):
            matches = sorted(f"s3://{match}" for match in store.glob(pattern))
            if not matches:
                where = address.shown(pattern)
                raise TipcastError("D001", where, "no object matches", "check the bucket and the pattern")
            shared = Path(os.path.commonprefix(matches).rpartition("/")[0].removeprefix("s3://"))
            folders = [folder for folder in (shared, *shared.parents) if folder.name]
            _check_logs(
                f"s3://{file}" for each in folders for log, _ in LOGS.values() for file in store.glob(f"{each}/{log}")
            )
            return matches
        if pattern.endswith("/") or not pattern.lower().endswith((*PARQUET, *CSV)):
            found = [f"s3://{match}" for match in store.find(pattern)]
            return _of_folder(found, pattern, address.shown(pattern), request)
    return [pattern]


def _logs_beside(folder: Path) -> Iterator[str]:
    """Find files of logs of tables that a local folder is, or is part of."""
    return (str(file) for each in (folder, *folder.parents) for log, _ in LOGS.values() for file in each.glob(log))


def _check_logs(files: Iterable[str]) -> None:
    """Refuse a table by a file of its log; D025."""
    for file, (kind, (log, reader)) in itertools.product(files, LOGS.items()):
        if fnmatchcase(file, f"*/{log}"):
            where = address.shown(file.rpartition(f"/{Path(log).parent}/")[0])
            what = f"is a table of {kind}: its log alone tells which of its files hold rows that count"
            raise TipcastError("D025", where, what, f"write one file: {reader}.to_parquet('t.parquet')")


def check_partitions(files: Iterable[str], folder: str, request: ScanRequest) -> None:
    """Refuse files below a folder in folders named KEY=VALUE, where the column KEY may be of use; D025."""
    for file in files if request.any_columns else ():
        if keyed := [step for step in file[len(folder) :].split("/")[:-1] if "=" in step[1:]]:
            names = ", ".join(step.partition("=")[0] for step in keyed)
            what = f"the names of folders, as {keyed[0]}, hold what the files lack: column {names}"
            where = address.shown(folder or file)
            reader = f"pandas.read_parquet({where!r})"
            if file.lower().endswith(CSV):
                reader = f"pyarrow.dataset.dataset({where!r}, format='csv', partitioning='hive').to_table().to_pandas()"
            raise TipcastError("D025", where, what, f"write one file: {reader}.to_parquet('t.parquet')")


def _of_folder(files: Sequence[str], folder: str, where: str, request: ScanRequest) -> list[str]:
    """Return the data files below a folder, without hidden ones and those that start with an underscore."""
    _check_logs(files)
    found = [file for file in files if file.lower().endswith((*PARQUET, *CSV))]
    steps = {file: file[len(folder) :].strip("/").split("/") for file in found}
    kept = [file for file in found if not any(step[:1] in {".", "_"} for step in steps[file])]
    if not kept:
        raise TipcastError("D002", where, "holds no Parquet or CSV file", FORMATS)
    check_partitions(kept, folder.rstrip("/"), request)
    return sorted(kept)


def check_format(uri: str, request: ScanRequest) -> str:
    """Return ``parquet`` or ``csv`` as a file's name says; D001 missing, D003 empty, D004 neither."""
    name = address.last_name(uri).lower()
    if name.endswith((*PARQUET, *CSV)):
        return "parquet" if name.endswith(PARQUET) else "csv"
    where = address.shown(uri)
    if address.size(uri, address.storage(uri, request.storage)) == 0:
        raise TipcastError("D003", where, "is empty", "remove it")
    raise TipcastError("D004", where, "is neither Parquet nor CSV by its name", FORMATS)


def identical(fragments: Iterable[Fragment]) -> tuple[str, ...]:
    """Return one line that names two files of equal content, whose rows would count twice, or nothing.

    Local files are compared by content where size and beginning (of Parquet files the footer) are equal, remote ones by
    footer or by size and ETag alone; D001 a file that is gone, D022 a store that does not answer.
    """
    known: dict[object, list[str]] = {}
    pairs: list[tuple[str, str]] = []
    for fragment in {fragment.uri: fragment for fragment in fragments}.values():
        alike = known.setdefault(_content_key(fragment), [])
        same = next((uri for uri in alike if _equal(uri, fragment.uri)), None)
        if same is None:
            alike.append(fragment.uri)
        else:
            pairs.append((address.shown(same), address.shown(fragment.uri)))
    if not pairs:
        return ()
    more = f" (and {len(pairs) - 1} more such files)" if len(pairs) > 1 else ""
    return (f"{pairs[0][0]} and {pairs[0][1]} have the same content, read twice{more}: name one of them",)


def _content_key(fragment: Fragment) -> object:
    """Return what files of equal content have in common, without reading much of them."""
    if fragment.format != "csv":
        return fragment.digest  # of Parquet: footer and size
    uri, storage = fragment.uri, fragment.options["storage"]
    if address.scheme(uri):
        with address.reaching(uri):
            return address.size(uri, storage), address.filesystem(uri, storage).info(uri).get("ETag", uri)
    return address.size(uri, storage), hashlib.sha256(address.read_range(uri, storage, 0, BEGINNING)).digest()


def _equal(one: str, other: str) -> bool:
    remote = address.scheme(one) or address.scheme(other)
    return bool(remote) or filecmp.cmp(one, other, shallow=False)


def read_fragment(fragment: Fragment, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
    """Read columns of a fragment, all by default: canonical name -> (rows,) array of the frames' device.

    Times are int64 microseconds with the smallest int64 for null, numbers integer or float64 with NaN for null. D001
    gone, D005 damaged, D007 a column the file lacks, D016 not UTF-8, D022 not reached.
    """
    wanted = tuple(fragment.columns if columns is None else columns)
    if not wanted:  # as of a table of texts alone: of a CSV file every column would be parsed
        return {}
    for name in wanted:
        if name not in fragment.columns:
            where = address.shown(fragment.uri)
            raise TipcastError("D007", where, f"missing column {name!r}", "use a file that has it")
    reader = parquet if fragment.format == "parquet" else delimited
    read = reader.read(fragment, tuple(fragment.columns[name] for name in wanted), frames)
    return {name: read[fragment.columns[name]] for name in wanted}
