"""`tipcast promote`: move an alias to a registered version that is not worse than the one that holds it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tipcast.compute.base import Session
from tipcast.compute.session import check as check_session
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import PromoteConfig
from tipcast.config.plain import tested
from tipcast.config.schema import DataSpec, Output
from tipcast.datasets import rows
from tipcast.datasets.listing import identical
from tipcast.datasets.registry import open_dataset
from tipcast.datasets.rows import Recipe
from tipcast.datasets.split import held_out
from tipcast.evaluation import plots, report
from tipcast.evaluation.base import SHOWN, Evaluation
from tipcast.evaluation.sums import Parts
from tipcast.jobs import closing, promote_gate
from tipcast.jobs.promote_gate import Candidate, Check, Comparison
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
from tipcast.tracking.models import fetch, versions_of
from tipcast.tracking.run import Run
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")
TESTED = "tested"
"""The source that stands for the one that the version's run read."""
PARAMS = ("model_uri", "alias", "margin", "certain", "replicates", "force", "seed")


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
            data = data_to_test_on(client, config, challenger.fetched.run_id, command)
            comparison = compare(client, config, data, challenger, before, folder)
        known = params(config, PARAMS) | {"test_period": comparison.period}
        tags = {"model": uri, "data.test_digest": comparison.test.digest[:16]}
        opened = run_context(
            config, command, job="promote", name=f"promote {version}", params=known, tags=tags, clock=clock
        )
        context = stack.enter_context(opened)
        workers = context.start_workers()
        with clock.phase("score"):
            comparison = score(workers, config, comparison)
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
    if config.print is Output.text:
        show(comparison)
    moved, held = result["moved"], f"version {before}" if before else "no version"
    now = f"version {version} now{', forced' if result['forced'] else ''}" if moved else f"still {held}"
    lines = {config.alias: now, **{name: result[name] for name in ("run", "phases", "command")}}
    return closing.say(result, config.print, lines=lines, problem=problem)


def fetch_candidate(client: Any, config: PromoteConfig, uri: str, folder: Path) -> Candidate:
    """Fetch a registered version and what the store knows of it; M021 for one that cannot be compared."""
    folder.mkdir()
    fetched = fetch(client, uri, folder, root=config.tracking.artifact_root)
    if fetched.name is None or fetched.version is None:
        known = versions_of(client, fetched)
        what = "is named by no version, as an alias is" if known else "is not registered, so no alias can name it"
        raise TipcastError("M021", uri, what, f"use {known[0]}" if known else "train with tracking.register=NAME")
    version = client.get_model_version(fetched.name, fetched.version)
    trained = client.get_run(fetched.run_id)
    for key in ("task", "trained_until", "train_period", "threshold", "target"):
        if key not in fetched.manifest:
            raise TipcastError("M021", fetched.uri, f"its manifest has no {key}", "train and register it again")
    return Candidate(fetched, trained.info.status, trained.data.metrics, version.tags, trained.data.params)


def data_to_test_on(client: Any, config: PromoteConfig, run_id: str | None, command: str) -> DataSpec:
    """Return where the test rows come from: unless one is named, the source and limits of the version's run."""
    if config.data.source != TESTED:
        return config.data
    text = config_text(client, run_id, "name the test rows: data=... data.test=...")
    found, limit = tested(text, config.data, f"run {run_id}"), "data.limits."
    given = [key.removeprefix(limit) for key in given_keys(command) if key.startswith(limit)]
    limits = dataclasses.replace(found.limits, **{name: getattr(config.data.limits, name) for name in given})
    return dataclasses.replace(found, limits=limits)


def compare(
    client: Any, config: PromoteConfig, data: DataSpec, challenger: Candidate, before: str | None, folder: Path
) -> Comparison:
    """Fetch the champion, list the rows that both are tested on, and check what needs no score."""
    candidates, checks = [challenger], promote_gate.known(challenger)
    if before is not None:
        uri = f"models:/{challenger.fetched.name}/{before}"
        try:
            candidates.append(fetch_candidate(client, config, uri, folder / "champion"))
        except TipcastError as problem:
            if problem.code[0] != "M":
                raise
            checks.append(Check("champion", False, f"version {before} cannot be compared with: {problem.what}"))
    checks.append(promote_gate.target(candidates))
    dataset, manifest = open_dataset(data), challenger.manifest
    features = dict.fromkeys(feature for each in candidates for feature in each.manifest["features"])
    task = from_facts(manifest["task"], tuple(features), manifest["target"])
    recipe = Recipe(dataset, task, draw=held_out(dataset.test_share, int(challenger.params.get("seed", 0))))
    test = recipe.scan("test")
    for note in (*test.notes, *identical(test.fragments)):
        LOG.warning(note)
    if len(candidates) > 1:
        checks.append(promote_gate.data(candidates, test))
    checks.insert(0, promote_gate.unseen(candidates, test))  # the first that a refusal names
    return Comparison(tuple(candidates), before, tuple(checks), test, recipe, data.limits)


