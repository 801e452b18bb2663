"""The account of a sweep on its run: leaderboard, plots and the note."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tipcast.evaluation import plots, sweep_report
from tipcast.evaluation.base import Interval
from tipcast.evaluation.sweep_report import Row
from tipcast.jobs.sweep_record import CURVE, SweepRecord
from tipcast.search.importance import importance
from tipcast.search.trial import SCORE, Trial
from tipcast.tracking.children import charts

BEST = 5
"""Trials whose ROC curves are drawn."""
NOTE = "mlflow.note.content"


def write(sweep: SweepRecord) -> None:
    """Log leaderboard and plots, and put the sweep before what the note says of the refit."""
    ranked = sweep.ranked
    sweep.record.run.log_table(_leaderboard(sweep, ranked), "sweep/leaderboard.json")
    _plots(sweep, ranked)
    run = sweep.record.run
    refit = run.client.get_run(run.id).data.tags.get(NOTE, "")
    spec = sweep.config.search
    run.note(
        sweep_report.note(
            f"{spec.name} search of {sweep.config.model.name}: {len(ranked)} trials",
            [_row(sweep, at + 1, trial) for at, trial in enumerate(ranked)],
            failed={number: problem.what for number, problem in sweep.failed.items()},
            charts=charts(run.experiment_id, run.id, f"validation/{SCORE}"),
            facts=_facts(sweep),
            run_id=run.id,
            refit=refit,
        )
    )


def _leaderboard(sweep: SweepRecord, ranked: Sequence[Trial]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "rank": list(range(1, len(ranked) + 1)),
        "trial": [trial.number for trial in ranked],
        f"validation/{SCORE}": [trial.score for trial in ranked],
        f"validation/{SCORE}_low": [trial.metrics.get(f"{SCORE}_low") for trial in ranked],
        f"validation/{SCORE}_high": [trial.metrics.get(f"{SCORE}_high") for trial in ranked],
    }
    columns |= {name: [trial.params[name] for trial in ranked] for name in sweep.space}
    if any(trial.rounds for trial in ranked):
        columns["trees"] = [trial.rounds for trial in ranked]
    columns |= {
        "seconds": [round(trial.seconds, 3) for trial in ranked],
        "attempt": [trial.attempt for trial in ranked],
        "worker": [trial.worker for trial in ranked],
        "run_id": [sweep.runs[trial.number] for trial in ranked],
        "run": [_link(sweep, trial) for trial in ranked],
    }
    for number in sorted(sweep.failed):
        for name, values in columns.items():
            values.append({"trial": number, "run_id": sweep.runs[number]}.get(name))
    return columns


def _row(sweep: SweepRecord, rank: int, trial: Trial) -> Row:
    low, high = (trial.metrics.get(f"{SCORE}_{end}") for end in ("low", "high"))
    interval = None if low is None or high is None else Interval(low, high)  # sweeps of earlier releases have none
    return Row(rank, trial.number, trial.score, interval, trial.seconds, trial.params, _link(sweep, trial))


def _plots(sweep: SweepRecord, ranked: Sequence[Trial]) -> None:
    run, config = sweep.record.run, sweep.config
    subtitle = f"{config.model.name}, {config.search.name} search, {len(ranked)} trials"
    scores = [trial.score for trial in ranked]
    values = {name: [trial.params[name] for trial in ranked] for name in sweep.space}
    logs = [name for name, axis in sweep.space.items() if axis.kind in {"log", "int_log"}]
    curves = [(f"trial {trial.number}: AUC {trial.score:.4f}", _curve(sweep, trial)) for trial in ranked[:BEST]]
    seconds = [trial.seconds for trial in ranked]
    for drawn, path, noted in (
        (plots.roc_overlay(curves, subtitle), "sweep/roc.png", sweep_report.ROC_PLOT),
        (plots.parallel(values, scores, subtitle, logs=logs), "sweep/parallel.png", sweep_report.PARALLEL_PLOT),
        (plots.pareto(seconds, scores, subtitle), "sweep/seconds.png", sweep_report.PARETO_PLOT),
    ):
        run.log_bytes(drawn, path)
        run.log_bytes(plots.small(drawn), noted)
    found = importance(ranked, sweep.space)
    if found:
        drawn = plots.importance(found, subtitle, kind="variance of the score", title="Parameter importance")
        run.log_bytes(drawn, "sweep/parameter_importance.png")
    if sweep.busy:
        busy = {address.partition("://")[2]: spent for address, spent in sweep.busy.items()}
        slots = {address.partition("://")[2]: number for address, number in sweep.slots.items()}
        run.log_bytes(plots.busy(busy, slots, sweep.search_s, subtitle), "sweep/busy.png")


def _curve(sweep: SweepRecord, trial: Trial) -> Sequence[float]:
    """Return a trial's ROC curve; that of a trial of an earlier run is in the store alone."""
    return trial.curve or sweep.children.curve(sweep.runs[trial.number], CURVE)


def _facts(sweep: SweepRecord) -> list[str]:
    spent = sum(sweep.busy.values())
    if not spent:
        return list(sweep.remarks)
    done, seconds = len(sweep.busy_trials), max(sweep.search_s, 1e-9)
    slots = max(sum(sweep.slots.values()), 1)
    facts = [
        *sweep.remarks,
        f"{done} trials in {seconds:.1f} s, {60 * done / seconds:.0f} a minute: {slots} at once, the workers "
        f"{100 * spent / (seconds * slots):.0f} % busy, and {100 * sweep.tracking_s / seconds:.1f} % of the time spent "
        "on recording them.",
    ]
    if sweep.rounds:
        facts.append(f"{sweep.rounds:,} trees were grown.")
    return facts


def _link(sweep: SweepRecord, trial: Trial) -> str:
    return sweep.children.link(sweep.runs[trial.number])
