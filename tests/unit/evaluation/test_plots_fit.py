"""Pictures with long names: every text lies within the picture, and none upon another."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.unit.evaluation.figures import box_of, kept_figures, overlapping, texts_of, words

from tipcast.evaluation import plots
from tipcast.evaluation.classification import Classification
from tipcast.evaluation.clustering import Clustering
from tipcast.evaluation.multiclass import Multiclass
from tipcast.evaluation.regression import Regression

NAMES = [f"{at}_{'a_name_of_thirty_characters_' * 2}"[:30] for at in range(14)]
SUBTITLE = f"{NAMES[0]}, 12,345,678 test trips, 2019-01-01..2019-03-31"
TARGET = "the_price_of_a_flat_in_the_inner_city_of_the_town (thousand euros)"
ROWS = 400


def two_classes() -> dict[str, Any]:
    r = np.random.default_rng(0)
    scores = r.beta(4, 4, ROWS)
    labels = (r.random(ROWS) < scores).astype(int)
    weights = [r.random(ROWS)]
    found = Classification().evaluate(None, [scores], [labels], weights=weights, threshold=0.45)
    return {NAMES[0]: found, NAMES[1]: found}


def classes(number: int) -> dict[str, Any]:
    r = np.random.default_rng(1)
    target = r.integers(0, number, ROWS)
    probabilities = r.random((ROWS, number))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return {"test": Multiclass().evaluate_here(probabilities, target, r.random(ROWS) * 1e4)}


def numbers() -> dict[str, Any]:
    r = np.random.default_rng(2)
    target = r.gamma(2, 5e6, ROWS)
    return {"test": Regression().evaluate_here(0.6 * target, target, r.random(ROWS))}


def clusters(number: int) -> dict[str, Any]:
    r = np.random.default_rng(3)
    labels = np.arange(ROWS) % number
    x = r.normal(0, 2, (number, 5))[labels] + r.normal(0, 1, (ROWS, 5))
    predictions = np.stack([labels, np.ones(ROWS)], axis=1)
    return {"test": Clustering().evaluate_here(predictions, x, r.random(ROWS))}


def draw_contributions() -> bytes:
    r = np.random.default_rng(4)
    values = r.integers(0, 6, (ROWS, 14)).astype(np.float32)
    values[0] = np.nan
    added = r.standard_t(2, (ROWS, 14)).astype(np.float32)
    categories = {NAMES[4]: NAMES[:6], NAMES[5]: NAMES[6:12], NAMES[6]: ()}
    return plots.contributions(
        values, added, NAMES, SUBTITLE, of_class=NAMES[1], categories=categories
    )


def draw_centroids() -> bytes:
    r = np.random.default_rng(5)
    centres = {name: r.normal(size=(3, 4)) for name in NAMES[:7]}
    x = r.normal(size=(ROWS, 4))
    return plots.centroids("Centroids of each rung", x, np.arange(ROWS) % 3, centres, SUBTITLE)


def draw_parameters() -> bytes:
    texts = [f"{letter}_of_a_long_text" for letter in "abcd"]
    tried = {name: [0.1, 0.2, 0.3, 0.4] for name in NAMES[:8]} | {NAMES[8]: texts}
    return plots.parameter_scores(tried, [1.0, 2, 3, 4], SUBTITLE, metric="validation/auc")


IMPORTANCE = {name: at + 1.0 for at, name in enumerate(NAMES)}
RUNGS = {name: dict.fromkeys(("read", "fit", "rest"), 2.0) for name in NAMES[:5]}
TWO = NAMES[:2]
CASES: dict[str, Callable[[], bytes]] = {
    "roc": lambda: plots.roc(two_classes(), SUBTITLE, TWO),
    "precision_recall": lambda: plots.precision_recall(two_classes(), SUBTITLE, TWO),
    "calibration": lambda: plots.calibration(two_classes(), SUBTITLE, TWO),
    "confusion_2": lambda: plots.confusion(two_classes(), SUBTITLE, TWO),
    "confusion_4": lambda: plots.confusion(classes(4), SUBTITLE, NAMES[:4]),
    "confusion_5": lambda: plots.confusion(classes(5), SUBTITLE, NAMES[:5]),
    "confusion_10": lambda: plots.confusion(classes(10), SUBTITLE, NAMES[:10]),
    "predicted": lambda: plots.predicted(numbers(), SUBTITLE, (), TARGET),
    "clusters_3": lambda: plots.clusters(clusters(3), SUBTITLE),
    "clusters_12": lambda: plots.clusters(clusters(12), SUBTITLE),
    "centroids": draw_centroids,
    "contributions": draw_contributions,
    "importance": lambda: plots.importance(IMPORTANCE, SUBTITLE, kind="gain"),
    "ladder": lambda: plots.ladder(RUNGS, SUBTITLE),
    "parameter_scores": draw_parameters,
    "history": lambda: plots.history({0: 1.0, 1: 2}, SUBTITLE, metric=NAMES[0], maximize=True),
}


@functools.cache
def figure_of(case: str) -> Figure:
    """Draw a case, the first time that it is asked for."""
    with kept_figures() as figures:
        CASES[case]()
    return figures[0]


@pytest.mark.parametrize("case", CASES)
def test_all_texts_lie_within_the_picture(case: str) -> None:
    figure = figure_of(case)
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts_of(figure)]
    outside = [
        text for text, box in boxes if box.x0 < 4 or box.y0 < 4 or box.x1 > 596 or box.y1 > 596
    ]
    assert not outside


@pytest.mark.parametrize("case", CASES)
def test_no_text_lies_upon_another(case: str) -> None:
    assert not overlapping(figure_of(case))


@pytest.mark.parametrize("case", CASES)
def test_the_rows_and_the_period_are_in_the_subtitle_of_a_model_of_a_long_name(case: str) -> None:
    assert SUBTITLE in words(figure_of(case))


@pytest.mark.parametrize("number", [2, 4, 5, 10])
def test_numbers_lie_within_their_cells(number: int) -> None:
    figure = figure_of(f"confusion_{number}")
    axes = figure.axes[0]
    cell = axes.get_window_extent().width / number
    assert len(axes.texts) == number * number
    assert max(box_of(text).width for text in axes.texts) < cell


@pytest.mark.parametrize("number", [5, 10])
def test_the_classes_of_a_matrix_differ_when_they_are_shortened(number: int) -> None:
    axes = figure_of(f"confusion_{number}").axes[0]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert len(set(names)) == number
    assert all(name.endswith("…") for name in names)
    assert names == [label.get_text() for label in axes.get_yticklabels()]


def test_dollar_signs_in_names_are_letters() -> None:
    """Matplotlib takes what stands between two of them for a formula."""
    with kept_figures() as figures:
        plots.importance({"$price_in_$": 1.0, r"$\x$": 2.0}, SUBTITLE, kind="gain")
    assert "$price_in_$" in words(figures[0])
    assert not overlapping(figures[0])
