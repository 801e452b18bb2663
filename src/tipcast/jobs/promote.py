"""`tipcast promote`: move an alias to a registered version that is not worse than the one that holds it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tipcast.compute.base import Session
from tipcast.compute.session import check as check_session
from tipcast.compute.session import session
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import PromoteConfig
from tipcast.config.plain import tested, to_plain
from tipcast.config.schema import DataSpec, Limits, Output
from tipcast.datasets import rows
from tipcast.datasets.base import Listing
from tipcast.datasets.listing import identical
from tipcast.datasets.registry import open_dataset
from tipcast.datasets.rows import Recipe
from tipcast.datasets.split import held_out
from tipcast.evaluation import plots, report
from tipcast.evaluation.base import SHOWN, Evaluation, Evaluator, evaluator
from tipcast.evaluation.paired import Difference
from tipcast.jobs import closing, promote_gate
from tipcast.jobs.opening import opened
from tipcast.jobs.promote_gate import Check, Contest, Entrant
from tipcast.jobs.sweep_plan import given_keys
from tipcast.jobs.train import collect
from tipcast.measure import origin
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.models.base import NativeFile
from tipcast.models.fit import hold_saved, predict
from tipcast.tasks.base import from_facts
from tipcast.tracking import registry
from tipcast.tracking.facts import config_text
from tipcast.tracking.models import Fetched, fetch, versions_of
from tipcast.tracking.run import Run
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")
TESTED = "tested"
"""The source that stands for the one that the version's run read."""
PARAMS = ("model_uri", "alias", "margin", "certain", "replicates", "force", "seed")


