"""The note of a run and the page of a version in Markdown: what came out, of which rows, how to repeat and use it."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from tipcast.evaluation.base import SHOWN, Evaluation, Evaluator

USE = """```python
import mlflow, pandas as pd

rows = pd.read_parquet("rows.parquet")  # as in the input example
mlflow.pyfunc.load_model("{uri}").predict(rows)
```"""

Split = tuple[str, str, int]
"""Name, period in words, rows."""


def note(
    model: str,
    judge: Evaluator,
    test: Evaluation,
    *,
    splits: Sequence[Split],
    phases: Mapping[str, float],
    validation: Evaluation | None,
    baseline: Mapping[str, float],
    run_id: str,
    repeated: str,
    remark: str,
) -> str:
    """Write the note of a training run, in paragraphs of Markdown.

    It leads with ``test``; the threshold was chosen on ``validation``. ``splits`` are in order of time, ``phases`` in
    seconds; ``repeated`` is of ``repeat``.
    """
    shown = {"test": test} | ({"validation": validation} if validation else {})
    head, lines = ["metric", *shown], metric_lines([*shown.values()])
    if baseline:
        head.append("baseline")
        lines = [[*line, number(baseline[line[0]]) if line[0] in baseline else ""] for line in lines]
    called = ""
    if test.threshold is not None:
        basis = "the most accurate one on validation rows" if validation else "set beforehand"
        called = f"Accuracy, precision, recall and f1 at threshold {test.threshold:.4f}, {basis}."
    seconds = [[name, f"{value:.2f}"] for name, value in (*phases.items(), ("all", sum(phases.values())))]
    parts = [
        headline(model, judge, test),
        plot(run_id, judge.figure),
        table(head, lines),
        beaten(judge, test, baseline),
        called,
        _splits(splits),
        table(["phase", "seconds"], seconds),
        repeated,
        remark,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def version_page(uri: str, model: str, judge: Evaluator, test: Evaluation, splits: Sequence[Split], run_id: str) -> str:
    """Write a registered version's description: what it predicts, how well, from what, and how to use it.

    ``uri`` is of the logged model, which is known before the version has a number. Facts are the version's tags.
    """
    parts = [
        headline(model, judge, test).removeprefix("### "),  # MLflow's list of versions shows it as it is
        plot(run_id, judge.figure),
        table(["test metric", "value"], metric_lines([test])[:SHOWN]),
        _splits(splits),
        USE.format(uri=uri),
    ]
    return "\n\n".join(parts) + "\n"


def beaten(judge: Evaluator, test: Evaluation, baseline: Mapping[str, float]) -> str:
    """Return by which loss the model is not better than a prediction without features; nothing where by all.

    Accuracy does not count: of a rare class the larger one is hard to beat by it, whatever the probabilities are worth.
    """
    losses = [metric.name for metric in judge.metrics if not metric.maximize and metric.name in baseline]
    worse = [name for name in losses if test.metrics[name] >= baseline[name]]
    lines = [f"{name} {number(test.metrics[name])}, baseline {number(baseline[name])}" for name in worse]
    return f"The model does not beat a prediction without features: {'; '.join(lines)}." if lines else ""


def headline(model: str, judge: Evaluator, test: Evaluation) -> str:
    """Return the title: the model and how well it does on test rows."""
    low, high = map(number, test.interval)
    return f"### {model}: test {judge.headline.label} {number(test.headline)} (95 % interval {low} to {high})"


def metric_lines(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """Return a line of each metric: its name and values of the evaluations, the headline with its interval."""
    first, *names = evaluations[0].metrics
    lines = [[first, *(evaluation.interval.around(evaluation.headline) for evaluation in evaluations)]]
    return lines + [[name, *(number(evaluation.metrics[name]) for evaluation in evaluations)] for name in names]


def number(value: float) -> str:
    """Return a metric for a table."""
    return f"{value:.4f}" if abs(value) < 10_000 else f"{value:.6g}"


def _splits(splits: Sequence[Split]) -> str:
    return table(["rows", "period", "number"], [[name, period, f"{rows:,}"] for name, period, rows in splits])


def plot(run_id: str, figure: str) -> str:
    """Return what shows a run's figure on MLflow's pages, which remove ``data:`` images."""
    return f"![artifact {figure}](get-artifact?{urlencode({'path': figure, 'run_uuid': run_id})})"


def repeat(command: str, changes: str = "") -> str:
    """Return the command that repeats a run, fenced, and what of the code is in no commit."""
    return f"Repeat this run:\n\n```\n{command}\n```" + (f"\n\n{changes}" if changes else "")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers."""
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    rows += [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
