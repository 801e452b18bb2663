"""Plan: which files are due, since they are new or have changed, which scores stay, and which files
are refused.
"""

import hashlib
import json
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tipcast.compute.base import count
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact
from tipcast.config.schema import ScoreConfig
from tipcast.datasets import address
from tipcast.datasets.base import Scorable, check_names
from tipcast.datasets.dialect import OPTIONS
from tipcast.datasets.find_files import PARQUET, ROWLESS, expand, patterns, request_of
from tipcast.datasets.listing import ScanRequest, column_names_of
from tipcast.datasets.parts import FilePart
from tipcast.datasets.registry import dataset_of
from tipcast.scoring.folder import ManifestEntry, ScoreFolder, bad_output
from tipcast.scoring.writing import as_artifact_error, file_sha256, file_stamp
from tipcast.tasks.base import Task, from_manifest

if TYPE_CHECKING:  # MLflow loads while the worker processes do
    from tipcast.tracking.model_fetch import FetchedModel

LOG = logging.getLogger("tipcast")

MODEL_COLUMNS = ("model_name", "model_version")
"""Columns that scoring adds after those of the predictions."""
SCORING_VERSION = 1
"""Version of scoring: it changes when the same rows, model and configuration get other scores."""
REFUSED = "refused"
"""Key of the manifest under which refused files are: name -> error."""


@dataclass(frozen=True)
class DueFile:
    """A file to be scored."""

    name: str
    """Name of the file of scores, below the output folder."""
    uri: str
    storage: Mapping[str, object]
    """fsspec's options for the file, as ``address.storage`` returns them."""
    entry: ManifestEntry
    """The manifest's entry as known before the file is scored: its input, stamp and digest."""
    parts: tuple[FilePart, ...] = ()
    notes: tuple[str, ...] = ()
    """Lines for the log, as ``column names mapped from lower case``."""


Inspected: TypeAlias = DueFile | ManifestEntry | TipcastError
"""A file to be scored, the entry of scores that stay, or why the file is refused."""


@dataclass(frozen=True)
class ScorePlan:
    """The work of a job, decided before any worker starts, from a scan of each file."""

    config: ScoreConfig
    model: "FetchedModel"
    dataset: Scorable
    task: Task
    folder: ScoreFolder
    """The folder for the scores, as it is before the job."""
    scoring_digest: str
    """Digest of all that scores depend on, except the rows."""
    due: tuple[DueFile, ...]
    unchanged: Mapping[str, ManifestEntry]
    """Name -> entry of scores that stay, with the current stamps."""
    refused: Mapping[str, TipcastError]
    """Name -> error of the file."""
    weight: str | None = None
    """Column of the weights by which metrics count rows whose answer is known; None: all rows
    count the same.
    """

    @property
    def n_files(self) -> int:
        """Number of files that the input names, without files that have no rows."""
        return len(self.due) + len(self.unchanged) + len(self.refused)

    @property
    def is_up_to_date(self) -> bool:
        """Whether the folder has these scores already, and its manifest these refused files."""
        about = self.folder.about
        same_files = self.unchanged.keys() == self.folder.files.keys()
        same_refused = self.refused.keys() == about.get(REFUSED, {}).keys()
        return bool(about) and not self.due and same_files and same_refused


def plan_files(config: ScoreConfig, folder: ScoreFolder, model: "FetchedModel") -> ScorePlan:
    """List the files and decide what is to be done with each.

    Files in the folder of scores are never scored themselves. All errors that the scan of a file
    shows are found here: if there is only one file, its error is raised, otherwise errors are in
    the plan.
    """
    manifest = model.manifest
    dataset = scorable_dataset(config, manifest)
    task = from_manifest(manifest["task"], manifest["features"], str(manifest.get("target", "")))

    check_keep(config.keep, task)
    request = request_columns(config, dataset, task, manifest)
    files = output_names(config.input, request, folder.path)
    digest = scoring_digest_of(config, model)

    inspect = partial(
        inspect_file, dataset=dataset, request=request, folder=folder, scoring_digest=digest
    )
    with ThreadPoolExecutor() as pool:  # footers are small reads, of stores that may be far away
        inspected = dict(zip(files, pool.map(inspect, files, files.values()), strict=True))

    due = tuple(file for file in inspected.values() if isinstance(file, DueFile))
    for note in sorted({note for file in due for note in file.notes}):
        LOG.warning(note)

    unchanged = {name: file for name, file in inspected.items() if isinstance(file, ManifestEntry)}
    refused = refused_files(inspected)
    return ScorePlan(
        config,
        model,
        dataset,
        task,
        folder,
        digest,
        due,
        unchanged,
        refused,
        weight=weight_of(task, due),
    )


