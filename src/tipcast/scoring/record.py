"""What a scoring's run records: model, data, predictions, drift, and metrics where answers are known."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.config.job_schemas import ScoreConfig
from tipcast.config.plain import to_plain
from tipcast.datasets import split
from tipcast.evaluation import drift, plots
from tipcast.evaluation.base import Evaluation, Evaluator, bounds
from tipcast.evaluation.drift import Drift, drifts
from tipcast.evaluation.report import log_figure, metric_lines, plot, repeat, table
from tipcast.measure import origin
from tipcast.scoring.output_folder import Entry
from tipcast.scoring.plan import Item, ScorePlan, reasons, task_of
from tipcast.scoring.worker import Scored
from tipcast.tasks.base import Task
from tipcast.tracking.models import Fetched
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")

FILES = ("scores", "input", "rows", "unscored", "input_sha256", "scores_sha256", "refused")
"""Columns of the table of files."""
DIGEST = 16
"""Characters of a digest that tags show."""
SCORES_PLOT, DRIFT_PLOT = "plots/scores.png", "plots/drift.png"
LIMITS = "below 0.1 little has changed, from 0.25 on much has"


@dataclass(frozen=True)
class Account:
    """What a scoring found, of the files that it scored now."""

    total: Scored
    judge: Evaluator
    labelled: Evaluation | None
    """Of rows whose answer is known."""
    drifts: Sequence[Drift]
    timed: bool
    """Whether the model tells of which period its training rows are."""

    @property
    def rows(self) -> int:
        """Rows read."""
        return self.total.rows

    @property
    def metrics(self) -> dict[str, float]:
        """What is logged."""
        found: dict[str, float] = {"score/rows": self.rows, "score/unscored": sum(self.total.unscored.values())}
        found |= {f"score/{name}": value for name, value in self.judge.summary(self.total.predictions).items()}
        found |= {f"unscored/{reason}": rows for reason, rows in self.total.unscored.items()}
        found |= {f"drift/{drift.name}": drift.psi for drift in self.drifts}
        if self.labelled:
            found |= {f"labelled/{name}": value for name, value in self.labelled.metrics.items()}
            found |= bounds(self.labelled.interval, f"labelled/{self.judge.headline.name}")
            if self.timed:
                found["labelled/rows_of_training"] = self.total.seen
        return found

    @property
    def headlines(self) -> dict[str, float]:
        """What the job says at its end."""
        names = (
            "score/mean",
            "score/predicted_rate",
            f"labelled/{self.judge.headline.name}",
            "labelled/rows_of_training",
        )
        metrics = self.metrics
        return {name: metrics[name] for name in names if name in metrics}


def account(total: Scored, manifest: Mapping[str, Any], judge: Evaluator) -> Account:
    """Evaluate the rows whose answer is known, and hold all against training's where the model tells of them."""
    described, threshold = manifest.get("profile"), manifest.get("threshold")
    values = {name: counts.sum(axis=0) for name, counts in total.values.items()}
    moved = drifts(described, values, judge.histogram(total.predictions)) if described else []
    timed = manifest.get("trained_until") is not None
    return Account(total, judge, judge.of_sums(total.predictions, threshold), moved, timed)


