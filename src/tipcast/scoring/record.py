"""The driver's side of a scoring: a task for each file, what became of them, and the run that records it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from distributed import as_completed

from tipcast.compute.base import Session
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.config.plain import to_plain
from tipcast.config.schema import ScoreConfig
from tipcast.datasets import address
from tipcast.datasets.base import merged
from tipcast.datasets.registry import dataset_of
from tipcast.evaluation import evaluator
from tipcast.evaluation.base import Evaluation, logged
from tipcast.evaluation.report import plot, repeat
from tipcast.measure import origin
from tipcast.measure.progress import progress, worth_a_line
from tipcast.models.base import NativeFile
from tipcast.models.fit import hold_saved
from tipcast.scoring.plan import ScorePlan, stops_all, task_of
from tipcast.scoring.worker import ROW_GROUP, Scored, Work, score_file, total
from tipcast.scoring.writing import Entry, failures
from tipcast.tracking.models import Fetched
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")

FILES = ("scores", "input", "rows", "unscored", "input_sha256", "scores_sha256", "refused")
"""Columns of the table of files."""


@dataclass
class Results:
    """What became of the files that were due, as they end."""

    manifest: Mapping[str, Any]
    """Of the model."""
    refused: dict[str, TipcastError]
    """Name -> why, also of files that were never due."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """Name -> what the folder's manifest says."""
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
    def metrics(self) -> dict[str, float]:
        """What is logged."""
        classes = task_of(self.manifest).classes
        summary = self.judge.summary(self.total.predictions, classes)
        found: dict[str, float] = {"score/rows": self.rows, "score/unscored": sum(self.total.unscored.values())}
        found |= {f"score/{name}": value for name, value in summary.items()}
        found |= {f"unscored/{reason}": rows for reason, rows in self.total.unscored.items()}
        if self.labelled:
            found |= logged(self.judge, self.labelled, "labelled", classes) | {"labelled/rows": self.labelled.rows}
        return found

    @property
    def headlines(self) -> dict[str, float]:
        """What the job says at its end."""
        names = ("score/mean", "score/predicted_rate", f"labelled/{self.judge.headline.name}")
        return {name: value for name, value in self.metrics.items() if name in names}


def score(workers: Session, config: ScoreConfig, plan: ScorePlan, fetched: Fetched) -> Results:
    """Score all files that are due, a task for each; those that their reader refuses are in ``Results.refused``.

    Raises
    ------
    TipcastError
        T008, T009 where scores cannot be written, K-errors of the workers.

    """
    client, folder, manifest = workers.client, plan.present.folder, fetched.manifest
    work = Work(
        frames=workers.frames,
        dataset=dataset_of(manifest),
        task=task_of(manifest),
        threshold=manifest.get("threshold"),
        keep=None if config.keep is None else tuple(config.keep),
        name=fetched.name or str(fetched.model_id),
        version=fetched.version,
        folder=folder,
        storage=address.storage(folder, config.storage_options),
        recipe=plan.recipe,
    )
    held = hold_saved(client, NativeFile(fetched.path, fetched.format), workers.device)
    with failures(folder):
        for item in () if address.scheme(folder) else plan.due:  # by the driver: a late worker must bring none back
            Path(folder, item.name).parent.mkdir(parents=True, exist_ok=True)
    files = {}
    for item in plan.due:
        future = client.submit(
            score_file,
            replace(item, fragments=merged(item.fragments, min(work.frames.batch_rows, ROW_GROUP))),
            held,
            work,
            replaces=item.name in plan.present.files and plan.present.files[item.name].named,
            # few files leave cores idle that their parts can use
            threads=max(workers.n_threads // max(workers.n_workers, len(plan.due)), 1),
            pure=False,  # a task of an earlier scoring with the same arguments must not answer
        )
        files[future] = item
    results, ended = Results(manifest, dict(plan.refused)), as_completed(files)
    with progress("score") as report:
        for done, future in enumerate(ended, 1):
            report(done, len(plan.due))
            item, problem = files.pop(future), future.exception()
            if problem is None:
                results.add(item.name, *future.result())
            elif stops_all(problem):
                raise problem
            else:
                results.refused[item.name] = problem
            if worth_a_line(done, len(plan.due)):
                rows = "refused" if problem else f"{results.entries[item.name].rows:,} rows"
                LOG.info("file %d/%d  %s  %s", done, len(plan.due), item.name, rows)
            gate(f"scored-{len(results.entries)}")
    return results


@dataclass(frozen=True)
class ScoreRecord:
    """A scoring's run in MLflow."""

    run: Run
    config: ScoreConfig
    plan: ScorePlan
    fetched: Fetched
    command: str

    def write(self, results: Results, phases: Mapping[str, float], memory: Mapping[str, int]) -> None:
        """Record what was scored."""
        seconds = phases.get("score", 0.0)
        pace = {"score/rows_per_s": results.rows / seconds} if seconds and results.rows else {}
        pace |= {"score/files": len(results.entries), "score/kept_files": len(self.plan.kept)}
        pace["score/refused_files"] = len(results.refused)
        took = {f"seconds/{name}": value for name, value in phases.items()}
        peaks = {f"memory/{name}_peak_bytes": value for name, value in memory.items()}
        self.run.log_metrics({**results.metrics, **pace, **took, **peaks})
        self._data(results)
        self._table(results)
        if results.labelled:
            about = f"{self.model}, {results.labelled.rows:,} rows whose answer is known"
            classes = task_of(self.fetched.manifest).classes
            for path, drawn in results.judge.figures({"scored": results.labelled}, about, classes):
                self.run.log_bytes(drawn, path)
        self.run.note(self._note(results))

    @property
    def model(self) -> str:
        """The model's name and version in words."""
        name, version = self.fetched.name, self.fetched.version
        return f"{name} version {version}" if version else self.fetched.uri

    def _note(self, results: Results) -> str:
        """Write the run's note in Markdown: what its metrics do not show."""
        parts = [
            f"### {self.model} scored {results.rows:,} rows",
            f"Model `{self.fetched.uri}`, scores in `{to_plain(self.plan.present.folder)}`.",
            f"{len(results.refused)} files were refused: artifact `tables/files.json`." if results.refused else "",
            plot(self.run.id, results.judge.figure) if results.labelled else "",
            repeat(self.command, origin.source().remark),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _data(self, results: Results) -> None:
        files = results.entries
        if not files:
            return
        together = hashlib.sha256("\n".join(files[name].input_sha256 for name in sorted(files)).encode()).hexdigest()
        first = next(iter(files.values())).input
        described = {"rows": results.rows, "files": len(files)}
        self.run.log_dataset(first, together, f"rows scored by {self.model}"[:100], "score", described)

    def _table(self, results: Results) -> None:
        lines = [[name, entry.input, entry.rows, sum(entry.unscored.values()), entry.input_sha256, entry.sha256, ""]
                 for name, entry in sorted(results.entries.items())]  # fmt: skip
        lines += [[name, error.where, None, None, None, None, str(error)] for name, error in results.refused.items()]
        columns = {name: [line[at] for line in lines] for at, name in enumerate(FILES)}
        self.run.log_table(columns, "tables/files.json")
