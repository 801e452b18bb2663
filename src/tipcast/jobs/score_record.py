"""What a scoring's run records: model and data, the distribution of scores, drift, and metrics where tips are known."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.config.plain import flatten, to_plain
from tipcast.config.schema_score import ScoreConfig
from tipcast.data import split
from tipcast.data.scored import Entry
from tipcast.data.taxi.old_profile import in_edges
from tipcast.evaluation import binned, drift, plots, score_report
from tipcast.evaluation.base import bounds
from tipcast.evaluation.drift import Drift, drifts
from tipcast.evaluation.two_classes import ClassificationEvaluation
from tipcast.jobs import opening
from tipcast.jobs.score_plan import Item, ScorePlan
from tipcast.jobs.score_task import Scored
from tipcast.measure import origin
from tipcast.tracking.models import Fetched, used_by
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")

FILES = ("scores", "trips", "rows", "unscored", "trips_sha256", "scores_sha256", "refused")
"""Columns of the table of files."""
DIGEST = 16
"""Characters of a digest that tags show."""
PARAMS = ("backend", "cluster", "model_uri", "input", "output", "keep", "colour", "compression")
NOT_PARAMS = ("cluster.wait_s", "cluster.worker_ttl_s", "cluster.allowed_failures", "cluster.connect_timeout_s")


@dataclass(frozen=True)
class Account:
    """What a scoring found, of the files that it scored now."""

    total: Scored
    labelled: ClassificationEvaluation | None
    drifts: Sequence[Drift]
    threshold: float

    @property
    def rows(self) -> int:
        """Trips read."""
        return self.total.rows

    @property
    def unscored(self) -> int:
        """Trips whose probability is null."""
        return sum(self.total.unscored.values())

    @property
    def metrics(self) -> dict[str, float]:
        """What is logged."""
        scores = self.total.scores
        many = int(scores.rows.sum())
        found: dict[str, float] = {"score/rows": self.rows, "score/unscored": self.unscored}
        if many:
            found["score/mean"] = binned.mean(scores)
            found["score/predicted_rate"] = scores.called / many
        found |= {f"unscored/{reason}": rows for reason, rows in self.total.unscored.items()}
        found |= {f"drift/{drift.name}": drift.psi for drift in self.drifts}
        if self.labelled:
            found |= {f"labelled/{name}": value for name, value in self.labelled.metrics.items()}
            found |= bounds(self.labelled.interval, "labelled/auc")
            found["labelled/rows_of_training"] = self.total.seen
            found["labelled/auc_resolution"] = binned.resolution(scores)
        return found


def account(total: Scored, manifest: Mapping[str, Any], threshold: float) -> Account:
    """Evaluate the scores that have labels, and hold all against the training's rows where the model tells of them."""
    described = manifest.get("profile")
    histogram = binned.coarse(total.scores.rows)
    moved = drifts(in_edges(described), total.values, histogram) if described else []
    return Account(total, binned.evaluation(total.scores, threshold), moved, threshold)


