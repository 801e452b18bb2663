"""`tipcast compare RUN RUN`: what differs between two runs: configuration, data, versions, seconds and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import CompareConfig
from tipcast.config.schema import Output
from tipcast.jobs import closing
from tipcast.tracking.facts import SECTIONS, Facts, facts
from tipcast.tracking.store import failures, open_store, resolve

MISSING = "-"
WIDTH = 32
"""Of a column: a run's whole id."""


def run(config: CompareConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says.

    Raises
    ------
    TipcastError
        C003 for other than two runs, T004 for one that is not there.

    """
    if len(config.runs) != 2:
        raise TipcastError("C003", "runs", f"{len(config.runs)} runs are named", "name two, as tipcast compare RUN RUN")
    client = open_store(config.tracking)
    with failures(resolve(config.tracking)):
        first, second = (facts(client, run_id) for run_id in config.runs)
    found = {name: differences(first.sections[name], second.sections[name]) for name in SECTIONS}
    result = {"runs": list(config.runs), **found, "command": command}
    if config.print is not Output.text:
        return closing.say(result, config.print)
    print("\n".join(text(first, second, found)), flush=True)
    return result


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return name -> both values, where they differ; None where one has none."""
    names = list(dict.fromkeys((*first, *second)))
    return {name: [first.get(name), second.get(name)] for name in names if first.get(name) != second.get(name)}


def text(first: Facts, second: Facts, found: Mapping[str, Mapping[str, list[Any]]]) -> list[str]:
    """Return the lines that people read: a table for each section, with the change of numbers."""
    lines = [
        f"{'':<40}  {first.name:<{WIDTH}}  {second.name:<{WIDTH}}",
        f"{'run':<40}  {first.id:<{WIDTH}}  {second.id:<{WIDTH}}",
    ]
    for section, rows in found.items():
        lines.append(f"{section}" if rows else f"{section}: the same")
        for name, (left, right) in rows.items():
            cells = f"{_cell(left):<{WIDTH}}  {_cell(right):<{WIDTH}}"
            lines.append(f"  {name:<38}  {cells}  {_change(left, right)}".rstrip())
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return MISSING
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return shown if len(shown) <= WIDTH else f"{shown[: WIDTH - 1]}…"


def _change(left: Any, right: Any) -> str:
    if isinstance(left, float) and isinstance(right, float):
        return f"{right - left:+.4g}"
    return ""
