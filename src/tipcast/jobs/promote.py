"""`tipcast promote`: move an alias to a registered version that is not worse than the one that holds it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tipcast.backends.base import Session
from tipcast.backends.session import check as check_session
from tipcast.backends.session import session
from tipcast.config.errors import TipcastError
from tipcast.config.schema import DataSpec, Output, PromoteConfig
from tipcast.config.stored import tested
from tipcast.config.temporary import temporary_folder
from tipcast.data import rows
from tipcast.data.base import Listing
from tipcast.data.listing import identical
from tipcast.data.prepare import Recipe
from tipcast.data.registry import open_dataset
from tipcast.estimators.base import NativeFile
from tipcast.estimators.predict import predict_saved
from tipcast.evaluation.base import evaluator, judged_by
from tipcast.jobs import closing, promote_gate, promote_record
from tipcast.jobs.promote_gate import Check, Entrant, Rescored
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress
from tipcast.tasks.base import from_facts
from tipcast.tracking import aliases
from tipcast.tracking.facts import CONFIG
from tipcast.tracking.models import Fetched, fetch, versions_of
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")
TESTED = "tested"
"""The source that stands for the one that the version's run read."""


@dataclass(frozen=True)
class Contest:
    """A version, the champion, which holds the alias, whatever that is called, and the rows that both score."""

    challenger: Entrant
    before: str | None
    """Version that holds the alias."""
    champion: Entrant | None
    """None where there is none, or none that can be compared."""
    checks: tuple[Check, ...]
    """What has been found out without scoring."""
    test: Listing
    recipe: Recipe

    @property
    def entrants(self) -> list[Entrant]:
        """Those who score."""
        return [self.challenger, *([self.champion] if self.champion else [])]


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
            before = aliases.holder(client, name, config.alias)
            contest = None if before == version else set_up(client, config, challenger, before, folder)
        if contest is None:
            LOG.info("%s holds %s already", challenger.fetched.uri, config.alias)
            held = {"model_uri": challenger.fetched.uri, "alias": config.alias, "moved": False}
            return closing.say(held, config.print)
        record = stack.enter_context(promote_record.opened(config, challenger.fetched, contest.test, command))
        with clock.phase("cluster") as facts:
            workers = stack.enter_context(session(config.backend, config.cluster))
            facts.append(workers.size)
        record.set_tags(workers.tags)
        with clock.phase("score"):
            rescored = rescore(workers, config, contest)
        checks = [
            *contest.checks,
            promote_gate.compared(challenger.headline, rescored, config.margin, certain=config.certain),
        ]
        verdict = promote_record.Verdict(challenger, contest.champion, before, tuple(checks), rescored)
        with clock.phase("log"):
            promote_record.write(record, config, contest.test, verdict, command)
        problem = refusal(config, verdict)
        if problem is None:
            aliases.move(
                client,
                name,
                config.alias,
                version,
                before=before,
                facts={"why": verdict.why, "run": record.id},
                forced=not verdict.passed,
            )
        promote_record.close(record, clock.seconds, moved=problem is None, problem=problem)
    result = promote_record.said(record, config, verdict, clock.seconds, command, moved=problem is None)
    say(config, verdict, result)
    if problem:
        raise problem
    return result


def check(config: PromoteConfig) -> None:
    """Refuse what no store and no worker is needed to refuse."""
    aliases.check_alias(config.alias)
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
    if champion:
        checks.append(promote_gate.taxis(challenger, champion))
    data = _data(client, config, challenger.fetched)
    features = tuple(dict.fromkeys(feature for entrant in entrants for feature in entrant.features))
    dataset = open_dataset(data)
    recipe = Recipe(dataset, from_facts(challenger.manifest["task"], features, challenger.manifest["target"]))
    test = dataset.scan("test", recipe.columns)
    for note in (*test.notes, *identical(test.fragments)):
        LOG.warning(note)
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
    return Entrant(fetched, trained.info.status, trained.data.metrics, version.tags)


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
    client = workers.client
    prepared = rows.start(workers, contest.test, contest.recipe)
    with progress("read", prepared):
        loaded = rows.collect(workers, contest.test, contest.recipe, prepared)
    rows.check_counts(contest.test, loaded.per_file, contest.recipe, config.data.limits)
    (test,) = loaded.splits
    rows.check_split("data.test", test.counts, contest.recipe.task, config.data.limits)
    judge = evaluator(contest.challenger.kind)
    truth = judged_by(test)
    scores, found = [], []
    with progress("score"):
        for entrant in contest.entrants:
            x = client.map(_columns, test.x, names=entrant.features, pure=False, key="columns")
            native = NativeFile(entrant.fetched.path, entrant.fetched.format)
            scores.append(predict_saved(client, native, workers.device, x))
            found.append(
                judge.evaluate(client, scores[-1], truth, threshold=entrant.manifest["threshold"], where="data.test")
            )
        if len(found) == 1:
            return Rescored(found[0], None, None)
        first, second = found
        compared = judge.difference(
            client,
            (scores[0], scores[1]),
            truth,
            (first, second),
            parts=test.parts,
            replicates=config.replicates,
            seed=config.seed,
        )
        return Rescored(first, second, compared)


def _columns(x: Any, names: list[str]) -> Any:
    return x if list(x.columns) == names else x[names]


def refusal(config: PromoteConfig, verdict: promote_record.Verdict) -> TipcastError | None:
    """Return why the alias stays where it is; None where it moves."""
    if verdict.passed or config.force:
        return None
    return TipcastError(
        "M020",
        verdict.challenger.fetched.uri,
        f"does not get {config.alias}: {verdict.why}",
        "mend what failed, or move it all the same with force=true",
    )


def say(config: PromoteConfig, verdict: promote_record.Verdict, result: dict[str, Any]) -> None:
    """Print the table, or all of it as JSON."""
    if config.print is not Output.text:
        closing.say(result, config.print)
        return
    print("\n".join([*promote_record.table(verdict), ""]), flush=True)
    before = f"version {verdict.before}" if verdict.before else "no version"
    now = f"{verdict.challenger.name} now" if result["moved"] else f"still {before}"
    told = {config.alias: now + (", forced" if result["forced"] else "")}
    closing.say(told | {name: result[name] for name in ("run", "phases", "command")}, config.print)