def run(config: PromoteConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    _check(config)
    clock = Clock()
    client = open_store(config.tracking)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        with clock.phase("fetch"), failures(resolve(config.tracking)):
            challenger = _entrant(client, config, config.model_uri, folder / "challenger")
            name, version, uri = challenger.fetched.name, str(challenger.fetched.version), challenger.fetched.uri
            before = registry.alias_holder(client, str(name), config.alias)
            if before == version:
                LOG.info("%s holds %s already", uri, config.alias)
                return closing.say({"model_uri": uri, "alias": config.alias, "moved": False}, config.print)
            data = _data(client, config, challenger.fetched.run_id, command)
            contest = _contest(client, config, data, challenger, before, folder)
        plain = to_plain(config)
        params = {name: plain[name] for name in PARAMS} | {"test_period": contest.period}
        tags = {"model": uri, "data.test_digest": contest.test.digest[:16]}
        run = opened(config, command, job="promote", name=f"promote {version}", params=params, tags=tags)
        record = stack.enter_context(run)
        with clock.phase("cluster") as facts:
            workers = stack.enter_context(session(config.backend, config.cluster))
            facts.append(workers.size)
        record.set_tags(workers.tags)
        with clock.phase("score"):
            contest = _rescored(workers, config, contest)
        with clock.phase("log"):
            _record(record, config, contest, command)
        problem, tags = None, {"promote.moved": "true"}
        if contest.passed or config.force:
            told, forced = {"why": contest.why, "run": record.id}, not contest.passed
            registry.move_alias(client, str(name), config.alias, version, before=before, facts=told, forced=forced)
        else:
            fix = "mend what failed, or move it all the same with force=true"
            problem = TipcastError("M020", uri, f"does not get {config.alias}: {contest.why}", fix)
            tags = {"promote.moved": "false", "error.code": problem.code, "error.message": str(problem)}
        record.log_metrics({f"seconds/{name}": value for name, value in clock.seconds.items()})
        record.set_tags(tags)
    said = {
        "run_id": record.id,
        "experiment_id": record.experiment_id,
        "run": record.link,
        "model_uri": uri,
        "alias": config.alias,
        "moved": problem is None,
        "forced": problem is None and not contest.passed,
        "holder": before,
        "checks": {check.name: {"passed": check.passed, "what": check.what} for check in contest.checks},
        "metrics": contest.metrics,
        "phases": clock.seconds,
        "command": command,
    }
    _say(said, config, contest)
    if problem:
        raise problem
    return said


def _check(config: PromoteConfig) -> None:
    """Refuse what no store and no worker is needed to refuse."""
    registry.check_alias(config.alias)
    check_session(config.backend, config.cluster)


def _entrant(client: Any, config: PromoteConfig, uri: str, folder: Path) -> Entrant:
    """Fetch a registered version and what the store knows of it."""
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
    return Entrant(fetched, trained.info.status, trained.data.metrics, version.tags, trained.data.params)


def _contest(
    client: Any, config: PromoteConfig, data: DataSpec, challenger: Entrant, before: str | None, folder: Path
) -> Contest:
    """Fetch the champion, list the rows that both are tested on, and check what needs no score."""
    checks, champion = promote_gate.known(challenger), None
    if before is not None:
        try:
            champion = _entrant(client, config, f"models:/{challenger.fetched.name}/{before}", folder / "champion")
        except TipcastError as problem:
            if problem.code[0] != "M":
                raise
            checks.append(Check("champion", False, f"version {before} cannot be compared with: {problem.what}"))
    entrants = [challenger, *([champion] if champion else [])]
    checks.append(promote_gate.target(entrants))
    test, recipe = rows_to_test_on([each.fetched for each in entrants], data, int(challenger.params.get("seed", 0)))
    for note in (*test.notes, *identical(test.fragments)):
        LOG.warning(note)
    if champion:
        checks.append(promote_gate.data(challenger, champion, test))
    checks.insert(0, promote_gate.unseen(entrants, test))  # the first that a refusal names
    return Contest(tuple(entrants), before, tuple(checks), test, recipe, data.limits)


def _data(client: Any, config: PromoteConfig, run_id: str | None, command: str) -> DataSpec:
    """Return where the test rows come from: unless one is named, the source and limits of the version's run."""
    if config.data.source != TESTED:
        return config.data
    text = config_text(client, run_id, "name the test rows: data=... data.test=...")
    found, limit = tested(text, config.data, f"run {run_id}"), "data.limits."
    given = [key.removeprefix(limit) for key in given_keys(command) if key.startswith(limit)]
    limits = dataclasses.replace(found.limits, **{name: getattr(config.data.limits, name) for name in given})
    return dataclasses.replace(found, limits=limits)


@dataclass(frozen=True)
class Scored:
    """Several models' predictions of the same rows, on the workers, and how good they are."""

    client: Any
    judge: Evaluator
    test: rows.Rows
    predictions: Sequence[Sequence[Any]]
    evaluations: Sequence[Evaluation]

    def difference(self, one: int, other: int, *, replicates: int, seed: int) -> Difference:
        """Return the headline of one model less that of another, see ``Evaluator.difference``."""
        return self.judge.difference(
            self.client,
            (self.predictions[one], self.predictions[other]),
            self.test.y,
            (self.evaluations[one], self.evaluations[other]),
            parts=self.test.parts,
            replicates=replicates,
            seed=seed,
        )


def score_all(workers: Session, models: Sequence[Fetched], listing: Listing, recipe: Recipe, limits: Limits) -> Scored:
    """Read rows with all features that the models have, score them with each, and evaluate each."""
    client, judge = workers.client, evaluator(models[0].kind)
    prepared = rows.start(workers, listing, recipe)
    with progress("read", prepared):
        test = collect(workers, listing, recipe, prepared, limits, ("test",))["test"]
    predictions, found = [], []
    with progress("score"):
        for model in models:
            x = client.map(partial(_columns, names=list(model.manifest["features"])), test.x, pure=False, key="columns")
            held = hold_saved(client, NativeFile(model.path, model.format), workers.device)
            predictions.append(predict(client, held, x))
            threshold, truth = model.manifest["threshold"], test.y or x
            found.append(judge.evaluate(client, predictions[-1], truth, threshold=threshold, where="data.test"))
    return Scored(client, judge, test, predictions, found)


def rows_to_test_on(models: Sequence[Fetched], data: DataSpec, seed: int) -> tuple[Listing, Recipe]:
    """Find the test rows of models that answer the same question; ``seed`` is that of the first's draw of them."""
    features = tuple(dict.fromkeys(feature for model in models for feature in model.manifest["features"]))
    dataset, manifest = open_dataset(data), models[0].manifest
    task = from_facts(manifest["task"], features, manifest["target"])
    recipe = Recipe(dataset, task, draw=held_out(dataset.test_share, seed))
    return recipe.scan("test"), recipe


def _rescored(workers: Session, config: PromoteConfig, contest: Contest) -> Contest:
    """Score the same rows with both versions, compare them, and add the answer to the gate's."""
    models = [entrant.fetched for entrant in contest.entrants]
    scored = score_all(workers, models, contest.test, contest.recipe, contest.limits)
    found, difference = scored.evaluations, None
    if len(found) == 2 and scored.test.y:
        difference = scored.difference(0, 1, replicates=config.replicates, seed=config.seed)
    contest = dataclasses.replace(contest, evaluations=tuple(found), difference=difference)
    compared = promote_gate.compared(contest, config.margin, certain=config.certain)
    return dataclasses.replace(contest, checks=(*contest.checks, compared))


def _columns(x: Any, names: list[str]) -> Any:  # Dask makes a task of a large argument, and waits for it for ever
    return x if list(x.columns) == names else x[names]


def _record(record: Run, config: PromoteConfig, contest: Contest, command: str) -> None:
    """Record both versions' metrics on the same rows, figures, the gate's answers and the note."""
    test, period, judge = contest.test, contest.period, contest.judge
    many = contest.evaluations[0].rows
    record.log_metrics(contest.metrics)
    profile = {"rows": many, "period": period, "files": len(test.uris)}
    record.log_dataset(test.uris[0], test.digest, f"{test.name} {period}", "test", profile)
    subtitle, names = f"{many:,} {test.name}, {period}", [entrant.name for entrant in contest.entrants]
    evaluations = dict(zip(names, contest.evaluations, strict=True))
    path, drawn = next(judge.figures(evaluations, subtitle, contest.recipe.task.classes))
    report.log_figure(record.log_bytes, drawn, path)
    if contest.difference:
        first, second = names
        drawn = plots.difference(
            contest.difference, config.margin, subtitle, metric=judge.headline, first=first, second=second
        )
        record.log_bytes(drawn, f"plots/{judge.headline.name}_difference.png")
    gate = {
        "check": [check.name for check in contest.checks],
        "result": ["passed" if check.passed else "failed" for check in contest.checks],
        "what": [check.what for check in contest.checks],
    }
    record.log_table(gate, "tables/gate.json")
    record.set_tags({"promote.passed": str(contest.passed).lower(), "promote.holder": contest.before or "none"})
    outcome, fetched = "passes" if contest.passed else "does not pass", contest.challenger.fetched
    answers = [[check.name, "passed" if check.passed else "**failed**", check.what] for check in contest.checks]
    parts = [
        f"### {fetched.name}: version {fetched.version} {outcome} as {config.alias}",
        report.plot(record.id, judge.figure),
        report.table(*_compared(contest)),
        report.table(["check", "result", "what"], answers),
        f"Scored on the same rows of {period}. {judge.interval_remark} {judge.difference_remark}",
        *(
            f"The code that trained {entrant.name} had uncommitted changes on commit "
            f"`{entrant.manifest['git_commit']}`: artifact `{origin.DIFF}` of its run `{entrant.fetched.run_id}`."
            for entrant in contest.entrants
            if entrant.manifest.get("git_dirty")
        ),
        report.repeat(command, origin.source().remark),
    ]
    record.note("\n\n".join(parts))


def _compared(contest: Contest) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of the table of metrics."""
    first, names = contest.evaluations[0], [f"challenger, {contest.challenger.name}"]
    headline, *others = list(first.shown())[:SHOWN]
    lines = [[headline, first.interval.around(first.headline, 5)]]
    lines += [[name, f"{first.metrics[name]:.5f}"] for name in others]
    if contest.champion is None:
        return ["test metric", *names], lines
    second, difference = contest.evaluations[1], contest.difference
    apart = f"{first.headline - second.headline:+.5f}"
    if difference:
        apart = f"{difference.value:+.5f} ({difference.interval.low:+.5f} to {difference.interval.high:+.5f})"
    lines[0] += [second.interval.around(second.headline, 5), apart]
    for line in lines[1:]:
        mine, theirs = first.metrics[line[0]], second.metrics[line[0]]
        line += [f"{theirs:.5f}", f"{mine - theirs:+.5f}"]
    return ["test metric", *names, f"champion, {contest.champion.name}", "difference"], lines


def _say(said: Mapping[str, Any], config: PromoteConfig, contest: Contest) -> None:
    """Print both versions' metrics, the gate's answers and how it ended, or all of it as JSON."""
    if config.print is not Output.text:
        closing.say(said, config.print)
        return
    head, lines = _compared(contest)
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        print("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]))
    width = max(len(check.name) for check in contest.checks)
    print()
    for check in contest.checks:
        print(f"{check.name:<{width}}  {'passed' if check.passed else 'FAILED'}  {check.what}")
    print()
    held = f"version {contest.before}" if contest.before else "no version"
    now = f"{contest.challenger.name} now" if said["moved"] else f"still {held}"
    told = {config.alias: now + (", forced" if said["forced"] else "")}
    closing.say(told | {name: said[name] for name in ("run", "phases", "command")}, config.print)
