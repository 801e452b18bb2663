"""Texts of a table's categories: which of them training learns, and which only rows to test on
have.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tipcast.compute.frames import CpuFrames
from tipcast.datasets import address
from tipcast.datasets.base import RawColumn
from tipcast.datasets.group_split import GroupDraw
from tipcast.datasets.parts import Part
from tipcast.datasets.prepare import PreparedRows, Recipe, draw_all, prepare_part
from tipcast.datasets.random_split import Draw
from tipcast.datasets.table.column_stats import count_columns
from tipcast.datasets.table.column_types import ColumnDecision
from tipcast.datasets.table.scan import TableScan

CHANCE = 1e-20
"""If all rows of a text are drawn for the test with a greater probability than this, the rows are
read to see whether they were.
"""


def rare_codes(
    columns: Sequence[RawColumn], decisions: Mapping[str, ColumnDecision], draw: Draw | GroupDraw
) -> dict[str, list[int]]:
    """Return column -> codes of texts of so few rows that all may be drawn for the test."""
    rare = {}
    for column in columns:
        stats = decisions[column.name].stats
        rows = [stats.texts[text] or stats.absent[text] for text in column.categories]
        codes = [code for code, number in enumerate(rows) if _may_all_be_drawn(number, draw)]
        if codes:
            rare[column.name] = codes

    return rare


def _may_all_be_drawn(rows: int, draw: Draw | GroupDraw) -> bool:
    """Whether all rows of a text may be drawn for the test; they may all be of one group."""
    return isinstance(draw, GroupDraw) or draw.test**rows > CHANCE


def lost_codes(
    parts: Sequence[Part], recipe: Recipe, rare: dict[str, list[int]]
) -> dict[str, set[int]]:
    """Return those of the ``rare`` codes that no row has which the recipe's draw is for.

    Rows are read again; the features of ``recipe`` are the columns of ``rare``.
    """

    def read_rare_rows(part: Part) -> tuple[PreparedRows, ...]:
        (rows,) = prepare_part(part, CpuFrames(), recipe)
        is_rare = rows.x.isin(rare).any(axis=1).to_numpy()
        ranks = np.asarray(rows.ranks)[is_rare]
        return (replace(rows, x=rows.x[is_rare], y=None, ranks=ranks),)

    with ThreadPoolExecutor(address.AT_ONCE) as pool:
        rare_rows = [*pool.map(read_rare_rows, parts)]

    drawn = [rows for splits in draw_all(rare_rows, recipe) for rows in splits]
    return {
        name: set(codes).difference(*(rows.x[name] for rows in drawn))
        for name, codes in rare.items()
    }


def without_codes(
    columns: Sequence[RawColumn], lost: Mapping[str, set[int]]
) -> tuple[RawColumn, ...]:
    """Return the columns without some of their categories."""
    left = []
    for column in columns:
        codes = lost.get(column.name, set())
        texts = [text for code, text in enumerate(column.categories) if code not in codes]
        left.append(replace(column, categories=tuple(texts)))

    return tuple(left)


def new_texts(scans: Sequence[TableScan], columns: Sequence[RawColumn]) -> list[str]:
    """Return a line for each column whose values in files are not all known to training, with the
    first of them.
    """
    texts = {column.name: frozenset(column.categories) for column in columns}
    notes = []
    stats_by_name = count_columns(scans, dict.fromkeys(texts, pa.string()))
    for name, stats in stats_by_name.items():
        lacking = Counter(
            {text: rows for text, rows in stats.texts.items() if text not in texts[name]}
        )
        if lacking:
            shown = ", ".join(repr(text) for text, _ in lacking.most_common(3))
            of = f"{lacking.total():,} of {stats.counts['rows']:,} test rows"
            notes.append(f"{of} have values of {name} that no training row has: {shown}")

    return notes
