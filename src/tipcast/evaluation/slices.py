"""How good predictions are in each named group of rows, from sums of every part where it lies."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.compute.base import Array, module_of
from tipcast.evaluation.base import Evaluation, Evaluator
from tipcast.evaluation.report import number
from tipcast.evaluation.sums import Interval, Parts, values_of

MOST = 20
"""Groups of one name that are measured, the largest."""
LEAST_ROWS = 100
"""Of a group that is called one of the worst."""
WORST = 3
"""Groups that a run's note names."""
BINS = 2_048
"""Of the score of two classes, in which a group's AUC is counted."""
MOST_CLASSES = 50
"""Of more classes there are no slices: each group would have a matrix of all pairs of classes."""
MOST_SHORT = 2**15 - 1
SLICES, SLICES_PLOT = "tables/slices.json", "plots/slices.png"


@dataclass(frozen=True)
class Slice:
    """One group of rows."""

    name: str
    """What rows are grouped by."""
    group: str
    rows: int
    mean: float | None
    """Of the predictions; None for several classes."""
    evaluation: Evaluation | None
    """None where the group's rows do not tell, as those of one of two classes."""

    @property
    def headline(self) -> float:
        """The value that models are ranked by; NaN where the rows do not tell."""
        return self.evaluation.headline if self.evaluation else math.nan

    @property
    def interval(self) -> Interval | None:
        """Of the headline, 95 %; None where a single row tells of no spread."""
        return self.evaluation.interval if self.evaluation and math.isfinite(self.evaluation.interval.low) else None


def slices(
    client: Any,
    judge: Evaluator,
    predictions: Sequence[Any],
    targets: Sequence[Any],
    groups: Mapping[str, Sequence[Any]],
    label: Callable[[str, int], str],
    *,
    threshold: float | None = None,
) -> list[Slice]:
    """Evaluate the largest groups of rows, in two passes: which these are, and their sums; see ``Evaluator.evaluate``.

    ``groups`` has what rows are grouped by -> futures of (rows,) whole numbers, below 0 where the group is not known;
    ``label`` returns what a group is called, of its name and number. Returns name by name, the largest group first.
    """
    if not groups:
        return []
    counts: list[Counter[int]] = Parts([*groups.values()], client).add(_rows, _all_rows)
    ranked = [sorted(each.items(), key=lambda item: (-item[1], item[0])) for each in counts]
    largest = [[group for group, _ in each[:MOST]] for each in ranked]
    count = functools.partial(_count, judge, threshold, largest)
    total = functools.partial(_total, judge)
    sums = iter(Parts([predictions, targets, *groups.values()], client).add(count, total))
    found = []
    for name, rows, of_name in zip(groups, counts, largest, strict=True):
        for group in of_name:
            each = next(sums)
            mean = judge.summary(each).get("mean")
            found.append(Slice(name, label(name, group), rows[group], mean, judge.of_sums(each, threshold)))
    return found


def _rows(*groups: Array) -> list[Counter[int]]:
    found = [module_of(each).unique(each[each >= 0], return_counts=True) for each in groups]
    return [Counter(dict(zip(known.tolist(), rows.tolist(), strict=True))) for known, rows in found]


def _all_rows(parts: Sequence[Sequence[Counter[int]]]) -> list[Counter[int]]:
    return [sum(each, Counter()) for each in zip(*parts, strict=True)]


def _count(
    judge: Evaluator,
    threshold: float | None,
    largest: Sequence[Sequence[int]],
    predictions: Any,
    target: Any,
    *groups: Array,
) -> list[Any]:
    """Return the sums of each group of a part: rows are put in order of their groups once for all of them."""
    predicted, truth = values_of(predictions), values_of(target)
    xp, found = module_of(predicted), []
    for of_name, own in zip(largest, groups, strict=True):
        if max(of_name, default=0) < MOST_SHORT:  # which NumPy sorts several times faster
            own = xp.clip(own, -1, MOST_SHORT).astype(xp.int16)
        order = xp.argsort(own, kind="stable")
        ordered, wanted = own[order], xp.asarray(of_name, dtype=own.dtype)
        borders = (xp.searchsorted(ordered, wanted, side=side).tolist() for side in ("left", "right"))
        for start, stop in zip(*borders, strict=True):
            rows = order[start:stop]
            given = predicted[rows], truth[rows]
            found.append(judge.count(*given, threshold=threshold, bins=BINS) if len(rows) else judge.sums())
    return found


def _total(judge: Evaluator, parts: Sequence[Sequence[Any]]) -> list[Any]:
    return [judge.total(each) for each in zip(*parts, strict=True)]


def warm_up(judge: Evaluator, predictions: Any, target: Any, groups: Sequence[Array]) -> None:
    """Run what ``slices`` runs on a worker, so that what it compiles is compiled."""
    _count(judge, None, [list(each)[:1] for each in _rows(*groups)], predictions, target, *groups)


def columns(found: Sequence[Slice]) -> dict[str, list[Any]]:
    """Return slices as columns of a table: what is not known of a group is None."""
    shown = next((list(each.evaluation.shown()) for each in found if each.evaluation), [])
    table: dict[str, list[Any]] = {name: [getattr(each, name) for each in found] for name in ("name", "group", "rows")}
    for at, metric in enumerate(shown):
        table[metric] = [each.evaluation.metrics[metric] if each.evaluation else None for each in found]
        if not at:
            table[f"{metric}_low"] = [each.interval.low if each.interval else None for each in found]
            table[f"{metric}_high"] = [each.interval.high if each.interval else None for each in found]
    means = [each.mean for each in found]
    return table if None in means else {**table, "mean_prediction": means}


def worst(found: Sequence[Slice], judge: Evaluator) -> list[Slice]:
    """Return the groups of enough rows, those of the worst headline first."""
    known = [each for each in found if each.interval and each.rows >= LEAST_ROWS]
    return sorted(known, key=lambda each: each.headline * (1 if judge.headline.maximize else -1))


def remark(found: Sequence[Slice], judge: Evaluator) -> str:
    """Return which groups are predicted worst, for a note; nothing where there are no two to compare."""
    ranked = worst(found, judge)
    if len(ranked) < 2:
        return ""
    told = [
        f"`{each.name}` {each.group} ({each.rows:,} rows) **{number(each.headline)}**"
        f" ({number(each.interval.low)} to {number(each.interval.high)})"
        for each in ranked[:WORST]
        if each.interval
    ]
    return (
        f"Of {len(ranked)} groups of at least {LEAST_ROWS} test rows, the {judge.headline.title} is worst for "
        f"{', '.join(told)}. All groups: `{SLICES}`, `{SLICES_PLOT}`."
    )
