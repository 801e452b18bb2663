"""What a training run records: parameters, data, metrics, plots, the note and the portable
model.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from tipcast.compute.base import Array
from tipcast.config.plain import flatten, redact, to_plain
from tipcast.config.schema import DataJobConfig, ScoreConfig, TrainConfig
from tipcast.datasets.base import Tabular
from tipcast.datasets.scan import Listing
from tipcast.evaluation import evaluator, report
from tipcast.evaluation.base import OWN, SHOWN, Evaluation, Evaluator, bounds, logged
from tipcast.jobs.repeat import Original
from tipcast.jobs.run_context import RunContext
from tipcast.jobs.train_plan import Plan, Splits
from tipcast.measure import origin
from tipcast.models.base import Fitted
from tipcast.models.fit import contributions
from tipcast.tracking import portable
from tipcast.tracking.run import FILES, Run
from tipcast.tracking.writing import MAX_PARAM

if TYPE_CHECKING:
    from distributed import Client, Future

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
"""Keys that no run is compared by, with all keys below them; the whole configuration is an
artifact.
"""


@dataclass(frozen=True)
class Trained:
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
        for name, (title, digest) in self._datasets(splits).items():
            uris = self._listing(name).uris
            profile = {
                "rows": splits[name].counts.rows,
                "period": self.plan.periods[name],
                "files": len(uris),
            }
            self.run.log_dataset(uris[0], digest, title, name, profile)

        # Addresses of the files, local ones from the root on: others repeat the run elsewhere.
        files = {
            name: list(dict.fromkeys(redact(part.uri) for part in listing.fragments))
            for name, listing in (("train", self.plan.train), ("test", self.plan.test))
        }
        self.run.log_text(yaml.safe_dump(files), FILES)
        dataset = self.plan.dataset
        if isinstance(dataset, Tabular) and dataset.report:
            self.context.table(dataset.report, "tables/columns.json")

    def metrics(self, trained: Trained) -> None:
        """Record metrics, the headline first, and the fit's history; log what makes the result
        doubtful.
        """
        beaten = report.beaten(self.judge, trained.test, trained.baseline)
        for remark in filter(None, (beaten, *self.remarks(trained))):
            LOG.warning(remark)

        run = self.run
        history = trained.fitted.history
        run.log_metrics(self.named_metrics(trained))
        if rates := stepped(trained.test.trial_curve):
            run.log_curves({CURVE: rates})
        run.log_curves({f"history/{name}": values for name, values in history.items()})

        info = trained.fitted.info
        words = {f"fit.{name}": value for name, value in info.items() if isinstance(value, str)}
        run.log_params(words)

    def named_metrics(self, trained: Trained) -> dict[str, float]:
        """Return the run's metrics by the names that MLflow shows, the headline first."""
        judge = self.judge
        metrics = logged(judge, trained.test, "test", self.plan.task.classes)
        metrics |= self.headlines(trained)
        metrics |= {f"baseline/{name}": value for name, value in trained.baseline.items()}

        if trained.validation:
            names = [metric.name for metric in (*judge.metrics[:SHOWN], *OWN[judge.kind.name])]
            metrics |= {f"validation/{name}": trained.validation.metrics[name] for name in names}

        for name, rows in trained.splits.items():
            metrics |= {f"{name}/{key}": value for key, value in rows.summary().items()}

        info = trained.fitted.info
        numbers = {name: value for name, value in info.items() if not isinstance(value, str)}
        return metrics | {f"fit/{name}": float(value) for name, value in numbers.items()}

    def remarks(self, trained: Trained) -> list[str]:
        """Return a sentence on each fact of the rows that makes a result doubtful."""
        counts = trained.splits["test"].counts.classes
        return [
            *report.rare_classes(self.plan.task.classes, counts),
            *report.constant_features(trained.constant),
        ]

    def figures(self, trained: Trained) -> None:
        """Record the evaluator's figures and tables, and the importance of features."""
        self._evaluator_figures(trained)
        for path, columns in self.judge.tables(trained.test, self.plan.task.classes).items():
            self.run.log_table(columns, path)
        self._importance(trained)

    def _evaluator_figures(self, trained: Trained) -> None:
        judge = self.judge
        plan = self.plan
        test = trained.test
        subtitle = (
            f"{self.config.model.name}, {test.rows:,} {plan.test.name}, {plan.periods['test']}"
        )
        evaluations = {"test": test}
        if trained.validation:
            evaluations["validation"] = trained.validation

        for path, picture in judge.figures(evaluations, subtitle, plan.task.classes):
            self.run.log_bytes(picture, path)
            if path == judge.figure:
                # MLflow's page of compared runs shows what lies at the root of all
                self.run.log_bytes(picture, Path(path).name)

    def _importance(self, trained: Trained) -> None:
        from tipcast.evaluation import plots  # a thread has loaded Matplotlib meanwhile

        fitted = trained.fitted
        if not fitted.importance:
            return

        rows = trained.splits["train"].counts.rows
        title = f"{rows:,} {self.plan.train.name}, {self.plan.periods['train']}"
        picture = plots.importance(
            fitted.importance, f"{self.config.model.name}, {title}", kind=fitted.importance_kind
        )
        self.run.log_bytes(picture, "plots/feature_importance.png")

    def contributions(
        self, client: "Client", scorer: "Future[Any]", most: int, trained: Trained
    ) -> None:
        """Draw what each feature contributes to the predictions of at most so many test rows, at
        even distances.
        """
        from tipcast.evaluation import plots  # loaded ahead, as in ``figures``

        test = trained.splits["test"]
        values, added = contributions(client, scorer, test.x, test.parts, most)
        subtitle = f"{self.config.model.name}, {len(values):,} of {trained.test.rows:,} test rows"
        if self.judge.kind.column_per_class:
            subtitle += ", to the class predicted"

        picture = plots.contributions(values, added[:, :-1], self.plan.task.features, subtitle)
        self.run.log_bytes(picture, "plots/contributions.png")

    def model(
        self,
        saved: Path,
        trained: Trained,
        raw: pd.DataFrame,
        scores: Mapping[str, Array],
        device: str,
    ) -> tuple[portable.Logged, float]:
        """Log the portable model and hold it against every way to score raw rows; return the
        largest difference too.
        """
        run = self.run
        logged = portable.log_model(
            run,
            saved,
            trained.fitted.format,
            self.model_info(trained, device),
            self.plan.dataset,
            self.plan.train.info,
            raw.head(EXAMPLES),
        )
        portable.link_metrics(run, logged, self._datasets(trained.splits))

        expected = np.stack([np.asarray(way, dtype=np.float64) for way in scores.values()])
        difference = portable.parity(logged, raw, expected)
        run.log_metrics({"parity/max_abs_diff": difference})
        run.log_params({"parity.ways": ", ".join(scores)})
        return logged, difference

    def model_info(self, trained: Trained, device: str) -> dict[str, Any]:
        """Return what the model's manifest says of its training."""
        task = self.plan.task
        train = self.plan.train
        periods = self.plan.periods
        return {
            "features": list(task.features),
            "target": task.description,
            "task": task.to_manifest(),
            "threshold": trained.test.threshold,
            "model": self.config.model.name,
            "trained_on": device,
            "data_digest": train.digest,
            "data_test_digest": self.plan.test.digest,
            "train_period": periods["train"],
            "trained_from": train.period[0] if train.period else None,
            "trained_until": train.period[1] if train.period else None,
            "test_period": periods["test"],
            "run_id": self.run.id,
            **self.context.code.facts,
            "versions": origin.versions(),
        }

    def finish_page(
        self, trained: Trained, phases: Mapping[str, float], memory: Mapping[str, int]
    ) -> None:
        """Record how long it took and how much memory, and write the note."""
        run = self.run
        run.log_metrics({f"seconds/{name}": value for name, value in phases.items()})
        run.log_metrics({f"memory/{name}_peak_bytes": value for name, value in memory.items()})

        remark = self._repeat_remark()
        if (report_file := self.context.folder / "dask.html").exists():
            run.log_bytes(report_file.read_bytes(), "dask/dask.html")

        note = report.note(
            self.config.model.name,
            self.judge,
            trained.test,
            splits=self._splits(trained),
            phases=phases,
            validation=trained.validation,
            baseline=trained.baseline,
            run_id=run.id,
            learnt=report.learnt(self.plan.asked, self.plan.task.features, self.plan.left_out),
            remarks=self.remarks(trained),
            repeated=report.repeat(self.context.command, self.context.code.remark),
            remark=remark,
        )
        run.note(note)

    def _repeat_remark(self) -> str:
        """Log and return how the test metrics compare with those of the run that is repeated; empty
        where none is.
        """
        if self.original is None:
            return ""
        compared = self.original.compared(self.run.stored().data.metrics)
        LOG.info("%-9s%s", "repeat", compared)
        return f"Repeats run {self.original.run_id}: {compared}."

    def register(
        self, logged: portable.Logged, difference: float, trained: Trained
    ) -> portable.Logged:
        """Register the logged model where that is asked for, with everything that the version's
        page should say.
        """
        name = self.config.tracking.register
        if name is None:
            return logged

        page = report.version_page(
            logged.uri,
            self.config.model.name,
            self.judge,
            trained.test,
            splits=self._splits(trained),
            run_id=self.run.id,
        )
        return portable.register(
            self.run, logged, name, difference, self.headlines(trained), page, trial=self.trial
        )

    def headlines(self, trained: Trained) -> dict[str, float]:
        """Return the first metrics of the test rows, the bounds of the first, and the threshold, if
        there is one.
        """
        shown = dict(trained.test.shown)
        if trained.test.threshold is not None:
            shown["threshold"] = trained.test.threshold

        metrics = {f"test/{name}": value for name, value in shown.items()}
        return metrics | bounds(trained.test.interval, f"test/{self.judge.headline.name}")

    def _datasets(self, splits: Splits) -> dict[str, tuple[str, str]]:
        """Return what MLflow calls the rows of each split, and the digest of their files."""
        datasets = {}
        for name in splits:
            listing = self._listing(name)
            datasets[name] = (f"{listing.name} {self.plan.periods[name]}", listing.digest)
        return datasets

    def _listing(self, split: str) -> Listing:
        """Return the files that a split's rows come from."""
        return self.plan.test if split == "test" else self.plan.train

    def _splits(self, trained: Trained) -> list[report.Split]:
        periods = self.plan.periods
        return [(name, periods[name], rows.counts.rows) for name, rows in trained.splits.items()]


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
    config: DataJobConfig | ScoreConfig,
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
