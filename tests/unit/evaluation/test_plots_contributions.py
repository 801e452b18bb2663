"""The picture of contributions: what its colors and its axis say."""

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from tests.unit.evaluation.figures import kept_figures, words

from tipcast.evaluation import plots
from tipcast.evaluation.plots.values import AMOUNTS, MISSING, NAMED, PLAIN

ROWS = 120
SUBTITLE = "xgboost, 120 of 4,000 test rows"
TOWNS = ("Bonn", "Oslo", "Rome")
NAMES = ["miles", "town", "zone"]


def draw(added: Any = None, **options: Any) -> Figure:
    """Draw an amount, a category of three towns and one of 40 zones, in this order."""
    at = np.arange(ROWS)
    values = np.stack([at, at % 3, at % 40], axis=1).astype(np.float32)
    if added is None:
        added = np.tile([3.0, 2.0, 1.0], (ROWS, 1))
    with kept_figures() as figures:
        plots.contributions(values, np.asarray(added, np.float32), NAMES, SUBTITLE, **options)
    return figures[0]


def colors_of(figure: Figure) -> dict[str, list[str]]:
    """Return each feature -> the colors of its points, in the order of the rows."""
    axes = figure.axes[0]
    points = axes.collections[0]
    colors = [to_hex(color) for color in points.get_facecolors()]
    names = [label.get_text() for label in axes.get_yticklabels()]
    return {name: colors[at :: len(names)] for at, name in enumerate(names)}


def test_an_amount_is_colored_from_low_to_high() -> None:
    colors = colors_of(draw())["miles"]
    assert (colors[0], colors[-1]) == (to_hex(AMOUNTS(0.0)), to_hex(AMOUNTS(1.0)))


def test_categories_are_colored_by_name() -> None:
    figure = draw(categories={"town": TOWNS})
    assert colors_of(figure)["town"][:6] == [*NAMED[:3], *NAMED[:3]]


def test_the_legend_names_the_categories() -> None:
    figure = draw(categories={"town": TOWNS})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(TOWNS)
    assert [to_hex(dot.get_color()) for dot in legend.legend_handles] == list(NAMED[:3])
    assert legend.get_title().get_text() == "colors of town"


def test_of_many_categories_the_six_commonest_are_named() -> None:
    figure = draw(categories={"zone": [f"zone {at}" for at in range(40)]})
    assert set(colors_of(figure)["zone"]) == {*NAMED, PLAIN}
    assert len(figure.legends[0].get_texts()) == len(NAMED)
    assert "other categories" in words(figure)


def test_a_feature_of_few_categories_is_the_named_one() -> None:
    zones = [f"zone {at}" for at in range(40)]
    added = np.tile([3.0, 1.0, 2.0], (ROWS, 1))
    colors = colors_of(draw(added, categories={"zone": zones, "town": TOWNS}))
    assert set(colors["zone"]) == {PLAIN}
    assert set(colors["town"]) == set(NAMED[:3])


def test_codes_without_names_are_grey() -> None:
    figure = draw(categories={"zone": ()})
    assert set(colors_of(figure)["zone"]) == {PLAIN}
    assert not figure.legends
    assert "category" in words(figure)


@pytest.mark.parametrize("missing", [np.nan, -1.0])
def test_a_missing_category_has_the_color_of_missing_values(missing: float) -> None:
    codes = np.array([[0.0], [missing]], np.float32)
    with kept_figures() as figures:
        plots.contributions(codes, codes + 2, ["town"], SUBTITLE, categories={"town": TOWNS})
    assert colors_of(figures[0])["town"] == [NAMED[0], to_hex(MISSING)]
    assert "missing" in words(figures[0])


def test_the_axis_says_what_is_clipped() -> None:
    added = np.ones((ROWS, 3))
    added[0] = 100
    added[0, 0] = -100
    figure = draw(np.where(np.arange(3) == 0, added, 1.0))
    label = figure.axes[0].get_xlabel()
    assert label == "contribution to the margin\n(1 of 360 points clipped to ±1)"
    places = figure.axes[0].collections[0].get_offsets()[:, 0]
    assert float(places.min()) == -1


def test_the_axis_says_nothing_of_clipping_where_nothing_is() -> None:
    assert draw().axes[0].get_xlabel() == "contribution to the margin"


def test_the_title_names_the_class() -> None:
    assert "Contributions to class setosa" in words(draw(of_class="setosa"))
