"""Views of an experiment's runs in MLflow's pages: the columns of the table, and the charts.

A view is an experiment's tag with the state of MLflow's page as JSON; an address with
``viewStateShareKey=NAME`` opens it.
"""

import json
from collections.abc import Sequence
from typing import Any

VIEW = "mlflow.sharedViewState."
"""Beginning of the tag's name; the name of the view follows."""
HEADLINES = ("auc", "log_loss", "rmse", "inertia", "adjusted_rand")
"""Metrics that the table of runs shows."""
COLUMNS = [f"metrics.`{side}/{name}`" for name in HEADLINES for side in ("test", "validation")]
"""Columns of the table of runs, where MLflow hides metrics by default."""
SECTION = "Score against parameters"
"""Title above the charts."""
MOST_CHARTS = 12
"""Most parameters with a chart: a tag has at most 5,000 characters."""


def table_view() -> str:
    """Return the view of all runs as a table with the headline metrics."""
    return json.dumps({"selectedColumns": COLUMNS})


def charts_view(condition: str, metric: str, params: Sequence[str], *, maximize: bool) -> str:
    """Return the view of the runs of a condition as charts: a metric against each parameter, and
    all parameters side by side.

    The best runs come first.
    """
    params = list(params)[:MOST_CHARTS]
    y = {"key": metric, "type": "METRIC"}
    charts: list[dict[str, Any]] = [
        {"type": "SCATTER", "xaxis": {"key": name, "type": "PARAM"}, "yaxis": y} for name in params
    ]
    charts.append({"type": "PARALLEL", "selectedParams": params, "selectedMetrics": [metric]})

    return json.dumps(
        {
            "searchFilter": condition,
            "orderByKey": f"metrics.`{metric}`",
            "orderByAsc": not maximize,
            "runsHiddenMode": "SHOWALL",
            "compareRunCharts": [
                {"uuid": f"tipcast-{at}", "metricSectionId": SECTION, **chart}
                for at, chart in enumerate(charts)
            ],
            "compareRunSections": [{"uuid": SECTION, "name": SECTION, "display": True}],
            # Otherwise sections are in the order of their names.
            "isAccordionReordered": True,
        }
    )
