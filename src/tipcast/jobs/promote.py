"""`tipcast promote`: move an alias to a registered version that is not worse than the one that holds it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tipcast.compute.base import Session
from tipcast.compute.session import check as check_session
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.plain import tested
from tipcast.config.schema import Limits, PromoteConfig
from tipcast.datasets import rows, split
from tipcast.datasets.base import Listing
from tipcast.datasets.listing import identical
from tipcast.datasets.registry import dataset_of, open_dataset
from tipcast.datasets.rows import Recipe
from tipcast.evaluation import plots, report
from tipcast.evaluation.base import SHOWN, Evaluation, Evaluator, bounds, evaluator
from tipcast.evaluation.paired import Difference
from tipcast.evaluation.sums import Parts
from tipcast.jobs import closing
from tipcast.jobs.run_context import run_context
from tipcast.jobs.sweep_plan import given_keys
from tipcast.jobs.train_plan import collect
from tipcast.jobs.train_record import params
from tipcast.measure import origin
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.models.base import NativeFile
from tipcast.models.fit import hold_saved, predict
from tipcast.tasks.base import from_facts
from tipcast.tracking import registry
from tipcast.tracking.facts import config_text
from tipcast.tracking.models import Fetched, fetch, versions_of
from tipcast.tracking.portable import TOLERANCE
from tipcast.tracking.run import Run
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")
TESTED = "tested"
"""The source that stands for the one that the version's run read."""
PARAMS = ("model_uri", "alias", "margin", "certain", "replicates", "force", "seed")
NEEDED = ("task", "trained_until", "train_period", "threshold", "target")
"""Keys of a manifest that a comparison reads."""
HUGE = 1e300
"""MLflow stores an infinite metric as the largest number there is."""


