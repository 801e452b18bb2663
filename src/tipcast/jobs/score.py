"""`tipcast score`: score files with a registered model, file by file over all workers; the manifest comes last."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

from tipcast import __version__
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact, to_plain
from tipcast.config.schema import FACTS, ScoreConfig
from tipcast.jobs import say
from tipcast.measure.progress import Clock
from tipcast.scoring import plan as planning
from tipcast.scoring.plan import Item, ScorePlan
from tipcast.scoring.writing import Entry, Scores, alone, failures, look, of_store, write_manifest
from tipcast.tracking.store import failures as store_failures
from tipcast.tracking.store import open_store, resolve, sqlite_file

if TYPE_CHECKING:  # MLflow and Matplotlib load while the worker processes do
    from tipcast.jobs.run_context import RunContext
    from tipcast.scoring.record import Results, ScoreRecord
    from tipcast.tracking.models import Fetched

LOG = logging.getLogger("tipcast")

LISTED = 10
"""Refused files that are told one by one; the manifest, the run and print=json have all."""
PARAMS = ("backend", "cluster", "model_uri", "input", "output", "keep", "columns", *FACTS, "compression")
LIBRARIES = ("tipcast.scoring.worker", "xgboost")
"""What workers load beside those of all jobs; of which library a model is, its store knows, which loads meanwhile."""
Done = tuple[ScorePlan, Sequence[Item], Mapping[str, Any]]
"""What was to be done, all files that were refused, and what the job says at its end."""


def run(config: ScoreConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says. S010 when some files were refused, after all others were scored."""
    planning.check(config)
    clock = Clock()
    try:
        with clock.phase("list"):  # before the model is fetched: a folder that must not get scores needs none
            output = look(config.output, config.storage_options).folder
        plan, refused, said = _score(config, command, output, clock)
    except TipcastError as problem:
        if of_store(problem) is problem:
            raise
        raise of_store(problem) from problem
    return say(said, config.print, problem=problem_of(refused, plan.files) if refused else None)


def _score(config: ScoreConfig, command: str, output: str, clock: Clock) -> Done:
    """Fetch the model, score what is due, record it, and write the manifest."""
    from tipcast.compute import forkserver
    from tipcast.compute.session import peaks

    forkserver.start_ahead(config.cluster, LIBRARIES)
    from tipcast.tracking.models import fetch, start_check, used_by

    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        with clock.phase("model"), store_failures(resolve(config.tracking)):
            client = open_store(config.tracking)
            fetched = fetch(client, config.model_uri, folder, root=config.tracking.artifact_root, parse=False)
            planning.check_model(fetched, config)
        with failures(output):
            stack.enter_context(alone(output))
        with clock.phase("list"):
            present = look(output, config.storage_options)  # again: another job may have ended meanwhile
            plan = planning.plan_files(config, present, fetched)
        for note in dict.fromkeys(note for item in plan.due for note in item.notes):
            LOG.warning(note)
        if plan.current:
            if plan.kept != present.files:  # as they look now, so that they are not read each time
                write_manifest(Scores(output, plan.kept, present.about), (), config.storage_options)
            said = summary(config, plan, plan.kept, plan.refused, clock.seconds)
            return plan, plan.refused, {**said, "command": command}
        with clock.phase("check"):
            parses = start_check(fetched)  # in a process of its own, while this one opens what comes next
            from tipcast.scoring.record import Results, ScoreRecord, score

        context = stack.enter_context(open_run(config, fetched, command, clock))
        used_by(context.run, fetched)
        record = ScoreRecord(context.run, config, plan, fetched, command)
        results, memory = Results(fetched.manifest), dict[str, int]()
        if plan.due:
            workers = context.start_workers()
            with clock.phase("check"):
                parses()
            with clock.phase("score") as facts:
                results = score(workers, config, plan, fetched)
                rows = sum(entry.rows for entry in results.entries.values())
                facts.append(f"{rows:,} rows in {len(results.entries)} files")
            memory = peaks(workers.client)
        refused = (*plan.refused, *results.refused)
        if refused and len(refused) == plan.files:
            raise problem_of(refused, plan.files)
        phases = dict(clock.seconds)
        with clock.phase("log"):
            record.write(results, refused, phases, memory)
            entries = {**plan.kept, **results.entries}
            obsolete = set(present.files) - set(entries)
            write_manifest(Scores(output, entries, about(record, refused)), obsolete, config.storage_options)
        said = summary(config, plan, entries, refused, clock.seconds, results)
    return plan, refused, context.result(**said)


