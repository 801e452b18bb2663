"""`tipcast score`: score files with a registered model, file by file over all workers; the manifest comes last."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tipcast import __version__
from tipcast.compute.base import count
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema import FACTS, ScoreConfig
from tipcast.jobs import say
from tipcast.measure.progress import Clock
from tipcast.scoring.plan import REFUSED, ScorePlan, plan_files
from tipcast.scoring.writing import Scores, alone, failures, look, of_store, write_manifest
from tipcast.tracking.store import failures as store_failures
from tipcast.tracking.store import open_store, resolve

if TYPE_CHECKING:  # MLflow and Matplotlib load while the worker processes do
    from tipcast.scoring.record import Results

LOG = logging.getLogger("tipcast")

LISTED = 10
"""Refused files that are told one by one; the manifest, the run and print=json have all."""
PARAMS = ("backend", "cluster", "model_uri", "input", "output", "keep", "columns", *FACTS)
LIBRARIES = ("tipcast.scoring.worker", "xgboost")
"""What workers load beside those of all jobs; of which library a model is, its store knows, which loads meanwhile."""


def run(config: ScoreConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says. S010 when some files were refused, after all others were scored."""
    clock = Clock()
    try:
        with clock.phase("list"):  # before the model is fetched: a folder that must not get scores needs none
            output = look(config.output, config.storage_options).folder
        said, problem = _score(config, command, output, clock)
    except TipcastError as cause:
        raise of_store(cause) from cause.__cause__
    return say(said, config.print, problem=problem)


def _score(config: ScoreConfig, command: str, output: str, clock: Clock) -> tuple[dict[str, Any], TipcastError | None]:
    """Fetch the model, score what is due, record it, write the manifest; return what the job says, and its end."""
    from tipcast.compute import forkserver
    from tipcast.compute.session import peaks

    forkserver.start_ahead(config.cluster, LIBRARIES)
    from tipcast.tracking.models import fetch, start_check, used_by

    options = config.storage_options
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        with clock.phase("model"), store_failures(resolve(config.tracking)):
            client = open_store(config.tracking)
            fetched = fetch(client, config.model_uri, folder, root=config.tracking.artifact_root, parse=False)
        with failures(output):
            stack.enter_context(alone(output))
        with clock.phase("list"):
            present = look(output, options)  # again: another job may have ended meanwhile
            plan = plan_files(config, present, fetched)
        if plan.current:
            if plan.kept != present.files:  # as they look now, so that they are not read each time
                write_manifest(Scores(output, plan.kept, present.about), (), options)
            said = {**summary(plan, clock), "command": command}
            return said, problem_of(plan.refused, plan.files)
        with clock.phase("check"):
            parses = start_check(fetched)  # in a process of its own, while this one opens what comes next
            from tipcast.jobs.run_context import run_context, run_names
            from tipcast.jobs.train_record import params
            from tipcast.scoring.record import Results, record, score

        model = f"{fetched.name} {fetched.version}" if fetched.name else str(fetched.manifest.get("model"))
        (name,), compared = run_names([(model, command)], "score "), params(config, PARAMS)
        tags = {"model.uri": fetched.uri}
        opened = run_context(config, command, job="score", name=name, params=compared, tags=tags, clock=clock)
        context = stack.enter_context(opened)
        used_by(context.run, fetched)
        results, memory = Results(plan), dict[str, int]()
        if plan.due:
            workers = context.start_workers()
            with clock.phase("check"):
                parses()
            with clock.phase("score") as facts:
                score(workers, results)
                facts.append(f"{results.rows:,} rows in {count(len(results.entries), 'file')}")
            memory = peaks(workers.client)
        problem = problem_of(results.refused, plan.files)
        if problem and len(results.refused) == plan.files:
            raise problem
        measured = {f"seconds/{phase}": value for phase, value in clock.seconds.items()}
        measured |= {f"memory/{process}_peak_bytes": value for process, value in memory.items()}
        with clock.phase("log"):
            headlines = record(context.run, command, results, measured)
            entries, about = {**plan.kept, **results.entries}, described(results, context.run.id)
            write_manifest(Scores(output, entries, about), present.files.keys() - entries.keys(), options)
        said = summary(plan, clock, results, headlines)
    return context.result(**said), problem


def described(results: Results, run_id: str) -> dict[str, Any]:
    """Return what the manifest says beside the files."""
    config, fetched = results.plan.config, results.plan.fetched
    model = {key: getattr(fetched, key) for key in ("uri", "name", "version", "model_id", "sha256", "manifest_sha256")}
    refused = results.refused.items()
    return {
        "recipe": results.plan.recipe,
        "model": model | {"threshold": fetched.manifest.get("threshold")},
        "configuration": {key: getattr(config, key) for key in ("keep", *FACTS)},
        "run_id": run_id,
        "device": config.backend.name,
        "tipcast": __version__,
        REFUSED: {name: {"code": problem.code, "what": problem.what} for name, problem in refused},
    }


def problem_of(refused: Mapping[str, TipcastError], files: int) -> TipcastError | None:
    """Return the error that a job ends with when some files were refused: that of the only file, where there is one."""
    first = next(iter(refused.values()), None)
    if first is None or files == 1:
        return first
    what = f"{len(refused)} of {files} files were refused, as {first.where}: [{first.code}] {first.what}"
    alike = len(refused) == files and len({(problem.code, problem.what) for problem in refused.values()}) == 1
    return TipcastError("S010", "input", what, first.fix if alike else "mend or leave out the files that are listed")


def summary(
    plan: ScorePlan, clock: Clock, results: Results | None = None, headlines: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return what the job says at its end, and tell which files were refused; no results: nothing was due."""
    scored, refused = (results.entries, results.refused) if results else ({}, plan.refused)
    entries = (*plan.kept.values(), *scored.values())
    why = {name: f"[{problem.code}] {problem.what}" for name, problem in refused.items()}
    for name in [*why][:LISTED]:
        LOG.warning("refused %s: %s", refused[name].where, why[name])
    return {
        "model_uri": plan.fetched.uri,
        "output": to_plain(plan.config.output),
        "files": len(entries),
        "rows": sum(entry.rows for entry in entries),
        "scored": len(scored),
        "scored_rows": results.rows if results else 0,
        "unscored": results.unscored if results else {},
        "refused": why,
        "metrics": headlines or {},
        "phases": clock.seconds,
    }
