"""The jobs, and how each ends: with a few lines for people, or one JSON object."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tipcast.config.errors import left_offline
from tipcast.config.schema import Output
from tipcast.config.streams import show

LOG = logging.getLogger("tipcast")


def end_job(
    result: Mapping[str, Any],
    form: Output,
    *,
    lines: Mapping[str, object] | None = None,
    problem: Exception | None = None,
) -> Mapping[str, Any]:
    """Print a job's result as aligned lines, as one object on one line, or not at all; return it.

    ``lines`` are printed for people in place of the result; ``problem`` is raised after printing,
    and after a warning if an offline store has the run.
    """
    if form is Output.json:
        show(json.dumps(result))

    if form is Output.text:
        logged = ("run", "tracking_uri")  # shown when the run began
        lines = lines or {name: value for name, value in result.items() if name not in logged}
        lines = {name: value for name, value in lines.items() if value or value == 0}
        width = max(map(len, lines))
        for name, value in lines.items():
            show(f"{name:<{width}}  {_text(value)}")

    if problem:
        if file := result.get("offline"):
            LOG.warning("%s", left_offline(file))
        raise problem

    return result


def aligned(rows: Sequence[Sequence[str]], side: Literal["<", ">"] = "<") -> list[str]:
    """Return a line for each row of a table, its cells at one ``side`` of their column."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [f"{cell:{side}{width}}" for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value}"
