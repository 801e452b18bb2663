"""`tipcast promote`: move an alias to a registered version that is not worse than the version that
holds it.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tipcast.compute.base import Frame, Session
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.schema import PromoteConfig
from tipcast.datasets import rows
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.rows import Rows
from tipcast.evaluation import evaluator_of, report
from tipcast.evaluation.base import Evaluation, Evaluator, bounds
from tipcast.evaluation.sums import PartedColumns
from tipcast.jobs import end_job
from tipcast.jobs.predicted_rows import PredictedRows
from tipcast.jobs.promote_plan import (
    Check,
    Move,
    PromotePlan,
    fetch_candidate,
    plan_comparison,
    plan_move,
)
from tipcast.jobs.run_context import RunContext, run_context, run_names, run_params
from tipcast.jobs.train_plan import collect_splits
from tipcast.measure.progress import Clock, progress
from tipcast.models.fit import send_saved_scorer
from tipcast.tracking.aliases import check_alias, complete_move, move_alias
from tipcast.tracking.failures import store_errors
from tipcast.tracking.model_fetch import FetchedModel
from tipcast.tracking.run import error_tags
from tipcast.tracking.run_lookup import tracking_in_experiment_of
from tipcast.tracking.store import open_store, resolve

LOG = logging.getLogger("tipcast")
SIGNED = "+.5f"
FIX = "fix what failed, or set force=true"
PARAMS = ("backend", "model_uri", "alias", "margin", "force")


@dataclass(frozen=True)
class ScoredVersion:
    """A version's predictions of the test rows, and their evaluation."""

    predicted: PredictedRows
    evaluation: Evaluation


@dataclass(frozen=True)
class Comparison:
    """How good the versions are on the same rows."""

    evaluations: Sequence[Evaluation]
    """Evaluations of the plan's candidates, in their order."""
    metrics: Mapping[str, float]
    """The difference first, then ``challenger/...``, ``champion/...`` and ``test/rows``."""
    check: Check
    """Whether the challenger is not worse."""


@dataclass(frozen=True)
class Decision:
    """Whether the alias moves, and why."""

    move: Move
    checks: Sequence[Check]
    force: bool
    """Whether the alias moves even if checks failed."""

    @property
    def failed(self) -> str:
        """The failed checks in words; empty if all have passed."""
        return "; ".join(f"{check.name}: {check.what}" for check in self.checks if not check.passed)

    @property
    def moves(self) -> bool:
        """Whether the version gets the alias."""
        return self.force or not self.failed

    @property
    def forced(self) -> bool:
        """Whether the version gets the alias in spite of failed checks."""
        return self.force and bool(self.failed)

    @property
    def problem(self) -> TipcastError | None:
        """The refusal (M020); None if the alias moves."""
        if self.moves:
            return None
        what = f"does not get {self.move.alias}: {self.failed}"
        return TipcastError("M020", self.move.uri, what, FIX)


