"""The report of a sweep on its run: leaderboard, plots, and a note of which trial was best and how others did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from tipcast.evaluation import plots
from tipcast.evaluation.report import MAX_NOTE, log_figure, small_name, table
from tipcast.jobs.sweep_record import CURVE, SweepRecord
from tipcast.search.proposals import importance
from tipcast.search.space import LOGARITHMIC
from tipcast.search.trial import Trial
from tipcast.tracking.children import charts

BEST = 5
"""Trials whose ROC curves are drawn."""
SHOWN = 10
"""Trials of the leaderboard in the note."""
NOTE = "mlflow.note.content"


def write(sweep: SweepRecord) -> None:
    """Log leaderboard and plots, and put the sweep before what the note says of the refit."""
    run = sweep.record.run
    run.log_table(_leaderboard(sweep), "sweep/leaderboard.json")
    pictures = _plots(sweep)
    text = "\n\n".join([*_note(sweep, pictures), run.client.get_run(run.id).data.tags.get(NOTE, "")])
    run.note(text if len(text) <= MAX_NOTE else text[:MAX_NOTE].rpartition("\n\n")[0] + "\n")


def _leaderboard(sweep: SweepRecord) -> dict[str, list[Any]]:
    metric, early = sweep.objective.metric, any(trial.rounds for trial in sweep.ranked)
    rows = [
        {
            "rank": rank,
            "trial": trial.number,
            sweep.metric: trial.score,
            **{f"{sweep.metric}_{end}": trial.metrics.get(f"{metric}_{end}") for end in ("low", "high")},
            **{name: trial.params[name] for name in sweep.space},
            **({"trees": trial.rounds} if early else {}),
            "seconds": round(trial.seconds, 3),
            "attempt": trial.attempt,
            "worker": trial.worker,
            "run_id": sweep.runs[trial.number],
            "run": _link(sweep, trial),
        }
        for rank, trial in enumerate(sweep.ranked, 1)
    ]
    rows += [{"trial": number, "run_id": sweep.runs[number]} for number in sorted(sweep.failed)]
    return {name: [row.get(name) for row in rows] for name in rows[0]}


def _plots(sweep: SweepRecord) -> list[str]:
    """Log the plots; return the paths of those that the note shows."""
    run, config, ranked, maximize = sweep.record.run, sweep.config, sweep.ranked, sweep.objective.maximize
    subtitle = f"{config.model.name}, {config.search.name} search, {len(ranked)} trials"
    scores, seconds = [trial.score for trial in ranked], [trial.seconds for trial in ranked]
    values = {name: [trial.params[name] for trial in ranked] for name in sweep.space}
    logs = [name for name, axis in sweep.space.items() if axis.kind in LOGARITHMIC]
    label = sweep.metric.replace("/", " ")
    drawn = {
        "parallel": plots.parallel(values, scores, subtitle, logs=logs, metric=label, maximize=maximize),
        "seconds": plots.pareto(seconds, scores, subtitle, metric=label, maximize=maximize),
    }
    curves = []
    for trial in ranked[:BEST]:  # the curve of a trial of an earlier run is in the store alone
        curve = trial.curve or sweep.children.curve(sweep.runs[trial.number], CURVE)
        curves.append((f"trial {trial.number}: {sweep.objective.metric} {trial.score:.4f}", curve))
    if curves[0][1]:
        drawn = {"roc": plots.roc_overlay(curves, subtitle), **drawn}
    shown = []
    for name, picture in drawn.items():
        log_figure(run.log_bytes, picture, f"sweep/{name}.png")
        shown.append(small_name(f"sweep/{name}.png"))
    if found := importance(ranked, sweep.space, sweep.objective):
        picture = plots.importance(found, subtitle, kind="variance of the score", title="Parameter importance")
        run.log_bytes(picture, "sweep/parameter_importance.png")
    if sweep.busy:
        busy = {address.partition("://")[2]: spent for address, spent in sweep.busy.items()}
        slots = {address.partition("://")[2]: number for address, number in sweep.slots.items()}
        run.log_bytes(plots.busy(busy, slots, sweep.search_s, subtitle), "sweep/busy.png")
    return shown


def _note(sweep: SweepRecord, pictures: Sequence[str]) -> list[str]:
    """Write the paragraphs of the note in Markdown."""
    run, best, ranked = sweep.record.run, sweep.best, sweep.ranked
    page = charts(run.experiment_id, run.id, sweep.metric, maximize=sweep.objective.maximize)
    params = ", ".join(f"`{name}` {_value(value)}" for name, value in best.params.items())
    found = f"[trial {best.number}]({_link(sweep, best)}), **{best.score:.4f}**, with {params}"
    parts = [
        f"### {sweep.config.search.name} search of {sweep.config.model.name}: {len(ranked)} trials",
        f"Best by {sweep.metric}: {found}. "
        "It was fitted again over all workers and tested; the model below is that one.",
        f"[Compare all trials as charts]({page})",
        _table(sweep),
        " ".join([*sweep.remarks, *_pace(sweep)]),
    ]
    if sweep.failed:
        number, first = next(iter(sweep.failed.items()))
        parts.append(f"{len(sweep.failed)} trials failed, as trial {number}: {first.what}.")
    shown = [f"![{path}](get-artifact?{urlencode({'path': path, 'run_uuid': run.id})})" for path in pictures]
    return [part for part in (*parts, *shown) if part]


def _table(sweep: SweepRecord) -> str:
    ranked, metric = sweep.ranked, sweep.objective.metric
    lines = []
    for at, trial in enumerate(ranked[:SHOWN], 1):
        low, high = (trial.metrics.get(f"{metric}_{end}") for end in ("low", "high"))
        bounds = "" if low is None or high is None else f" ({low:.4f} to {high:.4f})"
        name = f"{at}: [trial {trial.number}]({_link(sweep, trial)})"
        values = [_value(trial.params[name]) for name in sweep.space]
        lines.append([name, f"{trial.score:.4f}{bounds}", f"{trial.seconds:.1f}", *values])
    more = f"\n\nAll {len(ranked)} trials: artifact `sweep/leaderboard.json`." if len(ranked) > SHOWN else ""
    return table(["rank", f"{sweep.metric} (95 % interval)", "seconds", *sweep.space], lines) + more


def _pace(sweep: SweepRecord) -> list[str]:
    """Say how fast the trials of this process were; nothing where all were there already."""
    spent, done = sum(sweep.busy.values()), len(sweep.ended_here)
    if not spent:
        return []
    seconds, slots = max(sweep.search_s, 1e-9), max(sum(sweep.slots.values()), 1)
    said = (
        f"{done} trials in {seconds:.1f} s, {60 * done / seconds:.0f} a minute: {slots} at once, the workers "
        f"{100 * spent / (seconds * slots):.0f} % busy, and {100 * sweep.tracking_s / seconds:.1f} % of the time spent "
        "on recording them."
    )
    return [said, *([f"{sweep.rounds:,} trees were grown."] if sweep.rounds else [])]


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _link(sweep: SweepRecord, trial: Trial) -> str:
    return sweep.children.link(sweep.runs[trial.number])
