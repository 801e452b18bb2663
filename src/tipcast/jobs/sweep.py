"""`tipcast sweep`: try many parameters in parallel, fit the best over all workers, test it, log and register it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlencode

import numpy as np
import scipy.special  # noqa: F401 - early, see train

from tipcast.compute.base import Session
from tipcast.compute.session import check as check_session
from tipcast.config.disk import temporary_folder
from tipcast.config.job_schemas import SweepConfig
from tipcast.config.plain import to_plain
from tipcast.datasets import rows
from tipcast.evaluation import plots
from tipcast.evaluation.base import ranking
from tipcast.evaluation.report import log_figure, small_name, table
from tipcast.jobs import closing, preflight, sweep_plan
from tipcast.jobs.opening import opened
from tipcast.jobs.sweep_record import SweepRecord
from tipcast.jobs.sweep_resume import STUDY, apply_overrides, load_previous_sweep
from tipcast.jobs.train import WHERE, check_model, finish, make_plan, start
from tipcast.jobs.train_record import CURVE, Record, params
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.search.pool import Pool
from tipcast.search.proposals import importance, searcher
from tipcast.search.space import LOGARITHMIC, inside
from tipcast.search.trial import Objective, Study, Trial
from tipcast.search.workers import TrialWorkers
from tipcast.tracking.children import clear_problem
from tipcast.tracking.lease import leased

LOG = logging.getLogger("tipcast")

BEST = 5
"""Trials whose ROC curves are drawn."""
SHOWN = 10
"""Trials of the leaderboard in the note."""
NOTE = "mlflow.note.content"


def run(config: SweepConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    check_session(config.backend, config.cluster)
    clock = Clock()
    with ExitStack() as stack:
        previous = stack.enter_context(load_previous_sweep(config)) if config.resume is not None else None
        if previous:
            config = apply_overrides(config, previous.config, command)
        else:
            config = sweep_plan.without_fixed(config, command)
        check_model(config, config.task.kind)
        preflight.check_search(config)
        with clock.phase("list"), progress("list"):
            plan = make_plan(config)
        space = sweep_plan.check(config, plan.task.kind)
        metric = ranking(plan.task.kind, config.search.metric, "search.metric")
        resumed, tags = None, {STUDY: sweep_plan.identity(to_plain(config), plan)}
        if previous:
            previous.check(plan)
            resumed, tags = previous.run_id, {"sweep.resumed_by": command}  # parameters tell of the first cluster alone
            command = previous.command(config, command)
        study = previous.study if previous else tags[STUDY]
        folder = stack.enter_context(temporary_folder())
        name = f"{config.search.name} search of {config.model.name}"
        known = params(config, later=["search.trials", *(f"model.params.{name}" for name in space)])
        run = opened(config, command, job="sweep", name=name, params=known, resume=resumed)
        record = Record(stack.enter_context(run), config, plan, command, folder)
        record.run.set_tags(tags)
        if previous:
            check_lease = previous.check_lease
        else:
            check_lease = stack.enter_context(leased(record.run.client, record.run.id))
        sweep = SweepRecord(record, config, space, Objective(study, metric.name, metric.maximize), check_lease)
        if previous:
            clear_problem(record.run.client, record.run.id)
            sweep.resume(previous)
        with sweep.closed():
            workers = start(stack, record, clock)
            search(sweep, workers, clock)
            best = sweep.best
            model = dataclasses.replace(config.model, params={**config.model.params, **best.params})
            refit = dataclasses.replace(record, config=dataclasses.replace(config, model=model), trial=best.key)
            said = finish(workers, refit, clock)
            with progress("leaderboard"):
                sweep.close()
                write_report(sweep)
        said |= sweep.said()
        problem = sweep.problem()
        if problem:
            record.run.set_tags({"error.code": problem.code, "error.message": problem})
    closing.say(said, config.print)
    if problem:
        raise problem
    return said


def search(sweep: SweepRecord, session: Session, clock: Clock) -> None:
    """Run the trials that are missing."""
    config, spec, plan, space = sweep.config, sweep.config.search, sweep.record.plan, sweep.space
    first = sweep_plan.baseline(config, space)
    proposed = searcher(spec, space, config.seed, sweep.objective, sweep.trials, first)
    sweep.total = proposed.total
    study = sweep_plan.study(config, plan, space, sweep.objective, session)
    workers = TrialWorkers(session.client, study, spec.trials_per_gpu, config.cluster.wait_s)
    with workers.opened():
        with clock.phase("load") as facts, progress("read"):
            facts += _check_rows(sweep, study, workers)
        slots = sum(workers.slots.values())
        if spec.name == "tpe" and slots > spec.max_concurrent:
            LOG.warning(
                "%d slots, of which TPE uses %d: with more at once (search.max_concurrent) it learns less from each",
                slots,
                spec.max_concurrent,
            )
        pool = Pool(workers, spec.attempts, spec.trial_timeout_s, spec.timeout_s)
        with clock.phase("search") as facts, progress(f"{spec.name} search") as bar:
            for event in pool.events(proposed):
                sweep.take(event, workers.slots, bar)
            facts.append(sweep.pace())
    if pool.timed_out:
        what = f"{sweep.total - sweep.done} of {sweep.total} trials were not tried"
        goes_on = f"tipcast sweep resume={sweep.record.run.id} goes on"
        sweep.remark = f"After search.timeout_s={spec.timeout_s:g} s {what}; {goes_on}."
        LOG.info(sweep.remark)


def _check_rows(sweep: SweepRecord, study: Study, workers: TrialWorkers) -> list[str]:
    """Have the rows read, and refuse what cannot be trained on before any trial begins; return what was read."""
    config, plan = sweep.config, sweep.record.plan
    counts = workers.load(config.search.attempts)
    rows.check_counts(plan.train, rows.per_file(study.fragments, counts), plan.recipe, config.data.limits)
    read: list[str] = []
    for side, name in enumerate(("train", "validation")):
        found = rows.total([parts[side] for parts in counts])
        rows.check_split(WHERE[name], found, plan.task, config.data.limits)
        read.append(f"{found.rows:,} {name} rows")
    return read


# The report on the sweep's run


def write_report(sweep: SweepRecord) -> None:
    """Log leaderboard and plots, and put the sweep before what the note says of the refit."""
    run, rows = sweep.record.run, _leaderboard(sweep)
    failed = [{"trial": number, "run_id": sweep.runs[number]} for number in sorted(sweep.failed)]
    columns = {name: [row.get(name) for row in (*rows, *failed)] for name in rows[0]}
    run.log_table(columns, "sweep/leaderboard.json")
    pictures = _plots(sweep)
    run.note("\n\n".join([*_note(sweep, rows, pictures), run.client.get_run(run.id).data.tags.get(NOTE, "")]))


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
            "run": _link(sweep, trial),
        }
        for rank, trial in enumerate(sweep.ranked, 1)
    ]


def _plots(sweep: SweepRecord) -> list[str]:
    """Log the plots; return the paths of those that the note shows."""
    run, space, ranked, maximize = sweep.record.run, sweep.space, sweep.ranked, sweep.objective.maximize
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
        values = {name: [trial.params[name] for trial in own] for name in space}
        logs = [name for name, axis in space.items() if axis.kind in LOGARITHMIC]
        of, scores = f"{about}{len(own)} trials", [trial.score for trial in own]
        drawn["parallel"] = plots.parallel(values, scores, of, logs=logs, metric=label, maximize=maximize)
        if found := importance(own, space, sweep.objective):
            picture = plots.importance(found, of, kind="variance of the score", title="Parameter importance")
            run.log_bytes(picture, "sweep/parameter_importance.png")
    seconds, scores = [trial.seconds for trial in ranked], [trial.score for trial in ranked]
    drawn["seconds"] = plots.pareto(seconds, scores, subtitle, metric=label, maximize=maximize)
    for name, picture in drawn.items():
        log_figure(run.log_bytes, picture, f"sweep/{name}.png")
    if sweep.busy:
        busy = {address.partition("://")[2]: spent for address, spent in sweep.busy.items()}
        slots = {address.partition("://")[2]: number for address, number in sweep.slots.items()}
        run.log_bytes(plots.busy(busy, slots, sweep.search_s, subtitle), "sweep/busy.png")
    return [small_name(f"sweep/{name}.png") for name in drawn]


def _note(sweep: SweepRecord, rows: Sequence[Mapping[str, Any]], pictures: Sequence[str]) -> list[str]:
    """Write the paragraphs of the note in Markdown."""
    run, best, first = sweep.record.run, sweep.best, sweep.defaults
    page = sweep.children.charts(sweep.metric, maximize=sweep.objective.maximize)
    params = ", ".join(f"`{name}` {_value(value)}" for name, value in best.params.items())
    parts = [
        f"### {sweep.config.search.name} search of {sweep.config.model.name}: {len(rows)} trials",
        f"Best by {sweep.metric}: [trial {best.number}]({_link(sweep, best)}), **{best.score:.4f}**, with {params}. "
        "It was fitted again over all workers and tested; the model below is that one.",
    ]
    if first:
        rank = next(row["rank"] for row in rows if row["trial"] == first.number)
        parts.append(
            f"[Trial {first.number}]({_link(sweep, first)}) has the parameters as they are configured: "
            f"{first.score:.4f}, rank {rank} of {len(rows)}."
        )
    parts += [f"[Compare all trials as charts]({page})", _table(sweep, rows[:SHOWN])]
    if len(rows) > SHOWN:
        parts.append(f"All {len(rows)} trials: artifact `sweep/leaderboard.json`.")
    if sweep.ended_here:
        slots = sum(sweep.slots.values())
        parts.append(f"{sweep.ended_here} trials in {sweep.search_s:.1f} s, {slots} at once: {sweep.pace()}.")
    if sweep.failed:
        number, problem = next(iter(sweep.failed.items()))
        parts.append(f"{len(sweep.failed)} trials failed, as trial {number}: {problem.what}.")
    shown = [f"![{path}](get-artifact?{urlencode({'path': path, 'run_uuid': run.id})})" for path in pictures]
    return [part for part in (*parts, sweep.remark, *shown) if part]


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


def _link(sweep: SweepRecord, trial: Trial) -> str:
    return sweep.record.run.page(sweep.runs[trial.number])
