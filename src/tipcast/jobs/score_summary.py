"""What a scoring says at its end, to people and to programs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema_score import ScoreConfig
from tipcast.data.scored import Entry
from tipcast.jobs.score_plan import Item, ScorePlan

if TYPE_CHECKING:  # loading MLflow and Matplotlib takes longer than finding out that nothing is to be done
    from tipcast.jobs.score_record import Account, ScoreRecord

LOG = logging.getLogger("tipcast")

LISTED = 10
"""Refused files that are told one by one; the manifest, the run and print=json have all."""
HEADLINES = ("score/mean", "score/predicted_rate", "labelled/auc", "labelled/rows_of_training")


def problem(refused: Sequence[Item], files: int) -> TipcastError:
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


def said(
    config: ScoreConfig,
    plan: ScorePlan,
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
    for item in refused[:LISTED]:
        if item.problem:
            LOG.warning("refused %s: %s", item.problem.where, why[item.name])
    run = {"run_id": record.run.id, "experiment_id": record.run.experiment_id, "run": record.run.link} if record else {}
    metrics = {name: found.metrics[name] for name in HEADLINES if name in found.metrics} if found else {}
    return {
        **run,
        "model_uri": plan.model_uri,
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
