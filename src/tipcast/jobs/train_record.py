"""The record of a training run: parameters, data, metrics, plots, note and portable model."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from tipcast.compute.base import Array
from tipcast.config.plain import redact
from tipcast.config.schema import TrainConfig
from tipcast.datasets.base import Tabular
from tipcast.datasets.listing import Listing
from tipcast.evaluation import evaluator_of, report
from tipcast.evaluation.base import LEADING_METRICS, OWN, Evaluation, Evaluator, bounds, logged
from tipcast.jobs.contributions import draw_contributions
from tipcast.jobs.cross_validation import CrossValidation
from tipcast.jobs.out_of_fold import write_predictions
from tipcast.jobs.repeat import Original
from tipcast.jobs.run_context import RunContext
from tipcast.jobs.train_note import learnt_in_words
from tipcast.jobs.train_plan import Plan, Splits
from tipcast.jobs.usage import usage
from tipcast.measure import origin
from tipcast.models.base import Fitted
from tipcast.tracking import portable_model
from tipcast.tracking.batches import MAX_PARAM
from tipcast.tracking.run import FILES, ROC_CURVE, Run, steps_in_percent

if TYPE_CHECKING:
    from distributed import Client, Future

    from tipcast.models.native import Scorer

LOG = logging.getLogger("tipcast")

EXAMPLES = 5
"""Number of raw rows in the model's input example."""
MODEL_BYTES = "fit/model_bytes"
"""Metric: the size of the model's file."""


