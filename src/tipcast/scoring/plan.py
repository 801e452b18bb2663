"""What a scoring has to do, and what is refused: which files are new or have changed since they
were scored.
"""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tipcast.compute.base import count
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact
from tipcast.config.schema import ScoreConfig
from tipcast.datasets import address
from tipcast.datasets.base import Scorable, check_names
from tipcast.datasets.listing import PARQUET, ROWLESS, expand, patterns, request_of
from tipcast.datasets.parts import FilePart
from tipcast.datasets.registry import dataset_of
from tipcast.datasets.scan import ScanRequest, column_names_of
from tipcast.scoring.writing import Entry, Scores, file_sha256, file_stamp, of_store, refused
from tipcast.tasks.base import Task, from_facts

if TYPE_CHECKING:  # MLflow loads while the worker processes do
    from tipcast.tracking.models import Fetched

LOG = logging.getLogger("tipcast")

RECIPE = 1
"""Changes with what scoring makes of the same rows, model and configuration."""
REFUSED = "refused"
"""Of the manifest: name -> error of files that were refused."""


@dataclass(frozen=True)
class Item:
    """A file to be scored."""

    name: str
    """Of its scores, below their folder."""
    uri: str
    storage: Mapping[str, Any]
    """For it, as ``address.storage`` returns them."""
    entry: Entry
    """What is known of its scores before they are made: input, stamp and recipe."""
    fragments: tuple[FilePart, ...] = ()


@dataclass
class Scoring:
    """A model, all files as they are before any worker starts, and what becomes of those that are
    due.
    """

    config: ScoreConfig
    fetched: "Fetched"
    dataset: Scorable
    task: Task
    present: Scores
    """What is where the scores go."""
    recipe: str
    """Digest of all that scores depend on beside the rows."""
    due: tuple[Item, ...]
    kept: Mapping[str, Entry]
    """Scores that stay, as files and scores look now."""
    refused: dict[str, TipcastError]
    """Name -> why, also of files that were never due."""
    made: dict[str, Entry] = field(default_factory=dict)
    """Name -> what the manifest says of new scores."""
    sums: list[Any] = field(default_factory=list)
    """The evaluator's, added up to one as files end: those of each are half a megabyte."""

    @property
    def files(self) -> int:
        """How many are named."""
        return len({*self.kept, *self.refused, *(item.name for item in self.due)})

    @property
    def current(self) -> bool:
        """Whether the folder is already what it would be made."""
        about = self.present.about
        same = self.kept.keys() == self.present.files.keys()
        return (
            bool(about)
            and same
            and not self.due
            and self.refused.keys() == about.get(REFUSED, {}).keys()
        )

    @property
    def rows(self) -> int:
        """Rows that were scored."""
        return sum(entry.rows for entry in self.made.values())

    @property
    def unscored(self) -> dict[str, int]:
        """Reason -> rows whose prediction is null."""
        return dict(sum((Counter(entry.unscored) for entry in self.made.values()), Counter[str]()))


def added_columns(task: Task) -> tuple[str, ...]:
    """Return the names of the columns that scoring adds."""
    return (*task.kind.scored_columns(task.classes), "model_name", "model_version")


