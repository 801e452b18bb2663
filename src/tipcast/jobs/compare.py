"""`tipcast compare RUN RUN`: what differs between two runs: configuration, data, versions, seconds and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import CompareConfig
from tipcast.config.schema import Output
from tipcast.jobs import closing
from tipcast.tracking.facts import SECTIONS, facts
from tipcast.tracking.store import failures, open_store, resolve

MISSING = "-"
WIDTH = 32
"""Of a column: a run's whole id."""


def run(config: CompareConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    if len(config.runs) != 2:
        raise TipcastError("C003", "runs", f"{len(config.runs)} runs are named", "name two, as tipcast compare RUN RUN")
    client = open_store(config.tracking)
    with failures(resolve(config.tracking)):
        first, second = (facts(client, run_id) for run_id in config.runs)
    found = {name: _differences(first.sections[name], second.sections[name]) for name in SECTIONS}
    result = {"runs": list(config.runs), **found, "command": command}
    if config.print is not Output.text:
        return closing.say(result, config.print)
    print(f"{'':<40}  {first.name:<{WIDTH}}  {second.name:<{WIDTH}}")
    print(f"{'run':<40}  {first.id:<{WIDTH}}  {second.id:<{WIDTH}}")
    for section, rows in found.items():
        print(section if rows else f"{section}: the same")
        for name, (left, right) in rows.items():
            change = f"{right - left:+.4g}" if isinstance(left, float) and isinstance(right, float) else ""
            print(f"  {name:<38}  {_cell(left):<{WIDTH}}  {_cell(right):<{WIDTH}}  {change}".rstrip())
    return result


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return name -> both values, where they differ; None where one has none."""
    names = dict.fromkeys((*first, *second))
    return {name: [first.get(name), second.get(name)] for name in names if first.get(name) != second.get(name)}


def _cell(value: Any) -> str:
    if value is None:
        return MISSING
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return shown if len(shown) <= WIDTH else f"{shown[: WIDTH - 1]}…"
