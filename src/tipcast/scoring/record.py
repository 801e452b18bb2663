"""Record: the results in the MLflow run, and the manifest of the folder."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tipcast import __version__
from tipcast.config.plain import to_plain
from tipcast.config.schema import FILE_OPTIONS
from tipcast.evaluation import evaluator_of
from tipcast.evaluation.base import Evaluation, logged
from tipcast.evaluation.report import plot
from tipcast.scoring.folder import ScoreFolder, write_manifest
from tipcast.scoring.plan import REFUSED, ScorePlan
from tipcast.scoring.results import ScoringResult
from tipcast.tracking.run import Run

FILES_TABLE = "tables/files.json"
MAX_NAME = 100
"""Most characters of a dataset's name in the run."""


def record_scores(
    run: Run, plan: ScorePlan, scored: ScoringResult, measured: Mapping[str, float], repeated: str
) -> dict[str, float]:
    """Record metrics, input, table of files, figures and note; return the headline values.

    ``measured`` are seconds and memory by their keys in MLflow; ``repeated`` is the paragraph on
    how to repeat the job.
    """
    evaluator = evaluator_of(plan.task.kind)
    labelled: Evaluation | None = evaluator.of_sums(
        scored.sums, plan.model.manifest.get("threshold")
    )
    metrics = prediction_metrics(plan, scored, labelled)

    run.log_metrics({**metrics, **pace(scored, measured), **file_counts(plan, scored), **measured})
    if scored.entries:
        log_input(run, plan, scored)
    run.log_table(files_table(scored), FILES_TABLE)
    if labelled:
        log_figures(run, plan, labelled)
    run.note(note(run, plan, scored, labelled, repeated))

    headline_names = (
        "score/mean",
        "score/predicted_rate",
        f"labelled/{evaluator.headline_metric.name}",
    )
    return {name: metrics[name] for name in headline_names if name in metrics}


def prediction_metrics(
    plan: ScorePlan, scored: ScoringResult, labelled: Evaluation | None
) -> dict[str, float]:
    """Return the metrics of all predictions, and of rows whose target is known."""
    evaluator = evaluator_of(plan.task.kind)
    classes = plan.task.classes
    unscored = scored.unscored

    metrics: dict[str, float] = {
        "score/rows": scored.rows,
        "score/unscored": sum(unscored.values()),
    }
    for name, value in evaluator.summary(scored.sums, classes).items():
        metrics[f"score/{name}"] = value
    for reason, rows in unscored.items():
        metrics[f"unscored/{reason}"] = rows

    if labelled:
        metrics |= logged(evaluator, labelled, "labelled", classes)
        metrics["labelled/rows"] = labelled.rows
    return metrics


def pace(scored: ScoringResult, measured: Mapping[str, float]) -> dict[str, float]:
    """Return the rows scored per second; nothing if there were none."""
    if not scored.rows:
        return {}
    return {"score/rows_per_s": scored.rows / measured["seconds/score"]}


def file_counts(plan: ScorePlan, scored: ScoringResult) -> dict[str, float]:
    """Return how many files were scored, were not due, and were refused."""
    return {
        "score/files": len(scored.entries),
        "score/kept_files": len(plan.unchanged),
        "score/refused_files": len(scored.refused),
    }


def log_input(run: Run, plan: ScorePlan, scored: ScoringResult) -> None:
    """Log the files that were scored as the run's dataset."""
    entries = scored.entries
    digests = [entry.input_sha256 for _, entry in sorted(entries.items())]
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    first_file = next(iter(entries.values())).input
    name = f"rows scored by {model_name(plan)}"[:MAX_NAME]
    profile = {"rows": scored.rows, "files": len(entries)}
    run.log_dataset(first_file, digest, name, "score", profile)


def files_table(scored: ScoringResult) -> Mapping[str, Sequence[object]]:
    """Return the columns of a table with a line for each file that was scored or refused."""
    names = ("scores", "input", "rows", "unscored", "input_sha256", "scores_sha256", "refused")
    lines: list[tuple[object, ...]] = []

    for name, entry in sorted(scored.entries.items()):
        unscored = sum(entry.unscored.values())
        digests = (entry.input_sha256, entry.sha256)
        lines.append((name, entry.input, entry.rows, unscored, *digests, ""))

    for name, error in scored.refused.items():
        lines.append((name, error.where, None, None, None, None, str(error)))

    return {name: [line[column] for line in lines] for column, name in enumerate(names)}


def log_figures(run: Run, plan: ScorePlan, labelled: Evaluation) -> None:
    """Draw and log the figures of rows whose target is known."""
    evaluator = evaluator_of(plan.task.kind)
    subtitle = f"{model_name(plan)}, {labelled.rows:,} rows with labels"
    task = plan.task
    evaluations = {"scored": labelled}
    for path, picture in evaluator.figures(evaluations, subtitle, task.classes, task.target_name):
        run.log_bytes(picture, path)


def note(
    run: Run, plan: ScorePlan, scored: ScoringResult, labelled: Evaluation | None, repeated: str
) -> str:
    """Write the run's note, in paragraphs of Markdown."""
    evaluator = evaluator_of(plan.task.kind)
    folder = to_plain(plan.folder.path)
    paragraphs = [
        f"### {model_name(plan)} scored {scored.rows:,} rows",
        f"Model `{plan.model.uri}`, scores in `{folder}`.",
    ]
    if scored.refused:
        paragraphs.append(f"{len(scored.refused)} files were refused: artifact `{FILES_TABLE}`.")
    if labelled:
        paragraphs.append(plot(run.id, evaluator.figure))
    if labelled and plan.weight is not None:
        paragraphs.append(f"Metrics are weighted by the column `{plan.weight}`.")
    paragraphs.append(repeated)

    return "\n\n".join(filter(None, paragraphs)) + "\n"


def model_name(plan: ScorePlan) -> str:
    """Return the model's name for people: a registered version's, otherwise its address."""
    model = plan.model
    if not model.version:
        return model.uri
    return f"{model.name} version {model.version}"


def replace_scores(plan: ScorePlan, scored: ScoringResult, run_id: str) -> None:
    """Write a manifest of unchanged and new scores, and remove obsolete ones."""
    files = {**plan.unchanged, **scored.entries}
    about = folder_manifest(plan, scored, run_id)
    obsolete = plan.folder.files.keys() - files.keys()
    folder = ScoreFolder(plan.folder.path, files, about)
    write_manifest(folder, obsolete, plan.config.storage_options)


def folder_manifest(plan: ScorePlan, scored: ScoringResult, run_id: str) -> dict[str, Any]:
    """Return what the folder's manifest holds besides the entries of files."""
    config = plan.config
    model = plan.model
    identity = ("uri", "name", "version", "model_id", "sha256", "manifest_sha256")
    described_model = {key: getattr(model, key) for key in identity}
    described_model["threshold"] = model.manifest.get("threshold")

    return {
        "recipe": plan.scoring_digest,
        "model": described_model,
        "configuration": {key: getattr(config, key) for key in ("keep", *FILE_OPTIONS)},
        "run_id": run_id,
        "device": config.backend.name,
        "tipcast": __version__,
        REFUSED: {
            name: {"code": error.code, "what": error.what} for name, error in scored.refused.items()
        },
    }
