"""`tipcast score`: score files with a registered model, file by file over all workers; the manifest
comes last.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tipcast.compute import forkserver
from tipcast.compute.base import count
from tipcast.compute.session import peaks
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema import FILE_OPTIONS, ScoreConfig
from tipcast.evaluation.report import repeat
from tipcast.jobs import end_job
from tipcast.measure.progress import Clock
from tipcast.scoring.folder import locked_output, read_folder, write_manifest
from tipcast.scoring.plan import ScorePlan, plan_files
from tipcast.scoring.results import ScoringResult, nothing_scored
from tipcast.scoring.writing import as_artifact_error
from tipcast.tracking.failures import store_errors
from tipcast.tracking.store import open_store, resolve

# MLflow takes most of a second to load. It loads while the worker processes start: modules that
# need it are imported in functions.
if TYPE_CHECKING:
    from tipcast.jobs.run_context import RunContext
    from tipcast.tracking.model_fetch import FetchedModel

LOG = logging.getLogger("tipcast")

LISTED = 10
"""Most refused files that are logged one by one; the manifest, the run and print=json have all."""
PARAMS = ("backend", "cluster", "model_uri", "input", "output", "keep", "columns", *FILE_OPTIONS)
LIBRARIES = ("tipcast.scoring.worker", "xgboost")
"""Modules that workers load besides those of all jobs. The model's library is not known yet: MLflow
loads meanwhile.
"""
LABELS = {"scored": "scored_files"}
"""Key of the result -> name that is printed for people, beside ``scored_rows``."""
ALREADY_SHOWN = ("run", "tracking_uri")
"""Keys of the result that were logged when the run began."""


def run(config: ScoreConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says.

    Raises S010 if some files were refused, after all others were scored.
    """
    try:
        result, error = plan_and_score(config, command, Clock())
    except TipcastError as cause:
        raise as_artifact_error(cause) from cause.__cause__
    return end_job(result, config.print, lines=lines_for_people(result), problem=error)


def plan_and_score(
    config: ScoreConfig, command: str, clock: Clock
) -> tuple[dict[str, Any], TipcastError | None]:
    """Fetch the model, plan, and score what is due; return the result, and the error that the job
    ends with, if any.

    A folder that is up to date is left as it is, and no run is opened.
    """
    with clock.phase("list"):
        # Before the model is fetched: a folder that must not get scores needs no model.
        output = read_folder(config.output, config.storage_options).path

    forkserver.start_ahead(config.cluster, LIBRARIES)
    with temporary_folder() as downloads:
        model, config = fetch_model(config, downloads, clock)

        with locked_output(output):
            with clock.phase("list"):
                # The folder is read again: another job may have ended meanwhile.
                folder = read_folder(output, config.storage_options)
                plan = plan_files(config, folder, model)

            if not plan.is_up_to_date:
                return score_and_record(plan, command, clock)

            update_stamps(plan)
            log_refused(plan.refused)
            result = summary(plan, nothing_scored(plan), clock, {})
            return {**result, "command": command}, refusal(plan, plan.refused)


def fetch_model(
    config: ScoreConfig, downloads: Path, clock: Clock
) -> tuple["FetchedModel", ScoreConfig]:
    """Fetch the model into a folder; also return the configuration, whose experiment is that of the
    run that trained the model.
    """
    from tipcast.tracking.model_fetch import fetch
    from tipcast.tracking.run_lookup import tracking_in_experiment_of

    with clock.phase("model"), store_errors(resolve(config.tracking)):
        store = open_store(config.tracking)
        root = config.tracking.artifact_root
        model = fetch(store, config.model_uri, downloads, root=root, parse=False)
        tracking = tracking_in_experiment_of(store, config.tracking, model.run_id)

    return model, replace(config, tracking=tracking)


def update_stamps(plan: ScorePlan) -> None:
    """Update the stamps of unchanged files in the manifest, so that they are not read again."""
    if plan.unchanged != plan.folder.files:
        folder = replace(plan.folder, files=plan.unchanged)
        write_manifest(folder, (), plan.config.storage_options)


