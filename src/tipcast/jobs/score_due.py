"""The scoring of files that are due: fetch the model, open a run, start workers, record the scores, swap them in."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from tipcast import __version__
from tipcast.backends.session import check as check_session
from tipcast.backends.session import session
from tipcast.config.errors import TipcastError
from tipcast.config.schema_score import ScoreConfig
from tipcast.config.temporary import temporary_folder
from tipcast.data import address, place, scored, swap, swap_s3
from tipcast.data.listing import patterns
from tipcast.data.scored import MANIFEST, Entry, Manifest
from tipcast.data.writing import failures, written
from tipcast.jobs import closing, score_check, score_plan, score_run, score_summary
from tipcast.jobs.score_plan import Item, ScorePlan
from tipcast.jobs.score_record import ScoreRecord, account, opened
from tipcast.jobs.score_run import Results
from tipcast.measure.clock import Clock
from tipcast.measure.memory import peaks
from tipcast.measure.progress import progress
from tipcast.tracking.models import check_parses, fetch
from tipcast.tracking.store import failures as store_failures
from tipcast.tracking.store import open_store, resolve

LOG = logging.getLogger("tipcast")

Due = tuple[Mapping[str, Any], Sequence[Item], int]


def score_due(config: ScoreConfig, command: str, output: str, clock: Clock) -> Due:
    """Score what is due.

    Parameters
    ----------
    config, command
        Of the job.
    output
        Where the scores go.
    clock
        Of the job.

    Returns
    -------
    tuple
        What to say, the files that were refused, and the number of all.

    """
    check_session(config.backend, config.cluster)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        with clock.phase("model"), store_failures(resolve(config.tracking)):
            client = open_store(config.tracking)
            fetched = fetch(client, config.model_uri, folder, root=config.tracking.artifact_root, parse=False)
            score_check.check_model(fetched)
        work = stack.enter_context(workplace(output, config))
        with clock.phase("list"):
            plan = score_plan.make_plan(config, output, present(config), fetched)
        for note in plan.notes:
            LOG.warning(note)
        if plan.current:
            renew(plan, config.storage_options)
            said = score_summary.said(config, plan, plan.kept, plan.refused, clock.seconds, command)
            return closing.say(said, config.print), plan.refused, plan.files
        with clock.phase("model"):
            check_parses(fetched)
        record = stack.enter_context(opened(config, plan, fetched, command))
        results, memory = Results(), dict[str, int]()
        if plan.due:
            with clock.phase("cluster") as facts, progress("cluster"):
                workers = stack.enter_context(session(config.backend, config.cluster))
                facts.append(workers.size)
            record.run.set_tags(workers.tags)
            with clock.phase("score") as facts:
                results = score_run.score(workers, config, plan, fetched, work)
                rows = sum(entry.rows for entry in results.entries.values())
                facts.append(f"{rows:,} rows in {len(results.entries)} files")
            memory = peaks(workers.client)
        refused = (*plan.refused, *results.refused)
        if refused and len(refused) == plan.files:
            raise score_summary.problem(refused, plan.files)
        found = account(results.total, fetched.manifest, float(fetched.manifest["threshold"]))
        phases = dict(clock.seconds)
        with clock.phase("log"):
            record.write(found, results.entries, refused, phases, memory)
        with clock.phase("swap"):
            entries = commit(work, record, plan, results, refused)
        said = score_summary.said(config, plan, entries, refused, clock.seconds, command, record=record, found=found)
        closing.say(said, config.print)
    return said, refused, plan.files


@contextlib.contextmanager
def workplace(output: str, config: ScoreConfig) -> Iterator[swap.Work]:
    """Open a place for what is not finished."""
    with ExitStack() as stack:
        with failures(output):
            opening: AbstractContextManager[swap.Work] = (
                swap_s3.within(output, address.storage(output, config.storage_options))
                if address.scheme(output)
                else swap.beside(Path(output), MANIFEST)
            )
            work = stack.enter_context(opening)
        yield work


def present(config: ScoreConfig) -> Manifest | None:
    """Return what is where the scores go."""
    return place.check(config.output, patterns(config.input, "input"), config.storage_options)[1]


def renew(plan: ScorePlan, options: Mapping[str, Any]) -> None:
    """Let the manifest say how files look that only look different, so that they are not read each time."""
    path = f"{plan.output}/{MANIFEST}"
    if plan.kept != plan.before.files:
        with written(path, address.storage(path, options), synced=True) as file:
            file.write(scored.to_bytes(Manifest(plan.kept, plan.before.about)))


def commit(
    work: swap.Work, record: ScoreRecord, plan: ScorePlan, results: Results, refused: Sequence[Item]
) -> dict[str, Entry]:
    """Swap the scores in, and return what their manifest says of the files."""
    entries: dict[str, Entry] = {}
    options, before = record.config.storage_options, plan.before
    obsolete = [*plan.obsolete, *(item.name for item in results.refused if item.name in before.files)]

    def manifest() -> bytes:
        entries.update(results.stamped(work.final, options) | dict(plan.kept))
        return scored.to_bytes(Manifest(entries, about(record, refused)))

    with failures(plan.output):
        for name in plan.kept:
            work.keep(name)
        if (present(record.config) or Manifest({}, {})) != before:
            what = "other scores have come into it since this job looked"
            raise TipcastError("S011", f"output {record.config.output}", what, "repeat the command if they may go")
        work.commit(manifest, obsolete, scored.to_bytes(Manifest({**before.files, **results.entries}, before.about)))
    if obsolete:
        LOG.warning("%d files of scores removed whose trips are not named any more or are refused", len(obsolete))
    return entries


def about(record: ScoreRecord, refused: Sequence[Item]) -> dict[str, Any]:
    """Return what the manifest says beside the files."""
    fetched = record.fetched
    return {
        "recipe": record.plan.recipe,
        "model": {
            "uri": fetched.uri,
            "name": fetched.name,
            "version": fetched.version,
            "registry": score_plan.registry(record.config),
            "model_id": fetched.model_id,
            "sha256": fetched.sha256,
            "manifest_sha256": fetched.manifest_sha256,
            "threshold": fetched.manifest["threshold"],
        },
        "configuration": score_plan.configuration(record.config),
        "run_id": record.run.id,
        "device": record.config.backend.name,
        "tipcast": __version__,
        score_plan.REFUSED: score_plan.told(refused),
    }
