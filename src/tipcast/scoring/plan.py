"""What a scoring has to do, and what is refused: which files are new or have changed since they were scored."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tipcast.compute.base import count
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact
from tipcast.config.schema import ScoreConfig
from tipcast.datasets import address
from tipcast.datasets.base import COLUMN_NAMES, Fragment, ScanRequest, check_names
from tipcast.datasets.listing import CSV, PARQUET, ROWLESS, expand, patterns
from tipcast.datasets.registry import check_facts, dataset_of
from tipcast.scoring.writing import Entry, Scores, file_sha256, file_stamp, look, of_store, refused
from tipcast.tasks.base import KINDS, Task, from_facts
from tipcast.tracking.store import resolve

if TYPE_CHECKING:  # MLflow takes longer to load than a look at files that have not changed
    from tipcast.tracking.models import Fetched

RECIPE = 1
"""Changes with what scoring makes of the same rows, model and configuration."""
REFUSED = "refused"
"""Of the manifest: name -> code, message, stamp of files that were refused."""
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")


@dataclass(frozen=True)
class Item:
    """A file to be scored."""

    name: str
    """Of its scores, below their folder."""
    uri: str
    stamp: str
    fragments: tuple[Fragment, ...] = ()
    """Empty where nothing is to be done."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the dataset says of it."""
    notes: tuple[str, ...] = ()
    problem: TipcastError | None = None
    """Why it is refused."""
    entry: Entry | None = None
    """Of scores that stay, as file and scores look now."""


