"""Plots: what they say, read from the drawn figure, and that nothing is cut off or collides."""

import functools
import io
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from tests.conftest import python
from tests.unit.evaluation.figures import kept_figures, words

from tipcast.evaluation import plots
from tipcast.evaluation.classification import Classification, ClassificationEvaluation
from tipcast.evaluation.clustering import Clustering
from tipcast.evaluation.multiclass import Multiclass
from tipcast.evaluation.plots import page
from tipcast.evaluation.regression import Regression

SUBTITLE = "xgboost · 4,000 test trips · Mar 2019"
IMPORTANCE = {"PULocationID": 30.0, "pickup_hour": 60.0, "passenger_count": 10.0}
SCORES = [0.71, 0.7, 0.66, 0.69]
"""Of trials, the best first."""
TRIED = {
    "max_depth": [4, 8, 3, 5],
    "learning_rate": [0.1, 0.03, 0.3, 0.01],
    "grow_policy": ["lossguide", "depthwise", "lossguide", "depthwise"],
    "min_child_weight": [1, 2.5, 30, 4],
}
WORDS = {
    "importance": {"kind": "gain"},
    "history": {"metric": "validation/auc", "maximize": True},
    "parameter_scores": {"metric": "validation/auc", "logarithmic": ["learning_rate"]},
}
"""Picture -> keyword arguments that it is drawn with."""


@pytest.fixture(scope="module")
def evaluation() -> ClassificationEvaluation:
    r = np.random.default_rng(0)
    scores = r.beta(4, 4, 4000)
    labels = (r.random(4000) < scores).astype(int)
    found: ClassificationEvaluation = Classification().evaluate(
        None, [scores], [labels], threshold=0.45
    )
    return found


@pytest.fixture
def drawn() -> Iterator[list[Figure]]:
    """Figures that a test draws."""
    with kept_figures() as figures:
        yield figures


def draw(kind: str, found: ClassificationEvaluation) -> bytes:
    r = np.random.default_rng(9)
    values = r.normal(size=(500, 14)).astype(np.float32)
    targets = r.normal(10, 3, 5000)
    names = [f"feature_{at}" for at in range(13)] + ["a_feature_of_a_very_long_name"]
    centres = {f"{cores} cores": np.array([[0.1, 0.2], [1.0, 0.01 * cores]]) for cores in (1, 2)}
    arguments: dict[str, tuple[Any, ...]] = {
        "roc": ({"test": found, "validation": found},),
        "precision_recall": ({"test": found},),
        "calibration": ({"test": found},),
        "confusion": ({"test": found},),
        "predicted": (
            {"test": Regression().evaluate_here(targets + r.normal(0, 1, 5000), targets)},
        ),
        "clusters": ({"test": Clustering().evaluate_here(values[:, 2:4] > 0, values[:, :2])},),
        "centroids": ("Clusters", values[:, :2], np.arange(500) % 2, centres),
        "contributions": (values, values * np.arange(14) ** 2, names),
        "importance": (IMPORTANCE,),
        "history": (dict(enumerate(SCORES)),),
        "ladder": ({rung: dict.fromkeys(("read", "fit", "rest"), 2.0) for rung in "ab"},),
        "parameter_scores": (TRIED, SCORES),
    }
    drawn: bytes = getattr(plots, kind)(*arguments[kind], SUBTITLE, **WORDS.get(kind, {}))
    return drawn


KINDS = plots.__all__