@dataclass(frozen=True)
class Trained:
    """A fitted model and its evaluation."""

    splits: Splits
    fitted: Fitted
    validation: Evaluation | None
    test: Evaluation
    baseline: Mapping[str, float]
    """Metrics of the same test rows for a prediction that knows no features."""
    constant: Sequence[str] = ()
    """Features that have one value, or none, in all training rows."""
    folded: CrossValidation | None = None
    """The folds of the training rows, if there are any."""

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """Name of rows -> their evaluation: test rows first, then those that chose the
        threshold.
        """
        evaluations = {"test": self.test}
        if self.validation:
            evaluations["validation"] = self.validation
        if self.folded:
            evaluations["out of fold"] = self.folded.out_of_fold
        return evaluations


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
    resumed: bool = False
    """Whether an earlier process has begun the run, and may have logged some of its record."""

    @property
    def run(self) -> Run:
        """The open run."""
        return self.context.run

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator of the predictions."""
        return evaluator_of(self.plan.task.kind)

    def data(self, splits: Splits) -> None:
        """Record the rows of each split and their files."""
        for name, (title, digest) in self._datasets(splits).items():
            uris = self._listing(name).uris
            profile = {
                "rows": splits[name].counts.rows,
                "period": self.plan.periods[name],
                "files": len(uris),
            }
            self.run.log_dataset(uris[0], digest, title, name, profile)

        # Addresses of the files, local ones absolute: others may repeat the run in another folder.
        files = {
            name: list(dict.fromkeys(redact(part.uri) for part in listing.parts))
            for name, listing in (("train", self.plan.train), ("test", self.plan.test))
        }
        self.run.log_text(yaml.safe_dump(files), FILES)
        dataset = self.plan.dataset
        if isinstance(dataset, Tabular) and dataset.report:
            self.context.table(dataset.report, "tables/columns.json")

    def metrics(self, trained: Trained) -> None:
        """Record metrics, the headline first, and the fit's history; warn of facts that make the
        result doubtful.
        """
        for remark in self.remarks(trained):
            LOG.warning(remark)

        run = self.run
        # A metric is a curve of one point.
        curves = {name: {0: value} for name, value in self.named_metrics(trained).items()}
        rates = steps_in_percent(trained.test.trial_curve)
        if rates:
            curves[ROC_CURVE] = rates
        for name, values in trained.fitted.history.items():
            curves[f"history/{name}"] = dict(values)
        if trained.folded:
            curves |= trained.folded.metrics.curves()

        self._log_curves(curves)

        info = trained.fitted.info
        words = {f"fit.{name}": value for name, value in info.items() if isinstance(value, str)}
        run.log_params(words)

    def _log_curves(self, curves: dict[str, dict[int, float]]) -> None:
        """Log metric -> step -> value, without the points that an earlier process has logged."""
        if self.resumed:
            curves = self.run.missing(curves)
        self.run.log_curves(curves)

    def named_metrics(self, trained: Trained) -> dict[str, float]:
        """Return the run's metrics by their keys in MLflow, the headline first."""
        evaluator = self.evaluator
        metrics = logged(evaluator, trained.test, "test", self.plan.task.classes)
        if trained.test.threshold is not None:
            metrics["test/threshold"] = trained.test.threshold
        metrics |= {f"baseline/{name}": value for name, value in trained.baseline.items()}

        if trained.validation:
            names = [
                metric.name
                for metric in (*evaluator.metrics[:LEADING_METRICS], *OWN[evaluator.kind.name])
            ]
            metrics |= {f"validation/{name}": trained.validation.metrics[name] for name in names}
        if trained.folded:
            summary = trained.folded.metrics.summary()
            metrics |= {f"validation/{name}": value for name, value in summary.items()}

        for name, rows in trained.splits.items():
            metrics |= {f"{name}/{key}": value for key, value in rows.summary().items()}

        info = trained.fitted.info
        numbers = {name: value for name, value in info.items() if not isinstance(value, str)}
        return metrics | {f"fit/{name}": float(value) for name, value in numbers.items()}

    def remarks(self, trained: Trained) -> list[str]:
        """Return a sentence on each fact that makes the result doubtful.

        Probabilities of classes that count the same in the fit are shifted on purpose, so that
        their losses say nothing about the model.
        """
        beaten: list[str] = []
        if self.config.task.class_weight is None:
            beaten = report.beaten(self.evaluator, trained.test, trained.baseline)

        counts = trained.splits["test"].counts.classes
        return [
            *beaten,
            *report.rare_classes(self.plan.task.classes, counts),
            *report.constant_features(trained.constant),
        ]

    def figures(self, trained: Trained) -> None:
        """Record the evaluator's figures and tables, and the importance of features."""
        self._evaluator_figures(trained)
        for path, columns in self.evaluator.tables(trained.test, self.plan.task.classes).items():
            self.run.log_table(columns, path)
        self._importance(trained)

    def _evaluator_figures(self, trained: Trained) -> None:
        evaluator = self.evaluator
        plan = self.plan
        test = trained.test
        rows = f"{test.rows:,} {plan.test.name}, {plan.periods['test']}"
        subtitle = f"{self.config.model.name}, {rows}"
        task = plan.task
        for path, picture in evaluator.figures(
            trained.evaluations, subtitle, task.classes, task.target_name
        ):
            self.run.log_bytes(picture, path)
            if path == evaluator.figure:
                # MLflow's page of compared runs shows files that lie at the root of all runs.
                self.run.log_bytes(picture, Path(path).name)

    def folds(self, client: "Client", folded: CrossValidation) -> None:
        """Record the predictions of the rows that folds test."""
        file = write_predictions(client, self.plan, folded, self.context.folder)
        if file:
            self.run.log_bytes(file.read_bytes(), f"folds/{file.name}")
        else:
            rows = f"{folded.out_of_fold.rows:,} rows"
            LOG.info("folds    predictions of %s are too many to keep", rows)

    def _importance(self, trained: Trained) -> None:
        from tipcast.evaluation import plots  # a thread has loaded Matplotlib ahead

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
        self, client: "Client", scorer: "Future[Scorer]", most: int, trained: Trained
    ) -> None:
        """Draw what each feature contributes to the predictions of at most ``most`` test rows, at
        even distances.
        """
        picture = draw_contributions(
            client,
            scorer,
            self.plan,
            trained.splits["test"],
            trained.test,
            model=self.config.model.name,
            most=most,
        )
        self.run.log_bytes(picture, "plots/contributions.png")

    def model(
        self,
        saved: Path,
        trained: Trained,
        raw: pd.DataFrame,
        scores: Mapping[str, Array],
        device: str,
    ) -> tuple[portable_model.PortableModel, float]:
        """Log the portable model and compare it with every way to score raw rows; return it, and
        the largest difference.
        """
        run = self.run
        if self.resumed:
            portable_model.give_up_models(run)
        logged = portable_model.log_model(
            run,
            saved,
            trained.fitted.format,
            self.model_info(trained, device),
            self.plan.dataset,
            self.plan.train.info,
            raw.head(EXAMPLES),
        )
        portable_model.link_metrics(run, logged, self._datasets(trained.splits))

        expected = np.stack([np.asarray(way, dtype=np.float64) for way in scores.values()])
        difference = portable_model.parity(self.run, logged, raw, expected)
        size = saved.stat().st_size
        self._log_curves({"parity/max_abs_diff": {0: difference}, MODEL_BYTES: {0: size}})
        run.log_params({"parity.ways": ", ".join(scores)})
        return logged, difference

    def model_info(self, trained: Trained, device: str) -> dict[str, Any]:
        """Return the part of the model's manifest that describes its training."""
        task = self.plan.task
        return {
            "features": list(task.features),
            "target": task.description,
            "task": task.to_manifest(),
            "threshold": trained.test.threshold,
            "model": self.config.model.name,
            "trained_on": device,
            **self._data_info(),
            "run_id": self.run.id,
            **self.context.code.facts,
            "versions": origin.versions(),
        }

    def _data_info(self) -> dict[str, Any]:
        """Return the digests and periods of the data, for the model's manifest."""
        train = self.plan.train
        periods = self.plan.periods
        trained_from, trained_until = train.period or (None, None)

        return {
            "data_digest": train.digest,
            "data_test_digest": self.plan.test.digest,
            "train_period": periods["train"],
            "trained_from": trained_from,
            "trained_until": trained_until,
            "test_period": periods["test"],
        }

    def finish_page(
        self, trained: Trained, phases: Mapping[str, float], memory: Mapping[str, int]
    ) -> None:
        """Record the seconds of phases and the memory of processes, and write the note."""
        run = self.run
        run.log_metrics({f"seconds/{name}": value for name, value in phases.items()})
        run.log_metrics({f"memory/{name}_peak_bytes": value for name, value in memory.items()})

        remark = self._repeat_remark()
        report_file = self.context.folder / "dask.html"
        if report_file.exists():
            run.log_bytes(report_file.read_bytes(), "dask/dask.html")

        note = report.note(
            self.config.model.name,
            self.evaluator,
            trained.evaluations,
            splits=self._splits(trained),
            phases=phases,
            folds=self._folds_in_words(trained.folded),
            balanced=self.config.task.class_weight is not None,
            baseline=trained.baseline,
            run_id=run.id,
            learnt=learnt_in_words(self.config, self.plan, trained.splits),
            remarks=self.remarks(trained),
            repeated=report.repeat(self.context.command, self.context.code.remark),
            remark=remark,
        )
        run.note(note)

    def _folds_in_words(self, folded: CrossValidation | None) -> str:
        """Return the note's paragraph on folds; empty without folds."""
        if folded is None:
            return ""
        headline = self.evaluator.headline_metric
        table = folded.table(headline.name)
        mean = folded.metrics.means[headline.name]
        error = folded.metrics.errors[headline.name]
        return report.folds(headline.name, table, mean, error)

    def _repeat_remark(self) -> str:
        """Log and return how the test metrics compare with those of the run that is repeated; empty
        if none is.
        """
        if self.original is None:
            return ""
        compared = self.original.compared(self.run.mlflow_run().data.metrics)
        LOG.info("%-9s%s", "repeat", compared)
        return f"Repeats run {self.original.run_id}: {compared}."

    def register(
        self, logged: portable_model.PortableModel, difference: float, trained: Trained
    ) -> portable_model.PortableModel:
        """Register the logged model, if the configuration asks for it, with the version's page."""
        name = self.config.tracking.register
        if name is None:
            return logged

        page = report.version_page(
            self.config.model.name,
            self.evaluator,
            trained.test,
            splits=self._splits(trained),
            run_id=self.run.id,
            usage=usage(logged.uri, self.plan),
        )
        return portable_model.register(
            self.run,
            logged,
            name,
            difference,
            self.headline_values(trained),
            page,
            trial=self.trial,
        )

    def headline_values(self, trained: Trained) -> dict[str, float]:
        """Return the first metrics of the test rows, the bounds of the first, and the threshold, if
        there is one.
        """
        headline_values = dict(trained.test.leading_metrics)
        if trained.test.threshold is not None:
            headline_values["threshold"] = trained.test.threshold

        metrics = {f"test/{name}": value for name, value in headline_values.items()}
        return metrics | bounds(
            trained.test.interval, f"test/{self.evaluator.headline_metric.name}"
        )

    def fold_values(self, trained: Trained) -> dict[str, float]:
        """Return the mean of the headline over the folds, and its standard error; empty without
        folds.
        """
        if trained.folded is None:
            return {}
        name = self.evaluator.headline_metric.name
        summary = trained.folded.metrics.summary()
        return {f"validation/{key}": summary[key] for key in (name, f"{name}_se")}

    def _datasets(self, splits: Splits) -> dict[str, tuple[str, str]]:
        """Return split -> name of its rows in MLflow, and digest of their files."""
        datasets = {}
        for name in splits:
            listing = self._listing(name)
            datasets[name] = (f"{listing.name} {self.plan.periods[name]}", listing.digest)
        return datasets

    def _listing(self, split: str) -> Listing:
        """Return the files that a split's rows come from."""
        if split == "test":
            return self.plan.test
        return self.plan.train

    def _splits(self, trained: Trained) -> list[report.Split]:
        periods = self.plan.periods
        return [(name, periods[name], rows.counts.rows) for name, rows in trained.splits.items()]


def planned_params(plan: Plan) -> dict[str, str]:
    """Return the parameters that follow from the data: the target, the features, and the columns
    left out, with reasons.

    A list that is too long for MLflow ends with the number of the others.
    """
    left_out = [f"{name} ({reason})" for name, reason in plan.left_out.items()]
    params = {
        "task.target": plan.target_in_words,
        "task.features": report.listed(plan.task.features, MAX_PARAM),
        "data.left_out": report.listed(left_out, MAX_PARAM, "; "),
    }
    return {name: value for name, value in params.items() if value}
