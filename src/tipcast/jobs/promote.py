"""`tipcast promote`: move an alias to a registered version that is not worse than the one that
holds it.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tipcast.compute.base import Session
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.plain import tested
from tipcast.config.schema import FACTS, Limits, PromoteConfig
from tipcast.datasets import rows, split
from tipcast.datasets.base import Dataset, Tabular, as_trained
from tipcast.datasets.listing import identical
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.registry import dataset_of, open_dataset
from tipcast.datasets.scan import Listing
from tipcast.evaluation import evaluator, report
from tipcast.evaluation.base import Evaluation, bounds
from tipcast.evaluation.sums import Parts
from tipcast.jobs import say
from tipcast.jobs.run_context import RunContext, given_keys, run_context, run_names
from tipcast.jobs.train_plan import collect
from tipcast.jobs.train_record import params
from tipcast.measure.progress import Clock, progress
from tipcast.models.fit import hold, predict, truth
from tipcast.tasks.base import from_facts
from tipcast.tracking.artifacts import config_text
from tipcast.tracking.models import (
    Fetched,
    alias_holder,
    check_alias,
    complete_move,
    fetch,
    move_alias,
)
from tipcast.tracking.portable import MANIFEST_TAG
from tipcast.tracking.run import beside, error_tags
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")
TESTED = "tested"
"""The source that stands for the one that the version's run read."""
SIGNED = "+.5f"
FIX = "fix the failed checks, or set force=true to move the alias anyway"
PARAMS = ("backend", "model_uri", "alias", "margin", "force")


@dataclass(frozen=True)
class Candidate:
    """A registered version, with MLflow's run that trained it."""

    fetched: Fetched
    run: Any

    @property
    def question(self) -> str:
        """What it answers, on which rows: on those of another dataset a model is a guess."""
        manifest = self.fetched.manifest
        facts = [f"{name} {manifest[name]}" for name in FACTS if manifest.get(name)]
        return ", ".join(
            [f"{self.fetched.kind} of {manifest['target']}", dataset_of(manifest).name, *facts]
        )


class Check(NamedTuple):
    """A check of the gate."""

    name: str
    passed: bool
    what: str


@dataclass
class Comparison:
    """The challenger, the champion if there is one that can be compared, and the rows that both
    score.
    """

    candidates: Sequence[Candidate]
    checks: list[Check]
    test: Listing
    recipes: Sequence[Recipe]
    """Of each candidate: its features, by its own codes and fillings."""
    limits: Limits
    period: str
    """Of the test rows, in words."""
    evaluations: list[Evaluation] = field(default_factory=list)
    """Of the candidates, once they have scored."""