@dataclass(frozen=True)
class ScorePlan:
    """All files, known before any worker starts."""

    present: Scores
    """What is where the scores go."""
    model_uri: str
    recipe: str
    due: tuple[Item, ...]
    kept: Mapping[str, Entry]
    """Scores that stay as they are."""
    refused: tuple[Item, ...]
    current: bool
    """Whether the folder is already what it would be made."""

    @property
    def files(self) -> int:
        """How many are named."""
        return len(self.due) + len(self.kept) + len(self.refused)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth a log line, each once."""
        return tuple(dict.fromkeys(note for item in self.due for note in item.notes))


def recipe_of(config: ScoreConfig, uri: str, manifest_sha256: str) -> str:
    """Return a digest of all that scores depend on beside the rows; not the device: scores agree within 1e-5."""
    depends = [RECIPE, uri, manifest_sha256, config.keep, config.compression, *config.facts.values()]
    depends += [config.columns] if config.columns else []
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()


def registry(config: ScoreConfig) -> str:
    """Return the address of the registry that versions are of, without credentials."""
    uri = os.environ.get("MLFLOW_REGISTRY_URI") or resolve(config.tracking)
    _, sqlite, path = uri.rpartition("sqlite:///")
    return f"{sqlite}{Path(path).absolute()}" if sqlite or "://" not in uri else redact(uri)


def check(config: ScoreConfig) -> None:
    """Refuse values that there are not."""
    if config.compression not in COMPRESSIONS:
        what = f"no such compression: {config.compression}"
        raise TipcastError("C003", "compression", what, f"use {', '.join(COMPRESSIONS)}")
    check_facts(config.facts)


def task_of(manifest: Mapping[str, Any]) -> Task:
    """Return the task of a model by its manifest."""
    return from_facts(manifest["task"], manifest["features"], str(manifest.get("target", "")))


def added_columns(task: Task) -> tuple[str, ...]:
    """Return the names of the columns that scoring adds."""
    predicted = {
        "classification": ("probability", "prediction"),
        "multiclass": (*(f"probability_{name}" for name in task.classes), "prediction"),
        "regression": ("prediction",),
        "clustering": ("cluster", "distance"),
    }[task.kind]
    return (*predicted, "model_name", "model_version")


def check_model(fetched: Fetched, config: ScoreConfig) -> None:
    """Refuse (C003, M006) a model that does not tell what it predicts, and columns to keep that scoring adds."""
    task = fetched.manifest.get("task")
    facts = task if isinstance(task, Mapping) else {}
    lacks_threshold = facts.get("kind") == "classification" and fetched.manifest.get("threshold") is None
    if facts.get("kind") not in KINDS or "columns" not in facts or lacks_threshold:
        target = facts.get("name") or fetched.manifest.get("target", "an unknown task")
        what = f"is a model for {target}, which is not known here"
        raise TipcastError("M006", fetched.uri, what, "use another model")
    for name in set(config.keep or ()) & set(added_columns(task_of(fetched.manifest))):
        raise TipcastError("C003", "keep", f"{name} is a column that scoring adds", "leave it out")


def look_into(config: ScoreConfig) -> Scores:
    """Look into the folder of scores, see ``look``; C011 where the scores would be among the files that they are of."""
    present = look(config.output, config.storage_options)
    for named in patterns(config.input, "input"):
        folder = present.folder if address.scheme(config.output) else str(Path(present.folder).resolve())
        if _reaches(_steps(named), folder.split("/")):
            what = f"and the input are one folder, or one lies in the other: {address.shown(named)}"
            raise refused(config.output, what, "name a folder beside it")
    return present


def plan_unchanged(config: ScoreConfig, present: Scores) -> ScorePlan | None:
    """Return the plan where nothing is to be done, found out without the store: a version never changes, an alias may.

    None where anything is due or looks different, or the store must be asked.
    """
    model = present.about.get("model", {})
    interrupted = not all(entry.named for entry in present.files.values())
    if interrupted or (model.get("uri"), model.get("registry")) != (config.model_uri, registry(config)):
        return None
    recipe = recipe_of(config, config.model_uri, str(model.get("manifest_sha256")))
    files = output_names(config.input, ScanRequest((), storage=dict(config.storage_options)), "input")
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda name: _unchanged(name, files[name], config, recipe, present), files))
    items = [item for item in found if item]
    if len(items) < len(files):
        return None
    plan = _plan(items, config.model_uri, recipe, present)
    return plan if plan.current and plan.kept == present.files else None


def plan_files(config: ScoreConfig, present: Scores, fetched: Fetched) -> ScorePlan:
    """List the files and decide what is to be done with each; every mistake that footers and headers show ends here.

    The only file's error is raised, others' are in the plan.
    """
    dataset, task = dataset_of(fetched.manifest), task_of(fetched.manifest)
    columns, optional = dataset.scoring_columns(task.features)
    optional = tuple(dict.fromkeys((*optional, *(name for name in task.columns if name not in columns))))
    check_names(dataset, config.columns, "columns")
    request = ScanRequest(
        columns=columns,
        optional=optional,
        names=config.columns or fetched.manifest.get(COLUMN_NAMES, {}),
        key="columns",
        any_columns=dataset.name == "table",
        strict=bool(config.columns),
        nullable=tuple(name for name in (*columns, *optional) if name != dataset.time),
        facts=config.facts,
        block_bytes=config.block_bytes,
        storage=dict(config.storage_options),
    )
    files = output_names(config.input, request, "input")
    recipe = recipe_of(config, fetched.uri, fetched.manifest_sha256)

    def inspect(name: str, uri: str) -> Item:
        if same := _unchanged(name, uri, config, recipe, present):
            return same
        stamp = file_stamp(uri, address.storage(uri, config.storage_options)) or ""
        try:
            found = dataset.scan_file(uri, request)  # the footer or the header alone
        except TipcastError as problem:
            if stops_all(problem):
                raise
            return Item(name, uri, stamp, problem=problem)
        return Item(name, uri, stamp, found.fragments, found.facts, found.notes)

    with ThreadPoolExecutor() as pool:
        items = list(pool.map(inspect, files, files.values()))
    if len(items) == 1 and items[0].problem:
        raise items[0].problem
    with_rows = [item for item in items if not item.problem or item.problem.code != ROWLESS]
    if 0 < len(with_rows) < len(items):
        note = f"{count(len(items) - len(with_rows), 'file')} without rows passed over"
        items = [replace(item, notes=(*item.notes, note)) for item in with_rows]
    return _plan(items, fetched.uri, recipe, present)


def _plan(items: Sequence[Item], model_uri: str, recipe: str, present: Scores) -> ScorePlan:
    due = tuple(item for item in items if item.fragments)
    refused = tuple(item for item in items if item.problem)
    kept = {item.name: item.entry for item in items if item.entry}
    names, before = {item.name for item in refused}, present.about
    same = recipe == before.get("recipe") and names == set(before.get(REFUSED, {}))
    whole = set(kept) == set(present.files) and all(entry.named for entry in present.files.values())
    current = same and whole and not due
    return ScorePlan(present, model_uri, recipe, due, kept, refused, current)


def _unchanged(name: str, uri: str, config: ScoreConfig, recipe: str, present: Scores) -> Item | None:
    """Return a file that has not changed since it was scored or refused, without parsing it; None for others."""
    storage = address.storage(uri, config.storage_options)
    stamp = file_stamp(uri, storage) or ""
    entry = present.files.get(name)
    if entry and entry.recipe == recipe and entry.input in ("", redact(uri)):
        scores = f"{present.folder}/{name}"
        options = address.storage(scores, config.storage_options)
        given = _same(uri, storage, entry.input_stamp, entry.input_sha256)
        scored = given and _same(scores, options, entry.stamp, entry.sha256)
        if given and scored:
            same = replace(
                entry,
                input=redact(uri),
                input_stamp=given[0],
                bytes=entry.bytes or address.size(scores, options),
                sha256=scored[1],
                stamp=scored[0],
            )
            return Item(name, uri, stamp, entry=same)
    earlier = present.about.get(REFUSED, {}).get(name)
    refused_before = earlier and earlier["stamp"] == stamp and present.about.get("recipe") == recipe
    if refused_before and earlier["code"] != "D022" and not stamp.endswith("-"):  # what was not reached may be now
        problem = TipcastError(earlier["code"], earlier["where"], earlier["what"], earlier["fix"])
        return Item(name, uri, stamp, problem=problem)
    return None


def _same(uri: str, storage: Mapping[str, Any], stamp: str, sha256: str) -> tuple[str, str] | None:
    """Return the stamp and the SHA-256 of a file that is what it was; None for others.

    It is compared by its looks, then by its content: one that looks different if it is local, one of whose looks
    nothing is known wherever it is. Without a SHA-256 to compare with any content will do.
    """
    now = file_stamp(uri, storage)
    if now and now == stamp and not now.endswith("-"):  # a server that tells the size alone tells too little
        return now, sha256
    if now is None or (stamp and address.scheme(uri)):
        return None
    found = file_sha256(uri, storage)
    return (now, found) if found == (sha256 or found) else None


def stops_all(problem: BaseException) -> bool:
    """Whether a problem is more than one file's own: no error of the data, or an object store that is away."""
    return not isinstance(problem, TipcastError) or problem.code[0] != "D" or of_store(problem) is not problem


