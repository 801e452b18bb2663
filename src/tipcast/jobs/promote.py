"""`tipcast promote`: move an alias to a registered version that is not worse than the one that holds it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tipcast.compute.base import Session
from tipcast.compute.session import check as check_session
from tipcast.compute.session import session
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import PromoteConfig
from tipcast.config.plain import to_plain
from tipcast.config.schema import DataSpec, Output
from tipcast.config.stored import tested
from tipcast.config.temporary import temporary_folder
from tipcast.datasets import rows
from tipcast.datasets.listing import identical
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.registry import open_dataset
from tipcast.evaluation import plots, report
from tipcast.evaluation.base import SHOWN, bounds
from tipcast.jobs import closing, opening, promote_gate
from tipcast.jobs.promote_gate import Check, Contest, Entrant, Rescored, Verdict
from tipcast.jobs.training import held_out_draw
from tipcast.measure import origin
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.models.base import NativeFile
from tipcast.models.predict import predict_saved
from tipcast.tasks.base import from_facts
from tipcast.tracking import registry
from tipcast.tracking.facts import CONFIG
from tipcast.tracking.models import Fetched, fetch, versions_of
from tipcast.tracking.run import Run
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")
TESTED = "tested"
"""The source that stands for the one that the version's run read."""
PARAMS = ("model_uri", "alias", "margin", "certain", "replicates", "force", "seed")