def run(config: PromoteConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    check_alias(config.alias)
    clock = Clock()
    client = open_store(config.tracking)

    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        with clock.phase("fetch"), failures(resolve(config.tracking)):
            challenger = fetch_candidate(client, config, config.model_uri, folder / "challenger")
            run_id = challenger.run.info.run_id
            config = dataclasses.replace(config, tracking=beside(client, config.tracking, run_id))
            name = str(challenger.fetched.name)
            version = str(challenger.fetched.version)
            uri = challenger.fetched.uri
            before = alias_holder(client, name, config.alias)
            if before == version:
                LOG.info("%s holds %s already", uri, config.alias)
                complete_move(client, name, config.alias, version)
                return say({"model_uri": uri, "alias": config.alias, "moved": False}, config.print)
            comparison = compare(client, config, command, challenger, before, folder)

        recorded = params(config, PARAMS) | {"test_period": comparison.period}
        (title,), tags = run_names([(f"{name} {version}", command)], "promote "), {"model": uri}
        opened = run_context(
            config, command, job="promote", name=title, params=recorded, tags=tags, clock=clock
        )
        context = stack.enter_context(opened)
        workers = context.start_workers()
        with clock.phase("score"):
            metrics = score(workers, config, comparison)

        problem = None
        checks = comparison.checks
        failed = "; ".join(f"{check.name}: {check.what}" for check in checks if not check.passed)
        moved = config.force or not failed
        forced = config.force and bool(failed)
        with clock.phase("log"):
            record(
                context,
                comparison,
                metrics,
                f"{'does not pass' if failed else 'passes'} as {config.alias}",
            )

        if moved:
            facts = {"why": failed or checks[-1].what, "run": context.run.id}
            move_alias(
                client, name, config.alias, version, before=before, facts=facts, forced=forced
            )
        else:
            problem = TipcastError("M020", uri, f"does not get {config.alias}: {failed}", FIX)
            context.run.set_tags(error_tags(problem))

        context.run.set_tags({"promote.moved": str(moved).lower()})
        context.run.log_metrics(
            {f"seconds/{phase}": value for phase, value in clock.seconds.items()}
        )

    outcome = {
        "model_uri": uri,
        "alias": config.alias,
        "moved": moved,
        "forced": forced,
        "holder": before,
    }
    results = {check.name: {"passed": check.passed, "what": check.what} for check in checks}
    result = context.result(**outcome, checks=results, metrics=metrics, phases=clock.seconds)
    verdicts = {
        check.name: f"{'passed' if check.passed else 'FAILED'}  {check.what}" for check in checks
    }
    holds = (
        f"still version {before or 'none'}"
        if problem
        else f"version {version} now{', forced' if forced else ''}"
    )
    lines = (
        verdicts
        | {config.alias: holds}
        | {name: result[name] for name in ("metrics", "phases", "command")}
    )

    return say(result, config.print, lines=lines, problem=problem)


def fetch_candidate(client: Any, config: PromoteConfig, uri: str, folder: Path) -> Candidate:
    """Fetch a registered version and what the store has of it; M021 for one that cannot be
    compared.
    """
    folder.mkdir()
    fetched = fetch(client, uri, folder, root=config.tracking.artifact_root)
    if fetched.name is None or fetched.version is None:
        fix = "use models:/NAME/VERSION, which tracking.register=NAME makes"
        raise TipcastError(
            "M021", uri, "is not the address of a version, which an alias names", fix
        )
    return Candidate(fetched, client.get_run(fetched.run_id))


def compare(
    client: Any,
    config: PromoteConfig,
    command: str,
    challenger: Candidate,
    before: str | None,
    folder: Path,
) -> Comparison:
    """Fetch the champion, list the rows that both are tested on, and check what needs no score.

    Where they cannot be compared, as when they answer unlike questions, the challenger is scored
    alone.
    """
    data = config.data
    fetched = challenger.fetched
    run = challenger.run

    if data.source == TESTED:  # what the version's run read, with limits of the command line
        text = config_text(client, fetched.run_id, "name the test rows: data=... data.test=...")
        limited = [
            key.rpartition(".")[2] for key in given_keys(command) if key.startswith("data.limits.")
        ]
        limits = {name: getattr(config.data.limits, name) for name in limited}
        data = tested(text, config.data, f"run {fetched.run_id}")
        data = dataclasses.replace(data, limits=dataclasses.replace(data.limits, **limits))

    # Only a checked registration writes the tag: a version that MLflow's own calls made lacks it.
    checked = MANIFEST_TAG in client.get_model_version(fetched.name, fetched.version).tags
    what = (
        "model file and manifest are as registered"
        if checked
        else f"its tag {MANIFEST_TAG} is not there"
    )
    status = run.info.status
    checks = [
        Check("run", status == "FINISHED", f"its run is {status}"),
        Check("digests", checked, what),
    ]
    candidates = [challenger]
    question = challenger.question

    if before is not None:
        try:
            champion = fetch_candidate(
                client, config, f"models:/{fetched.name}/{before}", folder / "champion"
            )
            other = champion.question  # numbers of unlike questions have nothing in common
            why = (
                ""
                if other == question
                else f"it answers another question: {question} against {other}"
            )
        except TipcastError as problem:
            if problem.code[0] != "M":
                raise
            why = f"version {before} cannot be compared with: {problem.what}"

        candidates += [] if why else [champion]
        checks.append(Check("champion", not why, why or question))

    dataset = open_dataset(data)
    test_share = dataset.test_share if isinstance(dataset, Tabular) else 0.0
    draw = split.Draw(int(run.data.params.get("seed", 0)), test_share, parts=("test",))
    recipes = test_recipes(dataset, [candidate.fetched.manifest for candidate in candidates], draw)
    columns = dict.fromkeys(name for recipe in recipes for name in recipe.columns)
    optional = dict.fromkeys(name for recipe in recipes for name in recipe.optional)
    test = dataset.scan("test", tuple(columns), tuple(optional))
    for note in (*test.notes, *identical(test.fragments)):
        LOG.warning(note)

    checks.insert(0, check_test_rows(candidates, test))  # the first that a refusal names
    period = "all times" if test.period is None else split.describe(test.period)
    return Comparison(candidates, checks, test, recipes, data.limits, period)


def test_recipes(
    dataset: Dataset, manifests: Sequence[Mapping[str, Any]], draw: split.Draw
) -> list[Recipe]:
    """Return what is made of the test rows for each version; versions that read alike share the
    features of both.
    """
    question = manifests[0]
    trained = [as_trained(dataset, manifest) for manifest in manifests]
    recipes = []

    for version in trained:
        alike = [
            manifest for manifest, other in zip(manifests, trained, strict=True) if other == version
        ]
        features = dict.fromkeys(feature for manifest in alike for feature in manifest["features"])
        task = from_facts(question["task"], tuple(features), question["target"])
        recipes.append(Recipe(version, task, draw=draw if draw.test else None))

    return recipes


def check_test_rows(candidates: Sequence[Candidate], test: Listing) -> Check:
    """Check that no version was trained or validated on the test rows: it has learnt their labels.

    Of rows without a time all must be trained on other files, or have held out the same rows of
    these.
    """
    if test.period is None:
        trained = [
            candidate
            for candidate in candidates
            if candidate.fetched.manifest["data_digest"] == test.digest
        ]
        draws = {
            (
                task["kind"],
                *sorted(task.get("classes") or ()),
                params.get("seed"),
                params.get("data.test_share"),
            )
            for task, params in (
                (version.fetched.manifest["task"], version.run.data.params) for version in trained
            )
        }
        what = "held out by the same draw" if trained else "of other files than what was trained"
        if len(draws) > 1:
            names = " and ".join(f"version {version.fetched.version}" for version in trained)
            what = f"{names} were tested on other rows of the same files"

        return Check("test rows", len(draws) < 2, what)

    seen = [
        f"version {candidate.fetched.version} was trained on {split.describe(period)}"
        for candidate in candidates
        if (period := candidate.fetched.seen(test.info.to_manifest())) is not None
        and split.overlap(period, test.period)
    ]
    what = (
        f"not all of {split.describe(test.period)} is new: {', '.join(seen)}"
        if seen
        else "new to what was trained"
    )
    return Check("test rows", not seen, what)


def score(workers: Session, config: PromoteConfig, comparison: Comparison) -> dict[str, float]:
    """Score the same rows with both versions and add the last check; return the metrics, the
    difference first.
    """
    client = workers.client
    listing = comparison.test
    checks = comparison.checks
    judge = evaluator(comparison.recipes[0].task.kind)
    evaluations = comparison.evaluations
    previous = None
    predictions = list[Any]()

    for candidate, recipe in zip(comparison.candidates, comparison.recipes, strict=True):
        fetched = candidate.fetched
        if recipe != previous:  # the codes of its categories are its own
            previous = recipe
            reading = rows.start(workers, listing, recipe)
            with progress("read", reading):
                test = collect(workers, listing, recipe, reading, comparison.limits, ("test",))[
                    "test"
                ]

        with progress("score"):
            names = list(fetched.manifest["features"])
            x = client.map(partial(_columns, names=names), test.x, pure=False, key="columns")
            held = hold(client, fetched.path, fetched.format, workers.device)
            predictions.append(predict(client, held, x))
            threshold = fetched.manifest["threshold"]
            answers = truth(client, held, dataclasses.replace(test, x=x))
            evaluations.append(
                judge.evaluate(
                    client, predictions[-1], answers, threshold=threshold, where="data.test"
                )
            )

    metrics = {}
    if len(evaluations) == 1:
        checks.append(Check("comparison", True, "there is no champion to compare with"))
    elif not test.y:
        checks.append(
            Check("comparison", False, "there is no target that both could be compared by")
        )
    else:
        parts = Parts((*predictions, test.y), client)
        headline = judge.headline
        value, interval = judge.difference(parts, (evaluations[0], evaluations[1]))
        key = f"difference/{headline.name}"
        sign = -1 if headline.maximize else 1
        metrics = {key: value, **bounds(interval, key)}
        limit = f"{'at least' if headline.maximize else 'at most'} {sign * config.margin:g}"
        what = f"{headline.label} {interval.around(value, SIGNED)}, {limit}"
        checks.append(Check("comparison", sign * value <= config.margin, what))

    for side, evaluation in zip(("challenger", "champion"), evaluations, strict=False):
        metrics |= {f"{side}/{name}": value for name, value in evaluation.shown.items()}

    return {**metrics, "test/rows": float(evaluations[0].rows)}


# Dask makes a task of a large argument, and waits for it for ever
def _columns(x: Any, names: list[str]) -> Any:
    return x if list(x.columns) == names else x[names]


def record(
    context: RunContext, comparison: Comparison, metrics: Mapping[str, float], outcome: str
) -> None:
    """Record both versions' metrics on the same rows, the leading figure, the checks and the
    note.
    """
    run = context.run
    test = comparison.test
    period = comparison.period
    fetched = comparison.candidates[0].fetched
    judge = evaluator(fetched.kind)
    number = comparison.evaluations[0].rows
    run.log_metrics(metrics)
    profile = {"rows": number, "period": period, "files": len(test.uris)}
    run.log_dataset(test.uris[0], test.digest, f"{test.name} {period}", "test", profile)
    names = [f"version {candidate.fetched.version}" for candidate in comparison.candidates]
    drawn = dict(zip(names, comparison.evaluations, strict=True))
    path, picture = next(
        judge.figures(
            drawn, f"{number:,} {test.name}, {period}", comparison.recipes[0].task.classes
        )
    )
    run.log_bytes(picture, path)
    results = {True: "passed", False: "failed"}
    checks = [
        {"check": name, "result": results[passed], "what": what}
        for name, passed, what in comparison.checks
    ]
    parts = [
        f"### {fetched.name}: version {fetched.version} {outcome}",
        report.plot(run.id, judge.figure),
        context.table(checks, "tables/gate.json"),
        f"Scored on the same rows of {period}.",
        report.repeat(context.command, context.code.remark),
    ]
    run.note("\n\n".join(parts))