def run(config: PromoteConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    check_alias(config.alias)
    clock = Clock()
    store = open_store(config.tracking)

    with temporary_folder() as folder:
        with clock.phase("fetch"), store_errors(resolve(config.tracking)):
            challenger = fetch_candidate(store, config, config.model_uri, folder / "challenger")
            tracking = tracking_in_experiment_of(store, config.tracking, challenger.run.info.run_id)
            config = dataclasses.replace(config, tracking=tracking)

            move = plan_move(store, challenger, config.alias)
            if move.is_done:
                complete_move(store, move.name, move.alias, move.version)
                return say_is_done(config, move)

            plan = plan_comparison(store, config, command, challenger, move.holder, folder)

        with promotion_run(config, command, move, plan, clock) as context:
            session = context.start_workers()
            with clock.phase("score"):
                comparison = compare(session, plan, config.margin)

            decision = Decision(move, [*plan.checks, comparison.check], config.force)
            with clock.phase("log"):
                record(context, plan, comparison, decision)
            conclude(context, decision)

    return say_decision(context, decision, comparison)


def say_is_done(config: PromoteConfig, move: Move) -> Mapping[str, Any]:
    """Print that the version holds the alias already, and that nothing was compared."""
    LOG.info("%s already holds %s", move.uri, move.alias)
    result = {"model_uri": move.uri, "alias": move.alias, "moved": False}
    lines = {"alias": f"{move.alias} is already version {move.version}"}
    return end_job(result, config.print, lines=lines)


def promotion_run(
    config: PromoteConfig, command: str, move: Move, plan: PromotePlan, clock: Clock
) -> contextlib.AbstractContextManager[RunContext]:
    """Open the promotion's run, named after the version that asks for the alias."""
    (name,) = run_names([(f"{move.name} {move.version}", command)], "promote ")
    return run_context(
        config,
        command,
        job="promote",
        name=name,
        params=run_params(config, PARAMS) | {"test_period": plan.period},
        tags={"model": move.uri},
        clock=clock,
    )


def compare(session: Session, plan: PromotePlan, margin: float) -> Comparison:
    """Score the same rows with every version; the challenger may be worse by the margin."""
    evaluator = evaluator_of(plan.recipes[0].task.kind)
    scored = score_versions(session, plan, evaluator)
    evaluations = [version.evaluation for version in scored]
    metrics: dict[str, float] = {}

    if len(scored) == 1:
        check = Check("comparison", True, "there is no champion to compare with")
    elif not evaluator.kind.has_target:
        check = Check("comparison", False, "without a target the two cannot be compared")
    else:
        metrics, check = measure_difference(session, evaluator, scored, margin)

    for side, evaluation in zip(("challenger", "champion"), evaluations, strict=False):
        metrics |= {f"{side}/{name}": value for name, value in evaluation.leading_metrics.items()}

    metrics["test/rows"] = float(evaluations[0].rows)
    return Comparison(evaluations, metrics, check)


def score_versions(
    session: Session, plan: PromotePlan, evaluator: Evaluator
) -> list[ScoredVersion]:
    """Score the test rows with each version; versions with the same recipe share the rows."""
    scored: list[ScoredVersion] = []
    last_recipe: Recipe | None = None

    for candidate, recipe in zip(plan.candidates, plan.recipes, strict=True):
        if recipe != last_recipe:  # versions may have different codes of categories
            last_recipe = recipe
            test = read_test_rows(session, plan, recipe)

        with progress("score"):
            scored.append(score_version(session, candidate.fetched, test, evaluator))

    return scored


def read_test_rows(session: Session, plan: PromotePlan, recipe: Recipe) -> Rows:
    """Read and prepare the test rows on the workers."""
    reading = rows.start(session, plan.test, recipe)
    with progress("read", reading.tasks):
        splits = collect_splits(session, plan.test, recipe, reading, plan.limits, ("test",))
    return splits["test"]


def score_version(
    session: Session, fetched: FetchedModel, test: Rows, evaluator: Evaluator
) -> ScoredVersion:
    """Score the test rows with a version, and evaluate it with the threshold in its manifest."""
    client = session.client
    names = list(fetched.manifest["features"])
    # In a partial: Dask would make a large argument a task, and wait for it for ever.
    x = client.map(partial(_columns, names=names), test.x, pure=False, key="columns")
    scorer_future = send_saved_scorer(client, fetched.path, fetched.format, session.device)

    predicted = PredictedRows.of(client, scorer_future, dataclasses.replace(test, x=x))
    evaluation = predicted.evaluate(
        client, evaluator, threshold=fetched.manifest["threshold"], where="data.test"
    )
    return ScoredVersion(predicted, evaluation)


def _columns(x: Frame, names: list[str]) -> Frame:
    if list(x.columns) == names:
        return x
    return x[names]


def measure_difference(
    session: Session, evaluator: Evaluator, scored: Sequence[ScoredVersion], margin: float
) -> tuple[dict[str, float], Check]:
    """Return the difference of the headlines with its interval, and whether it is within the
    margin.
    """
    challenger, champion = scored
    held = champion.predicted
    columns = [challenger.predicted.predictions, held.predictions, held.targets]
    if held.weights:
        columns.append(held.weights)
    parts = PartedColumns(columns, session.client)
    difference, interval = evaluator.difference(parts, (challenger.evaluation, champion.evaluation))

    headline_metric = evaluator.headline_metric
    if headline_metric.maximize:
        passed = -difference <= margin
        bound = f"at least {-margin:g}"
    else:
        passed = difference <= margin
        bound = f"at most {margin:g}"

    key = f"difference/{headline_metric.name}"
    what = f"{headline_metric.label} {interval.around(difference, SIGNED)}, {bound}"
    check = Check("comparison", passed, what)
    return {key: difference, **bounds(interval, key)}, check


def record(
    context: RunContext, plan: PromotePlan, comparison: Comparison, decision: Decision
) -> None:
    """Record both versions' metrics on the same rows, the leading figure, the checks and the
    note.
    """
    context.run.log_metrics(comparison.metrics)
    record_test_rows(context, plan, comparison)
    figure = record_figure(context, plan, comparison)

    results = {True: "passed", False: "failed"}
    checks = [
        {"check": name, "result": results[passed], "what": what}
        for name, passed, what in decision.checks
    ]
    checks_table = context.table(checks, "tables/gate.json")

    move = decision.move
    outcome = "passes"
    if decision.failed:
        outcome = "does not pass"
    paragraphs = [
        f"### {move.name}: version {move.version} {outcome} as {move.alias}",
        report.plot(context.run.id, figure),
        checks_table,
        rows_in_words(plan),
        report.repeat(context.command, context.code.remark),
    ]
    context.run.note("\n\n".join(paragraphs))


def rows_in_words(plan: PromotePlan) -> str:
    """Say which rows the versions were scored on, and by which column they are weighted."""
    text = f"Scored on the same rows: {plan.period}"
    weight = plan.recipes[0].task.weight
    if weight is not None:
        text += f", weighted by `{weight}`"
    return f"{text}."


def record_test_rows(context: RunContext, plan: PromotePlan, comparison: Comparison) -> None:
    """Record the rows that all versions have scored."""
    test = plan.test
    profile = {
        "rows": comparison.evaluations[0].rows,
        "period": plan.period,
        "files": len(test.uris),
    }
    name = f"{test.name} {plan.period}"
    context.run.log_dataset(test.uris[0], test.digest, name, "test", profile)


def record_figure(context: RunContext, plan: PromotePlan, comparison: Comparison) -> str:
    """Record the evaluator's leading figure with all versions; return its path."""
    evaluator = evaluator_of(plan.candidates[0].fetched.kind)
    titles = [candidate.title for candidate in plan.candidates]
    evaluations = dict(zip(titles, comparison.evaluations, strict=True))
    subtitle = f"{comparison.evaluations[0].rows:,} {plan.test.name}, {plan.period}"

    task = plan.recipes[0].task
    path, picture = next(evaluator.figures(evaluations, subtitle, task.classes, task.target_name))
    context.run.log_bytes(picture, path)
    return evaluator.figure


def conclude(context: RunContext, decision: Decision) -> None:
    """Move the alias, or tag the run with the refusal; record the seconds of each phase."""
    run = context.run
    move = decision.move

    if decision.problem:
        run.set_tags(error_tags(decision.problem))
    else:
        move_alias(
            run.store,
            move.name,
            move.alias,
            move.version,
            before=move.holder,
            trace={"why": decision.failed or decision.checks[-1].what, "run": run.id},
            forced=decision.forced,
        )

    run.set_tags({"promote.moved": str(decision.moves).lower()})
    seconds = context.clock.seconds
    run.log_metrics({f"seconds/{phase}": value for phase, value in seconds.items()})


def say_decision(
    context: RunContext, decision: Decision, comparison: Comparison
) -> Mapping[str, Any]:
    """Print how each check ended and which version holds the alias; then raise the refusal."""
    move = decision.move
    result = context.result(
        model_uri=move.uri,
        alias=move.alias,
        moved=decision.moves,
        forced=decision.forced,
        holder=move.holder,
        checks={
            check.name: {"passed": check.passed, "what": check.what} for check in decision.checks
        },
        metrics=comparison.metrics,
        phases=context.clock.seconds,
    )

    verdicts = {True: "passed", False: "FAILED"}
    lines = {check.name: f"{verdicts[check.passed]}  {check.what}" for check in decision.checks}
    lines["alias"] = f"{move.alias} {holder_in_words(decision)}"
    lines |= {name: result[name] for name in ("metrics", "phases", "command")}

    return end_job(result, context.config.print, lines=lines, problem=decision.problem)


def holder_in_words(decision: Decision) -> str:
    """Return which version holds the alias now."""
    move = decision.move
    if decision.forced:
        return f"version {move.version} now, forced"
    if decision.moves:
        return f"version {move.version} now"
    if move.holder:
        return f"still version {move.holder}"
    return "still without a version"