def score_and_record(
    plan: ScorePlan, command: str, clock: Clock
) -> tuple[dict[str, Any], TipcastError | None]:
    """Open a run, score what is due, record it, and write the manifest.

    Raises the error of refused files if all are refused, which ends the run as failed.
    """
    from tipcast.tracking.model_fetch import start_check

    with clock.phase("check"):
        # The check runs in a process of its own while this one imports what comes next.
        wait_for_check = start_check(plan.model)
        from tipcast.scoring.record import record_scores, replace_scores
        from tipcast.tracking.run import error_tags

    with open_score_run(plan, command, clock) as context:
        scored = score_due_files(context, plan, wait_for_check)
        error = refusal(plan, scored.refused)
        if error and len(scored.refused) == plan.n_files:
            raise error

        measured = measurements(scored, clock)
        with clock.phase("log"):
            repeated = repeat(command, context.code.remark)
            headline_values = record_scores(context.run, plan, scored, measured, repeated)
            if error:
                context.run.set_tags(error_tags(error))
            replace_scores(plan, scored, context.run.id)

        log_refused(scored.refused)
        result = context.result(**summary(plan, scored, clock, headline_values))

    return result, error


@contextmanager
def open_score_run(plan: ScorePlan, command: str, clock: Clock) -> Iterator["RunContext"]:
    """Open the job's run, named after the model and linked with it."""
    from tipcast.jobs.run_context import run_context, run_names, run_params
    from tipcast.tracking.model_fetch import used_by

    model = plan.model
    name = str(model.manifest.get("model"))
    if model.name:
        name = f"{model.name} {model.version}"
    (run_name,) = run_names([(name, command)], "score ")

    with run_context(
        plan.config,
        command,
        job="score",
        name=run_name,
        params=run_params(plan.config, PARAMS),
        tags={"model.uri": model.uri},
        clock=clock,
    ) as context:
        used_by(context.run, model)
        yield context


def score_due_files(
    context: "RunContext", plan: ScorePlan, wait_for_check: Callable[[], None]
) -> ScoringResult:
    """Start workers and score what is due, once the model's file is known to be sound."""
    from tipcast.scoring.driver import score_files

    if not plan.due:
        return nothing_scored(plan)

    session = context.start_workers()
    with context.clock.phase("check"):
        wait_for_check()

    with context.clock.phase("score") as notes:
        scored = score_files(session, plan)
        notes.append(f"{scored.rows:,} rows in {count(len(scored.entries), 'file')}")

    return replace(scored, peak_bytes=peaks(session.client))


def measurements(scored: ScoringResult, clock: Clock) -> dict[str, float]:
    """Return seconds of phases and memory of processes by their keys in MLflow."""
    seconds = {f"seconds/{phase}": value for phase, value in clock.seconds.items()}
    memory = {f"memory/{name}_peak_bytes": value for name, value in scored.peak_bytes.items()}
    return {**seconds, **memory}


def refusal(plan: ScorePlan, refused: Mapping[str, TipcastError]) -> TipcastError | None:
    """Return the error that a job ends with if files were refused: that of the only file, otherwise
    S010.
    """
    if not refused:
        return None

    first_error = next(iter(refused.values()))
    if plan.n_files == 1:
        return first_error

    refused_files = "files were refused, such as" if len(refused) > 1 else "files was refused:"
    example = f"{first_error.where}: {reason(first_error)}"
    what = f"{len(refused)} of {plan.n_files} {refused_files} {example}"
    fix = "fix or leave out the listed files"
    reasons = {(error.code, error.what) for error in refused.values()}
    if len(refused) == plan.n_files and len(reasons) == 1:
        fix = first_error.fix
    return TipcastError("S010", "input", what, fix)


def log_refused(refused: Mapping[str, TipcastError]) -> None:
    """Log the first refused files."""
    for error in itertools.islice(refused.values(), LISTED):
        LOG.warning("refused %s: %s", error.where, reason(error))


def reason(error: TipcastError) -> str:
    """Return why a file was refused, without its name."""
    return f"[{error.code}] {error.what}"


def summary(
    plan: ScorePlan, scored: ScoringResult, clock: Clock, headline_values: Mapping[str, float]
) -> dict[str, Any]:
    """Return the result, without the run and the command."""
    entries = (*plan.unchanged.values(), *scored.entries.values())
    return {
        "model_uri": plan.model.uri,
        "output": to_plain(plan.config.output),
        "files": len(entries),
        "rows": sum(entry.rows for entry in entries),
        "scored": len(scored.entries),
        "scored_rows": scored.rows,
        "unscored": scored.unscored,
        "refused": {name: reason(error) for name, error in scored.refused.items()},
        "metrics": headline_values,
        "phases": clock.seconds,
    }


def lines_for_people(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lines that are printed with print=text."""
    entries = {name: value for name, value in result.items() if name not in ALREADY_SHOWN}
    return {LABELS.get(name, name): value for name, value in entries.items()}