def run(config: PromoteConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says.

    Raises
    ------
    TipcastError
        M020 where the gate does not pass and ``force`` is not set; M021 a model that is not registered; M022 an alias
        that moved meanwhile; M023 test rows that are not known.

    """
    check(config)
    clock = Clock()
    client = open_store(config.tracking)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        with clock.phase("fetch"), failures(resolve(config.tracking)):
            challenger = _entrant(client, config, config.model_uri, folder / "challenger")
            name, version = str(challenger.fetched.name), str(challenger.fetched.version)
            before = registry.alias_holder(client, name, config.alias)
            contest = None if before == version else set_up(client, config, challenger, before, folder)
        if contest is None:
            LOG.info("%s holds %s already", challenger.fetched.uri, config.alias)
            held = {"model_uri": challenger.fetched.uri, "alias": config.alias, "moved": False}
            return closing.say(held, config.print)
        record = stack.enter_context(_opened(config, contest, command))
        with clock.phase("cluster") as facts:
            workers = stack.enter_context(session(config.backend, config.cluster))
            facts.append(workers.size)
        record.set_tags(workers.tags)
        with clock.phase("score"):
            rescored = rescore(workers, config, contest)
        compared = promote_gate.compared(contest, rescored, config.margin, certain=config.certain)
        verdict = Verdict(contest, (*contest.checks, compared), rescored)
        with clock.phase("log"):
            write(record, config, verdict, command)
        problem = refusal(config, verdict)
        if problem is None:
            registry.move_alias(
                client,
                name,
                config.alias,
                version,
                before=before,
                facts={"why": verdict.why, "run": record.id},
                forced=not verdict.passed,
            )
        _close(record, clock.seconds, moved=problem is None, problem=problem)
    result = say(record, config, verdict, clock.seconds, command, moved=problem is None)
    if problem:
        raise problem
    return result


def check(config: PromoteConfig) -> None:
    """Refuse what no store and no worker is needed to refuse."""
    registry.check_alias(config.alias)
    for name, value, least in (("margin", config.margin, 0), ("replicates", config.replicates, 100)):
        if not value >= least:
            raise TipcastError("C003", name, f"{value} is too little", f"use {least} or more")
    if not 0 <= config.seed < 2**31:
        raise TipcastError("C003", "seed", f"{config.seed} is no seed of every library", "use 0 to 2147483647")
    check_session(config.backend, config.cluster)


def set_up(client: Any, config: PromoteConfig, challenger: Entrant, before: str | None, folder: Path) -> Contest:
    """Fetch the champion, and list the rows that both are tested on."""
    name = challenger.fetched.name
    checks, champion = promote_gate.known(challenger), None
    if before is not None:
        try:
            champion = _entrant(client, config, f"models:/{name}/{before}", folder / "champion")
        except TipcastError as problem:
            if problem.code[0] != "M":
                raise
            checks.append(Check("champion", False, f"version {before} cannot be compared with: {problem.what}"))
    entrants = [challenger, *([champion] if champion else [])]
    checks.append(promote_gate.target(entrants))
    features = tuple(dict.fromkeys(feature for entrant in entrants for feature in entrant.features))
    dataset = open_dataset(_data(client, config, challenger.fetched))
    task = from_facts(challenger.manifest["task"], features, challenger.manifest["target"])
    recipe = Recipe(dataset, task, draw=held_out_draw(dataset, int(challenger.params.get("seed", 0))))
    test = dataset.scan("test", recipe.columns)
    for note in (*test.notes, *identical(test.fragments)):
        LOG.warning(note)
    if champion:
        checks.append(promote_gate.data(challenger, champion, test))
    checks.insert(0, promote_gate.unseen(entrants, test))  # the first that a refusal names
    return Contest(challenger, before, champion, tuple(checks), test, recipe)


def _entrant(client: Any, config: PromoteConfig, uri: str, folder: Path) -> Entrant:
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


def _data(client: Any, config: PromoteConfig, fetched: Fetched) -> DataSpec:
    if config.data.source != TESTED:
        return config.data
    where = f"run {fetched.run_id}"
    try:
        text = Path(client.download_artifacts(fetched.run_id, CONFIG)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise TipcastError(
            "M023", where, f"its {CONFIG} cannot be read", "name the test rows: data=... data.test=..."
        ) from problem
    return tested(text, config.data, where)


def rescore(workers: Session, config: PromoteConfig, contest: Contest) -> Rescored:
    """Score the same rows with both versions, and compare them."""
    client, judge = workers.client, contest.challenger.judge
    prepared = rows.start(workers, contest.test, contest.recipe)
    with progress("read", prepared):
        loaded = rows.collect(workers, contest.test, contest.recipe, prepared)
    rows.check_counts(contest.test, loaded.per_file, contest.recipe, config.data.limits)
    (test,) = loaded.splits
    rows.check_split("data.test", test.counts, contest.recipe.task, config.data.limits)
    scores, found = [], []
    with progress("score"):
        for entrant in contest.entrants:
            x = client.map(_columns, test.x, names=entrant.features, pure=False, key="columns")
            native = NativeFile(entrant.fetched.path, entrant.fetched.format)
            scores.append(predict_saved(client, native, workers.device, x))
            threshold, truth = entrant.manifest["threshold"], test.y or x
            found.append(judge.evaluate(client, scores[-1], truth, threshold=threshold, where="data.test"))
        if len(found) == 1 or not test.y:
            return Rescored(found[0], found[1] if len(found) > 1 else None, None)
        first, second = found
        compared = judge.difference(
            client,
            (scores[0], scores[1]),
            test.y,
            (first, second),
            parts=test.parts,
            replicates=config.replicates,
            seed=config.seed,
        )
        return Rescored(first, second, compared)


def _columns(x: Any, names: list[str]) -> Any:
    return x if list(x.columns) == names else x[names]


def refusal(config: PromoteConfig, verdict: Verdict) -> TipcastError | None:
    """Return why the alias stays where it is; None where it moves."""
    if verdict.passed or config.force:
        return None
    return TipcastError(
        "M020",
        verdict.contest.challenger.fetched.uri,
        f"does not get {config.alias}: {verdict.why}",
        "mend what failed, or move it all the same with force=true",
    )


# What the run records: the gate's answers, both versions' metrics on the same rows, plots and a note


@contextlib.contextmanager
def _opened(config: PromoteConfig, contest: Contest, command: str) -> Iterator[Run]:
    """Open the run with what is known before any worker starts."""
    plain, fetched = to_plain(config), contest.challenger.fetched
    params = {name: plain[name] for name in PARAMS} | {"test_period": contest.period}
    tags = {"model": fetched.uri, "data.test_digest": contest.test.digest[:16]}
    name = f"promote {fetched.version}"
    with opening.opened(config, command, job="promote", name=name, params=params, tags=tags) as record:
        yield record


def write(record: Run, config: PromoteConfig, verdict: Verdict, command: str) -> None:
    """Record metrics, plots, the gate's table and the note."""
    contest, period = verdict.contest, verdict.contest.period
    test, many = contest.test, verdict.rescored.challenger.rows
    record.log_metrics(_metrics(verdict))
    profile = {"rows": many, "period": period, "files": len(test.uris)}
    record.log_dataset(test.uris[0], test.digest, f"{test.name} {period}", "test", profile)
    _plots(record, config, verdict, f"{many:,} {test.name} of {period}")
    gate = [(check.name, "passed" if check.passed else "failed", check.what) for check in verdict.checks]
    names, results, said = zip(*gate, strict=True)
    record.log_table({"check": names, "result": results, "what": said}, "tables/gate.json")
    record.set_tags({"promote.passed": str(verdict.passed).lower(), "promote.holder": contest.before or "none"})
    record.note(_note(record, config, verdict, command))


def _metrics(verdict: Verdict) -> dict[str, float]:
    rescored, key = verdict.rescored, f"difference/{verdict.contest.challenger.judge.headline.name}"
    found: dict[str, float] = {}
    if rescored.difference:
        found = {key: rescored.difference.value, **bounds(rescored.difference.interval, key)}
    for side, each in (("challenger", rescored.challenger), ("champion", rescored.champion)):
        if each:
            found |= {f"{side}/{name}": value for name, value in list(each.shown().items())[:SHOWN]}
    return {**found, "test/rows": float(rescored.challenger.rows)}


def _plots(record: Run, config: PromoteConfig, verdict: Verdict, subtitle: str) -> None:
    contest, rescored, judge = verdict.contest, verdict.rescored, verdict.contest.challenger.judge
    first, second = contest.challenger.name, contest.champion.name if contest.champion else ""
    found = {first: rescored.challenger} | ({second: rescored.champion} if rescored.champion else {})
    lead = judge.lead(found, subtitle, contest.recipe.task.classes)
    record.log_bytes(lead, judge.figure)
    record.log_bytes(plots.small(lead), report.small_name(judge.figure))
    if rescored.difference:
        names = {"first": first, "second": second}
        drawn = plots.difference(rescored.difference, config.margin, subtitle, metric=judge.headline, **names)
        record.log_bytes(drawn, f"plots/{judge.headline.name}_difference.png")


def _note(record: Run, config: PromoteConfig, verdict: Verdict, command: str) -> str:
    contest, fetched = verdict.contest, verdict.contest.challenger.fetched
    outcome, judge = "passes" if verdict.passed else "does not pass", contest.challenger.judge
    head = f"### {fetched.name}: version {fetched.version} {outcome} as {config.alias}"
    gate = [[check.name, "passed" if check.passed else "**failed**", check.what] for check in verdict.checks]
    parts = [
        head,
        report.plot(record.id, judge.figure),
        report.table(*_compared(verdict)),
        report.table(["check", "result", "what"], gate),
        f"Scored on the same rows of {contest.period}. {judge.interval_remark} {judge.difference_remark}",
        *filter(None, map(_changed, contest.entrants)),
        report.repeat(command, origin.source().remark),
    ]
    return "\n\n".join(parts)[: report.MAX_NOTE]


def _changed(entrant: Entrant) -> str:
    """Return what is said of a version that no commit gives back; nothing of others."""
    if not entrant.manifest.get("git_dirty"):
        return ""
    return (
        f"The code that trained {entrant.name} had uncommitted changes on commit `{entrant.manifest['git_commit']}`: "
        f"artifact `{origin.DIFF}` of its run `{entrant.fetched.run_id}`."
    )


def _compared(verdict: Verdict) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of the table of metrics."""
    contest, rescored = verdict.contest, verdict.rescored
    first, second, between = rescored.challenger, rescored.champion, rescored.difference
    headline, *names = list(first.shown())[:SHOWN]
    head, own = ["test metric", f"challenger, {contest.challenger.name}"], first.interval.around(first.headline, 5)
    if second is None or contest.champion is None:
        return head, [[headline, own], *([name, f"{first.metrics[name]:.5f}"] for name in names)]
    apart = f"{first.headline - second.headline:+.5f}"
    if between:
        apart = f"{between.value:+.5f} ({between.interval.low:+.5f} to {between.interval.high:+.5f})"
    lines = [[headline, own, second.interval.around(second.headline, 5), apart]]
    for name in names:
        mine, theirs = first.metrics[name], second.metrics[name]
        lines.append([name, f"{mine:.5f}", f"{theirs:.5f}", f"{mine - theirs:+.5f}"])
    return [*head, f"champion, {contest.champion.name}", "difference"], lines


def _close(record: Run, phases: Mapping[str, float], *, moved: bool, problem: TipcastError | None) -> None:
    """Record how it ended."""
    record.log_metrics({f"seconds/{name}": value for name, value in phases.items()})
    record.set_tags({"promote.moved": str(moved).lower()})
    if problem:
        record.set_tags({"error.code": problem.code, "error.message": problem})


def say(
    record: Run, config: PromoteConfig, verdict: Verdict, phases: Mapping[str, float], command: str, *, moved: bool
) -> Mapping[str, Any]:
    """Print the table, or all of it as JSON; return all of it."""
    contest, forced = verdict.contest, moved and not verdict.passed
    result = {
        "run_id": record.id,
        "experiment_id": record.experiment_id,
        "run": record.link,
        "model_uri": contest.challenger.fetched.uri,
        "alias": config.alias,
        "moved": moved,
        "forced": forced,
        "holder": contest.before,
        "checks": {check.name: {"passed": check.passed, "what": check.what} for check in verdict.checks},
        "metrics": _metrics(verdict),
        "phases": phases,
        "command": command,
    }
    if config.print is not Output.text:
        return closing.say(result, config.print)
    print("\n".join([*_table(verdict), ""]), flush=True)
    before = f"version {contest.before}" if contest.before else "no version"
    now = f"{contest.challenger.name} now" if moved else f"still {before}"
    told = {config.alias: now + (", forced" if forced else "")}
    closing.say(told | {name: result[name] for name in ("run", "phases", "command")}, config.print)
    return result


def _table(verdict: Verdict) -> list[str]:
    """Return the lines that people read: both versions' metrics, and the gate's answers."""
    head, lines = _compared(verdict)
    cells = [head, *lines]
    widths = [max(len(line[at]) for line in cells) for at in range(len(head))]
    text = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in cells]
    width = max(len(check.name) for check in verdict.checks)
    answers = [f"{each.name:<{width}}  {'passed' if each.passed else 'FAILED'}  {each.what}" for each in verdict.checks]
    return [*text, "", *answers]
