"""What a scoring's run records: model, data, predictions, and metrics where answers are known."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tipcast.config.plain import to_plain
from tipcast.config.schema import ScoreConfig
from tipcast.datasets import split
from tipcast.evaluation import plots
from tipcast.evaluation.base import Evaluation, Evaluator, bounds, evaluator, shares
from tipcast.evaluation.report import log_figure, metric_lines, plot, repeat, table
from tipcast.evaluation.sums import Ints
from tipcast.measure import origin
from tipcast.scoring.output_folder import Entry
from tipcast.scoring.plan import Item, ScorePlan, reasons, task_of
from tipcast.scoring.worker import Scored, total
from tipcast.tasks.base import Task
from tipcast.tracking.models import PREDICTIONS, Fetched
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")

FILES = ("scores", "input", "rows", "unscored", "input_sha256", "scores_sha256", "refused")
"""Columns of the table of files."""
DIGEST = 16
"""Characters of a digest that tags show."""
SCORES_PLOT = "plots/scores.png"


@dataclass
class Results:
    """What became of the files that were due, as they end."""

    manifest: Mapping[str, Any]
    """Of the model."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """Name -> what the folder's manifest says."""
    refused: list[Item] = field(default_factory=list)
    total: Scored = field(init=False)
    """The sums over all files: those of each are half a megabyte."""

    def __post_init__(self) -> None:
        self.judge = evaluator(task_of(self.manifest).kind)
        self.total = total((), self.judge)

    def add(self, name: str, entry: Entry, sums: Scored) -> None:
        """Take in a file that was scored."""
        self.entries[name] = entry
        self.total = total([self.total, sums], self.judge)

    @cached_property
    def labelled(self) -> Evaluation | None:
        """Of rows whose answer is known."""
        found: Evaluation | None = self.judge.of_sums(self.total.predictions, self.manifest.get("threshold"))
        return found

    @property
    def rows(self) -> int:
        """Rows read."""
        return self.total.rows

    @property
    def histogram(self) -> Ints:
        """(bins,) rows by bin of their prediction; zeros where a model of numbers does not tell its bins."""
        found: Ints = self.total.predictions.histogram
        return found

    @property
    def metrics(self) -> dict[str, float]:
        """What is logged."""
        found: dict[str, float] = {"score/rows": self.rows, "score/unscored": sum(self.total.unscored.values())}
        found |= {f"score/{name}": value for name, value in self.judge.summary(self.total.predictions).items()}
        found |= {f"unscored/{reason}": rows for reason, rows in self.total.unscored.items()}
        if self.labelled:
            found |= {f"labelled/{name}": value for name, value in self.labelled.metrics.items()}
            found |= bounds(self.labelled.interval, f"labelled/{self.judge.headline.name}")
            if self.manifest.get("trained_until") is not None:
                found["labelled/rows_of_training"] = self.total.seen
        return found

    @property
    def headlines(self) -> dict[str, float]:
        """What the job says at its end."""
        known = (f"labelled/{self.judge.headline.name}", "labelled/rows_of_training")
        names, metrics = ("score/mean", "score/predicted_rate", *known), self.metrics
        return {name: metrics[name] for name in names if name in metrics}


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
        self, found: Results, refused: Sequence[Item], phases: Mapping[str, float], memory: Mapping[str, int]
    ) -> None:
        """Record what was scored; ``refused`` are all files that were, also before."""
        seconds = phases.get("score", 0.0)
        pace = {"score/rows_per_s": found.rows / seconds} if seconds and found.rows else {}
        self.run.log_metrics({**found.metrics, **pace, **{f"seconds/{name}": value for name, value in phases.items()}})
        self.run.log_metrics({f"memory/{name}_peak_bytes": value for name, value in memory.items()})
        if warning := self._seen(found):
            LOG.warning(warning)
        self._data(found)
        self._table(found.entries, refused)
        if found.rows:
            self._plots(found)
        counts = {"files": len(found.entries), "kept": len(self.plan.kept), "refused": len(refused)}
        self.run.set_tags({f"score.{name}": count for name, count in counts.items()})
        self.run.note(self._note(found, refused, phases))

    @property
    def model(self) -> str:
        """The model's name and version in words."""
        name, version = self.fetched.name, self.fetched.version
        return f"{name} version {version}" if version else self.fetched.uri

    def _seen(self, found: Results) -> str:
        """Return what is to be said of labelled rows that the model may have learnt; nothing where there are none."""
        period = self.fetched.seen({})
        if not found.labelled or not found.total.seen or period is None:
            return ""
        rows = f"{found.total.seen:,} of {found.labelled.rows:,} rows whose answer is known"
        why = f"which the model was trained on: labelled/{found.judge.headline.name} is not that of new rows"
        return f"{rows} are of {split.describe(period)}, {why}"

    def _note(self, found: Results, refused: Sequence[Item], phases: Mapping[str, float]) -> str:
        """Write the run's note in Markdown, cut at its end where MLflow would cut it."""
        warning = self._seen(found)
        parts = [
            f"### {self.model} scored {found.rows:,} rows",
            table(["", ""], [[name, value] for name, value in self._facts(found).items()]),
            _refused(reasons(refused)),
            plot(self.run.id, SCORES_PLOT) if found.histogram.any() else "",
            _labelled(found.labelled, found.judge),
            f"**{warning}.**" if warning else "",
            repeat(self.command, origin.source().remark),
            table(["phase", "seconds"], [[name, f"{seconds:.2f}"] for name, seconds in phases.items()]),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _facts(self, found: Results) -> dict[str, str]:
        named = {
            "model": f"`{self.fetched.uri}`, {self.fetched.manifest.get('model', self.fetched.format)}",
            "trained by run": f"`{self.fetched.run_id}`",
            "files scored, left as they were": f"{len(found.entries):,}, {len(self.plan.kept):,}",
            "output": f"`{to_plain(self.plan.present.folder)}`",
        }
        rate, threshold = found.metrics.get("score/predicted_rate"), self.fetched.manifest.get("threshold")
        if rate is not None and self.task.classes:
            named[f"predicted {self.task.classes[-1]}"] = f"{rate:.1%} at {threshold:.4f}"
        return named | {f"not scored: {reason}": f"{rows:,}" for reason, rows in found.total.unscored.items()}

    def _data(self, found: Results) -> None:
        files = found.entries
        if not files:
            return
        together = hashlib.sha256("\n".join(files[name].input_sha256 for name in sorted(files)).encode()).hexdigest()
        first = next(iter(files.values())).input
        described = {"rows": found.rows, "files": len(files)}
        self.run.log_dataset(first, together, f"rows scored by {self.model}"[:100], "score", described)
        self.run.set_tags({"data.digest": together[:DIGEST]})

    def _table(self, files: Mapping[str, Entry], refused: Sequence[Item]) -> None:
        lines = [[name, entry.input, entry.rows, sum(entry.unscored.values()), entry.input_sha256, entry.sha256, ""]
                 for name, entry in sorted(files.items())]  # fmt: skip
        lines += [[item.name, to_plain(item.uri), None, None, None, None, str(item.problem)] for item in refused]
        columns = {name: [line[at] for line in lines] for at, name in enumerate(FILES)}
        self.run.log_table(columns, "tables/files.json")

    def _plots(self, found: Results) -> None:
        subtitle = f"{self.model}, {found.rows:,} rows of {len(self.plan.due)} files"
        log, then = self.run.log_bytes, self.fetched.manifest.get(PREDICTIONS, {})
        behind = f"{then['split']} rows at training" if then else ""
        if found.histogram.any():
            drawn = plots.distribution(
                shares(found.histogram).tolist(),
                then.get("shares"),
                behind,
                subtitle,
                edges=then.get("edges"),
                names=self.task.classes,
                threshold=self.fetched.manifest.get("threshold"),
            )
            log_figure(log, drawn, SCORES_PLOT)
        if found.labelled:
            known = f"{self.model}, {found.labelled.rows:,} rows whose answer is known"
            known += f", {found.total.seen:,} of the training's period" if found.total.seen else ""
            for path, drawn in found.judge.figures({"scored": found.labelled}, known, self.task.classes):
                if path != SCORES_PLOT:
                    log(drawn, path)


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