def weight_of(task: Task, due: Sequence[DueFile]) -> str | None:
    """Return the column of the task's weights, if all files that have answers have it, too; None
    otherwise.

    A log line says so if some file lacks it: sums with weights and without do not add up.
    """
    if task.weight is None or not task.has_target:
        return None

    needed = set(task.columns)
    answered = [file for file in due if needed <= columns_in(file)]
    lacking = [file.name for file in answered if task.weight not in columns_in(file)]
    if not lacking:
        return task.weight

    LOG.warning(
        "metrics are unweighted: %d of %s with a target lack the weight column %r (as %s)",
        len(lacking),
        count(len(answered), "file"),
        task.weight,
        lacking[0],
    )
    return None


def columns_in(file: DueFile) -> set[str]:
    """Return the canonical names of the columns that a file has."""
    return {name for part in file.parts for name in part.columns}


def scorable_dataset(config: ScoreConfig, manifest: Mapping[str, Any]) -> Scorable:
    """Return a model's dataset, for files as the configuration describes them; C003, or M006 if its
    rows are not in files.
    """
    dataset = dataset_of(manifest)
    if not isinstance(dataset, Scorable):
        what = f"was trained on {dataset.name}, which is not read from files"
        raise TipcastError("M006", "model_uri", what, "use a model that was trained on files")

    return dataset.of_files(config.file_options)


def added_columns(task: Task) -> tuple[str, ...]:
    """Return the names of the columns that scoring adds."""
    return (*task.kind.scored_columns(task.classes), *MODEL_COLUMNS)


def check_keep(keep: Collection[str] | None, task: Task) -> None:
    """Refuse to keep a column of the input that scoring adds; C003."""
    for name in set(keep or ()) & set(added_columns(task)):
        raise TipcastError("C003", "keep", f"{name} is a column that scoring adds", "leave it out")


def request_columns(
    config: ScoreConfig, dataset: Scorable, task: Task, manifest: Mapping[str, Any]
) -> ScanRequest:
    """Return what every file must have: the columns of the features; and may have: those of the
    target, and of the weights.
    """
    columns, optional = dataset.scoring_columns(task.features)
    names = task.columns if task.weight is None else (*task.columns, task.weight)
    target_columns = [name for name in names if name not in columns]
    optional = tuple(dict.fromkeys((*optional, *target_columns)))

    check_names(dataset, config.columns, "columns")

    nullable = tuple(name for name in (*columns, *optional) if name != dataset.time)
    request = request_of(config, columns, optional, key="columns", nullable=nullable)
    return replace(
        request,
        names=config.columns or column_names_of(manifest),
        strict=bool(config.columns),
        any_columns=dataset.name == "table",
    )


def scoring_digest_of(config: ScoreConfig, model: "FetchedModel") -> str:
    """Return a digest of all that scores depend on, except the rows.

    The device is not part of it: scores of devices agree within 1e-5.
    """
    decisive: list[object] = [SCORING_VERSION, model.uri, model.manifest_sha256, config.keep]
    for name, value in config.file_options.items():
        if name not in OPTIONS:
            decisive.append(value)
        elif value is not None:  # otherwise scores from before there was the option stay
            decisive.append({name: value})
    if config.columns:
        decisive.append(config.columns)
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def output_names(paths: object, request: ScanRequest, folder: str) -> dict[str, str]:
    """Find the files of a path, glob, folder or address, or of a list of them; return name of the
    scores -> address.

    The files of a folder keep their paths below it, those of a glob the paths below its fixed part;
    other files keep their last name. Scores of CSV files end in ``.parquet``. Files in ``folder``,
    which gets the scores, are left out. Raises C003 if two files' scores would have one name, C011
    if no file is left; see ``expand`` for other errors.
    """
    files: dict[str, str] = {}
    for pattern in patterns(paths, "input"):
        for path, uri in expand(pattern, request).items():
            if _is_inside(uri, folder):
                continue

            name = output_name(path, uri)
            if files.setdefault(name, uri) != uri:
                both = f"{address.shown(files[name])} and {address.shown(uri)}"
                what = f"scores of {both} would both be {name}"
                fix = "score them to two folders, or use a folder above both"
                raise TipcastError("C003", "input", what, fix)

    if not files:
        raise bad_output(folder, "contains all input files", "use a folder next to it")

    return dict(sorted(files.items()))


