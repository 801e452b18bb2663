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
from tipcast.jobs.sweep_resume import DATA, STUDY, apply_overrides, load_previous_sweep
from tipcast.jobs.train import WHERE, check_model, finish, make_plan, start
from tipcast.jobs.train_record import CURVE, Record, params
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.search.importance import importance
from tipcast.search.pool import Pool
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
        for each in sweep_plan.of_each_model(config):
            check_model(each, config.task.kind)
        preflight.check_search(config)
        with clock.phase("list"), progress("list"):
            plan = make_plan(config)
        spaces = sweep_plan.check(config, plan.task.kind)
        metric = ranking(plan.task.kind, config.search.metric, "search.metric")
        data = sweep_plan.data_digest(plan)
        if previous:
            previous.check(data)
            tags = {STUDY: previous.study, "sweep.resumed_by": command}  # parameters tell of the first cluster alone
            command = previous.command(config, command)
        else:
            tags = {STUDY: sweep_plan.identity(to_plain(config), data), DATA: data}
        folder = stack.enter_context(temporary_folder())
        resumed = previous.run_id if previous else None
        name = f"{config.search.name} search of {config.searched_name}"
        later = ["search.trials", *(f"model.params.{name}" for space in spaces for name in space)]
        known = params(config, later=later)
        if len(spaces) > 1:  # which are parameters of the trials
            known = {key: value for key, value in known.items() if not key.startswith(("model", "search.space"))}
        run = opened(config, command, job="sweep", name=name, params=known, resume=resumed)
        record = Record(stack.enter_context(run), config, plan, command, folder)
        record.run.set_tags(tags)
        objective = Objective(tags[STUDY], metric.name, metric.maximize)
        if previous:
            check_lease = previous.check_lease
        else:
            check_lease = stack.enter_context(leased(record.run.client, record.run.id))
        sweep = SweepRecord(record, config, spaces, objective, check_lease)
        if previous:
            clear_problem(record.run.client, record.run.id)
            sweep.resume(previous)
        with sweep.closed():
            workers = start(stack, record, clock)
            search_by_pool(sweep, workers, clock)
            best = sweep.best
            model = sweep.model(best)
            model = dataclasses.replace(model, params={**model.params, **best.params})
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


def search_by_pool(sweep: SweepRecord, workers: Session, clock: Clock) -> None:
    """Run the trials that are missing as tasks of our own."""
    config, spec = sweep.config, sweep.config.search
    searcher = sweep_plan.searcher(sweep)
    study = sweep_plan.study(sweep, workers)
    trial_workers = TrialWorkers(workers.client, study, spec.trials_per_gpu, config.cluster.wait_s)
    sweep.total = searcher.total
    with trial_workers.opened():
        with clock.phase("load") as facts, progress("read"):
            facts += _check_rows(sweep, study, trial_workers)
        slots = sum(trial_workers.slots.values())
        if spec.name == "tpe" and slots > spec.max_concurrent:
            LOG.warning(
                "%d slots, of which TPE uses %d: with more at once (search.max_concurrent) it learns less from each",
                slots,
                spec.max_concurrent,
            )
        pool = Pool(trial_workers, spec.attempts, spec.trial_timeout_s, spec.timeout_s)
        events = pool.events(searcher)
        sweep.follow(f"{spec.name} search", ((event, trial_workers.slots) for event in events), clock)
    if pool.timed_out:
        sweep.timed_out, left = True, sweep.total - sweep.done
        what = f"{left} of {sweep.total} trials were not tried" if left else "the best had not been given all trees"
        remark = (
            f"After search.timeout_s={spec.timeout_s:g} s {what}; tipcast sweep resume={sweep.record.run.id} goes on."
        )
        LOG.info(remark)
        sweep.remarks.append(remark)


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
    run = sweep.record.run
    run.log_table(_leaderboard(sweep), "sweep/leaderboard.json")
    pictures = _plots(sweep)
    run.note("\n\n".join([*_note(sweep, pictures), run.client.get_run(run.id).data.tags.get(NOTE, "")]))


