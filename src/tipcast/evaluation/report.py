"""The note of a run in Markdown: what came out, of which rows, how long it took, how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from tipcast.evaluation.result import Auc, Evaluation

MAX_NOTE = 8000
"""Characters that MLflow keeps of a tag, and so of a note."""
ROC_PLOT = "plots/roc_small.png"
"""The artifact that the note shows."""

INTERVAL = "Beside an AUC is its 95 % interval by DeLong, which is asymptotic."

Split = tuple[str, str, int]
"""Name, period in words, rows."""


def note(
    model: str,
    test: Evaluation,
    *,
    splits: Sequence[Split],
    phases: Mapping[str, float],
    command: str,
    validation: Evaluation | None = None,
    card: Auc | None = None,
    run_id: str | None = None,
    changes: str = "",
    remarks: Sequence[str] = (),
) -> str:
    """Write the note of a training run.

    MLflow shows Markdown and removes ``data:`` images, but keeps images of relative addresses: the ROC plot is shown
    from the run's own artifacts, through the tracking server that serves the page.

    Parameters
    ----------
    model
        The model's name.
    test
        The evaluation that the note leads with.
    splits
        Name, period and rows of each split, in order of time.
    phases
        Phase -> seconds.
    command
        What repeats the run.
    validation
        The evaluation that the threshold was chosen on.
    card
        AUC of the test rows paid by card; None where payment is unknown.
    run_id
        The run, whose artifact ``plots/roc_small.png`` is shown; None only names it.
    changes
        What the command needs beside a commit to repeat the run, in a sentence.
    remarks
        More sentences, one paragraph each.

    Returns
    -------
    str
        At most 8000 characters; parts go from the end when there are more, remarks first and the command last.

    """
    parts = [
        _headline(model, test),
        repeat(command, changes),
        _cash(test, card),
        _scores(test, validation),
        _splits(splits),
    ]
    parts += [plot(run_id), _phases(phases), "\n\n".join(remarks)]
    order = [0, 5, 2, 3, 4, 6, 1, 7]  # as read; ``parts`` is by importance
    while True:
        text = "\n\n".join(parts[i] for i in order if i < len(parts) and parts[i]) + "\n"
        if len(text) <= MAX_NOTE or len(parts) == 1:
            return text[:MAX_NOTE]
        parts.pop()


def _headline(model: str, test: Evaluation) -> str:
    return f"### {model}: test AUC {test.metrics['auc']:.4f} ({_interval(test)})"


def _interval(found: Evaluation | Auc) -> str:
    bounds = found.interval if isinstance(found, Auc) else found.auc_interval
    return f"95 % interval {bounds.low:.4f} to {bounds.high:.4f}"


def _cash(test: Evaluation, card: Auc | None) -> str:
    known = "Tips paid in cash are not recorded, so a trip paid in cash always counts as one without a high tip."
    if card is None:
        return f"{known} How these trips were paid is not known."
    cash = 100 * (1 - card.rows / test.metrics["rows"])
    return (
        f"{known} {cash:.1f} % of the test trips were not paid by card. On the {card.rows:,} that were, "
        f"the AUC is **{card.value:.4f}** ({_interval(card)})."
    )


def _scores(test: Evaluation, validation: Evaluation | None) -> str:
    found = [("test", test)] + ([("validation", validation)] if validation else [])
    names = ("average_precision", "log_loss", "brier", "accuracy", "precision", "recall", "f1", "positive_rate")
    lines = [["auc", *(each.auc_interval.around(each.metrics["auc"]) for _, each in found)]]
    lines += [[name, *(f"{each.metrics[name]:.4f}" for _, each in found)] for name in names]
    basis = "the most accurate one on validation rows" if validation else "set beforehand"
    text = f"Accuracy, precision, recall and f1 at threshold {test.threshold:.4f}, {basis}. {INTERVAL}"
    return table(["metric", *(name for name, _ in found)], lines) + "\n\n" + text


def _splits(splits: Sequence[Split]) -> str:
    return table(["rows", "period", "number"], [[name, period, f"{rows:,}"] for name, period, rows in splits])


def _phases(phases: Mapping[str, float]) -> str:
    total = sum(phases.values())
    lines = [[name, f"{seconds:.2f}"] for name, seconds in phases.items()]
    return table(["phase", "seconds"], [*lines, ["all", f"{total:.2f}"]])


def plot(run_id: str | None) -> str:
    """Return what shows the small ROC plot of a run on MLflow's pages."""
    if run_id is None:
        return f"The ROC curve is the artifact `{ROC_PLOT}`."
    return f"![ROC curve: artifact {ROC_PLOT}](get-artifact?{urlencode({'path': ROC_PLOT, 'run_uuid': run_id})})"


def repeat(command: str, changes: str = "") -> str:
    """Return the command that repeats a run, fenced, and what of the code is in no commit."""
    fence = "```"
    while fence in command:
        fence += "`"
    return f"Repeat this run:\n\n{fence}\n{command}\n{fence}" + (f"\n\n{changes}" if changes else "")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers."""
    ruler = ["---", *["---:"] * (len(head) - 1)]
    rows = [_spaced(head), ruler, *(_spaced([cell.replace("|", "\\|") for cell in line]) for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _spaced(cells: Sequence[str]) -> list[str]:
    """Put em spaces before all cells but the first: MLflow's page sets the columns of a table close together."""
    return [cells[0], *(f"\u2003{cell}" for cell in cells[1:])]
