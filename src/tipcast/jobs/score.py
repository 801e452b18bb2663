"""`tipcast score`: score trips with a registered model, file by file over all workers, and swap the scores in whole."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from tipcast import __version__
from tipcast.backends.session import check as check_session
from tipcast.backends.session import session
from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema_score import ScoreConfig
from tipcast.data import address, place, scored, swap, swap_s3
from tipcast.data.scored import MANIFEST, Entry, Manifest
from tipcast.data.sources.files import patterns
from tipcast.data.writing import failures, of_store
from tipcast.jobs import closing, score_plan, score_run
from tipcast.jobs.score_plan import Item, ScorePlan
from tipcast.jobs.score_record import Account, ScoreRecord, account, opened
from tipcast.jobs.score_run import Results
from tipcast.measure.clock import Clock
from tipcast.measure.memory import peaks
from tipcast.tracking.models import Fetched, check_parses, fetch
from tipcast.tracking.store import failures as store_failures
from tipcast.tracking.store import open_store, resolve

LOG = logging.getLogger("tipcast")

LISTED = 10
"""Refused files that are told one by one; the manifest, the run and print=json have all."""
HEADLINES = ("score/mean", "score/predicted_rate", "labelled/auc")


def run(config: ScoreConfig, command: str) -> None:
    """Run the job.

    Raises
    ------
    TipcastError
        S010 when some files were refused, after all others were scored.

    """
    try:
        refused, files = _run(config, command)
    except TipcastError as problem:
        if of_store(problem) is problem:
            raise
        raise of_store(problem) from problem
    if refused:
        raise score_plan.summary(refused, files)


def _run(config: ScoreConfig, command: str) -> tuple[Sequence[Item], int]:
    """Score what is due; return the files that were refused, and the number of all."""
    check_session(config.backend, config.cluster)
    score_plan.check(config)
    clock = Clock()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tipcast-")))
        with clock.phase("list"):
            output, manifest = recovered(config)
        with clock.phase("model"), store_failures(resolve(config.tracking)):
            client = open_store(config.tracking)
            fetched = fetch(client, config.model_uri, folder, root=config.tracking.artifact_root, parse=False)
            score_plan.check_model(fetched)
        with clock.phase("list"):
            plan = score_plan.make_plan(config, output, manifest, fetched)
        for note in plan.notes:
            LOG.warning(note)
        files = len(plan.due) + len(plan.kept) + len(plan.refused)
        if plan.current:
            closing.say(said(config, plan, fetched, plan.kept, plan.refused, clock.seconds, command), config.print)
            return plan.refused, files
        with clock.phase("model"):
            check_parses(fetched)
        record = stack.enter_context(opened(config, plan, fetched, command))
        work = stack.enter_context(workplace(output, config))
        results, memory = score_run.Results(), {}
        if plan.due:
            with clock.phase("cluster"):
                workers = stack.enter_context(session(config.backend, config.cluster))
            record.run.set_tags(workers.tags)
            with clock.phase("score"):
                results = score_run.score(workers, config, plan, fetched, work)
            memory = peaks(workers.client)
        refused = (*plan.refused, *results.refused)
        if refused and len(refused) == files:
            raise score_plan.summary(refused, files)
        found = account(results.total, fetched.manifest, float(fetched.manifest["threshold"]))
        with clock.phase("log"):
            record.write(found, results.entries, refused, clock.seconds, memory)
        with clock.phase("swap"):
            entries = commit(work, record, plan, results, refused)
        closing.say(
            said(config, plan, fetched, entries, refused, clock.seconds, command, record=record, found=found),
            config.print,
        )
    return refused, files


def recovered(config: ScoreConfig) -> tuple[str, Manifest | None]:
    """Return where the scores go and what is there, once what killed jobs left is removed or put back."""
    options = config.storage_options
    named = patterns(config.input, "input")
    output, manifest = place.check(config.output, named, options)
    if address.scheme(output):
        swap_s3.recover(output, address.storage(output, options))
        return output, manifest
    swap.recover(Path(output))
    return place.check(config.output, named, options)


@contextlib.contextmanager
def workplace(output: str, config: ScoreConfig) -> Any:
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


def commit(
    work: swap.Work, record: ScoreRecord, plan: ScorePlan, results: Results, refused: Sequence[Item]
) -> dict[str, Entry]:
    """Swap the scores in, and return what their manifest says of the files."""
    entries: dict[str, Entry] = {}
    options = record.config.storage_options

    def manifest() -> bytes:
        entries.update(results.stamped(work.final, options) | dict(plan.kept))
        return scored.to_bytes(Manifest(entries, about(record, refused)))

    with failures(plan.output):
        for name in plan.kept:
            work.keep(name)
        work.commit(manifest, plan.obsolete)
    if plan.obsolete:
        LOG.warning("%d files of scores removed whose trips are not named any more or are refused", len(plan.obsolete))
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


def said(
    config: ScoreConfig,
    plan: ScorePlan,
    fetched: Fetched,
    entries: Mapping[str, Entry],
    refused: Sequence[Item],
    phases: Mapping[str, float],
    command: str,
    *,
    record: ScoreRecord | None = None,
    found: Account | None = None,
) -> dict[str, Any]:
    """Return what the job says at its end, and tell which files were refused."""
    why = {item.name: f"[{item.problem.code}] {item.problem.what}" for item in refused if item.problem}
    for name, reason in list(why.items())[:LISTED]:
        LOG.warning("refused %s: %s", name, reason)
    run = {"run_id": record.run.id, "experiment_id": record.run.experiment_id, "run": record.run.link} if record else {}
    metrics = {name: found.metrics[name] for name in HEADLINES if name in found.metrics} if found else {}
    return {
        **run,
        "model_uri": fetched.uri,
        "output": to_plain(config.output),
        "files": len(entries),
        "rows": sum(entry.rows for entry in entries.values()),
        "scored": len(set(entries) - set(plan.kept)),
        "scored_rows": found.rows if found else 0,
        "unscored": dict(found.total.unscored) if found else {},
        "refused": why,
        "metrics": metrics,
        "drift": {drift.name: drift.psi for drift in found.drifts if drift.verdict != "little"} if found else {},
        "phases": phases,
        "command": command,
    }