def _is_inside(uri: str, folder: str) -> bool:
    """Tell whether a file lies in the folder of scores, also if a link leads there."""
    if not address.scheme(uri):
        uri = os.path.realpath(uri)
    return uri.startswith(f"{folder}/")


def output_name(path: str, uri: str) -> str:
    """Return the name of a file's scores, given its path below the named folder or glob; C003 if
    the path leads out of it.
    """
    name = path
    if not path.lower().endswith(PARQUET):
        name = f"{path}.parquet"
    if set(name.split("/")) & {"", ".", ".."}:  # keys of an object store may be anything
        what = f"scores of {address.shown(uri)} would be outside the output folder"
        raise TipcastError("C003", "input", what, "rename it")
    return name


def inspect_file(
    name: str,
    uri: str,
    *,
    dataset: Scorable,
    request: ScanRequest,
    folder: ScoreFolder,
    scoring_digest: str,
) -> Inspected:
    """Decide what is to be done with one file; raises errors that concern more than this file."""
    storage = address.storage(uri, request.storage)
    try:
        stamp = file_stamp(uri, storage)
    except TipcastError as error:
        return error_of_file(error)

    entry = ManifestEntry(input=redact(uri), input_stamp=stamp, recipe=scoring_digest)
    file = DueFile(name, uri, storage, entry)
    unchanged = unchanged_entry(file, folder, request.storage)
    if unchanged:
        return unchanged

    try:
        # The footer of Parquet is read, a local CSV file whole.
        scan = dataset.scan_file(uri, request)
    except TipcastError as error:
        return error_of_file(error)

    return replace(file, parts=scan.parts, notes=tuple(scan.notes))


def unchanged_entry(
    file: DueFile, folder: ScoreFolder, options: Mapping[str, object]
) -> ManifestEntry | None:
    """Return the entry of scores that stay, with current stamps; None if the file is due.

    A file of which only the stamp has changed is read: a copy on a disk has a new time.
    """
    entry = folder.files.get(file.name)
    now = file.entry
    if not entry or entry.recipe != now.recipe:
        return None
    if entry.input not in ("", now.input):  # "" after an interrupted job, as the stamp
        return None

    scores = f"{folder.path}/{file.name}"
    storage = address.storage(scores, options)
    size = address.size(scores, storage)
    if entry.bytes not in (0, size):
        return None

    sized_only = entry.input_stamp.endswith("-")  # a size without a time says too little
    looks_same = now.input_stamp == entry.input_stamp and not sized_only
    if not looks_same and entry.input_stamp and address.scheme(file.uri):
        return None
    if not looks_same and file_sha256(file.uri, file.storage) != entry.input_sha256:
        return None

    sha256 = entry.sha256 or file_sha256(scores, storage)
    return replace(entry, input=now.input, input_stamp=now.input_stamp, bytes=size, sha256=sha256)


def error_of_file(error: TipcastError) -> TipcastError:
    """Return the error of one file; raise one that concerns more."""
    if is_fatal(error):
        raise error
    return error


def is_fatal(error: BaseException) -> bool:
    """Tell whether an error ends the job, rather than refuse one file.

    Only errors of one file's data do not. An object store that cannot be reached has a D-code too,
    but concerns all files.
    """
    if not isinstance(error, TipcastError) or error.code[0] != "D":
        return True
    return as_artifact_error(error) is not error


def refused_files(inspected: Mapping[str, Inspected]) -> dict[str, TipcastError]:
    """Return name -> error of refused files; files without rows are skipped if there are others.

    If there is only one file, raises its error.
    """
    refused = {name: file for name, file in inspected.items() if isinstance(file, TipcastError)}
    if len(inspected) == len(refused) == 1:
        raise refused.popitem()[1]

    rowless = [name for name, error in refused.items() if error.code == ROWLESS]
    if 0 < len(rowless) < len(inspected):
        LOG.warning("%s without rows skipped", count(len(rowless), "file"))
        return {name: error for name, error in refused.items() if name not in rowless}
    return refused