def reasons(refused: Sequence[Item]) -> dict[str, str]:
    """Return file -> why it is refused, in a line."""
    return {item.name: f"[{item.problem.code}] {item.problem.what}" for item in refused if item.problem}


# Names of scores: below their folder as the files that are scored are below theirs


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
    if _is_folder(pattern):
        return _whole(pattern)
    fixed = itertools.takewhile(lambda step: not glob.has_magic(step), _whole(pattern).split("/")[:-1])
    return "/".join(fixed)


def _whole(named: str) -> str:
    """Return an address or an absolute path without a slash at its end."""
    if address.scheme(named):
        return named.rstrip("/")
    return str(Path(named.removeprefix("file://")).expanduser().absolute())


def _is_folder(named: str) -> bool:
    if not address.scheme(named):
        return Path(_whole(named)).is_dir()
    return named.endswith("/") or not (glob.has_magic(named) or named.lower().endswith((*PARQUET, *CSV)))


def output_name(uri: str, base: str) -> str:
    """Return the name that a file's scores get below the folder of scores."""
    plain = uri.partition("?")[0] if address.scheme(uri).startswith("http") else uri
    name = plain[len(base) :].strip("/") if plain.startswith(f"{base}/") else address.last_name(uri)
    return name if name.lower().endswith(PARQUET) else f"{name}.parquet"


def _steps(named: str) -> list[str]:
    """Return the pattern of all files that a name stands for, step by step, without links in its fixed part."""
    base, whole = root(named), _whole(named)
    rest = whole[len(base) :]
    if not address.scheme(named):
        fixed, rest = (base, rest) if glob.has_magic(named) else (whole, "")
        whole = str(Path(fixed or "/").resolve()).rstrip("/") + rest
    return [*whole.split("/"), *(["**"] if _is_folder(named) else [])]


def _reaches(pattern: Sequence[str], folder: Sequence[str]) -> bool:
    """Whether a pattern could match a file below a folder."""
    for at, step in enumerate(pattern):
        if step == "**" or at == len(folder):
            return True
        if step != folder[at] and not fnmatchcase(folder[at], step):
            return False
    return False
