"""Registering what a training run has logged, with everything that the version's page should say."""

from __future__ import annotations

from tipcast import __version__
from tipcast.evaluation import version_page
from tipcast.jobs.train_record import Record
from tipcast.jobs.training import Data, Outcome
from tipcast.measure import origin
from tipcast.tracking import registry
from tipcast.tracking.portable import Logged


def register(record: Record, logged: Logged, difference: float, data: Data, outcome: Outcome) -> Logged:
    """Register the logged model where that is asked for.

    Parameters
    ----------
    record
        The training run.
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
    name = record.config.tracking.register
    if name is None:
        return logged
    test, manifest = outcome.test, logged.manifest
    metrics = {f"test/{key}": test.metrics[key] for key in version_page.METRICS}
    metrics |= {"test/auc_low": test.auc_interval.low, "test/auc_high": test.auc_interval.high}
    metrics["test/threshold"] = test.threshold
    page = version_page.version_page(
        logged.uri,
        record.config.model.name,
        test,
        card=outcome.card,
        splits=[(split, record.periods[split], rows.counts.rows) for split, rows in data.splits.items()],
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
            "run": record.run.id,
        },
        run_id=record.run.id,
    )
    return registry.register(record.run, logged, name, difference, metrics, page, trial=record.trial)
