"""The doctor's table: one row a check, its fix below it, in the width of a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tipcast.config.errors import Finding, State

NARROWEST, WIDEST, PIPED = 60, 120, 100
"""Columns of a table: the least, the most, and those where there is no terminal."""
STATE = max(len(state.value) for state in State)
COLOURS = {State.ok: "32", State.warning: "33", State.fail: "31"}
"""ANSI's green, yellow and red."""


@dataclass(frozen=True)
class Table:
    """A table that is printed row by row."""

    names: tuple[str, ...]
    """Of the checks."""
    columns: int
    """Width of a line."""
    coloured: bool

    @property
    def heading(self) -> str:
        """The line above the rows."""
        return f"{'check':<{self._first}}  {'state':<{STATE}}  found"

    def row(self, name: str, finding: Finding) -> str:
        """Return the lines of one check."""
        mark = f"{finding.state.value:<{STATE}}"
        if self.coloured:
            mark = f"\033[{COLOURS[finding.state]}m{mark}\033[0m"
        code = f" [{finding.problem.code}]" if finding.problem else ""
        lines = self._wrapped(finding.found + code, "")
        if finding.fix:
            lines += self._wrapped(f"fix: {finding.fix}", "     ")
        indent = " " * (self._first + STATE + 4)
        return "\n".join([f"{name:<{self._first}}  {mark}  {lines[0]}", *(indent + line for line in lines[1:])])

    @property
    def _first(self) -> int:
        return max(map(len, ("check", *self.names)))

    def _wrapped(self, text: str, indent: str) -> list[str]:
        """Break between words only: a path or an address stays in one piece to be copied."""
        return textwrap.wrap(
            text,
            self.columns - self._first - STATE - 4,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]


def table(names: Iterable[str]) -> Table:
    """Return a table for standard output: as wide as the terminal, coloured on one unless NO_COLOR is set."""
    columns = shutil.get_terminal_size((PIPED, 24)).columns
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return Table(tuple(names), min(max(columns, NARROWEST), WIDEST), coloured)


def counted(findings: Mapping[str, Finding]) -> str:
    """Return how many checks ended how, as ``11 ok, 1 warning, 1 fail``."""
    states = [finding.state for finding in findings.values()]
    return ", ".join(f"{states.count(state)} {state.value}" for state in State)


def plain(findings: Mapping[str, Finding]) -> list[dict[str, str]]:
    """Return the rows as JSON has them."""
    return [
        {
            "check": name,
            "state": finding.state.value,
            "found": finding.found,
            "fix": finding.fix,
            "code": finding.problem.code if finding.problem else "",
        }
        for name, finding in findings.items()
    ]
