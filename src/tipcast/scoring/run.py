"""The scoring itself: a task for each file, on any worker."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import as_completed

from tipcast.compute.base import Frames, Session
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.config.schema import ScoreConfig
from tipcast.datasets import address
from tipcast.datasets.base import merged
from tipcast.datasets.registry import dataset_of
from tipcast.measure.progress import progress, worth_a_line
from tipcast.models.base import NativeFile
from tipcast.models.fit import hold_saved
from tipcast.scoring.plan import Item, ScorePlan, stops_all, task_of
from tipcast.scoring.record import Results
from tipcast.scoring.worker import ROW_GROUP, Work, score_file
from tipcast.scoring.writing import failures
from tipcast.tracking.models import PREDICTIONS, Fetched

LOG = logging.getLogger("tipcast")


def score(workers: Session, config: ScoreConfig, plan: ScorePlan, fetched: Fetched) -> Results:
    """Score all files that are due.

    A file that its reader refuses is among the results' ``refused``, and its scores are not written.

    Raises
    ------
    TipcastError
        T008, T009 where scores cannot be written, K-errors of the workers.

    """
    client, folder, work = workers.client, plan.present.folder, _work(config, fetched, plan, workers.frames)
    held = hold_saved(client, NativeFile(fetched.path, fetched.format), workers.device)
    with failures(folder):
        for item in () if address.scheme(folder) else plan.due:
            Path(folder, item.name).parent.mkdir(parents=True, exist_ok=True)
    most = min(workers.frames.batch_rows, ROW_GROUP)
    files = {}
    for item in plan.due:
        future = client.submit(
            score_file,
            replace(item, fragments=merged(item.fragments, most)),
            held,
            work,
            fetched.seen(item.facts),
            input_storage=address.storage(item.uri, config.storage_options),
            replaces=item.name in plan.present.files and plan.present.files[item.name].named,
            threads=max(workers.n_threads // max(workers.n_workers, len(plan.due)), 1),
            pure=False,
        )
        files[future] = item
    results, ended = Results(fetched.manifest), as_completed(files)
    with progress("score") as report:
        for done, future in enumerate(ended, 1):
            report(done, len(plan.due))
            item = files.pop(future)
            _take_in(item, future, results)
            _say(item.name, results, len(plan.due))
            gate(f"scored-{len(results.entries)}")
    return results


def _take_in(item: Item, future: Any, results: Results) -> None:
    """Take in a file that has ended; raise what stops all."""
    if future.status == "finished":
        results.add(item.name, *future.result())
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


def _work(config: ScoreConfig, fetched: Fetched, plan: ScorePlan, frames: Frames) -> Work:
    manifest = fetched.manifest
    threshold = manifest.get("threshold")
    return Work(
        frames=frames,
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
