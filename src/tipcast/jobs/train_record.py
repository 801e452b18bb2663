"""What a training run records: parameters, data, metrics, plots, the note and the portable model."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from tipcast import __version__
from tipcast.config.job_schemas import TrainConfig
from tipcast.config.plain import flatten, to_plain
from tipcast.evaluation import plots, report
from tipcast.evaluation.base import SHOWN, Evaluator, bounds, evaluator, logged
from tipcast.jobs import opening
from tipcast.jobs.training import Data, Outcome, Plan
from tipcast.measure import origin
from tipcast.models.base import Fitted, NativeFile
from tipcast.tracking import portable, registry
from tipcast.tracking.run import Run

EXAMPLES = 5
"""Raw rows in the model's input example."""
DIGEST = 16
"""Characters of a digest that tags show; the datasets and the model's manifest have all."""
SECTIONS = ("backend", "cluster", "data", "task", "model", "search", "seed")
"""Parts of the configuration that runs are compared by."""
NOT_PARAMS = (
    "cluster.wait_s",
    "cluster.worker_ttl_s",
    "cluster.allowed_failures",
    "cluster.connect_timeout_s",
    "cluster.performance_report",
    "cluster.dashboard",
    "data.limits",
    "task.kind",
    "task.function",
    "task.target",
    "task.columns",
    "task.params",
    "task.classes",
    "task.description",
    "model.kinds",
    "model.cpu",
    "model.gpu",
    "model.space",
    "model.tiny",
)
"""Keys that no run is compared by; the whole configuration is an artifact."""


