"""The trials of a sweep: their scores in order, and against each parameter."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from tipcast.evaluation.plots.page import (
    BLUE,
    BOX,
    INK,
    ORANGE,
    SMALL,
    legend_above,
    page,
    picture,
    style,
)
from tipcast.evaluation.plots.texts import fit_into, fit_labels

POINT: dict[str, Any] = {"s": 26, "color": BLUE, "alpha": 0.6, "linewidths": 0, "zorder": 3}
"""Style of a trial."""
BEST: dict[str, Any] = {"ms": 8, "mfc": "none", "mec": ORANGE, "mew": 2, "clip_on": False}
"""Style of the ring around the best trial."""
COLUMNS = 3
MOST_PARAMETERS = 9
"""Most parameters that scores are drawn against, the first ones."""
SMALLEST = 6.5
"""Points of the smallest text below a panel."""
GAP = 5
"""Pixels between two texts below a panel."""


@picture
def history(scores: Mapping[int, float], subtitle: str, *, metric: str, maximize: bool) -> Figure:
    """Draw the score of each trial, by number, and the best score so far."""
    figure, axes = page("Optimization history", subtitle, "trial", metric)
    numbers = sorted(scores)
    values = [scores[number] for number in numbers]
    so_far = np.maximum.accumulate if maximize else np.minimum.accumulate

    axes.scatter(numbers, values, label="trial", **POINT)
    axes.step(numbers, so_far(values), where="post", color=ORANGE, linewidth=2, label="best so far")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    legend_above(axes, 2)
    return figure


@picture
def parameter_scores(
    values: Mapping[str, Sequence[Any]],
    scores: Sequence[float],
    subtitle: str,
    *,
    metric: str,
    logarithmic: Sequence[str] = (),
) -> Figure:
    """Draw the trials' scores against each of up to nine parameters; the first trial is the best.

    ``values`` has parameter -> its value in each trial. The axis of the ``logarithmic`` ones is
    logarithmic. If no value is a number, they stand side by side as texts, in their order; if some
    are, as where the default is a text, those trials are drawn.
    """
    figure, axes = page("Score by parameter", subtitle, "", metric)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)

    names = list(values)[:MOST_PARAMETERS]
    rows = -(-len(names) // COLUMNS)
    panels = figure.subplots(
        rows,
        min(len(names), COLUMNS),
        sharey=True,
        squeeze=False,
        gridspec_kw={
            "left": BOX[0] + 0.02,
            "bottom": 0.07,
            "right": 0.96,
            "top": 0.83,
            "wspace": 0.2,
            "hspace": 0.55,
        },
    ).ravel()

    for panel, name in zip(panels, names, strict=False):
        _draw_parameter(panel, name, values[name], scores)
        numbers = [value for value in values[name] if _is_number(value)]
        if name in logarithmic and len(numbers) > 0 and min(numbers) > 0:
            panel.set_xscale("log")
            # Labels of less than a decade would lie upon each other.
            panel.xaxis.set_major_locator(LogLocator(10, subs=(1, 3), numticks=4))
            panel.xaxis.set_major_formatter("{x:g}")
            panel.xaxis.set_minor_formatter(NullFormatter())
    for panel in panels[len(names) :]:
        panel.set_visible(False)

    axes.yaxis.labelpad = 44  # beside the numbers of the panels
    return figure


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _draw_parameter(axes: Axes, name: str, values: Sequence[Any], scores: Sequence[float]) -> None:
    """Draw scores against the values of a parameter, with a ring around the first."""
    style(axes)
    axes.tick_params(labelsize=SMALL - 3, pad=3)
    axes.set_title(name, fontsize=SMALL, color=INK, pad=5)
    width = axes.get_window_extent().width
    fit_into(axes.title, width)

    drawn = [at for at, value in enumerate(values) if _is_number(value)]
    places = [values[at] for at in drawn]
    if not drawn:
        drawn = list(range(len(values)))
        texts = sorted(set(map(str, values)))
        places = [texts.index(str(value)) for value in values]
        axes.set_xticks(range(len(texts)), texts)
        axes.set_xlim(-0.5, len(texts) - 0.5)
        fit_labels(axes.xaxis, width / len(texts) - GAP, SMALLEST)

    elif all(isinstance(place, int) for place in places):
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))

    axes.scatter(places, [scores[at] for at in drawn], **POINT)
    if drawn[0] == 0:
        axes.plot(places[0], scores[0], "o", **BEST)