@pytest.fixture(scope="module")
def pictures(
    evaluation: ClassificationEvaluation,
) -> Callable[[str], tuple[np.ndarray, Figure]]:
    """Draw a kind the first time that it is asked for: its pixels, and the figure they are of."""

    @functools.cache
    def draw_once(kind: str) -> tuple[np.ndarray, Figure]:
        with kept_figures() as figures:
            png = draw(kind, evaluation)
        return imread(io.BytesIO(png), format="png"), figures[0]

    return draw_once


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_square(
    kind: str, pictures: Callable[[str], tuple[np.ndarray, Figure]]
) -> None:
    pixels, _ = pictures(kind)
    assert pixels.shape[:2] == (600, 600)


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_runs_over_the_edge(
    kind: str, pictures: Callable[[str], tuple[np.ndarray, Figure]]
) -> None:
    pixels, _ = pictures(kind)
    for margin in (pixels[:8], pixels[-8:], pixels[:, :8], pixels[:, -8:]):
        assert (margin[..., :3] == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_has_its_subtitle(
    kind: str, pictures: Callable[[str], tuple[np.ndarray, Figure]]
) -> None:
    _, figure = pictures(kind)
    assert SUBTITLE in words(figure)


@pytest.mark.parametrize("kind", KINDS)
def test_no_texts_collide(kind: str, pictures: Callable[[str], tuple[np.ndarray, Figure]]) -> None:
    _, figure = pictures(kind)
    boxes = []
    for axes in figure.axes:
        texts = [*axes.texts, *(axes.get_legend().get_texts() if axes.get_legend() else [])]
        boxes += [(text.get_text(), text.get_window_extent()) for text in texts]
    for i, (one, box) in enumerate(boxes):
        assert not [other for other, second in boxes[:i] if box.overlaps(second)], one


@pytest.fixture(scope="module")
def roc(evaluation: ClassificationEvaluation) -> Figure:
    """The curves of two splits."""
    with kept_figures() as figures:
        plots.roc({"test": evaluation, "validation": evaluation}, SUBTITLE)
    return figures[0]


def test_roc_says_the_auc_of_each_split(evaluation: ClassificationEvaluation, roc: Figure) -> None:
    low, high = evaluation.interval
    text = f"AUC {evaluation.metrics['auc']:.3f}\n({low:.3f} to {high:.3f})"
    assert {f"test: {text}", f"validation: {text}", "chance (AUC 0.5)"} <= set(words(roc))


def test_roc_says_its_threshold(roc: Figure) -> None:
    assert "threshold 0.450" in words(roc)


def test_the_legend_of_roc_hides_no_curve(roc: Figure) -> None:
    """It lies below the diagonal."""
    axes = roc.axes[0]
    extent = axes.get_legend().get_window_extent()
    legend = extent.transformed(axes.transData.inverted())
    assert legend.x0 > legend.y1


def test_roc_marks_its_threshold_on_the_curve(
    evaluation: ClassificationEvaluation, roc: Figure
) -> None:
    ring = [line for line in roc.axes[0].lines if line.get_marker() == "o"]
    true_negatives, false_positives = evaluation.sums.confusion[0]
    wrong = false_positives / (false_positives + true_negatives)
    assert [(*line.get_xdata(), *line.get_ydata()) for line in ring] == [
        (wrong, evaluation.metrics["recall"])
    ]


def test_centroids_are_drawn_on_principal_components(drawn: list[Figure]) -> None:
    r = np.random.default_rng(2)
    x = np.array([[-9.0, 1.0, 0], [8, -6, 1], [30, 9, 2]])[r.integers(0, 3, 900)] + r.normal(
        0, 2, (900, 3)
    )
    plots.centroids("Clusters", x, np.zeros(len(x), int), {"centroids": x[:5]}, SUBTITLE)
    values = np.linalg.eigvalsh(np.corrcoef(x.T))[::-1]
    first, second = (f"{100 * value / values.sum():.0f} %" for value in values[:2])
    axes = drawn[0].axes[0]
    assert axes.get_xlabel() == f"first principal component ({first} of variance)"
    assert axes.get_ylabel() == f"second principal component ({second})"
    rows, centres = (dots.get_offsets() for dots in axes.collections)
    assert np.asarray(rows.std(axis=0)) == pytest.approx(np.sqrt(values[:2]))
    np.testing.assert_allclose(centres, rows[:5])


def clustered(number: int, spread: float = 8) -> dict[str, Any]:
    """Return the evaluation of rows in so many clusters."""
    r = np.random.default_rng(3)
    labels = np.arange(2400) % number
    x = r.normal(0, spread, (number, 4))[labels] + r.normal(0, 1, (2400, 4))
    predictions = np.stack([labels, np.ones(2400)], axis=1)
    return {"test": Clustering().evaluate_here(predictions, x)}


@pytest.mark.parametrize("number", [1, 3, 10, 12])
def test_each_cluster_has_its_number(number: int, drawn: list[Figure]) -> None:
    plots.clusters(clustered(number), SUBTITLE)
    numbers = [text.get_text() for text in drawn[0].axes[0].texts]
    assert numbers == [str(at) for at in range(number)]


def test_a_number_stands_at_its_centroid(drawn: list[Figure]) -> None:
    plots.clusters(clustered(3), SUBTITLE)
    axes = drawn[0].axes[0]
    centres = axes.collections[-1].get_offsets()
    places = [text.get_position() for text in axes.texts]
    np.testing.assert_allclose(places, centres)


def test_numbers_of_clusters_that_lie_upon_each_other_are_moved_apart(
    drawn: list[Figure],
) -> None:
    plots.clusters(clustered(12, spread=0.01), SUBTITLE)
    texts = drawn[0].axes[0].texts
    boxes = [Text.get_window_extent(text) for text in texts]
    assert not [one for at, one in enumerate(boxes) for other in boxes[:at] if one.overlaps(other)]


def test_ten_clusters_differ_in_color(drawn: list[Figure]) -> None:
    plots.clusters(clustered(10), SUBTITLE)
    rows = drawn[0].axes[0].collections[:10]
    assert len({tuple(dots.get_facecolor()[0]) for dots in rows}) == 10


def test_neighbouring_clusters_differ_in_their_markers(drawn: list[Figure]) -> None:
    plots.clusters(clustered(9), SUBTITLE)
    rows = drawn[0].axes[0].collections[:9]
    assert len({dots.get_paths()[0].vertices.tobytes() for dots in rows}) == 9


def test_twelve_clusters_differ_in_color_or_marker(drawn: list[Figure]) -> None:
    plots.clusters(clustered(12), SUBTITLE)
    looks = {
        (tuple(dots.get_facecolor()[0]), dots.get_paths()[0].vertices.tobytes())
        for dots in drawn[0].axes[0].collections[:12]
    }
    assert len(looks) == 12


@pytest.fixture(scope="module")
def predicted() -> Figure:
    """Predictions of 2,000 weighted rows."""
    r = np.random.default_rng(4)
    target = r.gamma(2, 5, 2000)
    found = Regression().evaluate_here(0.5 * target, target, np.ones(2000))
    with kept_figures() as figures:
        plots.predicted({"test": found}, SUBTITLE, (), "duration (minutes)")
    return figures[0]


def test_predictions_and_true_values_have_one_scale(predicted: Figure) -> None:
    axes = predicted.axes[0]
    assert axes.get_xlim() == axes.get_ylim()
    assert axes.get_xticks().tolist() == axes.get_yticks().tolist()
    box = axes.get_window_extent()
    assert box.width == pytest.approx(box.height)


def test_the_axes_of_predictions_name_the_target(predicted: Figure) -> None:
    axes = predicted.axes[0]
    assert axes.get_xlabel() == "true value of duration (minutes)"
    assert axes.get_ylabel() == "prediction of duration (minutes)"


def test_the_legend_of_predictions_has_the_line(predicted: Figure) -> None:
    texts = [text.get_text() for text in predicted.axes[0].get_legend().get_texts()]
    assert texts == ["y = x: exact prediction"]


def test_the_title_of_predictions_says_how_many_rows_are_drawn(predicted: Figure) -> None:
    assert "Predicted vs. true values, weighted: 500 of 2,000 rows" in words(predicted)
    assert len(predicted.axes[0].collections[0].get_offsets()) == 500


def test_precision_is_in_plain_words(
    pictures: Callable[[str], tuple[np.ndarray, Figure]],
) -> None:
    _, figure = pictures("precision_recall")
    assert figure.axes[0].get_xlabel() == "recall: share of positives found"
    assert (
        figure.axes[0].get_ylabel() == "precision: share of positive predictions that are correct"
    )


@pytest.mark.parametrize(
    ("classes", "weighted", "text"),
    [
        (2, False, "cells: share of the true class's rows"),
        (2, True, "cells: share of the true class's weight"),
        (10, False, "cells: % of the true class's rows"),
        (30, False, "shade: share of the true class's rows"),
    ],
)
def test_a_matrix_says_what_its_shares_are_of(
    classes: int, weighted: bool, text: str, drawn: list[Figure]
) -> None:
    target = np.arange(90) % classes
    weights = np.ones(90) if weighted else None
    found = Multiclass().evaluate_here(np.eye(classes)[target], target, weights)
    plots.confusion({"test": found}, SUBTITLE)
    assert drawn[0].axes[0].get_xlabel() == f"predicted class\n{text}"
    assert ("Confusion matrix, weighted" in words(drawn[0])) == weighted


@pytest.fixture(scope="module")
def importance() -> Figure:
    """The importance of three features."""
    with kept_figures() as figures:
        plots.importance(IMPORTANCE, SUBTITLE, kind="gain")
    return figures[0]


def test_the_most_important_feature_is_on_top(importance: Figure) -> None:
    axes = importance.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "pickup_hour",
        "PULocationID",
        "passenger_count",
    ]
    assert axes.yaxis_inverted()