@dataclass(frozen=True)
class Record:
    """A training run in MLflow, written as the job goes on."""

    run: Run
    config: TrainConfig
    plan: Plan
    command: str
    folder: Path
    """For files on their way to MLflow."""
    trial: str = ""
    """Key of the sweep's trial whose parameters are fitted again."""

    @property
    def judge(self) -> Evaluator:
        """What the predictions are judged by."""
        return evaluator(self.plan.task.kind)

    @property
    def periods(self) -> dict[str, str]:
        """Split -> its period in words."""
        return self.plan.periods

    def data(self, data: Data) -> None:
        """Record which rows each split has and where they came from."""
        for name, rows in data.splits.items():
            listing, period = self.plan.test if name == "test" else self.plan.train, self.periods[name]
            profile = {"rows": rows.counts.rows, "period": period, "files": len(listing.uris)}
            if len(rows.counts.classes) == 2:
                profile["positive_rate"] = rows.positive_rate
            self.run.log_dataset(listing.uris[0], listing.digest, f"{listing.name} {period}", name, profile)
        uris = {"train": list(self.plan.train.uris), "test": list(self.plan.test.uris)}
        self.run.log_text(yaml.safe_dump(uris), "data/files.yaml")
        counts = data.test.counts
        self.run.set_tags(
            {
                "data.digest": self.plan.train.digest[:DIGEST],
                "data.test_digest": self.plan.test.digest[:DIGEST],
                **{f"data.test_{name}_share": f"{number / counts.rows:.4f}" for name, number in counts.extra.items()},
                **{f"data.{name}_rows": rows.counts.rows for name, rows in data.splits.items()},
                **{f"data.{name}_period": self.periods[name] for name in data.splits},
            }
        )

    def metrics(self, data: Data, fitted: Fitted, outcome: Outcome) -> None:
        """Record metrics, the headline first, and the fit's history."""
        headline = self.judge.headline
        found = logged(outcome.test, "test", headline)
        if outcome.test.threshold is not None:
            found["test/threshold"] = outcome.test.threshold
        found |= {f"test/{headline.name}_{name}": each.value for name, each in outcome.subsets.items()}
        if outcome.validation:
            found |= logged(outcome.validation, "validation", headline)
        for name, rows in data.splits.items():
            found |= {f"{name}/{key}": value for key, value in rows.summary().items()}
        found |= {f"fit/{name}": float(value) for name, value in fitted.info.items() if isinstance(value, int | float)}
        self.run.log_metrics(found)
        self.run.log_history(
            {f"history/{name}_{metric}": values for name, of in fitted.history.items() for metric, values in of.items()}
        )
        self.run.set_tags({f"fit.{name}": value for name, value in fitted.info.items() if isinstance(value, str)})

    def plots(self, data: Data, fitted: Fitted, outcome: Outcome) -> None:
        """Record the evaluator's figures and tables, the importance of features and the history of the fit."""
        test, name, judge, classes = outcome.test, self.config.model.name, self.judge, self.plan.task.classes
        subtitle = f"{name}, {test.rows:,} {self.plan.test.name} of {self.periods['test']}"
        log = self.run.log_bytes
        found = {"test": test} | ({"validation": outcome.validation} if outcome.validation else {})
        lead = judge.lead(found, subtitle, classes)
        log(lead, judge.figure)
        log(plots.small(lead), report.small_name(judge.figure))
        for path, drawn in judge.figures(test, subtitle, classes).items():
            log(drawn, path)
        for path, columns in judge.tables(test, classes).items():
            self.run.log_table(columns, path)
        trained = f"{name}, {data.train.counts.rows:,} {self.plan.train.name} of {self.periods['train']}"
        log(plots.importance(fitted.importance, trained, kind=fitted.importance_kind), "plots/feature_importance.png")
        if fitted.history:
            metric = list(next(iter(fitted.history.values())))[-1]
            best = fitted.info.get("best_iteration")
            log(
                plots.history(fitted.history, metric, trained, best=None if best is None else int(best)),
                "plots/history.png",
            )

    def model(
        self, native: NativeFile, outcome: Outcome, raw: pd.DataFrame, scores: Mapping[str, Any], device: str
    ) -> tuple[portable.Logged, float]:
        """Log the portable model and hold it against every way to score it.

        Parameters
        ----------
        native, outcome
            The saved model and how well it does.
        raw
            Held-out raw rows.
        scores
            Way to score them -> predictions, see ``models.predict.every_way``.
        device
            That the model was trained on.

        Returns
        -------
        tuple
            The logged model and the largest difference of its scores.

        """
        task, train, test = self.plan.task, self.plan.train, self.plan.test
        facts = {
            "features": list(task.features),
            "target": task.description,
            "task": task.facts(),
            "threshold": outcome.test.threshold,
            "profile": outcome.profile,
            "model": self.config.model.name,
            "trained_on": device,
            "data_digest": train.digest,
            "data_test_digest": test.digest,
            "train_period": self.periods["train"],
            "trained_from": train.period[0] if train.period else None,
            "trained_until": train.period[1] if train.period else None,
            "test_period": self.periods["test"],
            "run_id": self.run.id,
            "git_commit": origin.source().commit,
            "git_dirty": bool(origin.source().diff),
            "versions": {"tipcast": __version__, **origin.versions()},
        }
        dataset = self.plan.dataset
        logged = portable.log_model(
            self.run, native.path, native.format, facts, dataset, train.facts, raw.head(EXAMPLES)
        )
        expected = np.stack([np.asarray(found, dtype=np.float64) for found in scores.values()])
        difference = portable.parity(logged, raw, expected)
        self.run.log_metrics({"parity/max_abs_diff": difference})
        self.run.set_tags({"parity.ways": ", ".join(scores)})
        return logged, difference

    def register(self, logged: portable.Logged, difference: float, data: Data, outcome: Outcome) -> portable.Logged:
        """Register the logged model where that is asked for, with everything that the version's page should say.

        Parameters
        ----------
        logged, difference
            The model, and the largest difference of its scores from the estimator's.
        data, outcome
            What it was trained on, and how well it does.

        Returns
        -------
        Logged
            With the version's URI where it was registered.

        Raises
        ------
        TipcastError
            M011 where the model is not fit to be registered.

        """
        name = self.config.tracking.register
        if name is None:
            return logged
        test, manifest, headline = outcome.test, logged.manifest, self.judge.headline.name
        metrics = {f"test/{key}": value for key, value in list(test.shown().items())[:SHOWN]}
        metrics |= bounds(test.interval, f"test/{headline}")
        if test.threshold is not None:
            metrics["test/threshold"] = test.threshold
        page = report.version_page(
            logged.uri,
            self.config.model.name,
            self.judge,
            test,
            subsets=outcome.subsets,
            splits=[(split, self.periods[split], rows.counts.rows) for split, rows in data.splits.items()],
            facts={
                "target": manifest["target"],
                "features": ", ".join(manifest["features"]),
                "trained on": manifest["trained_on"],
                "digest of the training data": manifest["data_digest"],
                "code": manifest["git_commit"] or f"tipcast {__version__}",
                "changes of it, in no commit": f"{origin.DIFF} of the run" if manifest["git_dirty"] else "",
                "file": f"{manifest['file']}, {manifest['format']}",
                "SHA-256 of the file": manifest["sha256"]["model"],
                "largest difference of its scores from the estimator's": f"{difference:.2g}",
                "run": self.run.id,
            },
            run_id=self.run.id,
        )
        return registry.register(self.run, logged, name, difference, metrics, page, trial=self.trial)

    def close(self, data: Data, outcome: Outcome, phases: Mapping[str, float], memory: Mapping[str, int]) -> None:
        """Record how long it took and how much memory, and write the note."""
        self.run.log_metrics({f"seconds/{name}": value for name, value in phases.items()})
        self.run.log_metrics({f"memory/{name}_peak_bytes": value for name, value in memory.items()})
        report_file = self.folder / "dask.html"
        if report_file.exists():
            self.run.log_file(report_file, "dask")
        self.run.note(
            report.note(
                self.config.model.name,
                self.judge,
                outcome.test,
                splits=[(name, self.periods[name], rows.counts.rows) for name, rows in data.splits.items()],
                phases=phases,
                command=self.command,
                validation=outcome.validation,
                subsets=outcome.subsets,
                run_id=self.run.id,
                changes=origin.source().remark,
            )
        )


@contextlib.contextmanager
def opened(
    config: TrainConfig,
    plan: Plan,
    command: str,
    folder: Path,
    *,
    job: str = "train",
    name: str | None = None,
    later: Collection[str] = (),
    resume: str | None = None,
) -> Iterator[Record]:
    """Open the run with what is known before any worker starts: the configuration and where the code comes from.

    Parameters ``later`` are logged by the job itself, and ``resume`` is a run that is opened again.
    """
    plain = to_plain(config)
    params = flatten({name: plain[name] for name in SECTIONS if name in plain})
    params = {name: value for name, value in params.items() if not name.startswith(NOT_PARAMS) and name not in later}
    run_name = name or config.model.name
    with opening.opened(config, command, job=job, name=run_name, params=params, resume=resume) as run:
        yield Record(run, config, plan, command, folder)