@dataclass(frozen=True)
class ScoreRecord:
    """A scoring's run in MLflow."""

    run: Run
    config: ScoreConfig
    plan: ScorePlan
    fetched: Fetched
    command: str

    @property
    def task(self) -> Task:
        """Of the model."""
        return task_of(self.fetched.manifest)

    def write(
        self,
        found: Account,
        files: Mapping[str, Entry],
        refused: Sequence[Item],
        phases: Mapping[str, float],
        memory: Mapping[str, int],
        remark: str = "",
    ) -> None:
        """Record what was scored; ``files`` are those of this run, ``remark`` is a paragraph of the note."""
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
        self.run.note(self._note(found, files, refused, phases, remark))

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
            f"{found.total.seen:,} of {found.labelled.rows:,} rows whose answer is known are of "
            f"{split.describe(period)}, "
            f"which the model was trained on: labelled/{found.judge.headline.name} is not that of new rows"
        )

    def _note(
        self,
        found: Account,
        files: Mapping[str, Entry],
        refused: Sequence[Item],
        phases: Mapping[str, float],
        remark: str,
    ) -> str:
        """Write the run's note in Markdown, cut at its end where MLflow would cut it."""
        warning = self._seen(found)
        parts = [
            f"### {self.model} scored {found.rows:,} rows",
            remark,
            table(["", ""], [[name, value] for name, value in self._facts(found, files).items()]),
            _refused(reasons(refused)),
            plot(self.run.id, SCORES_PLOT),
            _labelled(found.labelled, found.judge),
            f"**{warning}.**" if warning else "",
            _drifts(found.drifts, self.run.id),
            repeat(self.command, origin.source().remark),
            table(["phase", "seconds"], [[name, f"{seconds:.2f}"] for name, seconds in phases.items()]),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _facts(self, found: Account, files: Mapping[str, Entry]) -> dict[str, str]:
        named = {
            "model": f"`{self.fetched.uri}`, {self.fetched.manifest.get('model', self.fetched.format)}",
            "trained by run": f"`{self.fetched.run_id}`",
            "files scored, left as they were": f"{len(files):,}, {len(self.plan.kept):,}",
            "output": f"`{to_plain(self.plan.present.folder)}`",
        }
        rate, threshold = found.metrics.get("score/predicted_rate"), self.fetched.manifest.get("threshold")
        if rate is not None and self.task.classes:
            named[f"predicted {self.task.classes[-1]}"] = f"{rate:.1%} at {threshold:.4f}"
        return named | {f"not scored: {reason}": f"{rows:,}" for reason, rows in found.total.unscored.items()}

    def _data(self, files: Mapping[str, Entry], found: Account) -> None:
        if not files:
            return
        together = hashlib.sha256("\n".join(files[name].input_sha256 for name in sorted(files)).encode()).hexdigest()
        first = next(iter(files.values())).input
        described = {"rows": found.rows, "files": len(files)}
        self.run.log_dataset(first, together, f"rows scored by {self.model}"[:100], "score", described)
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
        bins = [
            (drift.name, *row)
            for drift in found.drifts
            for row in zip(drift.labels, drift.then, drift.now, strict=True)
        ]
        self.run.log_table(_columns(("name", "bin", "training", "now"), bins), "tables/drift_bins.json")

    def _plots(self, found: Account) -> None:
        subtitle = f"{self.model}, {found.rows:,} rows of {len(self.plan.due)} files"
        log, described = self.run.log_bytes, self.fetched.manifest.get("profile")
        then = described[drift.SCORE] if described else {}
        now = drift.spread(found.judge.histogram(found.total.predictions))
        behind = f"{then['split']} rows at training" if then else ""
        drawn = plots.distribution(
            now,
            then.get("histogram"),
            behind,
            subtitle,
            edges=then.get("edges"),
            names=self.task.classes,
            threshold=self.fetched.manifest.get("threshold"),
        )
        log_figure(log, drawn, SCORES_PLOT)
        if found.drifts:
            log_figure(log, plots.stability(found.drifts, subtitle), DRIFT_PLOT)
        if found.labelled:
            known = f"{self.model}, {found.labelled.rows:,} rows whose answer is known"
            known += f", {found.total.seen:,} of the training's period" if found.total.seen else ""
            for path, drawn in found.judge.figures({"scored": found.labelled}, known, self.task.classes):
                if path != SCORES_PLOT:
                    log(drawn, path)


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def _refused(refused: Mapping[str, str]) -> str:
    if not refused:
        return ""
    shown = [[name, why] for name, why in list(refused.items())[:10]]
    more = f"\n\nAll {len(refused)}: artifact `tables/files.json`." if len(refused) > len(shown) else ""
    return "Refused:\n\n" + table(["file", "why"], shown) + more


def _labelled(found: Evaluation | None, judge: Evaluator) -> str:
    if found is None:
        return "No metrics: the rows have no answers to compare with, or all are alike."
    shown = table(["metric", "value"], [[name, value] for name, (value,) in metric_lines([found])])
    return f"On {found.rows:,} rows whose answer is known:\n\n{shown}\n\n{judge.interval_remark}"


def _drifts(drifts: Sequence[Drift], run_id: str) -> str:
    if not drifts:
        return "No drift: the model's manifest does not tell how its training rows were."
    rows = [[drift.name, f"{drift.psi:.3f}", f"{drift.chance:.3f}", drift.verdict] for drift in drifts]
    shown = table(["drift", "stability index", "95 % by chance", "verdict"], rows)
    return f"Population stability index against the training ({LIMITS}):\n\n{shown}\n\n{plot(run_id, DRIFT_PLOT)}"