def test_importance_adds_to_one(importance: Figure) -> None:
    assert [bar.get_width() for bar in importance.axes[0].patches] == [0.6, 0.3, 0.1]


@pytest.mark.parametrize("nothing", [{}, {"a": 0.0}])
def test_importance_of_nothing_is_a_picture(nothing: dict[str, float]) -> None:
    assert plots.importance(nothing, SUBTITLE, kind="gain").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("maximize", "best"), [(True, [0.5, 0.5, 0.7, 0.7]), (False, [0.5, 0.4, 0.4, 0.4])]
)
def test_the_history_shows_the_best_score_so_far(
    maximize: bool, best: list[float], drawn: list[Figure]
) -> None:
    scores = {3: 0.6, 0: 0.5, 2: 0.7, 1: 0.4}
    plots.history(scores, SUBTITLE, metric="validation/auc", maximize=maximize)
    (line,) = drawn[0].axes[0].lines
    assert line.get_xdata().tolist() == [0, 1, 2, 3]
    assert line.get_ydata().tolist() == best


@pytest.fixture(scope="module")
def panels() -> dict[str, Axes]:
    """The panel of each parameter, by its title."""
    with kept_figures() as figures:
        plots.parameter_scores(TRIED, SCORES, SUBTITLE, **WORDS["parameter_scores"])
    return {axes.get_title(): axes for axes in figures[0].axes if axes.get_title()}


