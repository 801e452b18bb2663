"""What a promotion records: the gate's answers, both versions' metrics on the same rows, plots and a note."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema import PromoteConfig
from tipcast.data import split
from tipcast.data.base import Listing, timed
from tipcast.evaluation import plots, report
from tipcast.evaluation.base import SHOWN, Evaluator, bounds, evaluator
from tipcast.jobs import opening
from tipcast.jobs.promote_gate import Check, Entrant, Rescored
from tipcast.measure import origin
from tipcast.tracking.models import Fetched
from tipcast.tracking.run import Run

PARAMS = ("model_uri", "alias", "margin", "certain", "replicates", "force", "seed")


@dataclass(frozen=True)
class Verdict:
    """What the gate has found."""

    challenger: Entrant
    champion: Entrant | None
    before: str | None
    """Version that holds the alias, compared with or not."""
    checks: tuple[Check, ...]
    rescored: Rescored

    @property
    def judge(self) -> Evaluator:
        """What both are judged by."""
        return evaluator(self.challenger.kind)

    @property
    def passed(self) -> bool:
        """Whether every answer is yes."""
        return all(check.passed for check in self.checks)

    @property
    def why(self) -> str:
        """One line: what failed, or how the versions compare."""
        failed = [f"{check.name}: {check.what}" for check in self.checks if not check.passed]
        return "; ".join(failed) if failed else self.checks[-1].what


@contextlib.contextmanager
def opened(config: PromoteConfig, fetched: Fetched, test: Listing, command: str) -> Iterator[Run]:
    """Open the run with what is known before any worker starts."""
    plain = to_plain(config)
    params = {name: plain[name] for name in PARAMS} | {"test_period": split.describe(timed(test.period))}
    tags = {"model": fetched.uri, "data.test_digest": test.digest[:16]}
    name = f"promote {fetched.version}"
    with opening.opened(config, command, job="promote", name=name, params=params, tags=tags) as run:
        yield run


def write(run: Run, config: PromoteConfig, test: Listing, verdict: Verdict, command: str) -> None:
    """Record metrics, plots, the gate's table and the note."""
    rescored, period = verdict.rescored, split.describe(timed(test.period))
    rows = rescored.challenger.rows
    run.log_metrics(_metrics(verdict))
    profile = {"rows": rows, "period": period, "files": len(test.uris)}
    run.log_dataset(test.uris[0], test.digest, f"{test.name} {period}", "test", profile)
    _plots(run, config, verdict, f"{rows:,} {test.name} of {period}")
    gate = [(check.name, "passed" if check.passed else "failed", check.what) for check in verdict.checks]
    names, results, said = zip(*gate, strict=True)
    run.log_table({"check": names, "result": results, "what": said}, "tables/gate.json")
    run.set_tags({"promote.passed": str(verdict.passed).lower(), "promote.holder": verdict.before or "none"})
    run.note(_note(run, config, verdict, period, command))


def close(run: Run, phases: Mapping[str, float], *, moved: bool, problem: TipcastError | None) -> None:
    """Record how it ended."""
    run.log_metrics({f"seconds/{name}": value for name, value in phases.items()})
    run.set_tags({"promote.moved": str(moved).lower()})
    if problem:
        run.set_tags({"error.code": problem.code, "error.message": problem})


def said(
    run: Run, config: PromoteConfig, verdict: Verdict, phases: Mapping[str, float], command: str, *, moved: bool
) -> dict[str, Any]:
    """Return what the job says at its end."""
    return {
        "run_id": run.id,
        "experiment_id": run.experiment_id,
        "run": run.link,
        "model_uri": verdict.challenger.fetched.uri,
        "alias": config.alias,
        "moved": moved,
        "forced": moved and not verdict.passed,
        "holder": verdict.before,
        "checks": {check.name: {"passed": check.passed, "what": check.what} for check in verdict.checks},
        "metrics": _metrics(verdict),
        "phases": phases,
        "command": command,
    }