def score(workers: Session, config: PromoteConfig, comparison: Comparison) -> Comparison:
    """Score the same rows with both versions, evaluate and compare them, and add the answer to the gate's."""
    client, judge, listing, recipe = workers.client, comparison.judge, comparison.test, comparison.recipe
    reading = rows.start(workers, listing, recipe)
    with progress("read", reading):
        test = collect(workers, listing, recipe, reading, comparison.limits, ("test",))["test"]
    predictions: list[Any] = []
    evaluations: list[Evaluation] = []
    with progress("score"):
        for manifest, fetched in ((each.manifest, each.fetched) for each in comparison.candidates):
            x = client.map(partial(_columns, names=list(manifest["features"])), test.x, pure=False, key="columns")
            held = hold_saved(client, NativeFile(fetched.path, fetched.format), workers.device)
            predictions.append(predict(client, held, x))
            threshold, truth = manifest["threshold"], test.y or x
            evaluations.append(judge.evaluate(client, predictions[-1], truth, threshold=threshold, where="data.test"))
    difference = None
    if len(evaluations) == 2 and test.y:
        difference = judge.difference(
            Parts((*predictions, test.y), client),
            (evaluations[0], evaluations[1]),
            replicates=config.replicates,
            seed=config.seed,
        )
    scored = dataclasses.replace(comparison, evaluations=tuple(evaluations), difference=difference)
    answer = promote_gate.compared(scored, config.margin, certain=config.certain)
    return dataclasses.replace(scored, checks=(*scored.checks, answer))


def _columns(x: Any, names: list[str]) -> Any:  # Dask makes a task of a large argument, and waits for it for ever
    return x if list(x.columns) == names else x[names]


def record(run: Run, config: PromoteConfig, comparison: Comparison, command: str) -> None:
    """Record both versions' metrics on the same rows, figures, the gate's answers and the note."""
    test, period, judge, candidates = comparison.test, comparison.period, comparison.judge, comparison.candidates
    number, names = comparison.evaluations[0].rows, [each.name for each in candidates]
    run.log_metrics(comparison.metrics)
    profile = {"rows": number, "period": period, "files": len(test.uris)}
    run.log_dataset(test.uris[0], test.digest, f"{test.name} {period}", "test", profile)
    subtitle, evaluations = f"{number:,} {test.name}, {period}", dict(zip(names, comparison.evaluations, strict=True))
    path, drawn = next(judge.figures(evaluations, subtitle, comparison.recipe.task.classes))
    report.log_figure(run.log_bytes, drawn, path)
    if found := comparison.difference:
        metric, (first, second) = judge.headline, names
        drawn = plots.difference(found, config.margin, subtitle, metric=metric, first=first, second=second)
        run.log_bytes(drawn, f"plots/{metric.name}_difference.png")
    checks = [(check.name, "passed" if check.passed else "failed", check.what) for check in comparison.checks]
    head = ("check", "result", "what")
    run.log_table(dict(zip(head, zip(*checks, strict=True), strict=True)), "tables/gate.json")
    run.set_tags({"promote.passed": str(comparison.passed).lower(), "promote.holder": comparison.before or "none"})
    outcome, fetched = "passes" if comparison.passed else "does not pass", comparison.challenger.fetched
    metrics, *lines = metric_table(comparison)
    parts = [
        f"### {fetched.name}: version {fetched.version} {outcome} as {config.alias}",
        report.plot(run.id, judge.figure),
        report.table(metrics, lines),
        report.table(head, [[name, result.replace("failed", "**failed**"), what] for name, result, what in checks]),
        f"Scored on the same rows of {period}. {judge.interval_remark} {judge.difference_remark}",
        *(
            f"The code that trained {each.name} had uncommitted changes on commit "
            f"`{each.manifest['git_commit']}`: artifact `{origin.DIFF}` of its run `{each.fetched.run_id}`."
            for each in candidates
            if each.manifest.get("git_dirty")
        ),
        report.repeat(command, origin.source().remark),
    ]
    run.note("\n\n".join(parts))


def metric_table(comparison: Comparison) -> list[list[str]]:
    """Return head and lines of the table of metrics: a column for each version, and one for their difference."""
    first, *others = comparison.evaluations
    headline, *names = list(first.shown())[:SHOWN]
    table = [["test metric", f"challenger, {comparison.challenger.name}"]]
    table += [[headline, first.interval.around(first.headline, 5)]]
    table += [[name, f"{first.metrics[name]:.5f}"] for name in names]
    for second in others:
        apart = f"{first.headline - second.headline:+.5f}"
        if found := comparison.difference:
            apart = f"{found.value:+.5f} ({found.interval.low:+.5f} to {found.interval.high:+.5f})"
        table[0] += [f"champion, {comparison.candidates[1].name}", "difference"]
        table[1] += [second.interval.around(second.headline, 5), apart]
        for line, name in zip(table[2:], names, strict=True):
            line += [f"{second.metrics[name]:.5f}", f"{first.metrics[name] - second.metrics[name]:+.5f}"]
    return table


def show(comparison: Comparison) -> None:
    """Print both versions' metrics and the gate's answers."""
    table = metric_table(comparison)
    first, *others = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join([line[0].ljust(first), *map(str.rjust, line[1:], others)]))
    width = max(len(check.name) for check in comparison.checks)
    print()
    for check in comparison.checks:
        print(f"{check.name:<{width}}  {'passed' if check.passed else 'FAILED'}  {check.what}")
    print()
