"""`tipcast promote`: move an alias to a registered version that is not worse than the one that holds it."""

from __future__ import annotations

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
from tipcast.datasets.base import Listing
from tipcast.datasets.listing import identical
from tipcast.datasets.registry import dataset_of, open_dataset
from tipcast.datasets.rows import Recipe
from tipcast.evaluation import evaluator, report
from tipcast.evaluation.base import SHOWN, Evaluation, bounds
from tipcast.evaluation.sums import Difference, Parts
from tipcast.jobs import say
from tipcast.jobs.run_context import RunContext, run_context, run_names
from tipcast.jobs.sweep_plan import given_keys
from tipcast.jobs.train_plan import collect
from tipcast.jobs.train_record import params
from tipcast.measure import origin
from tipcast.measure.progress import Clock, progress
from tipcast.models.base import NativeFile
from tipcast.models.fit import hold_saved, predict
from tipcast.tasks.base import from_facts
from tipcast.tracking.models import Fetched, alias_holder, check_alias, fetch, move_alias
from tipcast.tracking.portable import MANIFEST_TAG
from tipcast.tracking.run import config_text, error_tags
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
    def name(self) -> str:
        """What tables call it."""
        return f"version {self.fetched.version}"

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the model says of itself."""
        return self.fetched.manifest

    @property
    def question(self) -> str:
        """What it answers, on which rows: on those of another dataset a model is a guess."""
        facts = [f"{name} {self.manifest[name]}" for name in FACTS if self.manifest.get(name)]
        kind, target = self.fetched.kind, self.manifest["target"]
        return ", ".join([f"{kind} of {target}", dataset_of(self.manifest).name, *facts])


class Check(NamedTuple):
    """A check of the gate."""

    name: str
    passed: bool
    what: str


@dataclass
class Comparison:
    """The challenger, the champion if there is one that can be compared, and the rows that both score."""

    candidates: Sequence[Candidate]
    checks: list[Check]
    test: Listing
    recipe: Recipe
    limits: Limits
    evaluations: list[Evaluation] = field(default_factory=list)
    """Of the candidates, once they have scored."""
    difference: Difference | None = None
    """Challenger less champion; None where there is no champion to compare with, or it cannot be."""

    @property
    def period(self) -> str:
        """Of the test rows, in words."""
        return "all times" if self.test.period is None else split.describe(self.test.period)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def why(self) -> str:
        """One line: what failed, or how the versions compare."""
        failed = [f"{check.name}: {check.what}" for check in self.checks if not check.passed]
        return "; ".join(failed) or self.checks[-1].what

    @property
    def metrics(self) -> dict[str, float]:
        """The difference first."""
        metrics: dict[str, float] = {}
        if self.difference:
            key = f"difference/{evaluator(self.candidates[0].fetched.kind).headline.name}"
            metrics = {key: self.difference.value, **bounds(self.difference.interval, key)}
        for side, evaluation in zip(("challenger", "champion"), self.evaluations, strict=False):
            metrics |= {f"{side}/{name}": value for name, value in evaluation.shown(SHOWN).items()}
        return {**metrics, "test/rows": float(self.evaluations[0].rows)}


def run(config: PromoteConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    check_alias(config.alias)
    clock = Clock()
    client = open_store(config.tracking)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        with clock.phase("fetch"), failures(resolve(config.tracking)):
            challenger = fetch_candidate(client, config, config.model_uri, folder / "challenger")
            name, version, uri = str(challenger.fetched.name), str(challenger.fetched.version), challenger.fetched.uri
            before = alias_holder(client, name, config.alias)
            if before == version:
                LOG.info("%s holds %s already", uri, config.alias)
                return say({"model_uri": uri, "alias": config.alias, "moved": False}, config.print)
            comparison = compare(client, config, command, challenger, before, folder)
        recorded = params(config, PARAMS) | {"test_period": comparison.period}
        (title,), tags = run_names([(f"{name} {version}", command)], "promote "), {"model": uri}
        opened = run_context(config, command, job="promote", name=title, params=recorded, tags=tags, clock=clock)
        context = stack.enter_context(opened)
        workers = context.start_workers()
        with clock.phase("score"):
            score(workers, config, comparison)
        with clock.phase("log"):
            record(context, config, comparison)
        problem, forced = None, config.force and not comparison.passed
        if comparison.passed or forced:
            facts = {"why": comparison.why, "run": context.run.id}
            move_alias(client, name, config.alias, version, before=before, facts=facts, forced=forced)
            context.run.set_tags({"promote.moved": "true"})
        else:
            problem = TipcastError("M020", uri, f"does not get {config.alias}: {comparison.why}", FIX)
            context.run.set_tags({"promote.moved": "false", **error_tags(problem)})
        context.run.log_metrics({f"seconds/{name}": value for name, value in clock.seconds.items()})
    result = context.result(
        model_uri=uri,
        alias=config.alias,
        moved=problem is None,
        forced=forced,
        holder=before,
        checks={check.name: {"passed": check.passed, "what": check.what} for check in comparison.checks},
        metrics=comparison.metrics,
        phases=clock.seconds,
    )
    verdicts = {check.name: f"{'passed' if check.passed else 'FAILED'}  {check.what}" for check in comparison.checks}
    holds = f"still version {before or 'none'}" if problem else f"version {version} now{', forced' if forced else ''}"
    lines = verdicts | {config.alias: holds} | {name: result[name] for name in ("metrics", "phases", "command")}
    return say(result, config.print, lines=lines, problem=problem)


def fetch_candidate(client: Any, config: PromoteConfig, uri: str, folder: Path) -> Candidate:
    """Fetch a registered version and what the store has of it; M021 for one that cannot be compared."""
    folder.mkdir()
    fetched = fetch(client, uri, folder, root=config.tracking.artifact_root)
    if fetched.name is None or fetched.version is None:
        fix = "use models:/NAME/VERSION, which tracking.register=NAME makes"
        raise TipcastError("M021", uri, "is not the address of a version, which an alias names", fix)
    return Candidate(fetched, client.get_run(fetched.run_id))


def compare(
    client: Any, config: PromoteConfig, command: str, challenger: Candidate, before: str | None, folder: Path
) -> Comparison:
    """Fetch the champion, list the rows that both are tested on, and check what needs no score.

    Where they cannot be compared, as when they answer unlike questions, the challenger is scored alone.
    """
    data, run_id = config.data, challenger.fetched.run_id
    if data.source == TESTED:  # what the version's run read, with limits of the command line
        text = config_text(client, run_id, "name the test rows: data=... data.test=...")
        limited = [key.rpartition(".")[2] for key in given_keys(command) if key.startswith("data.limits.")]
        limits = {name: getattr(config.data.limits, name) for name in limited}
        data = tested(text, config.data, f"run {run_id}")
        data = dataclasses.replace(data, limits=dataclasses.replace(data.limits, **limits))
    candidates, checks = [challenger], check_training(client, challenger)
    if before is not None:
        question, why, uri = challenger.question, "", f"models:/{challenger.fetched.name}/{before}"
        try:
            champion = fetch_candidate(client, config, uri, folder / "champion")
        except TipcastError as problem:
            if problem.code[0] != "M":
                raise
            why = f"version {before} cannot be compared with: {problem.what}"
        else:
            if champion.question == question:
                candidates.append(champion)
            else:  # their numbers have nothing in common
                why = f"it answers another question: {question} against {champion.question}"
        checks.append(Check("champion", not why, why or question))
    dataset, manifest = open_dataset(data), challenger.manifest
    features = dict.fromkeys(feature for candidate in candidates for feature in candidate.manifest["features"])
    task = from_facts(manifest["task"], tuple(features), manifest["target"])
    draw = split.Draw(int(challenger.run.data.params.get("seed", 0)), dataset.test_share, parts=("test",))
    recipe = Recipe(dataset, task, draw=draw if draw.test else None)
    test = recipe.scan("test")
    for note in (*test.notes, *identical(test.fragments)):
        LOG.warning(note)
    checks.insert(0, check_test_rows(candidates, test))  # the first that a refusal names
    return Comparison(candidates, checks, test, recipe, data.limits)


def check_training(client: Any, candidate: Candidate) -> list[Check]:
    """Check the end of its run, and for the tag that only a checked registration writes."""
    fetched, status = candidate.fetched, candidate.run.info.status
    checked = MANIFEST_TAG in client.get_model_version(fetched.name, fetched.version).tags
    what = "model file and manifest are as registered" if checked else f"its tag {MANIFEST_TAG} is not there"
    return [Check("run", status == "FINISHED", f"its run is {status}"), Check("digests", checked, what)]


def check_test_rows(candidates: Sequence[Candidate], test: Listing) -> Check:
    """Check that no version was trained or validated on the test rows: it has learnt their labels.

    Of rows without a time all must be trained on other files, or have held out the same rows of these.
    """
    if test.period is None:
        trained = [candidate for candidate in candidates if candidate.manifest["data_digest"] == test.digest]
        draws = {
            (task["kind"], *sorted(task.get("classes") or ()), params.get("seed"), params.get("data.test_share"))
            for task, params in ((each.manifest["task"], each.run.data.params) for each in trained)
        }
        what = "held out by the same draw" if trained else "of other files than what was trained"
        if len(draws) > 1:
            what = f"{' and '.join(each.name for each in trained)} were tested on other rows of the same files"
        return Check("test rows", len(draws) < 2, what)
    seen = [
        f"{candidate.name} was trained on {split.describe(period)}"
        for candidate in candidates
        if (period := candidate.fetched.seen(test.facts)) is not None and split.overlap(period, test.period)
    ]
    what = f"not all of {split.describe(test.period)} is new: {', '.join(seen)}" if seen else "new to what was trained"
    return Check("test rows", not seen, what)


def score(workers: Session, config: PromoteConfig, comparison: Comparison) -> None:
    """Score the same rows with both versions, evaluate and compare them, and add the last check."""
    client, listing, recipe, checks = workers.client, comparison.test, comparison.recipe, comparison.checks
    judge, evaluations = evaluator(comparison.candidates[0].fetched.kind), comparison.evaluations
    dataset, predictions = None, list[Any]()
    for manifest, fetched in ((candidate.manifest, candidate.fetched) for candidate in comparison.candidates):
        trained = recipe.dataset.as_trained(manifest)
        if trained != dataset:  # the codes of its categories are its own
            dataset, own = trained, dataclasses.replace(recipe, dataset=trained)
            reading = rows.start(workers, listing, own)
            with progress("read", reading):
                test = collect(workers, listing, own, reading, comparison.limits, ("test",))["test"]
        with progress("score"):
            x = client.map(partial(_columns, names=list(manifest["features"])), test.x, pure=False, key="columns")
            held = hold_saved(client, NativeFile(fetched.path, fetched.format), workers.device)
            predictions.append(predict(client, held, x))
            threshold, truth = manifest["threshold"], test.y or x
            evaluations.append(judge.evaluate(client, predictions[-1], truth, threshold=threshold, where="data.test"))
    if len(evaluations) == 1:
        checks.append(Check("comparison", True, "there is no champion to compare with"))
    elif not test.y:
        checks.append(Check("comparison", False, "there is no target that both could be compared by"))
    else:
        parts, both = Parts((*predictions, test.y), client), (evaluations[0], evaluations[1])
        difference = judge.difference(parts, both)
        headline, margin, comparison.difference = judge.headline, config.margin, difference
        limit = f"at least {-margin:g}" if headline.maximize else f"at most {margin:g}"
        what = f"{headline.label} {difference.interval.around(difference.value, SIGNED)}, {limit}"
        passed = (difference.value if headline.maximize else -difference.value) >= -margin
        checks.append(Check("comparison", passed, what))


def _columns(x: Any, names: list[str]) -> Any:  # Dask makes a task of a large argument, and waits for it for ever
    return x if list(x.columns) == names else x[names]


def record(context: RunContext, config: PromoteConfig, comparison: Comparison) -> None:
    """Record both versions' metrics on the same rows, figures, the checks and the note."""
    run, test, period = context.run, comparison.test, comparison.period
    fetched, evaluations = comparison.candidates[0].fetched, comparison.evaluations
    names = [candidate.name for candidate in comparison.candidates]
    judge, first = evaluator(fetched.kind), evaluations[0]
    run.log_metrics(comparison.metrics)
    profile = {"rows": first.rows, "period": period, "files": len(test.uris)}
    run.log_dataset(test.uris[0], test.digest, f"{test.name} {period}", "test", profile)
    subtitle = f"{first.rows:,} {test.name}, {period}"
    drawn = judge.figures(dict(zip(names, evaluations, strict=True)), subtitle, comparison.recipe.task.classes)
    path, picture = next(drawn)
    run.log_bytes(picture, path)
    checks = [
        {"check": check.name, "result": "passed" if check.passed else "failed", "what": check.what}
        for check in comparison.checks
    ]
    outcome = "passes" if comparison.passed else "does not pass"
    parts = [
        f"### {fetched.name}: version {fetched.version} {outcome} as {config.alias}",
        report.plot(run.id, judge.figure),
        context.table(checks, "tables/gate.json"),
        f"Scored on the same rows of {period}.",
        report.repeat(context.command, origin.source().remark),
    ]
    run.note("\n\n".join(parts))