@dataclass(frozen=True)
class ScoreRecord:
    """A scoring's run in MLflow."""

    run: Run
    config: ScoreConfig
    plan: ScorePlan
    fetched: Fetched
    command: str

    def write(
        self,
        found: Account,
        files: Mapping[str, Entry],
        refused: Sequence[Item],
        phases: Mapping[str, float],
        memory: Mapping[str, int],
    ) -> None:
        """Record what was scored; ``files`` are those of this run."""
        seconds = phases.get("score", 0.0)
        pace = {"score/rows_per_s": found.rows / seconds} if seconds and found.rows else {}
        self.run.log_metrics({**found.metrics, **pace, **{f"seconds/{name}": value for name, value in phases.items()}})
        self.run.log_metrics({f"memory/{name}_peak_bytes": value for name, value in memory.items()})
        if warning := self._seen(found):
            LOG.warning(warning)
        self._data(files, found)
        self._tables(found, files, refused)
        if found.rows:
            self._plots(found)
        self.run.set_tags({"score.files": len(files), "score.kept": len(self.plan.kept), "score.refused": len(refused)})
        why = {item.name: f"[{item.problem.code}] {item.problem.what}" for item in refused if item.problem}
        self.run.note(
            score_report.note(
                f"{self.model} scored {found.rows:,} trips",
                self._facts(found, files),
                refused=why,
                drifts=found.drifts,
                labelled=found.labelled,
                warning=self._seen(found),
                phases=phases,
                command=self.command,
                run_id=self.run.id,
                changes=origin.source().remark,
            )
        )

    @property
    def model(self) -> str:
        """The model's name and version in words."""
        name, version = self.fetched.name, self.fetched.version
        return f"{name} version {version}" if version else self.fetched.uri

    def _seen(self, found: Account) -> str:
        """Return what is to be said of labelled rows that the model may have learnt; nothing where there are none."""
        period = self.fetched.seen({})
        if not found.labelled or not found.total.seen or period is None:
            return ""
        return (
            f"{found.total.seen:,} of {found.labelled.metrics['rows']:,.0f} trips whose tips are known are of "
            f"{split.describe(period)}, which the model was trained on: labelled/auc is not that of new trips"
        )

    def _facts(self, found: Account, files: Mapping[str, Entry]) -> dict[str, str]:
        named = {
            "model": f"`{self.fetched.uri}`, {self.fetched.manifest.get('model', self.fetched.format)}",
            "trained by run": f"`{self.fetched.run_id}`",
            "files scored, left as they were": f"{len(files):,}, {len(self.plan.kept):,}",
            "output": f"`{to_plain(self.plan.output)}`",
            "predicted high": f"{found.metrics.get('score/predicted_rate', 0.0):.1%} at {found.threshold:.4f}",
        }
        return named | {f"not scored: {reason}": f"{rows:,}" for reason, rows in found.total.unscored.items()}

    def _data(self, files: Mapping[str, Entry], found: Account) -> None:
        if not files:
            return
        together = hashlib.sha256("\n".join(files[name].input_sha256 for name in sorted(files)).encode()).hexdigest()
        first = next(iter(files.values())).input
        described = {"rows": found.rows, "files": len(files)}
        self.run.log_dataset(first, together, f"trips scored by {self.model}"[:100], "score", described)
        self.run.set_tags({"data.digest": together[:DIGEST]})

    def _tables(self, found: Account, files: Mapping[str, Entry], refused: Sequence[Item]) -> None:
        lines = [[name, entry.input, entry.rows, sum(entry.unscored.values()), entry.input_sha256, entry.sha256, ""]
                 for name, entry in sorted(files.items())]  # fmt: skip
        lines += [[item.name, to_plain(item.uri), None, None, None, None, str(item.problem)] for item in refused]
        self.run.log_table(_columns(FILES, lines), "tables/files.json")
        if not found.drifts:
            return
        names = ("psi", "chance", "verdict")
        table: dict[str, list[Any]] = {"name": [drift.name for drift in found.drifts]}
        self.run.log_table(
            table | {name: [getattr(drift, name) for drift in found.drifts] for name in names}, "tables/drift.json"
        )
        bins = [row for drift in found.drifts for row in _bins(drift)]
        self.run.log_table(_columns(("name", "bin", "training", "now"), bins), "tables/drift_bins.json")

    def _plots(self, found: Account) -> None:
        subtitle = f"{self.model}, {found.rows:,} trips of {len(self.plan.due)} files"
        log, described = self.run.log_bytes, self.fetched.manifest.get("profile")
        then = described["score"]["histogram"] if described else None
        behind = f"{described['score']['split']} trips at training" if described else ""
        now = drift.spread(binned.coarse(found.total.scores.rows))
        drawn = plots.distribution(now, then, behind, found.threshold, subtitle)
        log(drawn, "plots/scores.png")
        log(plots.small(drawn), score_report.SCORES_PLOT)
        if found.drifts:
            drawn = plots.stability(found.drifts, subtitle)
            log(drawn, "plots/drift.png")
            log(plots.small(drawn), score_report.DRIFT_PLOT)
        if found.labelled:
            known = f"{self.model}, {found.labelled.metrics['rows']:,.0f} trips whose tips are known"
            known += f", {found.total.seen:,} of the training's period" if found.total.seen else ""
            log(plots.roc({"scored": found.labelled}, known), "plots/roc.png")
            log(plots.calibration(found.labelled, known), "plots/calibration.png")
            called = f"predicted, at threshold {found.threshold:.3f}"
            matrix = found.labelled.confusion.matrix
            log(plots.confusion(matrix, known, ("0", "1"), called), "plots/confusion.png")


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def _bins(drift: Drift) -> list[tuple[str, str, float, float]]:
    rows = zip(drift.labels, drift.then, drift.now, strict=True)
    return [(drift.name, label, then, now) for label, then, now in rows]


@contextlib.contextmanager
def opened(config: ScoreConfig, plan: ScorePlan, fetched: Fetched, command: str) -> Iterator[ScoreRecord]:
    """Open the run with what is known before any worker starts: which model, and which configuration."""
    plain = to_plain(config)
    params = flatten({name: plain[name] for name in PARAMS})
    params = {name: value for name, value in params.items() if not name.startswith(NOT_PARAMS)}
    tags = {"model.uri": fetched.uri, "model.sha256": fetched.sha256, "model.run_id": fetched.run_id or ""}
    tags |= {"model.name": fetched.name, "model.version": fetched.version or ""} if fetched.name else {}
    name = f"score {fetched.name or 'model'}"
    with opening.opened(config, command, job="score", name=name, params=params, tags=tags) as run:
        used_by(run, fetched)
        yield ScoreRecord(run, config, plan, fetched, command)
