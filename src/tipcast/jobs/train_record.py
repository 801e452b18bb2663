"""What a training run records: parameters, data, metrics, plots, the note and the portable
model.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from tipcast.config.plain import flatten, redact, to_plain
from tipcast.config.schema import DoctorConfig, ScoreConfig, TrainConfig
from tipcast.datasets.base import Tabular
from tipcast.evaluation import evaluator, report
from tipcast.evaluation.base import OWN, SHOWN, Evaluation, Evaluator, bounds, logged
from tipcast.jobs.repeat import Original
from tipcast.jobs.run_context import RunContext
from tipcast.jobs.train_plan import Plan, Splits
from tipcast.measure import origin
from tipcast.models.base import Fitted
from tipcast.models.fit import contributions
from tipcast.tracking import portable
from tipcast.tracking.run import FILES, MAX_PARAM, Run

LOG = logging.getLogger("tipcast")

EXAMPLES = 5
"""Raw rows in the model's input example."""
CURVE = "roc/true_positive_rate"
"""Metric whose step is the false-positive rate in percent, of test rows or of a trial's validation
rows.
"""
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
class Outcome:
    """A fitted model and how well it does."""

    splits: Splits
    fitted: Fitted
    validation: Evaluation | None
    test: Evaluation
    baseline: Mapping[str, float]
    """Metrics of the same test rows for a prediction that knows no features."""
    constant: Sequence[str] = ()
    """Features that have one value, or none, in all training rows."""


