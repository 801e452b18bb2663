"""The description of a registered version in Markdown: what it predicts, how well, from what, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tipcast.evaluation import report
from tipcast.evaluation.result import Auc, Evaluation

METRICS = ("auc", "average_precision", "log_loss", "brier", "accuracy")
USE = """```python
import mlflow, pandas as pd

trips = pd.read_parquet("trips.parquet")  # as the TLC publishes them
mlflow.pyfunc.load_model("{uri}").predict(trips)  # (rows,) probabilities
```"""


def version_page(
    uri: str,
    model: str,
    test: Evaluation,
    *,
    card: Auc | None,
    splits: Sequence[report.Split],
    facts: Mapping[str, str],
    run_id: str,
) -> str:
    """Write a version's description.

    The ROC plot is the run's artifact: MLflow shows pictures of relative addresses and removes ``data:`` ones, and a
    description has room for 5000 characters.

    Parameters
    ----------
    uri
        Of the logged model, which is known before the version has a number.
    model
        The model's kind, as ``xgboost``.
    test
        How well it does.
    card
        AUC of the test rows paid by card; None where payment is unknown.
    splits
        Name, period and rows of each split, in order of time.
    facts
        What else to say, one line each.
    run_id
        The run that trained it.

    """
    interval = test.auc_interval
    lines = [["auc", interval.around(test.metrics["auc"])]]
    lines += [[each, f"{test.metrics[each]:.4f}"] for each in METRICS if each != "auc"]
    if card is not None:
        lines.append(["auc, trips paid by card", card.interval.around(card.value)])
    parts = [
        f"### {model}: test AUC {test.metrics['auc']:.4f} (95 % interval {interval.low:.4f} to {interval.high:.4f})",
        report.plot(run_id),
        report.table(["test metric", "value"], lines),
        report.INTERVAL,
        report.table(["rows", "period", "number"], [[split, period, f"{rows:,}"] for split, period, rows in splits]),
        "\n".join(f"- {what}: `{value}`" for what, value in facts.items() if value),
        USE.format(uri=uri),
    ]
    return "\n\n".join(parts).replace("\u2003", "&emsp;") + "\n"  # this page, unlike a run's, strips the character