def table(verdict: Verdict) -> list[str]:
    """Return the lines that people read: both versions' metrics, and the gate's answers."""
    head, lines = _compared(verdict)
    cells = [head, *lines]
    widths = [max(len(line[at]) for line in cells) for at in range(len(head))]
    text = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in cells]
    width = max(len(check.name) for check in verdict.checks)
    return [
        *text,
        "",
        *(f"{check.name:<{width}}  {'passed' if check.passed else 'FAILED'}  {check.what}" for check in verdict.checks),
    ]


def _compared(verdict: Verdict) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of the table of metrics."""
    first, second = verdict.rescored.challenger, verdict.rescored.champion
    head = f"challenger, {verdict.challenger.name}"
    headline, *names = list(first.shown())[:SHOWN]
    own = [first.interval.around(first.headline, 5)]
    if second is None or verdict.champion is None or verdict.rescored.difference is None:
        rest = [[name, f"{first.metrics[name]:.5f}"] for name in names]
        return ["test metric", head], [[headline, *own], *rest]
    between = verdict.rescored.difference
    apart = f"{between.value:+.5f} ({between.interval.low:+.5f} to {between.interval.high:+.5f})"
    lines = [[headline, *own, second.interval.around(second.headline, 5), apart]]
    lines += [
        [name, f"{mine:.5f}", f"{theirs:.5f}", f"{mine - theirs:+.5f}"]
        for name, mine, theirs in ((name, first.metrics[name], second.metrics[name]) for name in names)
    ]
    return ["test metric", head, f"champion, {verdict.champion.name}", "difference"], lines


def _metrics(verdict: Verdict) -> dict[str, float]:
    rescored, key = verdict.rescored, f"difference/{verdict.judge.headline.name}"
    found: dict[str, float] = {}
    if rescored.difference:
        found = {key: rescored.difference.value, **bounds(rescored.difference.interval, key)}
    for side, each in (("challenger", rescored.challenger), ("champion", rescored.champion)):
        if each:
            found |= {f"{side}/{name}": value for name, value in list(each.shown().items())[:SHOWN]}
    return {**found, "test/rows": float(rescored.challenger.rows)}


def _plots(run: Run, config: PromoteConfig, verdict: Verdict, rows: str) -> None:
    rescored, judge = verdict.rescored, verdict.judge
    found = {verdict.challenger.name: rescored.challenger}
    if verdict.champion and rescored.champion:
        found[verdict.champion.name] = rescored.champion
    lead = judge.lead(found, rows)
    run.log_bytes(lead, judge.figure)
    run.log_bytes(plots.small(lead), report.small_name(judge.figure))
    if rescored.difference and verdict.champion:
        drawn = plots.difference(
            rescored.difference,
            config.margin,
            rows,
            first=verdict.challenger.name,
            second=verdict.champion.name,
            metric=judge.headline,
        )
        run.log_bytes(drawn, f"plots/{judge.headline.name}_difference.png")


def _note(run: Run, config: PromoteConfig, verdict: Verdict, period: str, command: str) -> str:
    fetched = verdict.challenger.fetched
    outcome = "passes" if verdict.passed else "does not pass"
    head = f"### {fetched.name}: version {fetched.version} {outcome} as {config.alias}"
    gate = [[check.name, "passed" if check.passed else "**failed**", check.what] for check in verdict.checks]
    parts = [
        head,
        report.plot(run.id, verdict.judge.figure),
        report.table(*_compared(verdict)),
        report.table(["check", "result", "what"], gate),
        f"Scored on the same rows of {period}. {verdict.judge.interval_remark} {verdict.judge.difference_remark}",
        *filter(None, map(_changed, (verdict.challenger, verdict.champion))),
        report.repeat(command, origin.source().remark),
    ]
    return "\n\n".join(parts)[: report.MAX_NOTE]


def _changed(entrant: Entrant | None) -> str:
    """Return what is said of a version that no commit gives back; nothing of others."""
    if entrant is None or not entrant.manifest.get("git_dirty"):
        return ""
    return (
        f"The code that trained {entrant.name} had uncommitted changes on commit `{entrant.manifest['git_commit']}`: "
        f"artifact `{origin.DIFF}` of its run `{entrant.fetched.run_id}`."
    )
