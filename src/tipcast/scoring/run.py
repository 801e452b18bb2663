"""The scoring itself: a task for each fragment, one for each file that puts its parts together, one for its digest."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distributed import as_completed

from tipcast.compute.base import Session
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.config.job_schemas import ScoreConfig
from tipcast.config.plain import redact
from tipcast.datasets import address
from tipcast.datasets.base import merged
from tipcast.datasets.registry import dataset_of
from tipcast.evaluation.base import Evaluator
from tipcast.measure.progress import progress, worth_a_line
from tipcast.models.base import NativeFile
from tipcast.models.fit import hold_saved
from tipcast.scoring import swap
from tipcast.scoring.output_folder import Entry, file_stamp
from tipcast.scoring.plan import Item, ScorePlan, stops_all, task_of
from tipcast.scoring.worker import Scored, Work, digest, join, score_fragment, total
from tipcast.scoring.writing import Joined, failures
from tipcast.tracking.models import PREDICTIONS, Fetched

LOG = logging.getLogger("tipcast")


@dataclass
class Results:
    """What became of the files, as they end."""

    judge: Evaluator
    """Of the model's kind of task."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """Name -> what the manifest says, but for the scores' stamps."""
    sums: tuple[Scored, ...] = ()
    """Of all files in one, where there are any: those of each are half a megabyte."""
    refused: list[Item] = field(default_factory=list)

    @property
    def total(self) -> Scored:
        """The sums over all files."""
        return total(self.sums, self.judge)

    def stamped(self, final: str, options: Mapping[str, Any]) -> dict[str, Entry]:
        """Return the entries with the scores' stamps, once they are where they stay."""
        return {
            name: replace(
                entry,
                stamp=file_stamp(f"{final}/{name}", address.storage(final, options), strict=False) or "",
            )
            for name, entry in self.entries.items()
        }


def score(workers: Session, config: ScoreConfig, plan: ScorePlan, fetched: Fetched, place: swap.Work) -> Results:
    """Score all files that are due.

    A file that its reader refuses is among the results' ``refused``, and nothing of it among the scores.

    Raises
    ------
    TipcastError
        T008, T009 where scores cannot be written, K-errors of the workers.

    """
    client, work = workers.client, _work(config, fetched, place)
    held = hold_saved(client, NativeFile(fetched.path, fetched.format), workers.device)
    local, alone = not address.scheme(place.parts), workers.frames.batch_rows > 0
    with failures(plan.output):
        for at, item in enumerate(plan.due if local else ()):
            (Path(place.whole) / item.name).parent.mkdir(parents=True, exist_ok=True)
            (Path(place.parts) / str(at)).mkdir(parents=True, exist_ok=True)
    tasks: dict[Any, tuple[int, str]] = {}
    every: list[Any] = []
    for at, item in enumerate(plan.due):
        fragments = merged(item.fragments, workers.frames.batch_rows)
        paths = [f"{place.parts}/{at}/{number:06}" for number in range(len(fragments))]
        common = {"scorer": held, "frames": workers.frames, "work": work, "seen": fetched.seen(item.facts)}
        parts = client.map(score_fragment, fragments, paths, **common, pure=False, key="score")
        whole = client.submit(join, f"{place.whole}/{item.name}", parts, work, alone=alone, pure=False)
        summed = client.submit(digest, item.uri, address.storage(item.uri, config.storage_options), pure=False)
        tasks |= {whole: (at, "whole"), summed: (at, "digest")}
        every += [*parts, whole, summed]
    results, found = Results(work.evaluator), dict[int, dict[str, Any]]()
    problems: dict[int, TipcastError] = {}
    total_tasks, ended_tasks = len(every), as_completed(every)
    del every  # a part that has ended is needed by its file's task only
    with progress("score") as told:
        for done, future in enumerate(ended_tasks, 1):
            told(done, total_tasks)
            at, kind = tasks.pop(future, (-1, ""))
            if not kind:
                continue
            problem = future.exception() if future.status != "finished" else None
            if problem is not None and stops_all(problem):
                raise problem
            if isinstance(problem, TipcastError):
                problems.setdefault(at, problem)
            ended = found.setdefault(at, {})
            ended[kind] = None if problem is not None else future.result()
            if len(ended) == 2:
                _file(plan.due[at], found.pop(at), problems.get(at), plan.recipe, results, config)
                if local:
                    shutil.rmtree(f"{place.parts}/{at}", ignore_errors=True)
                _say(plan.due[at].name, results, len(plan.due))
                gate(f"scored-{len(results.entries)}")
    place.drop([item.name for item in results.refused])
    return results


def _say(name: str, results: Results, total: int) -> None:
    """Log that a file has ended, of many files only some."""
    done, entry = len(results.entries) + len(results.refused), results.entries.get(name)
    if worth_a_line(done, total):
        LOG.info("file %d/%d  %s  %s", done, total, name, f"{entry.rows:,} rows" if entry else "refused")


def _file(
    item: Item,
    ended: Mapping[str, Any],
    problem: TipcastError | None,
    recipe: str,
    results: Results,
    config: ScoreConfig,
) -> None:
    """Take in a file that has ended."""
    now = file_stamp(item.uri, address.storage(item.uri, config.storage_options), strict=True)
    if problem is None and now != item.stamp:
        what, fix = "has changed since it was listed", "let the file be while a job reads it"
        problem = TipcastError("D005", address.shown(item.uri), what, fix)
    if problem is not None:
        results.refused.append(replace(item, problem=problem))
        return
    joined: Joined = ended["whole"][0]
    sums: Scored = ended["whole"][1]
    results.sums = (total([*results.sums, sums], results.judge),)
    results.entries[item.name] = Entry(
        input=redact(item.uri),
        input_stamp=item.stamp,
        input_sha256=ended["digest"],
        recipe=recipe,
        rows=joined.rows,
        bytes=joined.bytes,
        sha256=joined.sha256,
        unscored=dict(sums.unscored),
    )


def _work(config: ScoreConfig, fetched: Fetched, place: swap.Work) -> Work:
    manifest = fetched.manifest
    threshold = manifest.get("threshold")
    return Work(
        dataset=dataset_of(manifest),
        task=task_of(manifest),
        threshold=None if threshold is None else float(threshold),
        keep=None if config.keep is None else tuple(config.keep),
        name=fetched.name or str(fetched.model_id),
        version=fetched.version,
        compression=config.compression,
        storage=address.storage(place.whole, config.storage_options),
        edges=manifest.get(PREDICTIONS, {}).get("edges"),
    )