def _leaderboard(sweep: SweepRecord) -> dict[str, list[Any]]:
    early = any(trial.rounds for trial in sweep.ranked)
    rows = [
        {
            "rank": rank,
            "trial": trial.number,
            **({"defaults": sweep.has_defaults(trial)} if sweep.config.search.baseline else {}),
            **({"model": sweep.model(trial).name} if len(sweep.spaces) > 1 else {}),
            sweep.metric: trial.score,
            **{f"validation/{name}": value for name, value in _bounds(sweep, trial).items()},
            **{name: trial.params.get(name) for name in sweep.names},
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
    subtitle = f"{config.searched_name}, {config.search.name} search, {len(ranked)} trials"
    scores, seconds = [trial.score for trial in ranked], [trial.seconds for trial in ranked]
    label = sweep.metric.replace("/", " ")
    drawn: dict[str, bytes] = {}
    for model, space in zip(config.searched, sweep.spaces, strict=True):
        own = [trial for trial in ranked if sweep.model(trial) is model and inside(space, trial.params)]
        if not own:
            continue
        of = f"_{model.name}" if len(sweep.spaces) > 1 else ""
        about = f"{model.name}, {config.search.name} search, {len(own)} trials"
        values = {name: [trial.params[name] for trial in own] for name in space}
        logs = [name for name, axis in space.items() if axis.kind in LOGARITHMIC]
        worth = [trial.score for trial in own]
        drawn[f"parallel{of}"] = plots.parallel(values, worth, about, logs=logs, metric=label, maximize=maximize)
        if found := importance(own, space, sweep.objective):
            picture = plots.importance(found, about, kind="variance of the score", title="Parameter importance")
            run.log_bytes(picture, f"sweep/parameter_importance{of}.png")
    drawn["seconds"] = plots.pareto(seconds, scores, subtitle, metric=label, maximize=maximize)
    curves: dict[str, dict[str, list[float]]] = {}
    for trial in ranked[:BEST]:  # the curve of a trial of an earlier run is in the store alone
        curve = trial.curve or sweep.children.curve(sweep.runs[trial.number], CURVE)
        if curve:
            label = f"trial {trial.number}: {sweep.objective.metric} {trial.score:.4f}"
            curves[label] = {"fpr": np.linspace(0, 1, len(curve)).tolist(), "tpr": list(curve)}
    if curves:
        drawn = {"roc": plots.roc_overlay(curves, subtitle), **drawn}
    shown = []
    for name, picture in drawn.items():
        log_figure(run.log_bytes, picture, f"sweep/{name}.png")
        shown.append(small_name(f"sweep/{name}.png"))
    if sweep.busy:
        busy = {address.partition("://")[2]: spent for address, spent in sweep.busy.items()}
        slots = {address.partition("://")[2]: number for address, number in sweep.slots.items()}
        run.log_bytes(plots.busy(busy, slots, sweep.search_s, subtitle), "sweep/busy.png")
    return shown


def _note(sweep: SweepRecord, pictures: Sequence[str]) -> list[str]:
    """Write the paragraphs of the note in Markdown."""
    run, best, ranked = sweep.record.run, sweep.best, sweep.ranked
    page = sweep.children.charts(sweep.metric, maximize=sweep.objective.maximize)
    params = ", ".join(f"`{name}` {_value(value)}" for name, value in best.params.items())
    of = f" of {sweep.model(best).name}" if len(sweep.spaces) > 1 else ""
    found = f"[trial {best.number}]({_link(sweep, best)}){of}, **{best.score:.4f}**, with {params}"
    parts = [
        f"### {sweep.config.search.name} search of {sweep.config.searched_name}: {len(ranked)} trials",
        f"Best by {sweep.metric}: {found}. "
        "It was fitted again over all workers and tested; the model below is that one.",
        " ".join(_first_trials(sweep)),
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
    ranked, lines = sweep.ranked, []
    for at, trial in enumerate(ranked[:SHOWN], 1):
        bounds = list(_bounds(sweep, trial).values())
        between = f" ({bounds[0]:.4f} to {bounds[1]:.4f})" if bounds else ""
        name = f"{at}: [trial {trial.number}]({_link(sweep, trial)})"
        name += f" {sweep.model(trial).name}" if len(sweep.spaces) > 1 else ""
        name += ", the defaults" if sweep.has_defaults(trial) else ""
        values = [_value(trial.params[name]) if name in trial.params else "" for name in sweep.names]
        lines.append([name, f"{trial.score:.4f}{between}", f"{trial.seconds:.1f}", *values])
    more = f"\n\nAll {len(ranked)} trials: artifact `sweep/leaderboard.json`." if len(ranked) > SHOWN else ""
    title = f"{sweep.metric} (95 % interval)" if _bounds(sweep, ranked[0]) else sweep.metric
    return table(["rank", title, "seconds", *sweep.names], lines) + more


def _bounds(sweep: SweepRecord, trial: Trial) -> dict[str, float]:
    """Return the interval of a trial's score, lower bound first; empty where trials are not ranked by the headline."""
    names = [f"{sweep.objective.metric}_{end}" for end in ("low", "high")]
    return {name: trial.metrics[name] for name in names if name in trial.metrics}


def _first_trials(sweep: SweepRecord) -> list[str]:
    """Say where the trials of the configured parameters came."""
    ranked = list(enumerate(sweep.ranked, 1))
    return [
        f"[Trial {trial.number}]({_link(sweep, trial)}) has the parameters of {sweep.model(trial).name} as they are "
        f"configured: {trial.score:.4f}, rank {rank} of {len(ranked)}."
        for rank, trial in ranked
        if sweep.has_defaults(trial)
    ]


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
    return sweep.record.run.page(sweep.runs[trial.number])
