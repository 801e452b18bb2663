"""The table of whole trainings beside scripts that do the same."""

from __future__ import annotations

from collections.abc import Callable

from table import MISSING, held, million, rows, table


def tracked_jobs() -> str:
    """Return the table of trainings beside a script that tracks and one that does not."""
    body = []
    for row in rows("tracked_job"):
        (_, seconds), (script, script_seconds) = row["medians_s"].items()
        goal = ""
        if row["goal"]:
            goal = held(row["ratio"], row["goal"], "{:.2f} x")
        body.append(
            (
                million(row["rows"]),
                str(row["rounds"]),
                script,
                f"{seconds:.1f} s",
                f"{script_seconds:.1f} s",
                f"{row['ratio']:.2f} x",
                goal,
            )
        )

    head = ("training rows", "rounds", "reference", "`tipcast train`", "reference", "ratio", "goal")
    return table(head, body or [(MISSING, *[""] * 6)])


TABLES: dict[str, Callable[[], str]] = {"tracked_jobs": tracked_jobs}