@dataclass(frozen=True)
class Candidate:
    """A registered version, and what the store says of it."""

    fetched: Fetched
    status: str
    """Of the run that trained it."""
    metrics: Mapping[str, float]
    """Of that run."""
    tags: Mapping[str, str]
    """Of the version."""
    params: Mapping[str, str]
    """Of that run."""

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"version {self.fetched.version}"

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the model says of itself."""
        return self.fetched.manifest


@dataclass(frozen=True)
class Check:
    """One question of the gate and its answer."""

    name: str
    passed: bool
    what: str


@dataclass
class Comparison:
    """A version and the champion, which holds the alias, whatever that is called, on rows that both score."""

    candidates: Sequence[Candidate]
    """The challenger, and the champion if there is one that can be compared."""
    checks: list[Check]
    test: Listing
    recipe: Recipe
    limits: Limits
    evaluations: list[Evaluation] = field(default_factory=list)
    """Of the candidates, once they have scored."""
    difference: Difference | None = None
    """Challenger less champion; None where there is no champion to compare with, or it cannot be."""

    @property
    def judge(self) -> Evaluator:
        """What predictions are judged by."""
        return evaluator(self.candidates[0].fetched.kind)

    @property
    def period(self) -> str:
        """Of the test rows, in words."""
        return "all times" if self.test.period is None else split.describe(self.test.period)

    @property
    def passed(self) -> bool:
        """Whether every answer is yes."""
        return all(check.passed for check in self.checks)

    @property
    def why(self) -> str:
        """One line: what failed, or how the versions compare."""
        failed = [f"{check.name}: {check.what}" for check in self.checks if not check.passed]
        return "; ".join(failed) or self.checks[-1].what

    @property
    def metrics(self) -> dict[str, float]:
        """The difference first."""
        found: dict[str, float] = {}
        if self.difference:
            key = f"difference/{self.judge.headline.name}"
            found = {key: self.difference.value, **bounds(self.difference.interval, key)}
        for side, each in zip(("challenger", "champion"), self.evaluations, strict=False):
            found |= {f"{side}/{name}": value for name, value in list(each.shown().items())[:SHOWN]}
        return {**found, "test/rows": float(self.evaluations[0].rows)}


def run(config: PromoteConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    registry.check_alias(config.alias)
    check_session(config.backend, config.cluster)
    clock = Clock()
    client = open_store(config.tracking)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        with clock.phase("fetch"), failures(resolve(config.tracking)):
            challenger = fetch_candidate(client, config, config.model_uri, folder / "challenger")
            name, version, uri = str(challenger.fetched.name), str(challenger.fetched.version), challenger.fetched.uri
            before = registry.alias_holder(client, name, config.alias)
            if before == version:
                LOG.info("%s holds %s already", uri, config.alias)
                return closing.say({"model_uri": uri, "alias": config.alias, "moved": False}, config.print)
            comparison = compare(client, config, command, challenger, before, folder)
        known = params(config, PARAMS) | {"test_period": comparison.period}
        tags = {"model": uri, "data.test_digest": comparison.test.digest[:16]}
        opened = run_context(
            config, command, job="promote", name=f"promote {version}", params=known, tags=tags, clock=clock
        )
        context = stack.enter_context(opened)
        workers = context.start_workers()
        with clock.phase("score"):
            score(workers, config, comparison)
        with clock.phase("log"):
            record(context.run, config, comparison, command)
        problem, tags = None, {"promote.moved": "true"}
        if comparison.passed or config.force:
            facts, forced = {"why": comparison.why, "run": context.run.id}, not comparison.passed
            registry.move_alias(client, name, config.alias, version, before=before, facts=facts, forced=forced)
        else:
            fix = "mend what failed, or move it all the same with force=true"
            problem = TipcastError("M020", uri, f"does not get {config.alias}: {comparison.why}", fix)
            tags = {"promote.moved": "false", "error.code": problem.code, "error.message": str(problem)}
        context.run.log_metrics({f"seconds/{name}": value for name, value in clock.seconds.items()})
        context.run.set_tags(tags)
    result = context.result(
        model_uri=uri,
        alias=config.alias,
        moved=problem is None,
        forced=problem is None and not comparison.passed,
        holder=before,
        checks={check.name: {"passed": check.passed, "what": check.what} for check in comparison.checks},
        metrics=comparison.metrics,
        phases=clock.seconds,
    )
    lines = {check.name: f"{'passed' if check.passed else 'FAILED'}  {check.what}" for check in comparison.checks}
    by_force = ", forced" if result["forced"] else ""
    lines[config.alias] = f"still version {before or 'none'}" if problem else f"version {version} now{by_force}"
    shown = {name: result[name] for name in ("metrics", "run", "phases", "command")}
    return closing.say(result, config.print, lines={**lines, **shown}, problem=problem)


def fetch_candidate(client: Any, config: PromoteConfig, uri: str, folder: Path) -> Candidate:
    """Fetch a registered version and what the store knows of it; M021 for one that cannot be compared."""
    folder.mkdir()
    fetched = fetch(client, uri, folder, root=config.tracking.artifact_root)
    if fetched.name is None or fetched.version is None:
        known = versions_of(client, fetched)
        what = "is named by no version, as an alias is" if known else "is not registered, so no alias can name it"
        raise TipcastError("M021", uri, what, f"use {known[0]}" if known else "train with tracking.register=NAME")
    if lacking := [key for key in NEEDED if key not in fetched.manifest]:
        raise TipcastError("M021", fetched.uri, f"its manifest has no {lacking[0]}", "train and register it again")
    version = client.get_model_version(fetched.name, fetched.version)
    trained = client.get_run(fetched.run_id)
    return Candidate(fetched, trained.info.status, trained.data.metrics, version.tags, trained.data.params)


def compare(
    client: Any, config: PromoteConfig, command: str, challenger: Candidate, before: str | None, folder: Path
) -> Comparison:
    """Fetch the champion, list the rows that both are tested on, and check what needs no score."""
    data, run_id = config.data, challenger.fetched.run_id
    if data.source == TESTED:  # what the version's run read, with limits of the command line
        text = config_text(client, run_id, "name the test rows: data=... data.test=...")
        prefix = "data.limits."
        given = [key.removeprefix(prefix) for key in given_keys(command) if key.startswith(prefix)]
        own = {name: getattr(config.data.limits, name) for name in given}
        data = tested(text, config.data, f"run {run_id}")
        data = dataclasses.replace(data, limits=dataclasses.replace(data.limits, **own))
    candidates, checks = [challenger], known(challenger)
    if before is not None:
        uri = f"models:/{challenger.fetched.name}/{before}"
        try:
            candidates.append(fetch_candidate(client, config, uri, folder / "champion"))
        except TipcastError as problem:
            if problem.code[0] != "M":
                raise
            checks.append(Check("champion", False, f"version {before} cannot be compared with: {problem.what}"))
    targets = dict.fromkeys(str(each.manifest["target"]) for each in candidates)
    checks.append(Check("target", len(targets) == 1, " against ".join(targets)))
    dataset, manifest = open_dataset(data), challenger.manifest
    features = dict.fromkeys(feature for each in candidates for feature in each.manifest["features"])
    task = from_facts(manifest["task"], tuple(features), manifest["target"])
    draw = split.held_out(dataset.test_share, int(challenger.params.get("seed", 0)))
    recipe = Recipe(dataset, task, draw=draw)
    test = recipe.scan("test")
    for note in (*test.notes, *identical(test.fragments)):
        LOG.warning(note)
    if len(candidates) > 1:  # on rows of another dataset, as of green taxis, a model is a guess
        one, other = (
            {"dataset": dataset_of(each.manifest).name} | {name: str(each.manifest.get(name)) for name in test.facts}
            for each in candidates
        )
        apart = [f"{one[name]} against {other[name]}" for name in one if one[name] != other[name]]
        same = "both of " + ", ".join(f"{name} {value}" for name, value in one.items())
        checks.append(Check("data", not apart, "; ".join(apart) or same))
    checks.insert(0, unseen(candidates, test))  # the first that a refusal names
    return Comparison(candidates, checks, test, recipe, data.limits)


def known(candidate: Candidate) -> list[Check]:
    """Check what training and registering have left, and the files' digests against what the registry has kept."""
    fetched, tags = candidate.fetched, candidate.tags
    tests = {name: value for name, value in candidate.metrics.items() if name.startswith("test/")}
    odd = [f"{name} is not finite" for name, value in tests.items() if not abs(value) < HUGE]
    headline = f"test/{evaluator(fetched.kind).headline.name}"
    if headline not in tests:
        odd = [f"there is no {headline}"]
    parity = candidate.metrics.get("parity/max_abs_diff", float("nan"))
    apart = f"scores differ from the estimator's by {parity:.2g}, {TOLERANCE:g} may be"
    digests = {"sha256": fetched.sha256, registry.MANIFEST_TAG: fetched.manifest_sha256}
    wrong = [
        f"its tag {name} is {tags.get(name, 'not there')[:16]}, its file's {digest[:16]}"
        for name, digest in digests.items()
        if tags.get(name) != digest
    ]
    wrong += [
        f"no {name} in its manifest" for name in ("data_digest", "data_test_digest") if not candidate.manifest.get(name)
    ]
    return [
        Check("run", candidate.status == "FINISHED", f"its run is {candidate.status}"),
        Check("metrics", not odd, odd[0] if odd else f"{len(tests)} test metrics are finite"),
        Check("parity", parity <= TOLERANCE, apart),
        Check("digests", not wrong, wrong[0] if wrong else "model file and manifest are as registered"),
    ]


