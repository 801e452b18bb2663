"""What the page of a sweep's run shows: the leaderboard, the plots and the note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tipcast.evaluation import plots
from tipcast.evaluation.report import log_figure, plot, table
from tipcast.jobs.sweep_record import SweepRecord
from tipcast.jobs.train_record import CURVE
from tipcast.search.proposals import importance
from tipcast.search.space import inside

BEST = 5
"""Trials whose ROC curves are drawn."""
SHOWN = 10
"""Trials of the leaderboard in the note."""


def write_report(sweep: SweepRecord) -> None:
    """Log leaderboard and plots, and put the sweep before what the note says of the refit."""
    run, rows = sweep.run, _leaderboard(sweep)
    failed = [{"trial": number, "run_id": sweep.runs[number]} for number in sorted(sweep.failed)]
    columns = {name: [row.get(name) for row in (*rows, *failed)] for name in rows[0]}
    run.log_table(columns, "sweep/leaderboard.json")
    pictures = [plot(run.id, path) for path in _plots(sweep)]
    refit = run.client.get_run(run.id).data.tags.get("mlflow.note.content", "")
    run.note("\n\n".join([*_note(sweep, rows), *pictures, refit]))


def _leaderboard(sweep: SweepRecord) -> list[dict[str, Any]]:
    """Return a row for each trial that ended well; with the interval of its score where that is the headline's."""
    interval = [f"{sweep.objective.metric}_{end}" for end in ("low", "high")]
    return [
        {
            "rank": rank,
            "trial": trial.number,
            **({"defaults": trial is sweep.defaults} if sweep.config.search.baseline else {}),
            sweep.metric: trial.score,
            **{f"validation/{name}": trial.metrics[name] for name in interval if name in trial.metrics},
            **{name: trial.params.get(name) for name in sweep.space},
            "seconds": round(trial.seconds, 3),
            "attempt": trial.attempt,
            "worker": trial.worker,
            "run_id": sweep.runs[trial.number],
            "run": sweep.run.page(sweep.runs[trial.number]),
        }
        for rank, trial in enumerate(sweep.ranked, 1)
    ]


def _plots(sweep: SweepRecord) -> list[str]:
    """Log the plots; return the paths of those that the note shows."""
    run, space, ranked, maximize = sweep.run, sweep.space, sweep.ranked, sweep.objective.maximize
    about = f"{sweep.config.model.name}, {sweep.config.search.name} search, "
    subtitle = f"{about}{len(ranked)} trials"
    label = sweep.metric.replace("/", " ")
    drawn: dict[str, bytes] = {}
    curves: dict[str, dict[str, list[float]]] = {}
    for trial in ranked[:BEST]:  # the curve of a trial of an earlier run is in the store alone
        curve = trial.curve or sweep.children.curve(sweep.runs[trial.number], CURVE)
        if curve:
            title = f"trial {trial.number}: {sweep.objective.metric} {trial.score:.4f}"
            curves[title] = {"fpr": np.linspace(0, 1, len(curve)).tolist(), "tpr": list(curve)}
    if curves:
        drawn["roc"] = plots.roc_overlay(curves, subtitle)
    if own := [trial for trial in ranked if inside(space, trial.params)]:
        of = f"{about}{len(own)} trials"
        if found := importance(own, space, sweep.objective):
            picture = plots.importance(found, of, kind="variance of the score", title="Parameter importance")
            run.log_bytes(picture, "sweep/parameter_importance.png")
    seconds, scores = [trial.seconds for trial in ranked], [trial.score for trial in ranked]
    drawn["seconds"] = plots.pareto(seconds, scores, subtitle, metric=label, maximize=maximize)
    pictures = {f"sweep/{name}.png": picture for name, picture in drawn.items()}
    for path, picture in pictures.items():
        log_figure(run.log_bytes, picture, path)
    return list(pictures)


def _note(sweep: SweepRecord, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the paragraphs of the note in Markdown."""
    best = sweep.best
    page = sweep.children.charts(sweep.metric, maximize=sweep.objective.maximize)
    params = ", ".join(f"`{name}` {_value(value)}" for name, value in best.params.items())
    parts = [
        f"### {sweep.config.search.name} search of {sweep.config.model.name}: {len(rows)} trials",
        f"Best by {sweep.metric}: [trial {best.number}]({rows[0]['run']}), **{best.score:.4f}**, with {params}. "
        "It was fitted again over all workers and tested; the model below is that one.",
    ]
    parts += [
        f"[Trial {row['trial']}]({row['run']}) has the parameters as they are configured: "
        f"{row[sweep.metric]:.4f}, rank {row['rank']} of {len(rows)}."
        for row in rows
        if row.get("defaults")
    ]
    parts += [f"[Compare all trials as charts]({page})", _table(sweep, rows[:SHOWN])]
    if len(rows) > SHOWN:
        parts.append(f"All {len(rows)} trials: artifact `sweep/leaderboard.json`.")
    if sweep.ended_here:
        slots = sum(sweep.slots.values())
        parts.append(f"{sweep.ended_here} trials in {sweep.search_s:.1f} s, {slots} at once: {sweep.pace()}.")
    if sweep.failed:
        number, problem = next(iter(sweep.failed.items()))
        parts.append(f"{len(sweep.failed)} trials failed, as trial {number}: {problem.what}.")
    return [*parts, sweep.remark] if sweep.remark else parts


def _table(sweep: SweepRecord, rows: Sequence[Mapping[str, Any]]) -> str:
    low, high = (f"{sweep.metric}_{end}" for end in ("low", "high"))
    lines = []
    for row in rows:
        name = f"{row['rank']}: [trial {row['trial']}]({row['run']})"
        name += ", the defaults" if row.get("defaults") else ""
        between = f" ({row[low]:.4f} to {row[high]:.4f})" if low in row else ""
        values = ["" if row[name] is None else _value(row[name]) for name in sweep.space]
        lines.append([name, f"{row[sweep.metric]:.4f}{between}", f"{row['seconds']:.1f}", *values])
    title = f"{sweep.metric} (95 % interval)" if low in rows[0] else sweep.metric
    return table(["rank", title, "seconds", *sweep.space], lines)


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
