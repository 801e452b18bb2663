"""`tipcast score`: score trips with a registered model, file by file over all workers, and swap the scores in whole.

What needs MLflow and workers is in `score_due`, which is imported once there is something to do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.config.schema_score import ScoreConfig
from tipcast.data import address, place, swap, swap_s3
from tipcast.data.listing import patterns
from tipcast.data.scored import Manifest
from tipcast.data.writing import failures, of_store
from tipcast.jobs import closing, score_check, score_plan, score_summary
from tipcast.jobs.score_plan import Item
from tipcast.measure.clock import Clock

LOG = logging.getLogger("tipcast")


def run(config: ScoreConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says.

    Raises
    ------
    TipcastError
        S010 when some files were refused, after all others were scored.

    """
    try:
        said, refused, files = _run(config, command)
    except TipcastError as problem:
        if of_store(problem) is problem:
            raise
        raise of_store(problem) from problem
    if refused:
        raise score_summary.problem(refused, files)
    return said


def _run(config: ScoreConfig, command: str) -> tuple[Mapping[str, Any], Sequence[Item], int]:
    """Score what is due; return what to say, the files that were refused, and the number of all."""
    score_check.check(config)
    clock = Clock()
    with clock.phase("list"):
        output, manifest = recovered(config)
        plan = score_plan.known(config, output, manifest)
    if plan is None:
        from tipcast.jobs.score_due import score_due

        return score_due(config, command, output, clock)
    said = score_summary.said(config, plan, plan.kept, plan.refused, clock.seconds, command)
    return closing.say(said, config.print), plan.refused, plan.files


def recovered(config: ScoreConfig) -> tuple[str, Manifest | None]:
    """Return where the scores go and what is there, once what killed jobs left is removed or put back."""
    options = config.storage_options
    named = patterns(config.input, "input")
    output, manifest = place.check(config.output, named, options)
    if address.scheme(output):
        swap_s3.recover(output, address.storage(output, options))
        return output, manifest
    with failures(output):
        moved = swap.recover(Path(output))
    return place.check(config.output, named, options) if moved else (output, manifest)