def open_run(config: ScoreConfig, fetched: Fetched, command: str, clock: Clock) -> AbstractContextManager[RunContext]:
    """Open the run with what is known before any worker starts: which model, and which configuration."""
    from tipcast.jobs.run_context import run_context, run_names
    from tipcast.jobs.train_record import params

    model = f"{fetched.name} {fetched.version}" if fetched.name else str(fetched.manifest.get("model"))
    (name,), tags = run_names([(model, command)], "score "), {"model.uri": fetched.uri}
    return run_context(config, command, job="score", name=name, params=params(config, PARAMS), tags=tags, clock=clock)


def about(record: ScoreRecord, refused: Sequence[Item]) -> dict[str, Any]:
    """Return what the manifest says beside the files."""
    names, fetched = ("uri", "name", "version", "model_id", "sha256", "manifest_sha256"), record.fetched
    registry = os.environ.get("MLFLOW_REGISTRY_URI") or record.run.store
    model = {name: getattr(fetched, name) for name in names}
    model["registry"] = f"sqlite:///{file}" if (file := sqlite_file(registry)) else redact(registry)
    model["threshold"] = fetched.manifest.get("threshold")
    return {
        "recipe": record.plan.recipe,
        "model": model,
        "configuration": {name: getattr(record.config, name) for name in ("keep", "compression", *FACTS)},
        "run_id": record.run.id,
        "device": record.config.backend.name,
        "tipcast": __version__,
        planning.REFUSED: {
            item.name: {name: getattr(item.problem, name) for name in ("code", "where", "what", "fix")}
            | {"stamp": item.stamp}
            for item in refused
        },
    }


def problem_of(refused: Sequence[Item], files: int) -> TipcastError:
    """Return the error that a job ends with when some files were refused: that of the only file, where there is one."""
    first = next(item.problem for item in refused if item.problem)
    if files == 1:
        return first
    what = f"{len(refused)} of {files} files were refused, as {first.where}: [{first.code}] {first.what}"
    fix = "mend or leave out the files that are listed"
    if len(refused) < files:
        fix += "; the others are scored"
    elif len({(item.problem.code, item.problem.what) for item in refused if item.problem}) == 1:
        fix = first.fix
    return TipcastError("S010", "input", what, fix)


def summary(
    config: ScoreConfig,
    plan: ScorePlan,
    entries: Mapping[str, Entry],
    refused: Sequence[Item],
    phases: Mapping[str, float],
    found: Results | None = None,
) -> dict[str, Any]:
    """Return what the job says at its end, and tell which files were refused."""
    why = {item.name: f"[{item.problem.code}] {item.problem.what}" for item in refused if item.problem}
    for item in refused[:LISTED]:
        if item.problem:
            LOG.warning("refused %s: %s", item.problem.where, why[item.name])
    return {
        "model_uri": plan.model_uri,
        "output": to_plain(config.output),
        "files": len(entries),
        "rows": sum(entry.rows for entry in entries.values()),
        "scored": len(set(entries) - set(plan.kept)),
        "scored_rows": found.rows if found else 0,
        "unscored": dict(found.total.unscored) if found else {},
        "refused": why,
        "metrics": found.headlines if found else {},
        "phases": phases,
    }