@dataclass(frozen=True)
class Record:
    """A training run in MLflow, written as the job goes on."""

    context: RunContext
    config: TrainConfig
    plan: Plan
    trial: str = ""
    """Key of the sweep's trial whose parameters are fitted again."""
    original: Original | None = None
    """The run that is repeated."""

    @property
    def run(self) -> Run:
        """The open run."""
        return self.context.run

    @property
    def judge(self) -> Evaluator:
        """What the predictions are judged by."""
        return evaluator(self.plan.task.kind)

    def data(self, splits: Splits) -> None:
        """Record which rows each split has and where they came from."""
        sides = {"train": self.plan.train, "test": self.plan.test}
        for name, (title, digest) in self._datasets(splits).items():
            uris = sides["test" if name == "test" else "train"].uris
            profile = {
                "rows": splits[name].counts.rows,
                "period": self.plan.periods[name],
                "files": len(uris),
            }
            self.run.log_dataset(uris[0], digest, title, name, profile)

        # Addresses of the files, local ones from the root on: others repeat the run elsewhere.
        read = {
            name: list(dict.fromkeys(redact(part.uri) for part in side.fragments))
            for name, side in sides.items()
        }
        self.run.log_text(yaml.safe_dump(read), FILES)
        dataset = self.plan.dataset
        if isinstance(dataset, Tabular) and dataset.report:
            self.context.table(dataset.report, "tables/columns.json")

    def metrics(self, outcome: Outcome) -> None:
        """Record metrics, the headline first, and the fit's history."""
        judge = self.judge
        fitted = outcome.fitted
        metrics = logged(judge, outcome.test, "test", self.plan.task.classes)
        metrics |= self.headlines(outcome) | {
            f"baseline/{name}": value for name, value in outcome.baseline.items()
        }
        if outcome.validation:
            names = [metric.name for metric in (*judge.metrics[:SHOWN], *OWN[judge.kind.name])]
            metrics |= {f"validation/{name}": outcome.validation.metrics[name] for name in names}

        for remark in (
            report.beaten(judge, outcome.test, outcome.baseline),
            *self.remarks(outcome),
        ):
            if remark:
                LOG.warning(remark)

        for name, rows in outcome.splits.items():
            metrics |= {f"{name}/{key}": value for key, value in rows.summary().items()}

        metrics |= {
            f"fit/{name}": float(value)
            for name, value in fitted.info.items()
            if not isinstance(value, str)
        }
        self.run.log_metrics(metrics)
        if rates := stepped(outcome.test.trial_curve):
            self.run.log_curves({CURVE: rates})

        self.run.log_curves({f"history/{name}": values for name, values in fitted.history.items()})
        self.run.log_params(
            {f"fit.{name}": value for name, value in fitted.info.items() if isinstance(value, str)}
        )

    def remarks(self, outcome: Outcome) -> list[str]:
        """Return a sentence on each fact of the rows that makes a result doubtful."""
        counts = outcome.splits["test"].counts.classes
        return [
            *report.rare_classes(self.plan.task.classes, counts),
            *report.constant_features(outcome.constant),
        ]

    def figures(self, outcome: Outcome) -> None:
        """Record the evaluator's figures and tables, and the importance of features."""
        from tipcast.evaluation import plots  # a thread has loaded Matplotlib meanwhile

        test = outcome.test
        fitted = outcome.fitted
        judge = self.judge
        log = self.run.log_bytes
        name = self.config.model.name
        classes = self.plan.task.classes
        periods = self.plan.periods
        subtitle = f"{name}, {test.rows:,} {self.plan.test.name}, {periods['test']}"
        evaluations = {"test": test} | (
            {"validation": outcome.validation} if outcome.validation else {}
        )
        for path, drawn in judge.figures(evaluations, subtitle, classes):
            log(drawn, path)
            if path == judge.figure:
                # MLflow's page of compared runs shows what lies at the root of all
                log(drawn, Path(path).name)
        for path, columns in judge.tables(test, classes).items():
            self.run.log_table(columns, path)
        rows = outcome.splits["train"].counts.rows
        trained = f"{name}, {rows:,} {self.plan.train.name}, {periods['train']}"
        if fitted.importance:
            picture = plots.importance(fitted.importance, trained, kind=fitted.importance_kind)
            log(picture, "plots/feature_importance.png")

    def contributions(self, client: Any, held: Any, most: int, outcome: Outcome) -> None:
        """Draw what each feature contributes to the predictions of some test rows, at even
        distances.
        """
        from tipcast.evaluation import plots  # as for ``figures``

        test = outcome.splits["test"]
        values, added = contributions(client, held, test.x, test.parts, most)
        subtitle = f"{self.config.model.name}, {len(values):,} of {outcome.test.rows:,} test rows"
        if self.judge.kind.column_per_class:
            subtitle += ", to the class predicted"
        drawn = plots.contributions(values, added[:, :-1], self.plan.task.features, subtitle)
        self.run.log_bytes(drawn, "plots/contributions.png")

    def model(
        self,
        saved: Path,
        outcome: Outcome,
        raw: pd.DataFrame,
        scores: Mapping[str, Any],
        device: str,
    ) -> tuple[portable.Logged, float]:
        """Log the portable model and hold it against every way to score raw rows; return the
        largest difference too.
        """
        task = self.plan.task
        train = self.plan.train
        test = self.plan.test
        periods = self.plan.periods
        facts = {
            "features": list(task.features),
            "target": task.description,
            "task": task.facts(),
            "threshold": outcome.test.threshold,
            "model": self.config.model.name,
            "trained_on": device,
            "data_digest": train.digest,
            "data_test_digest": test.digest,
            "train_period": periods["train"],
            "trained_from": train.period[0] if train.period else None,
            "trained_until": train.period[1] if train.period else None,
            "test_period": periods["test"],
            "run_id": self.run.id,
            **self.context.code.facts,
            "versions": origin.versions(),
        }
        logged = portable.log_model(
            self.run,
            saved,
            outcome.fitted.format,
            facts,
            self.plan.dataset,
            train.info,
            raw.head(EXAMPLES),
        )
        expected = np.stack([np.asarray(way, dtype=np.float64) for way in scores.values()])
        portable.link_metrics(self.run, logged, self._datasets(outcome.splits))
        difference = portable.parity(logged, raw, expected)
        self.run.log_metrics({"parity/max_abs_diff": difference})
        self.run.log_params({"parity.ways": ", ".join(scores)})

        return logged, difference

    def close(
        self, outcome: Outcome, phases: Mapping[str, float], memory: Mapping[str, int]
    ) -> None:
        """Record how long it took and how much memory, and write the note."""
        run = self.run
        remark = ""
        run.log_metrics({f"seconds/{name}": value for name, value in phases.items()})
        run.log_metrics({f"memory/{name}_peak_bytes": value for name, value in memory.items()})

        if self.original:
            compared = self.original.compared(run.client.get_run(run.id).data.metrics)
            remark = f"Repeats run {self.original.run_id}: {compared}."
            LOG.info("%-9s%s", "repeat", compared)

        if (report_file := self.context.folder / "dask.html").exists():
            run.log_bytes(report_file.read_bytes(), "dask/dask.html")

        note = report.note(
            self.config.model.name,
            self.judge,
            outcome.test,
            splits=self._splits(outcome),
            phases=phases,
            validation=outcome.validation,
            baseline=outcome.baseline,
            run_id=run.id,
            learnt=report.learnt(self.plan.asked, self.plan.task.features, self.plan.left_out),
            remarks=self.remarks(outcome),
            repeated=report.repeat(self.context.command, self.context.code.remark),
            remark=remark,
        )
        run.note(note)

    def register(
        self, logged: portable.Logged, difference: float, outcome: Outcome
    ) -> portable.Logged:
        """Register the logged model where that is asked for, with everything that the version's
        page should say.
        """
        name = self.config.tracking.register
        model = self.config.model.name
        splits = self._splits(outcome)
        if name is None:
            return logged

        page = report.version_page(
            logged.uri, model, self.judge, outcome.test, splits=splits, run_id=self.run.id
        )
        return portable.register(
            self.run, logged, name, difference, self.headlines(outcome), page, trial=self.trial
        )

    def headlines(self, outcome: Outcome) -> dict[str, float]:
        """Return the first metrics of the test rows, the bounds of the first, and the threshold, if
        there is one.
        """
        threshold = {} if outcome.test.threshold is None else {"threshold": outcome.test.threshold}
        metrics = {
            f"test/{name}": value for name, value in (outcome.test.shown | threshold).items()
        }
        return metrics | bounds(outcome.test.interval, f"test/{self.judge.headline.name}")

    def _datasets(self, splits: Splits) -> dict[str, tuple[str, str]]:
        """Return what MLflow calls the rows of each split, and the digest of their files."""
        listings = {name: self.plan.test if name == "test" else self.plan.train for name in splits}
        return {
            name: (f"{each.name} {self.plan.periods[name]}", each.digest)
            for name, each in listings.items()
        }

    def _splits(self, outcome: Outcome) -> list[report.Split]:
        periods = self.plan.periods
        return [(name, periods[name], rows.counts.rows) for name, rows in outcome.splits.items()]


def stepped(rates: Sequence[float]) -> dict[int, float]:
    """Return values at even distances from 0 to 1 by their place in percent."""
    return {round(100 * at / (len(rates) - 1)): rate for at, rate in enumerate(rates)}


def planned_params(plan: Plan) -> dict[str, str]:
    """Return what the data decide of a training: the target, the features, and the columns left
    out, with the reason.

    Lists that are longer than MLflow keeps of a parameter end with the number of the others.
    """
    left_out = [f"{name} ({reason})" for name, reason in plan.left_out.items()]
    facts = {
        "task.target": plan.asked,
        "task.features": report.listed(plan.task.features, MAX_PARAM),
        "data.left_out": report.listed(left_out, MAX_PARAM, "; "),
    }
    return {name: value for name, value in facts.items() if value}


def params(
    config: DoctorConfig | ScoreConfig,
    sections: Collection[str] = SECTIONS,
    later: Collection[str] = (),
) -> dict[str, Any]:
    """Return what runs are compared by, without what the job logs ``later`` itself."""
    plain = to_plain(config)
    flat = flatten({name: plain[name] for name in sections if name in plain})
    return {
        name: value
        for name, value in flat.items()
        if not name.startswith(NOT_PARAMS) and name not in later
    }
