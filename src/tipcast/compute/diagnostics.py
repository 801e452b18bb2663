"""Dask's view of a training: performance report, task graph, and which worker holds which rows."""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, performance_report, wait

LOG = logging.getLogger("tipcast")

REPORT_FROM_S = 30.0
"""Seconds from which a block gets a performance report by default."""
DRAWN = 300
"""Most tasks that a picture shows one by one; with more it shows groups."""
PATIENCE_S = 60.0
"""For Graphviz."""


@contextlib.contextmanager
def recorded(client: Client, path: Path, wanted: bool | None = True) -> Iterator[None]:
    """Record Dask's performance report of a block as one self-contained HTML file; log a warning where that fails.

    Where ``wanted`` is None, only a block that takes longer than ``REPORT_FROM_S`` gets one: it takes a second or two.
    """
    if wanted is False:
        yield
        return
    report, begun = performance_report(filename=str(path), mode="inline"), time.monotonic()
    report.__enter__()
    yield
    if wanted is None and time.monotonic() - begun < REPORT_FROM_S:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bokeh warns of empty plots when a block is short
        try:
            report.__exit__(None, None, None)  # not after a failure, which it would delay by seconds
        except Exception as problem:
            LOG.warning("no Dask performance report: %s", problem)


@dataclass(frozen=True)
class Task:
    """A task that the scheduler knows."""

    key: str
    group: str
    """Prefix of its key, as ``prepare``."""
    state: str
    needs: tuple[str, ...]
    """Keys of its dependencies."""
    workers: tuple[str, ...]
    """Addresses of workers that hold its result."""
    bytes: int
    """Of its result; 0 where none is held."""


def tasks(client: Client) -> list[Task]:
    """Return every task that the scheduler knows, by key."""

    def known(dask_scheduler: Any) -> list[tuple[Any, ...]]:  # pickled by value: a scheduler may lack tipcast
        return [
            (
                str(task.key),
                task.prefix.name,
                task.state,
                tuple(sorted(str(other.key) for other in task.dependencies)),
                tuple(sorted(worker.address for worker in task.who_has or ())),
                task.nbytes if task.who_has else 0,
            )
            for task in dask_scheduler.tasks.values()
        ]

    return sorted((Task(*found) for found in client.run_on_scheduler(known)), key=lambda task: task.key)


def graph_text(found: Sequence[Task]) -> str:
    """Return a task graph as text: groups with their sizes, then each task with its dependencies and workers."""
    groups = Counter((task.group, task.state) for task in found)
    lines = [f"{len(found)} tasks", *(f"{number:>7} {group} ({state})" for (group, state), number in groups.items())]
    for task in found:
        held = f", {task.bytes:,} bytes on {' and '.join(task.workers)}" if task.workers else ""
        lines.append(f"{task.key} <- {', '.join(task.needs) or 'nothing'}: {task.state}{held}")
    return "\n".join(lines) + "\n"


def graph_picture(found: Sequence[Task]) -> bytes | None:
    """Return a task graph as SVG, drawn by Graphviz's ``dot``; None where that is missing or fails."""
    program = shutil.which("dot")
    if program is None:
        return None
    group = {task.key: task.group for task in found}
    whole = len(found) <= DRAWN
    arrows = {
        (needed if whole else group[needed], task.key if whole else task.group)
        for task in found
        for needed in task.needs
        if needed in group
    }
    sizes = Counter(group.values())
    labels = group if whole else {name: f"{name} ({number})" for name, number in sizes.items()}
    lines = ["digraph tasks {", "rankdir=BT; node [shape=box, style=rounded, fontname=Helvetica]"]
    lines += [f'"{node}" [label="{label}"]' for node, label in labels.items()]
    lines += [f'"{first}" -> "{second}"' for first, second in sorted(arrows)]
    dot = "\n".join([*lines, "}"])
    try:
        drawn = subprocess.run(  # noqa: S603 - Graphviz, with a graph of ours
            [program, "-Tsvg"], input=dot.encode(), capture_output=True, check=True, timeout=PATIENCE_S
        )
    except (OSError, subprocess.SubprocessError) as problem:
        LOG.warning("no picture of the task graph: %s", problem)
        return None
    return drawn.stdout


def placement(client: Client, parts: Mapping[str, tuple[Sequence[Any], Sequence[int]]]) -> dict[str, list[Any]]:
    """Return which worker holds how much of which split, as columns of a table.

    ``parts`` are, by the split's name, futures and the rows of each. A part that several workers hold counts for each.
    """
    wait([future for futures, _ in parts.values() for future in futures])
    rows: list[tuple[str, str, int, int, int]] = []
    for split, (futures, numbers) in parts.items():
        sizes = client.nbytes([future.key for future in futures], summary=False)
        held: dict[str, list[tuple[int, int]]] = defaultdict(list)
        where = client.who_has(futures)
        for future, number in zip(futures, numbers, strict=True):
            for worker in where[future.key]:
                held[worker].append((number, sizes[future.key]))
        for worker, each in sorted(held.items()):
            rows.append((worker, split, len(each), sum(number for number, _ in each), sum(size for _, size in each)))
    names = ("worker", "split", "partitions", "rows", "bytes")
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}
