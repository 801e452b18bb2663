"""`tipcast score`: score files with a registered model, file by file over all workers; the manifest
comes last.
"""

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from tipcast import __version__
from tipcast.compute.base import count
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema import FACTS, ScoreConfig
from tipcast.jobs import say
from tipcast.measure.progress import Clock
from tipcast.scoring.plan import REFUSED, Scoring, plan_files
from tipcast.scoring.writing import Scores, alone, failures, look, of_store, write_manifest
from tipcast.tracking.failures import failures as store_failures
from tipcast.tracking.store import open_store, resolve

LOG = logging.getLogger("tipcast")

LISTED = 10
"""Refused files that are told one by one; the manifest, the run and print=json have all."""
PARAMS = ("backend", "cluster", "model_uri", "input", "output", "keep", "columns", *FACTS)
LIBRARIES = ("tipcast.scoring.worker", "xgboost")
"""What workers load beside those of all jobs; of which library a model is, its store knows, which
loads meanwhile.
"""


def run(config: ScoreConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says. S010 when some files were refused, after all others were
    scored.
    """
    clock = Clock()
    try:
        # before the model is fetched: a folder that must not get scores needs none
        with clock.phase("list"):
            output = look(config.output, config.storage_options).folder
        said, problem = _score(config, command, output, clock)
    except TipcastError as cause:
        raise of_store(cause) from cause.__cause__
    return say(said, config.print, problem=problem)


def _score(
    config: ScoreConfig, command: str, output: str, clock: Clock
) -> tuple[dict[str, Any], TipcastError | None]:
    """Fetch the model, score what is due, record it, write the manifest; return what the job says,
    and its end.
    """
    from tipcast.compute import forkserver
    from tipcast.compute.session import peaks

    forkserver.start_ahead(config.cluster, LIBRARIES)
    from tipcast.tracking.lookup import beside
    from tipcast.tracking.models import fetch, start_check, used_by

    options = config.storage_options
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        with clock.phase("model"), store_failures(resolve(config.tracking)):
            client = open_store(config.tracking)
            fetched = fetch(
                client, config.model_uri, folder, root=config.tracking.artifact_root, parse=False
            )
            config = dataclasses.replace(
                config, tracking=beside(client, config.tracking, fetched.run_id)
            )
        with failures(output):
            stack.enter_context(alone(output))
        with clock.phase("list"):
            present = look(output, options)  # again: another job may have ended meanwhile
            scoring = plan_files(config, present, fetched)
        if scoring.current:
            # as they look now, so that they are not read each time
            if scoring.kept != present.files:
                write_manifest(Scores(output, scoring.kept, present.about), (), options)
            return {**summary(scoring, clock, {}), "command": command}, problem_of(scoring)
        with clock.phase("check"):
            # in a process of its own, while this one opens what comes next
            parses = start_check(fetched)
            from tipcast.jobs.run_context import run_context, run_names
            from tipcast.jobs.train_record import params
            from tipcast.scoring.record import record, score

        model = (
            f"{fetched.name} {fetched.version}"
            if fetched.name
            else str(fetched.manifest.get("model"))
        )
        (name,), compared = run_names([(model, command)], "score "), params(config, PARAMS)
        tags = {"model.uri": fetched.uri}
        opened = run_context(
            config, command, job="score", name=name, params=compared, tags=tags, clock=clock
        )
        context = stack.enter_context(opened)
        used_by(context.run, fetched)
        memory: dict[str, int] = {}
        if scoring.due:
            workers = context.start_workers()
            with clock.phase("check"):
                parses()
            with clock.phase("score") as facts:
                score(workers, scoring)
                facts.append(f"{scoring.rows:,} rows in {count(len(scoring.made), 'file')}")
            memory = peaks(workers.client)
        problem = problem_of(scoring)
        if problem and len(scoring.refused) == scoring.files:
            raise problem
        measured = {f"seconds/{phase}": value for phase, value in clock.seconds.items()}
        measured |= {f"memory/{process}_peak_bytes": value for process, value in memory.items()}
        with clock.phase("log"):
            headlines = record(context.run, command, scoring, measured, context.code.remark)
            entries = {**scoring.kept, **scoring.made}
            about = described(scoring, context.run.id)
            write_manifest(
                Scores(output, entries, about), present.files.keys() - entries.keys(), options
            )
        said = summary(scoring, clock, headlines)
    return context.result(**said), problem


def described(scoring: Scoring, run_id: str) -> dict[str, Any]:
    """Return what the manifest says beside the files."""
    config = scoring.config
    fetched = scoring.fetched
    model = {
        key: getattr(fetched, key)
        for key in ("uri", "name", "version", "model_id", "sha256", "manifest_sha256")
    }
    refused = scoring.refused.items()

    return {
        "recipe": scoring.recipe,
        "model": model | {"threshold": fetched.manifest.get("threshold")},
        "configuration": {key: getattr(config, key) for key in ("keep", *FACTS)},
        "run_id": run_id,
        "device": config.backend.name,
        "tipcast": __version__,
        REFUSED: {name: {"code": problem.code, "what": problem.what} for name, problem in refused},
    }


def problem_of(scoring: Scoring) -> TipcastError | None:
    """Return the error that a job ends with when some files were refused: that of the only file,
    where there is one.
    """
    refused = scoring.refused
    files = scoring.files
    first = next(iter(refused.values()), None)
    if first is None or files == 1:
        return first

    what = (
        f"{len(refused)} of {files} files were refused, "
        f"as {first.where}: [{first.code}] {first.what}"
    )
    alike = (
        len(refused) == files
        and len({(problem.code, problem.what) for problem in refused.values()}) == 1
    )
    return TipcastError(
        "S010", "input", what, first.fix if alike else "mend or leave out the files that are listed"
    )


def summary(scoring: Scoring, clock: Clock, headlines: Mapping[str, float]) -> dict[str, Any]:
    """Return what the job says at its end, and tell which files were refused."""
    entries = (*scoring.kept.values(), *scoring.made.values())
    refused = scoring.refused
    why = {name: f"[{problem.code}] {problem.what}" for name, problem in refused.items()}
    for name in [*why][:LISTED]:
        LOG.warning("refused %s: %s", refused[name].where, why[name])

    return {
        "model_uri": scoring.fetched.uri,
        "output": to_plain(scoring.config.output),
        "files": len(entries),
        "rows": sum(entry.rows for entry in entries),
        "scored": len(scoring.made),
        "scored_rows": scoring.rows,
        "unscored": scoring.unscored,
        "refused": why,
        "metrics": headlines,
        "phases": clock.seconds,
    }
