"""What a scoring has to do: which files are new or have changed since their scores were made, and which are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact
from tipcast.config.schema_score import ScoreConfig
from tipcast.data import address, scored
from tipcast.data.features import needed_columns
from tipcast.data.fragments import Fragment
from tipcast.data.kept import ADDED
from tipcast.data.named import named
from tipcast.data.scored import Entry, Manifest
from tipcast.data.sources.files import find
from tipcast.data.sources.found import Wanted
from tipcast.data.writing import of_store
from tipcast.jobs.score_task import LABEL, MAY_LACK
from tipcast.tracking.models import Fetched

RECIPE = 1
"""Changes with what scoring makes of the same trips, model and configuration."""
REFUSED = "refused"
"""Of the manifest: name -> code, message, stamp of files that were refused."""
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
_AT_ONCE = 8


@dataclass(frozen=True)
class Item:
    """A file to be scored."""

    name: str
    """Of its scores, below their folder."""
    uri: str
    stamp: str
    fragments: tuple[Fragment, ...] = ()
    """Empty where nothing is to be done."""
    colour: str | None = None
    notes: tuple[str, ...] = ()
    problem: TipcastError | None = None
    """Why it is refused."""


@dataclass(frozen=True)
class ScorePlan:
    """All files, known before any worker starts."""

    output: str
    recipe: str
    due: tuple[Item, ...]
    kept: Mapping[str, Entry]
    """Scores that stay as they are."""
    refused: tuple[Item, ...]
    obsolete: tuple[str, ...]
    """Scores that are there, of files that are not named any more, or are refused now."""
    current: bool
    """Whether the folder is already what it would be made."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth a log line, each once."""
        return tuple(dict.fromkeys(note for item in self.due for note in item.notes))


def check(config: ScoreConfig) -> None:
    """Refuse values outside their range.

    Raises
    ------
    TipcastError
        C003.

    """
    if config.block_bytes < 1024:
        raise TipcastError("C003", "block_bytes", f"{config.block_bytes} is too little", "use 1024 or more")
    if config.compression not in COMPRESSIONS:
        raise TipcastError(
            "C003", "compression", f"no such compression: {config.compression}", f"use {', '.join(COMPRESSIONS)}"
        )
    for name in config.keep or ():
        if name in ADDED:
            raise TipcastError("C003", "keep", f"{name} is a column that scoring adds", "leave it out")


def check_model(fetched: Fetched) -> None:
    """Refuse a model that does not predict high tips.

    Raises
    ------
    TipcastError
        M006.

    """
    task, threshold = fetched.manifest.get("task"), fetched.manifest.get("threshold")
    if not isinstance(task, Mapping) or task.get("kind") != "classification" or threshold is None:
        made_for = task.get("name") if isinstance(task, Mapping) else fetched.manifest.get("target", "an unknown task")
        raise TipcastError("M006", fetched.uri, f"is a model for {made_for}, not for high tips", "use one of high_tip")


def recipe_of(config: ScoreConfig, fetched: Fetched) -> str:
    """Return a digest of all that scores depend on beside the trips; not the device: scores agree within 1e-5."""
    depends = [RECIPE, fetched.uri, fetched.manifest_sha256, config.keep, config.compression, config.colour]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()


def make_plan(config: ScoreConfig, output: str, manifest: Manifest | None, fetched: Fetched) -> ScorePlan:
    """List the files and decide what is to be done with each; every mistake that footers and headers show ends here.

    Raises
    ------
    TipcastError
        C003 C004 D001 D002 D021 configuration and names; the error of the only file, if that is refused; D022.

    """
    needed = needed_columns(fetched.manifest["features"])
    wanted = Wanted(
        columns=tuple(dict.fromkeys(("pickup", *(name for name in needed if name not in MAY_LACK)))),
        optional=(*MAY_LACK, *LABEL),
        nullable=(*MAY_LACK, *LABEL),
        colour=config.colour,
        block_bytes=config.block_bytes,
        storage=dict(config.storage_options),
    )
    files = named(config.input, wanted, "input")
    recipe = recipe_of(config, fetched)
    known = manifest or Manifest({}, {})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        items = list(pool.map(lambda name: _item(name, files[name], wanted, output, recipe, known), files))
    refused = tuple(item for item in items if item.problem)
    if len(items) == 1 and refused and refused[0].problem:
        raise of_store(refused[0].problem)
    due = tuple(item for item in items if item.fragments)
    kept = {
        item.name: replace(known.files[item.name], input_stamp=item.stamp)
        for item in items
        if not item.fragments and not item.problem
    }
    obsolete = tuple(name for name in known.files if name not in kept and name not in {item.name for item in due})
    same = recipe == known.about.get("recipe") and {item.name for item in refused} == set(known.about.get(REFUSED, {}))
    return ScorePlan(output, recipe, due, kept, refused, obsolete, not due and not obsolete and same)


def _item(name: str, uri: str, wanted: Wanted, output: str, recipe: str, known: Manifest) -> Item:
    """Look at one file: at its footer or header only where its scores are not known to be those of it."""
    storage = address.storage(uri, wanted.storage)
    stamp = scored.stamp(uri, storage, strict=True) or ""
    entry, before = known.files.get(name), known.about.get(REFUSED, {}).get(name)
    if entry and entry.recipe == recipe and entry.input == shown(uri):
        scores = f"{output}/{name}"
        there = scored.unchanged(
            scores, address.storage(scores, wanted.storage), entry.stamp, entry.sha256, strict=False
        )
        if there and scored.unchanged(uri, storage, entry.input_stamp, entry.input_sha256, strict=True):
            return Item(name, uri, stamp)
    if before and before["stamp"] == stamp and known.about.get("recipe") == recipe:
        return Item(
            name, uri, stamp, problem=TipcastError(before["code"], before["where"], before["what"], before["fix"])
        )
    try:
        found = find(uri, wanted)
    except TipcastError as problem:
        if stops_all(problem):
            raise of_store(problem) from problem
        return Item(name, uri, stamp, problem=problem)
    return Item(name, uri, stamp, found.fragments, found.colour, found.notes)


def stops_all(problem: BaseException) -> bool:
    """Whether a problem is more than one file's own: no error of the data, or an object store that is away."""
    return not isinstance(problem, TipcastError) or problem.code[0] != "D" or of_store(problem) is not problem


def told(refused: Sequence[Item]) -> dict[str, dict[str, str]]:
    """Return what the manifest says of refused files."""
    return {
        item.name: {
            "code": item.problem.code,
            "where": item.problem.where,
            "what": item.problem.what,
            "fix": item.problem.fix,
            "stamp": item.stamp,
        }
        for item in refused
        if item.problem
    }


def shown(uri: str) -> str:
    """Return an input's address for the manifest: its full path, without credentials."""
    return redact(uri)


def summary(refused: Sequence[Item], all_files: int) -> TipcastError:
    """Return the error that a job ends with when some files were refused."""
    first = next(item.problem for item in refused if item.problem)
    what = f"{len(refused)} of {all_files} files were refused, as {first.where}: [{first.code}] {first.what}"
    return TipcastError("S010", "input", what, "mend or leave out the files that are listed; the others are scored")


def configuration(config: ScoreConfig) -> dict[str, Any]:
    """Return what the manifest says of the configuration."""
    return {"keep": config.keep, "compression": config.compression, "colour": config.colour}
