"""Act, in the driver: start a task for each file of the plan, and collect the results."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Future, as_completed

from tipcast.compute.base import Session
from tipcast.config.gate import gate
from tipcast.datasets import address
from tipcast.datasets.parts import merged
from tipcast.evaluation import evaluator_of
from tipcast.measure.progress import progress, worth_a_line
from tipcast.models.fit import send_saved_scorer
from tipcast.scoring.folder import ROW_GROUP, ManifestEntry
from tipcast.scoring.plan import ScorePlan, is_fatal
from tipcast.scoring.predictions import ScoringContext
from tipcast.scoring.results import RefusedFile, ScoredFile, ScoringResult
from tipcast.scoring.worker import score_file
from tipcast.scoring.writing import write_errors

LOG = logging.getLogger("tipcast")


def score_files(session: Session, plan: ScorePlan) -> ScoringResult:
    """Score all files that are due, log progress, and add up what the evaluator needs.

    Raises T008 or D022 if scores cannot be written, and K-errors if workers are lost.
    """
    evaluator = evaluator_of(plan.task.kind)
    sums = evaluator.total([])  # the sums of a file are half a megabyte
    entries: dict[str, ManifestEntry] = {}
    refused = dict(plan.refused)
    total = len(plan.due)

    with progress("score") as show:
        for done, file in enumerate(score_as_completed(session, plan), 1):
            show(done, total)
            if isinstance(file, ScoredFile):
                entries[file.name] = file.entry
                sums = evaluator.total([sums, file.sums])
                outcome = f"{file.entry.rows:,} rows"
            else:
                refused[file.name] = file.error
                outcome = "refused"

            if worth_a_line(done, total):
                LOG.info("file %d/%d  %s  %s", done, total, file.name, outcome)

            gate(f"scored-{len(entries)}")

    return ScoringResult(entries, refused, sums)


def score_as_completed(session: Session, plan: ScorePlan) -> Iterator[ScoredFile | RefusedFile]:
    """Start a task for each file, and yield files as they finish."""
    create_folders(plan)
    names = submit_files(session, plan)

    for future in as_completed(names):
        name = names.pop(future)  # otherwise the scheduler keeps the task's result
        error = future.exception()
        if error is None:
            yield future.result()
        elif is_fatal(error):
            raise error
        else:
            yield RefusedFile(name, error)


def create_folders(plan: ScorePlan) -> None:
    """Make the folders of scores on a disk, in the driver: no late worker must make one again."""
    folder = plan.folder.path
    if address.scheme(folder):
        return

    with write_errors(folder):
        for file in plan.due:
            Path(folder, file.name).parent.mkdir(parents=True, exist_ok=True)


def submit_files(session: Session, plan: ScorePlan) -> dict[Future[Any], str]:
    """Submit a task for each file that is due; return future of a ``ScoredFile`` -> file's name."""
    model = plan.model
    scorer = send_saved_scorer(session.client, model.path, model.format, session.device)
    context = scoring_context(session, plan)

    # If there are few files, idle cores read their parts.
    threads = max(session.n_threads // max(session.n_workers, len(plan.due)), 1)
    rows_at_once = min(session.frames.batch_rows(len(plan.task.features)), ROW_GROUP)
    names = {}

    for file in plan.due:
        file_to_score = replace(file, parts=merged(file.parts, rows_at_once))
        future = session.client.submit(
            score_file,
            file_to_score,
            scorer,
            context,
            replaces=file.name in plan.folder.files,
            threads=threads,
            pure=False,  # otherwise Dask may return the result of an earlier, equal task
        )
        names[future] = file.name

    return names


def scoring_context(session: Session, plan: ScorePlan) -> ScoringContext:
    """Return what all tasks share."""
    model = plan.model
    folder = plan.folder.path
    return ScoringContext(
        frames=session.frames,
        dataset=plan.dataset,
        task=plan.task,
        threshold=model.manifest.get("threshold"),
        keep=plan.config.keep,
        model_name=model.name or str(model.model_id),
        model_version=model.version,
        folder=folder,
        storage=address.storage(folder, plan.config.storage_options),
        weight=plan.weight,
    )
