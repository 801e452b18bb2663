"""What a scoring has to do, and what is refused: which files are new or have changed since they were scored."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import ScoreConfig
from tipcast.config.plain import redact
from tipcast.datasets import address
from tipcast.datasets.base import Dataset, Fragment, ScanRequest
from tipcast.datasets.column_names import NAMES, check_names
from tipcast.datasets.registry import check_facts, dataset_of
from tipcast.scoring.output_folder import Entry, Manifest, file_stamp, output_names, unchanged_file
from tipcast.scoring.writing import added_columns, of_store
from tipcast.tasks.base import KINDS, Task, from_facts
from tipcast.tracking.store import resolve

if TYPE_CHECKING:  # MLflow takes longer to load than a look at files that have not changed
    from tipcast.tracking.models import Fetched

RECIPE = 1
"""Changes with what scoring makes of the same rows, model and configuration."""
REFUSED = "refused"
"""Of the manifest: name -> code, message, stamp of files that were refused."""
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
_AT_ONCE = 8
Looked = TypeVar("Looked", "Item", "Item | None")


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

    output: str
    model_uri: str
    recipe: str
    due: tuple[Item, ...]
    kept: Mapping[str, Entry]
    """Scores that stay as they are."""
    refused: tuple[Item, ...]
    obsolete: tuple[str, ...]
    """Scores that are there, of files that are not named any more, or are refused now."""
    current: bool
    """Whether the folder is already what it would be made."""
    before: Manifest
    """What the folder says of itself."""

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
        raise TipcastError(
            "C003", "compression", f"no such compression: {config.compression}", f"use {', '.join(COMPRESSIONS)}"
        )
    check_facts(config.facts)


def task_of(manifest: Mapping[str, Any]) -> Task:
    """Return the task of a model by its manifest."""
    return from_facts(manifest["task"], manifest["features"], str(manifest.get("target", "")))


def check_model(fetched: Fetched, config: ScoreConfig) -> None:
    """Refuse (C003, M006) a model that does not tell what it predicts, and columns to keep that scoring adds."""
    task = fetched.manifest.get("task")
    facts = task if isinstance(task, Mapping) else {}
    two_classes = facts.get("kind") == "classification"
    if (
        facts.get("kind") not in KINDS
        or "columns" not in facts
        or (two_classes and fetched.manifest.get("threshold") is None)
    ):
        target = facts.get("name") or fetched.manifest.get("target", "an unknown task")
        raise TipcastError(
            "M006", fetched.uri, f"is a model for {target}, which is not known here", "use another model"
        )
    for name in set(config.keep or ()) & set(added_columns(task_of(fetched.manifest))):
        raise TipcastError("C003", "keep", f"{name} is a column that scoring adds", "leave it out")


def plan_unchanged(config: ScoreConfig, output: str, manifest: Manifest | None) -> ScorePlan | None:
    """Return the plan where nothing is to be done, found out without the store: a version never changes, an alias may.

    None where anything is due or looks different, or the store must be asked.
    """
    model = manifest.about.get("model", {}) if manifest else {}
    if manifest is None or (model.get("uri"), model.get("registry")) != (config.model_uri, registry(config)):
        return None
    recipe = recipe_of(config, config.model_uri, str(model.get("manifest_sha256")))
    request = ScanRequest((), storage=dict(config.storage_options))
    items = _each(
        lambda name, uri: _unchanged(name, uri, request, output, recipe, manifest),
        output_names(config.input, request, "input"),
    )
    if None in items:
        return None
    plan = _plan([item for item in items if item], output, config.model_uri, recipe, manifest)
    return plan if plan.current and plan.kept == manifest.files else None


def plan_files(config: ScoreConfig, output: str, manifest: Manifest | None, fetched: Fetched) -> ScorePlan:
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
        names=config.columns or fetched.manifest.get(NAMES, {}),
        key="columns",
        strict=bool(config.columns),
        nullable=tuple(name for name in (*columns, *optional) if name != dataset.time),
        facts=config.facts,
        block_bytes=config.block_bytes,
        storage=dict(config.storage_options),
    )
    files = output_names(config.input, request, "input")
    recipe = recipe_of(config, fetched.uri, fetched.manifest_sha256)
    before = manifest or Manifest({}, {})

    def look(name: str, uri: str) -> Item:
        there = _unchanged(name, uri, request, output, recipe, before)
        return there or _inspect_file(name, uri, request, dataset)

    items = _each(look, files)
    if len(items) == 1 and items[0].problem:
        raise items[0].problem
    return _plan(items, output, fetched.uri, recipe, before)


def _each(look: Callable[[str, str], Looked], files: Mapping[str, str]) -> list[Looked]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(look, files, files.values()))


def _plan(items: Sequence[Item], output: str, model_uri: str, recipe: str, before: Manifest) -> ScorePlan:
    due = tuple(item for item in items if item.fragments)
    refused = tuple(item for item in items if item.problem)
    kept = {item.name: item.entry for item in items if item.entry}
    made = {*kept, *(item.name for item in due)}
    obsolete = tuple(name for name in before.files if name not in made)
    same = recipe == before.about.get("recipe") and {item.name for item in refused} == set(
        before.about.get(REFUSED, {})
    )
    current = not due and not obsolete and same
    return ScorePlan(output, model_uri, recipe, due, kept, refused, obsolete, current, before)


def _unchanged(name: str, uri: str, request: ScanRequest, output: str, recipe: str, before: Manifest) -> Item | None:
    """Return a file that has not changed since it was scored or refused, without looking into it; None for others."""
    storage = address.storage(uri, request.storage)
    stamp = file_stamp(uri, storage, strict=True) or ""
    entry, refused = before.files.get(name), before.about.get(REFUSED, {}).get(name)
    if entry and entry.recipe == recipe and entry.input == redact(uri):
        scores = f"{output}/{name}"
        options = address.storage(scores, request.storage)
        there = unchanged_file(scores, options, entry.stamp, entry.sha256, strict=False)
        given = there and unchanged_file(uri, storage, entry.input_stamp, entry.input_sha256, strict=True)
        if there and given:
            return Item(name, uri, stamp, entry=replace(entry, stamp=there, input_stamp=given))
    if refused and refused["stamp"] == stamp and before.about.get("recipe") == recipe:
        problem = TipcastError(refused["code"], refused["where"], refused["what"], refused["fix"])
        return Item(name, uri, stamp, problem=problem)
    return None


def _inspect_file(name: str, uri: str, request: ScanRequest, dataset: Dataset) -> Item:
    """Look at a file's footer or header."""
    stamp = file_stamp(uri, address.storage(uri, request.storage), strict=True) or ""
    try:
        found = dataset.scan_file(uri, request)
    except TipcastError as problem:
        if stops_all(problem):
            raise
        return Item(name, uri, stamp, problem=problem)
    return Item(name, uri, stamp, found.fragments, found.facts, found.notes)


def stops_all(problem: BaseException) -> bool:
    """Whether a problem is more than one file's own: no error of the data, or an object store that is away."""
    return not isinstance(problem, TipcastError) or problem.code[0] != "D" or of_store(problem) is not problem


def reasons(refused: Sequence[Item]) -> dict[str, str]:
    """Return file -> why it is refused, in a line."""
    return {item.name: f"[{item.problem.code}] {item.problem.what}" for item in refused if item.problem}