def plan_files(config: ScoreConfig, present: Scores, fetched: "Fetched") -> Scoring:
    """List the files and decide what is to be done with each; every mistake that footers and
    headers show ends here.

    What lies in the folder of scores is never scored itself. The only file's error is raised,
    others' are returned.
    """
    manifest = fetched.manifest
    dataset = dataset_of(manifest)
    if not isinstance(dataset, Scorable):
        what = f"is a model of {dataset.name}, whose rows are not read from files"
        raise TipcastError("M006", "model_uri", what, "use a model that was trained on files")

    task = from_facts(manifest["task"], manifest["features"], str(manifest.get("target", "")))
    for name in set(config.keep or ()) & set(added_columns(task)):
        raise TipcastError("C003", "keep", f"{name} is a column that scoring adds", "leave it out")
    columns, optional = dataset.scoring_columns(task.features)
    optional = tuple(
        dict.fromkeys((*optional, *(name for name in task.columns if name not in columns)))
    )
    check_names(dataset, config.columns, "columns")
    dataset = dataset.of_files(config.facts)
    nullable = tuple(name for name in (*columns, *optional) if name != dataset.time)
    request = request_of(config, columns, optional, key="columns", nullable=nullable)
    names = config.columns or column_names_of(manifest)
    tabular = dataset.name == "table"
    request = replace(request, names=names, strict=bool(config.columns), any_columns=tabular)
    files = output_names(config.input, request, present.folder)
    # All that scores depend on beside the rows; not the device: scores agree within 1e-5.
    depends = [RECIPE, fetched.uri, fetched.manifest_sha256, config.keep, *config.facts.values()]
    depends += [config.columns] if config.columns else []
    recipe, notes = (
        hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest(),
        set[str](),
    )

    def inspect(name: str, uri: str) -> Item | Entry | TipcastError:
        storage = address.storage(uri, config.storage_options)
        try:
            draft = Entry(input=redact(uri), input_stamp=file_stamp(uri, storage), recipe=recipe)
            item = Item(name, uri, storage, draft)
        except TipcastError as problem:
            return _of_one_file(problem)

        if entry := _kept(item, present, config.storage_options):
            return entry

        try:
            scan = dataset.scan_file(uri, request)  # the footer or the header alone
        except TipcastError as problem:
            return _of_one_file(problem)

        notes.update(scan.notes)
        return replace(item, fragments=scan.fragments)

    with ThreadPoolExecutor() as pool:  # footers are small reads of stores that may be far away
        outcomes = dict(zip(files, pool.map(inspect, files, files.values()), strict=True))
    bad = {name: problem for name, problem in outcomes.items() if isinstance(problem, TipcastError)}
    if len(outcomes) == len(bad) == 1:
        raise bad.popitem()[1]
    for note in sorted(notes):
        LOG.warning(note)
    rowless = [name for name, problem in bad.items() if problem.code == ROWLESS]
    if 0 < len(rowless) < len(outcomes):
        LOG.warning("%s without rows passed over", count(len(rowless), "file"))
        bad = {name: problem for name, problem in bad.items() if name not in rowless}
    due = tuple(item for item in outcomes.values() if isinstance(item, Item))
    kept = {name: entry for name, entry in outcomes.items() if isinstance(entry, Entry)}
    return Scoring(config, fetched, dataset, task, present, recipe, due, kept, bad)


def output_names(given: Any, request: ScanRequest, folder: str) -> dict[str, str]:
    """Find the files of a path, glob, folder or address, or of a list of them; return name of the
    scores -> address.

    A folder's files keep their paths below it, those of a glob below its fixed part, others their
    last name; those of CSV files end in ``.parquet``. What lies in ``folder``, of the scores, is
    left out. C003 where two files' scores would have one name, C011 where no file is left; see
    ``expand`` for other errors.
    """
    files: dict[str, str] = {}
    for pattern in patterns(given, "input"):
        for path, uri in expand(pattern, request).items():
            place = uri if address.scheme(uri) else os.path.realpath(uri)  # a link may lead there
            if place.startswith(f"{folder}/"):
                continue

            name = path if path.lower().endswith(PARQUET) else f"{path}.parquet"
            if set(name.split("/")) & {"", ".", ".."}:  # keys of an object store may be anything
                where = address.shown(uri)
                raise TipcastError(
                    "C003", "input", f"scores of {where} would leave their folder", "rename it"
                )

            if files.setdefault(name, uri) != uri:
                what = (
                    f"scores of {address.shown(files[name])} and {address.shown(uri)} would "
                    f"both be {name}"
                )
                raise TipcastError(
                    "C003",
                    "input",
                    what,
                    "score them into two folders, or name a folder above both",
                )

    if not files:
        raise refused(folder, "holds all files of the input", "name a folder beside it")

    return dict(sorted(files.items()))


def _kept(item: Item, present: Scores, options: Mapping[str, Any]) -> Entry | None:
    """Return the entry of scores that stay, as file and scores look now; None where they do not."""
    entry = present.files.get(item.name)
    new = item.entry
    if not entry or entry.recipe != new.recipe or entry.input not in ("", new.input):
        return None

    # "": an interrupted job has noted no stamp
    scores = f"{present.folder}/{item.name}"
    known = entry.input_stamp
    storage = address.storage(scores, options)
    size = address.size(scores, storage)
    if entry.bytes not in (0, size):
        return None

    same = new.input_stamp == known and not known.endswith("-")  # a size alone tells too little
    if not same and known and address.scheme(item.uri):
        return None
    # a copy on a disk has a time of its own
    if not same and file_sha256(item.uri, item.storage) != entry.input_sha256:
        return None

    sha256 = entry.sha256 or file_sha256(scores, storage)
    return replace(entry, input=new.input, input_stamp=new.input_stamp, bytes=size, sha256=sha256)


def _of_one_file(problem: TipcastError) -> TipcastError:
    """Return the error of one file; raise one that concerns more."""
    if stops_all(problem):
        raise problem
    return problem


def stops_all(problem: BaseException) -> bool:
    """Whether a problem is more than one file's own: no error of the data, or an object store that
    is away.
    """
    return (
        not isinstance(problem, TipcastError)
        or problem.code[0] != "D"
        or of_store(problem) is not problem
    )
