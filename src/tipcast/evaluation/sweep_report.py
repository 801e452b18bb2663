"""The note of a sweep in Markdown: which trial was the best, how the others did, and where to compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tipcast.evaluation.base import Interval
from tipcast.evaluation.report import MAX_NOTE, table

ROC_PLOT, PARALLEL_PLOT, PARETO_PLOT = "sweep/roc_small.png", "sweep/parallel_small.png", "sweep/seconds_small.png"
SHOWN = 10
"""Trials of the leaderboard in the note."""


@dataclass(frozen=True)
class Row:
    """One trial of the leaderboard."""

    rank: int
    number: int
    score: float
    interval: Interval | None
    """Of the score, at 95 % confidence by DeLong."""
    seconds: float
    params: Mapping[str, Any]
    link: str
    """Of its run, relative to the page."""


def note(
    head: str,
    rows: Sequence[Row],
    *,
    failed: Mapping[int, str],
    charts: str,
    facts: Sequence[str],
    run_id: str,
    refit: str,
) -> str:
    """Write the note of a sweep.

    Parameters
    ----------
    head
        What was searched and how, in one line.
    rows
        The leaderboard, the best first.
    failed
        Trial -> why it failed.
    charts
        Where the trials are compared as charts, relative to the page.
    facts
        Sentences: pace, busy share, what tracking took.
    run_id
        The sweep's run, whose pictures are shown.
    refit
        The note of the best trial's refit.

    Returns
    -------
    str
        At most 8000 characters; the refit's note is cut first.

    """
    best = rows[0]
    found = f"[trial {best.number}]({best.link}), **{best.score:.4f}**, with {_params(best.params)}"
    parts = [
        f"### {head}",
        f"Best by validation AUC: {found}. "
        "It was fitted again over all workers and tested; the model below is that one.",
        f"[Compare all trials as charts]({charts})",
        _leaderboard(rows),
        " ".join(facts),
        _failed(failed),
        "\n\n".join(_picture(path, run_id) for path in (ROC_PLOT, PARALLEL_PLOT, PARETO_PLOT)),
    ]
    own = "\n\n".join(part for part in parts if part)
    text = f"{own}\n\n{refit}"
    return text if len(text) <= MAX_NOTE else text[:MAX_NOTE].rpartition("\n\n")[0] + "\n"


def _leaderboard(rows: Sequence[Row]) -> str:
    head = ["rank", "validation AUC (95 % interval, DeLong)", "seconds", *rows[0].params]
    lines = [
        [f"{row.rank}: [trial {row.number}]({row.link})", _score(row), f"{row.seconds:.1f}"]
        + [_value(value) for value in row.params.values()]
        for row in rows[:SHOWN]
    ]
    more = f"\n\nAll {len(rows)} trials: artifact `sweep/leaderboard.json`." if len(rows) > SHOWN else ""
    return table(head, lines) + more


def _score(row: Row) -> str:
    return row.interval.around(row.score) if row.interval else f"{row.score:.4f}"


def _failed(failed: Mapping[int, str]) -> str:
    if not failed:
        return ""
    number, first = next(iter(failed.items()))
    return f"{len(failed)} trials failed, as trial {number}: {first}."


def _params(params: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` {_value(value)}" for name, value in params.items())


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _picture(path: str, run_id: str) -> str:
    return f"![{path}](get-artifact?{urlencode({'path': path, 'run_uuid': run_id})})"