def test_each_parameter_has_a_panel_in_the_order_given(panels: dict[str, Axes]) -> None:
    assert [*panels] == [*TRIED]


def test_a_panel_shows_each_trial_at_its_value(panels: dict[str, Axes]) -> None:
    (points,) = panels["max_depth"].collections
    assert points.get_offsets().tolist() == [
        [value, score] for value, score in zip(TRIED["max_depth"], SCORES, strict=True)
    ]


def test_values_that_are_texts_stand_side_by_side(panels: dict[str, Axes]) -> None:
    axes = panels["grow_policy"]
    (points,) = axes.collections
    assert [label.get_text() for label in axes.get_xticklabels()] == ["depthwise", "lossguide"]
    assert points.get_offsets()[:, 0].tolist() == [1, 0, 1, 0]


def test_only_the_axis_of_a_logarithmic_range_is_logarithmic(panels: dict[str, Axes]) -> None:
    scales = {name: axes.get_xscale() for name, axes in panels.items()}
    assert scales == {**dict.fromkeys(TRIED, "linear"), "learning_rate": "log"}


def test_a_parameter_tried_at_zero_keeps_its_point(drawn: list[Figure]) -> None:
    tried = {"gamma": [0.0, 0.1, 1.0]}
    plots.parameter_scores(tried, SCORES[:3], SUBTITLE, metric="auc", logarithmic=["gamma"])
    (panel,) = [axes for axes in drawn[0].axes if axes.get_title() == "gamma"]
    assert panel.get_xscale() == "linear"


def test_a_trial_whose_value_is_no_number_is_left_out_beside_numbers(drawn: list[Figure]) -> None:
    """As the default of a forest's max_features, which is a text."""
    tried = {"max_features": ["sqrt", 0.1, 0.5]}
    plots.parameter_scores(tried, SCORES[:3], SUBTITLE, metric="auc", logarithmic=["max_features"])
    (panel,) = [axes for axes in drawn[0].axes if axes.get_title() == "max_features"]
    (points,) = panel.collections
    assert points.get_offsets()[:, 0].tolist() == [0.1, 0.5]
    assert panel.get_xscale() == "log"
    assert not panel.lines  # the best trial is not among them


def test_threads_draw_the_same_without_pyplot(evaluation: ClassificationEvaluation) -> None:
    def pyplot_figures() -> list[int]:
        """Return the figures that pyplot keeps: other libraries' may be among them."""
        module = sys.modules.get("matplotlib.pyplot")
        return [] if module is None else module.get_fignums()

    before = pyplot_figures()
    kinds = KINDS[::3]
    alone = [draw(kind, evaluation) for kind in kinds]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda kind: draw(kind, evaluation), kinds)) == alone
    assert pyplot_figures() == before


def test_ctrl_c_while_a_plot_is_drawn_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matplotlib's C++ turns what is raised below it into errors of its own."""
    figure = Figure()

    def savefig(*_: Any, **__: Any) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            sum(at for at in range(100))  # Python calls the handler between two instructions
        except KeyboardInterrupt:
            raise ValueError("Invalid bounding box") from None

    monkeypatch.setattr(figure, "savefig", savefig)
    with pytest.raises(KeyboardInterrupt):
        page.png(figure)


def test_settings_of_a_user_neither_change_nor_break_a_picture(
    evaluation: ClassificationEvaluation,
) -> None:
    plain = draw("roc", evaluation)
    odd = {
        "text.usetex": True,
        "savefig.bbox": "tight",
        "axes.facecolor": "black",
        "font.size": 30,
        "figure.dpi": 7,
    }
    with matplotlib.rc_context(odd):
        assert draw("roc", evaluation) == plain
        assert {name: matplotlib.rcParams[name] for name in odd} == odd, (
            "the user's own figures keep them"
        )


@pytest.mark.parametrize(
    "backend", ["module://matplotlib_inline.backend_inline", "TkAgg", "nonsense"]
)
def test_a_backend_that_is_not_installed_does_not_stop_the_plots(
    backend: str, tmp_path: Path
) -> None:
    """A notebook's kernel leaves its own to every command."""
    script = """
import os
from tipcast.evaluation import plots
plots.importance({'a': 1}, 's', kind='gain')
print(os.environ['MPLBACKEND'])
"""
    ended = python(tmp_path, "-c", script, MPLBACKEND=backend)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{backend}\n"
