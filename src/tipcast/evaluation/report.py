"""The note of a run and the page of a version in Markdown: the result, the rows, and how to repeat
and use it.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from tipcast.compute.base import count
from tipcast.evaluation.base import LEADING_METRICS, Evaluation, Evaluator

FEW_ROWS = 10
"""A class with fewer test rows gets a remark."""
MOST_LISTED = 1_000
"""Most characters of a list of columns in a note."""
Split = tuple[str, str, int]
"""Name, period in words, rows."""


def note(
    model: str,
    evaluator: Evaluator,
    evaluations: Mapping[str, Evaluation],
    *,
    splits: Sequence[Split],
    phases: Mapping[str, float],
    folds: str,
    balanced: bool,
    baseline: Mapping[str, float],
    run_id: str,
    learnt: str,
    remarks: Sequence[str],
    repeated: str,
    remark: str,
) -> str:
    """Write the note of a training run, in paragraphs of Markdown.

    ``evaluations`` are by the name of their rows: ``test`` first, and then those on which the
    threshold was chosen, if any. ``splits`` are in order of time, ``phases`` in seconds;
    ``balanced`` says whether all classes count the same in the fit. The functions ``folds``
    and ``repeat`` return the paragraphs ``folds`` and ``repeated``; ``learnt`` has those on columns
    and rows. ``remarks`` say what makes the result doubtful.
    """
    test = evaluations["test"]
    parts = [
        headline_line(model, evaluator, test),
        plot(run_id, evaluator.figure),
        _metrics(evaluations, baseline),
        *remarks,
        folds,
        _threshold(evaluations, balanced=balanced),
        learnt,
        _splits(splits),
        _phases(phases),
        repeated,
        remark,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _metrics(evaluations: Mapping[str, Evaluation], baseline: Mapping[str, float]) -> str:
    """Return a table of metrics: a column for each evaluation, and for the baseline if any."""
    head = ["metric", *evaluations]
    lines = metric_lines([*evaluations.values()])
    if not baseline:
        return table(head, lines)

    texts = {name: number(value) for name, value in baseline.items()}
    return table([*head, "baseline"], [[*line, texts.get(line[0], "")] for line in lines])


def folds(headline: str, lines: Sequence[Sequence[str]], mean: float, error: float) -> str:
    """Return a table of the folds, with their mean and its standard error.

    ``lines`` has the number of each fold, its training rows, its test rows, and its headline.
    """
    head = ["fold", "training rows", "test rows", headline]
    last = ["all", "", "", f"{number(mean)} ± {number(error)}"]
    return table(head, [*lines, last])


def _threshold(evaluations: Mapping[str, Evaluation], *, balanced: bool) -> str:
    """Say at which threshold scores are called positive, and how it was chosen."""
    threshold = evaluations["test"].threshold
    if threshold is None:
        return ""

    _, *others = evaluations
    basis = "set in advance"
    if balanced:
        basis = "set in advance: the most accurate one would undo the class weights"
    elif others:
        basis = f"the most accurate one on {others[0]} rows".replace("out of fold", "out-of-fold")
    return f"Accuracy, precision, recall and f1 at threshold {threshold:.4f}, {basis}."


def _phases(phases: Mapping[str, float]) -> str:
    seconds = {**phases, "all": sum(phases.values())}
    return table(["phase", "seconds"], [[name, f"{value:.2f}"] for name, value in seconds.items()])


def version_page(
    model: str,
    evaluator: Evaluator,
    test: Evaluation,
    splits: Sequence[Split],
    run_id: str,
    usage: str,
) -> str:
    """Write a registered version's description: what it predicts, how well, from what, and how to
    use it.

    ``usage`` is the code that loads it. Other facts are tags of the version.
    """
    parts = [
        # MLflow's list of versions shows the first line as plain text.
        headline_line(model, evaluator, test).removeprefix("### "),
        plot(run_id, evaluator.figure),
        table(["test metric", "value"], metric_lines([test])[:LEADING_METRICS]),
        _splits(splits),
        f"Load this version and predict rows:\n\n```python\n{usage}```",
    ]
    return "\n\n".join(parts) + "\n"


def learnt(target: str, features: Sequence[str], left_out: Mapping[str, str]) -> str:
    """Say what is predicted from which features, and which columns are left out for which
    reason.
    """
    subject = "Groups rows by"
    if target:
        subject = f"Predicts `{target}` from"
    names = listed([f"`{name}`" for name in features], MOST_LISTED)
    text = f"{subject} {count(len(features), 'feature')}: {names}."

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
    """Return a sentence for each class with few test rows, whose metrics say little."""
    return [
        f"Class {name!r} has {count(number, 'test row')}, fewer than {FEW_ROWS}: its metrics are "
        "unreliable."
        for name, number in zip(classes, rows, strict=False)
        if number < FEW_ROWS
    ]


def constant_features(names: Sequence[str]) -> list[str]:
    """Return a sentence on features that the model learns nothing from, in a list; an empty list if
    there are none.
    """
    if not names:
        return []

    quoted = listed([repr(name) for name in names], MOST_LISTED)
    what = "the same value in all training rows: the model learns nothing from"
    if len(names) == 1:
        return [f"Feature {quoted} has {what} it."]
    return [f"Features {quoted} have {what} them."]


def beaten(evaluator: Evaluator, test: Evaluation, baseline: Mapping[str, float]) -> list[str]:
    """Return a sentence on the losses by which the model does not beat a prediction without
    features, in a list; an empty list if it beats it by all.

    Accuracy does not count: if one class is rare, always predicting the other is hard to beat,
    however good the probabilities are.
    """
    losses = [
        metric.name
        for metric in evaluator.metrics
        if not metric.maximize and metric.name in baseline
    ]
    worse = [name for name in losses if test.metrics[name] >= baseline[name]]
    if not worse:
        return []

    comparisons = [
        f"{name} {number(test.metrics[name])}, baseline {number(baseline[name])}" for name in worse
    ]
    return [f"The model does not beat a prediction without features: {'; '.join(comparisons)}."]


def headline_line(model: str, evaluator: Evaluator, test: Evaluation) -> str:
    """Return the title: the model and how well it does on test rows."""
    low, high = map(number, test.interval)
    value = f"{evaluator.headline_metric.label} {number(test.headline_value)}"
    return f"### {model}: test {value} (95 % interval {low} to {high})"


def metric_lines(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """Return a line for each metric: its name and its values in the evaluations, the headline with
    its interval.
    """
    headline_name, *names = evaluations[0].metrics
    headline_values = [
        evaluation.interval.around(evaluation.headline_value) for evaluation in evaluations
    ]

    lines = [[headline_name, *headline_values]]
    for name in names:
        lines.append([name, *(number(evaluation.metrics[name]) for evaluation in evaluations)])
    return lines


def number(value: float) -> str:
    """Return a metric for a table."""
    if abs(value) < 10_000:
        return f"{value:.4f}"
    return f"{value:.6g}"


def _splits(splits: Sequence[Split]) -> str:
    return table(
        ["rows", "period", "number"], [[name, period, f"{rows:,}"] for name, period, rows in splits]
    )


def plot(run_id: str, figure: str) -> str:
    """Return the Markdown of a run's figure for MLflow's pages, which remove ``data:`` images."""
    return f"![artifact {figure}](get-artifact?{urlencode({'path': figure, 'run_uuid': run_id})})"


def repeat(command: str, changes: str = "") -> str:
    """Return the command that repeats a run, in a fence, and the remark on uncommitted changes."""
    text = f"Repeat this run:\n\n```\n{command}\n```"
    if changes:
        text += f"\n\n{changes}"
    return text


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers."""
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    rows += [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