def unseen(candidates: Sequence[Candidate], test: Listing) -> Check:
    """Check that no version was trained or validated on the test rows: it has learnt their labels.

    Of rows without a time all must be trained on other files, or have held out the same rows of these.
    """
    if test.period is None:
        trained = [each for each in candidates if each.manifest["data_digest"] == test.digest]
        draws = {tuple(each.params.get(name) for name in ("seed", "data.test_share")) for each in trained}
        what = "held out by the same draw" if trained else "of other files than what was trained"
        if len(draws) > 1:
            what = f"{' and '.join(each.name for each in trained)} were tested on other rows of the same files"
        return Check("test rows", len(draws) < 2, what)
    periods = [(each.name, each.fetched.seen(test.facts)) for each in candidates]
    seen = [
        f"{name} was trained on {split.describe(period)}"
        for name, period in periods
        if period is not None and split.overlap(period, test.period)
    ]
    what = f"not all of {split.describe(test.period)} is new: {', '.join(seen)}" if seen else "new to what was trained"
    return Check("test rows", not seen, what)


def score(workers: Session, config: PromoteConfig, comparison: Comparison) -> None:
    """Score the same rows with both versions, evaluate and compare them, and add the answer to the gate's."""
    client, judge, listing, recipe = workers.client, comparison.judge, comparison.test, comparison.recipe
    reading = rows.start(workers, listing, recipe)
    with progress("read", reading):
        test = collect(workers, listing, recipe, reading, comparison.limits, ("test",))["test"]
    predictions: list[Any] = []
    evaluations = comparison.evaluations
    with progress("score"):
        for manifest, fetched in ((each.manifest, each.fetched) for each in comparison.candidates):
            x = client.map(partial(_columns, names=list(manifest["features"])), test.x, pure=False, key="columns")
            held = hold_saved(client, NativeFile(fetched.path, fetched.format), workers.device)
            predictions.append(predict(client, held, x))
            threshold, truth = manifest["threshold"], test.y or x
            evaluations.append(judge.evaluate(client, predictions[-1], truth, threshold=threshold, where="data.test"))
    if len(evaluations) == 1:
        comparison.checks.append(Check("comparison", True, "there is no champion to compare with"))
        return
    if not test.y:
        what = "there is no target that both could be compared by"
        comparison.checks.append(Check("comparison", False, what))
        return
    found = comparison.difference = judge.difference(
        Parts((*predictions, test.y), client),
        (evaluations[0], evaluations[1]),
        replicates=config.replicates,
        seed=config.seed,
    )
    headline, margin = judge.headline, config.margin
    limit = f"at least {-margin:g}" if headline.maximize else f"at most {margin:g}"
    what = f"{headline.title} {found.value:+.5f} ({found.interval.low:+.5f} to {found.interval.high:+.5f}), {limit}"
    what += " with its whole interval" if config.certain else ""
    passed = found.gain(headline.maximize, certain=config.certain) >= -margin
    comparison.checks.append(Check("comparison", passed, what))


