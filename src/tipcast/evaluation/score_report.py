"""The note of a scoring in Markdown: which model scored how many trips, and how they differ from those of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from tipcast.evaluation.classification import Classification
from tipcast.evaluation.drift import Drift
from tipcast.evaluation.report import MAX_NOTE, repeat, table
from tipcast.evaluation.two_classes import ClassificationEvaluation

SCORES_PLOT, DRIFT_PLOT = "plots/scores_small.png", "plots/drift_small.png"
LIMITS = "below 0.1 little has changed, from 0.25 on much has"


def note(
    head: str,
    facts: Mapping[str, str],
    *,
    refused: Mapping[str, str],
    drifts: Sequence[Drift],
    labelled: ClassificationEvaluation | None,
    warning: str,
    phases: Mapping[str, float],
    command: str,
    run_id: str,
    changes: str = "",
) -> str:
    """Write the note of a scoring.

    Parameters
    ----------
    head
        Model and rows, in one line.
    facts
        What is said beside it, name -> value.
    refused
        File -> why it was refused.
    drifts
        How the score and the features have moved; empty where the model does not tell how its training rows were.
    labelled
        How well the scores do on trips whose tips are known; None where there are none.
    warning
        What to know of that, in a sentence without its full stop; empty where there is nothing.
    phases, command
        Phase -> seconds, and what repeats the run.
    run_id
        Whose plots are shown.
    changes
        What of the code is in no commit, in a sentence.

    Returns
    -------
    str
        At most 8000 characters, cut at the end.

    """
    parts = [
        f"### {head}",
        table(["", ""], [[name, value] for name, value in facts.items()]),
        _refused(refused),
        _picture(SCORES_PLOT, run_id),
        _labelled(labelled),
        f"**{warning}.**" if warning else "",
        _drifts(drifts, run_id),
        repeat(command, changes),
        table(["phase", "seconds"], [[name, f"{seconds:.2f}"] for name, seconds in phases.items()]),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return text if len(text) <= MAX_NOTE else text[:MAX_NOTE].rpartition("\n\n")[0] + "\n"


def _refused(refused: Mapping[str, str]) -> str:
    if not refused:
        return ""
    shown = [[name, why] for name, why in list(refused.items())[:10]]
    more = f"\n\nAll {len(refused)}: artifact `tables/files.json`." if len(refused) > len(shown) else ""
    return "Refused:\n\n" + table(["file", "why"], shown) + more


def _labelled(found: ClassificationEvaluation | None) -> str:
    if found is None:
        return "No metrics: the trips have no tips to compare with, or all are alike."
    names = ("average_precision", "log_loss", "brier", "accuracy", "positive_rate")
    values = [["auc", found.interval.around(found.headline)]]
    values += [[name, f"{found.metrics[name]:.4f}"] for name in names]
    shown = table(["metric", "value"], values)
    return f"On {found.metrics['rows']:,.0f} trips whose tips are known:\n\n{shown}\n\n{Classification.interval_remark}"


def _drifts(drifts: Sequence[Drift], run_id: str) -> str:
    if not drifts:
        return "No drift: the model's manifest does not tell how its training rows were."
    rows = [[drift.name, f"{drift.psi:.3f}", f"{drift.chance:.3f}", drift.verdict] for drift in drifts]
    shown = table(["drift", "stability index", "95 % by chance", "verdict"], rows)
    return f"Population stability index against the training ({LIMITS}):\n\n{shown}\n\n{_picture(DRIFT_PLOT, run_id)}"


def _picture(path: str, run_id: str) -> str:
    return f"![{path}](get-artifact?{urlencode({'path': path, 'run_uuid': run_id})})"
