"""The report of a sweep on its run: leaderboard, plots, and a note of which trial was best and how others did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from tipcast.evaluation import plots
from tipcast.evaluation.report import MAX_NOTE, table
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
    refit = run.client.get_run(run.id).data.tags.get(NOTE, "")
    run.note(_note(sweep, pictures, refit))


def _leaderboard(sweep: SweepRecord) -> dict[str, list[Any]]:
    ranked, metric = sweep.ranked, sweep.objective.metric
    columns: dict[str, list[Any]] = {
        "rank": list(range(1, len(ranked) + 1)),
        "trial": [trial.number for trial in ranked],
        sweep.metric: [trial.score for trial in ranked],
        f"{sweep.metric}_low": [trial.metrics.get(f"{metric}_low") for trial in ranked],
        f"{sweep.metric}_high": [trial.metrics.get(f"{metric}_high") for trial in ranked],
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
    curves = [
        (f"trial {trial.number}: {sweep.objective.metric} {trial.score:.4f}", _curve(sweep, trial))
        for trial in ranked[:BEST]
    ]
    if curves[0][1]:
        drawn = {"roc": plots.roc_overlay(curves, subtitle), **drawn}
    shown = []
    for name, picture in drawn.items():
        run.log_bytes(picture, f"sweep/{name}.png")
        shown.append(f"sweep/{name}_small.png")
        run.log_bytes(plots.small(picture), shown[-1])
    if found := importance(ranked, sweep.space, sweep.objective):
        picture = plots.importance(found, subtitle, kind="variance of the score", title="Parameter importance")
        run.log_bytes(picture, "sweep/parameter_importance.png")
    if sweep.busy:
        busy = {address.partition("://")[2]: spent for address, spent in sweep.busy.items()}
        slots = {address.partition("://")[2]: number for address, number in sweep.slots.items()}
        run.log_bytes(plots.busy(busy, slots, sweep.search_s, subtitle), "sweep/busy.png")
    return shown


def _curve(sweep: SweepRecord, trial: Trial) -> Sequence[float]:
    """Return a trial's ROC curve; that of a trial of an earlier run is in the store alone."""
    return trial.curve or sweep.children.curve(sweep.runs[trial.number], CURVE)


def _note(sweep: SweepRecord, pictures: Sequence[str], refit: str) -> str:
    """Write the note in Markdown, at most as long as MLflow keeps it: the note of the refit is cut first."""
    run, best, ranked = sweep.record.run, sweep.best, sweep.ranked
    page = charts(run.experiment_id, run.id, sweep.metric, maximize=sweep.objective.maximize)
    found = f"[trial {best.number}]({_link(sweep, best)}), **{best.score:.4f}**, with {_params(best.params)}"
    parts = [
        f"### {sweep.config.search.name} search of {sweep.config.model.name}: {len(ranked)} trials",
        f"Best by {sweep.metric}: {found}. "
        "It was fitted again over all workers and tested; the model below is that one.",
        f"[Compare all trials as charts]({page})",
        _table(sweep),
        " ".join(_facts(sweep)),
        _failed(sweep),
        "\n\n".join(f"![{path}](get-artifact?{urlencode({'path': path, 'run_uuid': run.id})})" for path in pictures),
    ]
    text = "\n\n".join([part for part in parts if part] + [refit])
    return text if len(text) <= MAX_NOTE else text[:MAX_NOTE].rpartition("\n\n")[0] + "\n"


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


def _facts(sweep: SweepRecord) -> list[str]:
    spent = sum(sweep.busy.values())
    if not spent:
        return list(sweep.remarks)
    done, seconds = len(sweep.ended_here), max(sweep.search_s, 1e-9)
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


def _failed(sweep: SweepRecord) -> str:
    if not sweep.failed:
        return ""
    number, first = next(iter(sweep.failed.items()))
    return f"{len(sweep.failed)} trials failed, as trial {number}: {first.what}."


def _params(params: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` {_value(value)}" for name, value in params.items())


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _link(sweep: SweepRecord, trial: Trial) -> str:
    return sweep.children.link(sweep.runs[trial.number])