def _columns(x: Any, names: list[str]) -> Any:  # Dask makes a task of a large argument, and waits for it for ever
    return x if list(x.columns) == names else x[names]


def record(run: Run, config: PromoteConfig, comparison: Comparison, command: str) -> None:
    """Record both versions' metrics on the same rows, figures, the gate's answers and the note."""
    test, period, judge, difference = comparison.test, comparison.period, comparison.judge, comparison.difference
    first, *others = evaluations = comparison.evaluations
    names = [each.name for each in comparison.candidates]
    run.log_metrics(comparison.metrics)
    profile = {"rows": first.rows, "period": period, "files": len(test.uris)}
    run.log_dataset(test.uris[0], test.digest, f"{test.name} {period}", "test", profile)
    subtitle = f"{first.rows:,} {test.name}, {period}"
    drawn = judge.figures(dict(zip(names, evaluations, strict=True)), subtitle, comparison.recipe.task.classes)
    path, picture = next(drawn)
    report.log_figure(run.log_bytes, picture, path)
    if difference:
        metric = judge.headline
        picture = plots.difference(difference, config.margin, subtitle, metric=metric, first=names[0], second=names[1])
        run.log_bytes(picture, f"plots/{metric.name}_difference.png")
    checks = [(check.name, "passed" if check.passed else "failed", check.what) for check in comparison.checks]
    head = ("check", "result", "what")
    run.log_table(dict(zip(head, zip(*checks, strict=True), strict=True)), "tables/gate.json")
    # A column of metrics for each version, the headline first, and one of their difference.
    headline, *metrics = list(first.shown())[:SHOWN]
    title, columns = ["test metric"], [[headline, *metrics]]
    for side, name, each in zip(("challenger", "champion"), names, evaluations, strict=False):
        title.append(f"{side}, {name}")
        columns.append([each.interval.around(each.headline, 5), *(f"{each.metrics[name]:.5f}" for name in metrics)])
    for second in others:
        apart = f"{first.headline - second.headline:+.5f}"
        if difference:
            interval = difference.interval
            apart = f"{difference.value:+.5f} ({interval.low:+.5f} to {interval.high:+.5f})"
        title.append("difference")
        columns.append([apart, *(f"{first.metrics[name] - second.metrics[name]:+.5f}" for name in metrics)])
    fetched, outcome = comparison.candidates[0].fetched, "passes" if comparison.passed else "does not pass"
    parts = [
        f"### {fetched.name}: version {fetched.version} {outcome} as {config.alias}",
        report.plot(run.id, judge.figure),
        report.table(title, list(zip(*columns, strict=True))),
        report.table(head, [[name, result.replace("failed", "**failed**"), what] for name, result, what in checks]),
        f"Scored on the same rows of {period}. {judge.interval_remark} {judge.difference_remark}",
        report.repeat(command, origin.source().remark),
    ]
    run.note("\n\n".join(parts))
