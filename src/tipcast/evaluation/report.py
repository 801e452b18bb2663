"""The note of a run and the page of a version in Markdown: what came out, of which rows, how to
repeat and use it.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from tipcast.evaluation.base import SHOWN, Evaluation, Evaluator

USE = """```python
import mlflow, pandas as pd

rows = pd.read_parquet("rows.parquet")  # as in the input example
mlflow.pyfunc.load_model("{uri}").predict(rows)
```"""

FEW_ROWS = 10
"""A class with fewer test rows is said."""
MOST_LISTED = 1_000
"""Characters of a list of columns in a note."""
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
    learnt: str,
    remarks: Sequence[str],
    repeated: str,
    remark: str,
) -> str:
    """Write the note of a training run, in paragraphs of Markdown.

    It leads with ``test``; the threshold was chosen on ``validation``. ``splits`` are in order of
    time, ``phases`` in seconds; ``learnt`` is of ``learnt``, ``remarks`` say what makes the result
    doubtful, ``repeated`` is of ``repeat``.
    """
    parts = [
        headline(model, judge, test),
        plot(run_id, judge.figure),
        _metrics(test, validation, baseline),
        beaten(judge, test, baseline),
        *remarks,
        _threshold(test, validation),
        learnt,
        _splits(splits),
        _phases(phases),
        repeated,
        remark,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _metrics(test: Evaluation, validation: Evaluation | None, baseline: Mapping[str, float]) -> str:
    """Return a table of metrics, with those of validation rows and of the baseline if any."""
    evaluations = {"test": test} | ({"validation": validation} if validation else {})
    head = ["metric", *evaluations]
    lines = metric_lines([*evaluations.values()])
    if not baseline:
        return table(head, lines)

    texts = {name: number(value) for name, value in baseline.items()}
    return table([*head, "baseline"], [[*line, texts.get(line[0], "")] for line in lines])


def _threshold(test: Evaluation, validation: Evaluation | None) -> str:
    """Say at which threshold scores are called positive, and what it was chosen by."""
    if test.threshold is None:
        return ""
    basis = "the most accurate one on validation rows" if validation else "set beforehand"
    return f"Accuracy, precision, recall and f1 at threshold {test.threshold:.4f}, {basis}."


def _phases(phases: Mapping[str, float]) -> str:
    seconds = {**phases, "all": sum(phases.values())}
    return table(["phase", "seconds"], [[name, f"{value:.2f}"] for name, value in seconds.items()])


def version_page(
    uri: str, model: str, judge: Evaluator, test: Evaluation, splits: Sequence[Split], run_id: str
) -> str:
    """Write a registered version's description: what it predicts, how well, from what, and how to
    use it.

    ``uri`` is of the logged model, which is known before the version has a number. Facts are the
    version's tags.
    """
    parts = [
        # MLflow's list of versions shows it as it is
        headline(model, judge, test).removeprefix("### "),
        plot(run_id, judge.figure),
        table(["test metric", "value"], metric_lines([test])[:SHOWN]),
        _splits(splits),
        USE.format(uri=uri),
    ]
    return "\n\n".join(parts) + "\n"


def learnt(target: str, features: Sequence[str], left_out: Mapping[str, str]) -> str:
    """Say what is predicted from which features, and which columns are left out for which
    reason.
    """
    subject = f"Predicts `{target}` from" if target else "Groups rows by"
    words = "1 feature" if len(features) == 1 else f"{len(features)} features"
    text = f"{subject} {words}: {listed([f'`{name}`' for name in features], MOST_LISTED)}."
    if left_out:
        reasons = [f"`{name}` ({reason})" for name, reason in left_out.items()]
        text += f"\n\nLeft out: {listed(reasons, MOST_LISTED, '; ')}."
    return text


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join names in at most ``most`` characters; a longer list ends with how many more there
    are.
    """
    text = separator.join(names)
    if len(text) <= most:
        return text

    length = 0
    for number, name in enumerate(names):
        rest = f"... and {len(names) - number:,} more"
        if length + len(name) + len(separator) + len(rest) > most:
            return separator.join([*names[:number], rest])
        length += len(name) + len(separator)
    return text


def rare_classes(classes: Sequence[str], rows: Sequence[int]) -> list[str]:
    """Return a sentence for each class with few rows to test on, whose metrics say little."""
    few = [(name, number) for name, number in zip(classes, rows, strict=False) if number < FEW_ROWS]
    return [
        f"Class {name!r} has {number} test {'row' if number == 1 else 'rows'}, fewer "
        f"than {FEW_ROWS}: "
        "its metrics say little."
        for name, number in few
    ]


def constant_features(names: Sequence[str]) -> list[str]:
    """Return a sentence on features that the model learns nothing from."""
    if not names:
        return []
    shown = listed([repr(name) for name in names], MOST_LISTED)
    if len(names) == 1:
        return [
            f"Feature {shown} has the same value in all training rows: the model learns nothing "
            "from it."
        ]
    return [
        f"Features {shown} have the same value in all training rows: the model learns nothing "
        "from them."
    ]


def beaten(judge: Evaluator, test: Evaluation, baseline: Mapping[str, float]) -> str:
    """Return by which loss the model is not better than a prediction without features; nothing
    where by all.

    Accuracy does not count: of a rare class the larger one is hard to beat by it, whatever the
    probabilities are worth.
    """
    losses = [
        metric.name for metric in judge.metrics if not metric.maximize and metric.name in baseline
    ]
    worse = [name for name in losses if test.metrics[name] >= baseline[name]]
    lines = [
        f"{name} {number(test.metrics[name])}, baseline {number(baseline[name])}" for name in worse
    ]
    return (
        f"The model does not beat a prediction without features: {'; '.join(lines)}."
        if lines
        else ""
    )


def headline(model: str, judge: Evaluator, test: Evaluation) -> str:
    """Return the title: the model and how well it does on test rows."""
    low, high = map(number, test.interval)
    return (
        f"### {model}: test {judge.headline.label} {number(test.headline)} (95 % "
        f"interval {low} to {high})"
    )


def metric_lines(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """Return a line of each metric: its name and values of the evaluations, the headline with its
    interval.
    """
    first, *names = evaluations[0].metrics
    lines = [
        [first, *(evaluation.interval.around(evaluation.headline) for evaluation in evaluations)]
    ]
    return lines + [
        [name, *(number(evaluation.metrics[name]) for evaluation in evaluations)] for name in names
    ]


def number(value: float) -> str:
    """Return a metric for a table."""
    return f"{value:.4f}" if abs(value) < 10_000 else f"{value:.6g}"


def _splits(splits: Sequence[Split]) -> str:
    return table(
        ["rows", "period", "number"], [[name, period, f"{rows:,}"] for name, period, rows in splits]
    )


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
