"""The scoring itself: a task for each fragment, one for each input's digest, one that puts a file's parts together."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distributed import as_completed

from tipcast.compute.base import Session
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.config.job_schemas import ScoreConfig
from tipcast.datasets import address
from tipcast.datasets.base import merged
from tipcast.datasets.registry import dataset_of
from tipcast.evaluation.base import Evaluator
from tipcast.measure.progress import progress, worth_a_line
from tipcast.models.base import NativeFile
from tipcast.models.fit import hold_saved
from tipcast.scoring.output_folder import Entry
from tipcast.scoring.plan import Item, ScorePlan, stops_all, task_of
from tipcast.scoring.worker import Scored, Work, digest, join, score_fragment, total
from tipcast.scoring.writing import failures
from tipcast.tracking.models import PREDICTIONS, Fetched

LOG = logging.getLogger("tipcast")


@dataclass
class Results:
    """What became of the files, as they end."""

    judge: Evaluator
    """Of the model's kind of task."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """Name -> what the manifest says."""
    sums: tuple[Scored, ...] = ()
    """Of all files in one, where there are any: those of each are half a megabyte."""
    refused: list[Item] = field(default_factory=list)

    @property
    def total(self) -> Scored:
        """The sums over all files."""
        return total(self.sums, self.judge)


def score(workers: Session, config: ScoreConfig, plan: ScorePlan, fetched: Fetched, place: str) -> Results:
    """Score all files that are due, with their parts below a place in the folder of scores.

    A file that its reader refuses is among the results' ``refused``, and its scores are not written.

    Raises
    ------
    TipcastError
        T008, T009 where scores cannot be written, K-errors of the workers.

    """
    client, work, folder = workers.client, _work(config, fetched, plan), plan.present.folder
    held = hold_saved(client, NativeFile(fetched.path, fetched.format), workers.device)
    local, alone = not address.scheme(place), workers.frames.batch_rows > 0
    with failures(folder):
        for at, item in enumerate(plan.due if local else ()):
            Path(folder, item.name).parent.mkdir(parents=True, exist_ok=True)
            Path(place, str(at)).mkdir()
    files: dict[Any, int] = {}
    every: list[Any] = []
    for at, item in enumerate(plan.due):
        fragments = merged(item.fragments, workers.frames.batch_rows)
        paths = [f"{place}/{at}/{number:06}" for number in range(len(fragments))]
        common = {"scorer": held, "frames": workers.frames, "work": work, "seen": fetched.seen(item.facts)}
        parts = client.map(score_fragment, fragments, paths, **common, pure=False, key="score")
        given = address.storage(item.uri, config.storage_options)
        summed = client.submit(digest, item.uri, given, pure=False)
        more = {"input_storage": given, "replaces": item.name in plan.present.manifest.files, "alone": alone}
        whole = client.submit(join, replace(item, fragments=()), parts, summed, work, **more, pure=False)
        files[whole] = at
        every += [*parts, summed, whole]
    results = Results(work.evaluator)
    total_tasks, ended_tasks = len(every), as_completed(every)
    del every  # a part that has ended is needed by its file's task only
    with progress("score") as report:
        for done, future in enumerate(ended_tasks, 1):
            report(done, total_tasks)
            at = files.pop(future, -1)
            if at < 0:
                continue
            _take_in(plan.due[at], future, results)
            if local:
                shutil.rmtree(f"{place}/{at}", ignore_errors=True)
            _say(plan.due[at].name, results, len(plan.due))
            gate(f"scored-{len(results.entries)}")
    return results


def _take_in(item: Item, future: Any, results: Results) -> None:
    """Take in a file that has ended; raise what stops all."""
    if future.status == "finished":
        results.entries[item.name], sums = future.result()
        results.sums = (total([*results.sums, sums], results.judge),)
        return
    problem = future.exception()
    if not isinstance(problem, TipcastError) or stops_all(problem):
        raise problem
    results.refused.append(replace(item, problem=problem))


def _say(name: str, results: Results, files: int) -> None:
    """Log that a file has ended, of many files only some."""
    done, entry = len(results.entries) + len(results.refused), results.entries.get(name)
    if worth_a_line(done, files):
        LOG.info("file %d/%d  %s  %s", done, files, name, f"{entry.rows:,} rows" if entry else "refused")


def _work(config: ScoreConfig, fetched: Fetched, plan: ScorePlan) -> Work:
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
        folder=plan.present.folder,
        storage=address.storage(plan.present.folder, config.storage_options),
        recipe=plan.recipe,
        edges=manifest.get(PREDICTIONS, {}).get("edges"),
    )
