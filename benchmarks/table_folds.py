"""Tables of what folds cost, and of what search=halving saves."""

from __future__ import annotations

from collections.abc import Callable

from table import MISSING, held, rows, table

MOST_TREES = 0.40
"""Goal: halving grows at most so much of the trees of all trials in full."""
MOST_LOST = 1e-4
"""Goal: the best validation AUC is at most so much below that of all trials in full."""


def folds_cost() -> str:
    """Return the table of a training and a sweep with folds, beside those without."""
    body = []
    for row in rows("folds"):
        (folds, seconds), (without, seconds_without) = row["medians_s"].items()
        body.append(
            (
                row["job"],
                f"{folds}: {seconds:.1f} s",
                f"{without}: {seconds_without:.1f} s",
                f"{row['ratio']:.2f} x",
                held(row["ratio"], row["goal"], "{:.1f} x"),
            )
        )

    head = ("job", "with folds", "without", "ratio", "goal")
    return table(head, body or [(MISSING, *[""] * 4)])


def halving_savings() -> str:
    """Return the table of sweeps by halving, beside the same trials in full."""
    body = [
        (
            row["rows"],
            str(row["workers"]),
            f"{row['trees'][0]:,}",
            f"{row['trees'][1]:,}",
            f"{row['share']:.2f} ({held(row['share'], MOST_TREES, '{:.2f}')})",
            f"{row['validation_auc'][0]:.4f}",
            f"{row['validation_auc'][1]:.4f}",
            f"{row['lost_auc']:.1e} ({held(row['lost_auc'], MOST_LOST, '{:g}')})",
            f"{row['furthest']:.1e}",
        )
        for row in rows("halving")
    ]
    head = (
        "rows",
        "workers",
        "trees by halving",
        "trees in full",
        "share of trees",
        "best validation AUC by halving",
        "best in full",
        "lost",
        "last rung, furthest from one go",
    )
    return table(head, body or [(MISSING, *[""] * 8)])


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each for each in (folds_cost, halving_savings)
}
