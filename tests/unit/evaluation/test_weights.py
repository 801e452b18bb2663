"""Metrics of weighted rows: against scikit-learn with ``sample_weight``, against rows repeated as
often as their weight says, and against no weights where all are equal.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from matplotlib.figure import Figure
from sklearn import metrics as reference
from tests.conftest import spread
from tests.unit.evaluation.test_base import ROWS

from tipcast.config.errors import TipcastError
from tipcast.datasets.counts import Counts, total
from tipcast.evaluation import base, binary_sums, evaluator_of, metric, plots
from tipcast.evaluation.base import Evaluator
from tipcast.evaluation.classification import Classification
from tipcast.evaluation.clustering import Clustering
from tipcast.evaluation.multiclass import Multiclass
from tipcast.evaluation.plots import page
from tipcast.evaluation.regression import Regression
from tipcast.evaluation.sums import PartedColumns, weighted_half_width, weighted_mean_sums
from tipcast.tasks.kinds import KINDS

of_each_kind = pytest.mark.parametrize("kind", KINDS)
of_each_seed = pytest.mark.parametrize("seed", range(4))
Z95 = 1.959963984540054


def drawn(kind: str, seed: int) -> tuple[Evaluator, np.ndarray, np.ndarray, np.ndarray]:
    """An evaluator, predictions with ties, what they are judged by, and weights of very different
    size, of which each tenth is 0.
    """
    predictions, target = ROWS[kind]()
    r = np.random.default_rng(seed)
    if seed % 2 and kind != "clustering":
        predictions = predictions.round(1)
    weights = np.where(r.random(len(target)) < 0.1, 0.0, r.lognormal(0, 2, len(target)))
    return evaluator_of(KINDS[kind]), predictions, target, weights


# Against scikit-learn


@of_each_seed
def test_two_classes_equal_scikit_learn(seed: int) -> None:
    evaluator, scores, labels, weights = drawn("classification", seed)
    found = evaluator.evaluate(None, [scores], [labels], weights=[weights], threshold=0.4)
    wide = scores.astype(float)
    called = scores >= 0.4
    eps = np.finfo(np.float32).eps
    judged = {"sample_weight": weights}
    expected = {
        "auc": reference.roc_auc_score(labels, wide, **judged),
        "average_precision": reference.average_precision_score(labels, wide, **judged),
        "log_loss": reference.log_loss(labels, np.clip(wide, eps, 1 - eps), **judged),
        "brier": reference.brier_score_loss(labels, wide, **judged),
        "accuracy": reference.accuracy_score(labels, called, **judged),
        "precision": reference.precision_score(labels, called, **judged),
        "recall": reference.recall_score(labels, called, **judged),
        "f1": reference.f1_score(labels, called, **judged),
        "positive_rate": np.average(labels, weights=weights),
    }
    assert {name: found.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    matrix = reference.confusion_matrix(labels, called, **judged)
    np.testing.assert_allclose(found.sums.confusion, matrix, rtol=1e-9)


@of_each_seed
def test_a_roc_curve_equals_scikit_learns(seed: int) -> None:
    evaluator, scores, labels, weights = drawn("classification", seed)
    found = evaluator.evaluate_here(scores, labels, weights)
    fpr, tpr, _ = reference.roc_curve(labels, scores, sample_weight=weights)
    steps = np.linspace(0, 1, 101)
    tolerance = 2 / 2000  # between points that are left out
    np.testing.assert_allclose(
        np.interp(steps, found.roc["fpr"], found.roc["tpr"]),
        np.interp(steps, fpr, tpr),
        atol=tolerance,
    )


@of_each_seed
def test_several_classes_equal_scikit_learn(seed: int) -> None:
    evaluator, _, targets, weights = drawn("multiclass", seed)
    # In float64, so that scikit-learn has the same sums to 1.
    probabilities = np.random.default_rng(seed).dirichlet([1, 1, 1, 1], len(targets))
    found = evaluator.evaluate_here(probabilities, targets, weights)
    called = probabilities.argmax(axis=1)
    judged = {"sample_weight": weights}
    squares = ((probabilities - np.eye(4)[targets]) ** 2).sum(axis=1)
    expected = {
        "log_loss": reference.log_loss(targets, probabilities, **judged),
        "accuracy": reference.accuracy_score(targets, called, **judged),
        "f1_macro": reference.f1_score(targets, called, average="macro", **judged),
        "brier": np.average(squares, weights=weights),
    }
    assert found.metrics == pytest.approx(expected, rel=1e-9)
    recalls = reference.recall_score(targets, called, average=None, **judged)
    assert list(evaluator.details(found).values()) == pytest.approx(recalls.tolist(), rel=1e-9)


@of_each_seed
def test_a_regression_equals_scikit_learn(seed: int) -> None:
    evaluator, predicted, targets, weights = drawn("regression", seed)
    found = evaluator.evaluate_here(predicted, targets, weights)
    p = predicted.astype(float)
    t = targets.astype(float)
    expected = {
        "rmse": reference.root_mean_squared_error(t, p, sample_weight=weights),
        "mae": reference.mean_absolute_error(t, p, sample_weight=weights),
        "r2": reference.r2_score(t, p, sample_weight=weights),
        "bias": np.average(p - t, weights=weights),
        "max_error": reference.max_error(t[weights > 0], p[weights > 0]),
    }
    assert found.metrics == pytest.approx(expected, rel=1e-9)


def test_a_tiny_weight_at_the_top_does_not_lose_the_curve() -> None:
    """A difference of sums would be 0 there, and 0 over 0 no number."""
    scores = np.array([0.1, 0.4, 0.35, 0.8])
    weights = np.array([1.0, 1.0, 1.0, 1e-30])
    found = Classification().evaluate_here(scores, np.array([0, 0, 1, 1]), weights)
    expected = reference.average_precision_score([0, 0, 1, 1], scores, sample_weight=weights)
    assert found.metrics["average_precision"] == pytest.approx(expected, rel=1e-12)
    assert np.isfinite(found.roc["precision"]).all()


# Against repeated rows and no weights


@of_each_kind
@of_each_seed
def test_a_whole_weight_is_a_row_repeated(kind: str, seed: int) -> None:
    evaluator, predictions, target, weights = drawn(kind, seed)
    times = np.minimum(np.ceil(weights), 5).astype(int)
    found = evaluator.evaluate_here(predictions, target, times)
    repeated = evaluator.evaluate_here(
        np.repeat(predictions, times, 0), np.repeat(target, times, 0)
    )
    assert found.metrics == pytest.approx(repeated.metrics, rel=1e-9)
    assert found.threshold == repeated.threshold


@of_each_kind
@pytest.mark.parametrize("weight", [1.0, 0.1, 1e-6, 7e8])
def test_equal_weights_change_nothing(kind: str, weight: float) -> None:
    evaluator, predictions, target, _ = drawn(kind, 1)
    plain = evaluator.evaluate_here(predictions, target)
    found = evaluator.evaluate_here(predictions, target, np.full(len(target), weight))
    assert found.metrics == pytest.approx(plain.metrics, rel=1e-9)
    assert found.interval == pytest.approx(plain.interval, rel=1e-9)
    assert found.threshold == plain.threshold


@of_each_kind
def test_the_size_of_weights_does_not_matter(kind: str) -> None:
    evaluator, predictions, target, weights = drawn(kind, 2)
    found = evaluator.evaluate_here(predictions, target, 1e6 * weights)
    expected = evaluator.evaluate_here(predictions, target, weights)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-9)
    assert found.interval == pytest.approx(expected.interval, rel=1e-9)


@of_each_kind
def test_a_row_of_weight_0_is_left_out(kind: str) -> None:
    evaluator, predictions, target, weights = drawn(kind, 3)
    kept = weights > 0
    found = evaluator.evaluate_here(predictions, target, weights)
    expected = evaluator.evaluate_here(predictions[kept], target[kept], weights[kept])
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-12)
    assert found.interval == pytest.approx(expected.interval, rel=1e-12)


@of_each_kind
def test_rows_are_those_evaluated_whatever_their_weight(kind: str) -> None:
    evaluator, predictions, target, weights = drawn(kind, 3)
    assert evaluator.evaluate_here(predictions, target, weights).rows == len(target)


# Parts


@of_each_kind
@of_each_seed
def test_weighted_parts_are_judged_as_the_whole(client: Client, kind: str, seed: int) -> None:
    evaluator, predictions, target, weights = drawn(kind, seed)
    weights[:1] = 0  # the first part has this row alone
    whole = evaluator.evaluate_here(predictions, target, weights)
    columns = [spread(client, values) for values in (predictions, target)]
    series = spread(client, weights, wrap=pd.Series)
    parts = evaluator.evaluate(client, *columns, weights=series)
    assert parts.metrics == pytest.approx(whole.metrics, rel=1e-9)
    assert parts.interval == pytest.approx(whole.interval, rel=1e-9)
    assert parts.threshold == whole.threshold


@pytest.mark.parametrize("kind", ["classification", "multiclass", "regression"])
def test_a_weight_of_a_row_without_an_answer_counts_for_nothing(kind: str) -> None:
    evaluator, predictions, target, weights = drawn(kind, 0)
    unknown = target.copy()
    unknown[::2] = -1 if kind != "regression" else np.nan
    cuts = (5, 700, 700)
    columns = [np.split(values, cuts) for values in (predictions, unknown, weights)]
    parts = [evaluator.count(*part, threshold=0.4) for part in zip(*columns, strict=True)]
    found = evaluator.of_sums(evaluator.total(parts), 0.4)
    expected = evaluator.evaluate(
        None, [predictions[1::2]], [target[1::2]], weights=[weights[1::2]], threshold=0.4
    )
    assert found is not None
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-9)


def test_a_summary_of_predictions_knows_no_weights() -> None:
    for kind in ("classification", "multiclass", "regression"):
        evaluator, predictions, target, weights = drawn(kind, 0)
        found = evaluator.count(predictions, target, weights)
        assert evaluator.summary(found) == evaluator.summary(evaluator.count(predictions))


@of_each_kind
def test_sums_without_weights_have_none(kind: str) -> None:
    """No array of ones is made of rows that all count the same."""
    evaluator, predictions, target, _ = drawn(kind, 0)
    sums = evaluator.evaluate_here(predictions, target).sums
    assert not sums.weighted
    names = {"weights", "square_bins", "class_rows", "cluster_weights"}
    arrays = [getattr(sums, field.name) for field in fields(sums) if field.name in names]
    assert arrays
    assert all(array.size == 0 for array in arrays)


# Many rows


@pytest.fixture
def binned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count rows by bin alone, as if they were many."""
    monkeypatch.setattr(binary_sums, "MOST_EXACT", 100)


@pytest.mark.usefixtures("binned")
@of_each_seed
def test_many_weighted_rows_are_counted_in_bins(client: Client, seed: int) -> None:
    evaluator, scores, labels, weights = drawn("classification", seed)
    columns = [spread(client, values, (200, 1000)) for values in (scores, labels)]
    found = evaluator.evaluate(client, *columns, weights=spread(client, weights, (200, 1000)))
    assert not found.sums.kept_scores.size
    # Scores of one decimal have a bin each, as the exact ones; others may share one.
    tolerance = 1e-9 if seed % 2 else found.resolution + 1e-9
    auc = reference.roc_auc_score(labels, scores, sample_weight=weights)
    assert found.metrics["auc"] == pytest.approx(auc, abs=tolerance)
    average_precision = reference.average_precision_score(labels, scores, sample_weight=weights)
    assert found.metrics["average_precision"] == pytest.approx(average_precision, abs=1e-4)


@pytest.mark.parametrize("weighted", [True, False])
def test_the_interval_in_bins_is_wider_by_their_resolution(
    monkeypatch: pytest.MonkeyPatch, weighted: bool
) -> None:
    evaluator, scores, labels, weights = drawn("classification", 0)
    given = (scores, labels, weights if weighted else None)
    exact = evaluator.evaluate_here(*given).interval
    monkeypatch.setattr(binary_sums, "MOST_EXACT", 100)
    found = evaluator.evaluate_here(*given)
    assert found.resolution > 0
    assert found.interval.low == pytest.approx(exact.low - found.resolution, abs=1e-5)
    assert found.interval.high == pytest.approx(exact.high + found.resolution, abs=1e-5)


@pytest.mark.usefixtures("binned")
def test_whole_weights_in_bins_are_rows_repeated() -> None:
    evaluator, scores, labels, weights = drawn("classification", 0)
    times = np.minimum(np.ceil(weights), 5).astype(int)
    found = evaluator.evaluate_here(scores, labels, times)
    repeated = evaluator.evaluate_here(np.repeat(scores, times), np.repeat(labels, times))
    assert found.metrics == pytest.approx(repeated.metrics, rel=1e-9)


# Intervals


def test_the_interval_of_a_weighted_mean_is_linearised() -> None:
    r = np.random.default_rng(0)
    values = r.normal(3, 2, 500)
    weights = np.where(r.random(500) < 0.2, 0.0, r.lognormal(0, 1, 500))
    rows = np.count_nonzero(weights)
    mean = np.average(values, weights=weights)
    scatter = np.sum(weights**2 * (values - mean) ** 2)
    expected = Z95 * np.sqrt(rows / (rows - 1) * scatter) / weights.sum()
    found = weighted_half_width(*weighted_mean_sums(values, weights))
    assert found == pytest.approx(expected, rel=1e-9)


def test_one_row_with_a_weight_has_no_interval() -> None:
    sums = weighted_mean_sums(np.array([3.0, 5.0]), np.array([2.0, 0.0]))
    assert weighted_half_width(*sums) == np.inf


@pytest.mark.parametrize("kind", ["multiclass", "regression", "clustering"])
def test_a_weighted_headline_has_the_interval_of_a_weighted_mean(kind: str) -> None:
    evaluator, predictions, target, weights = drawn(kind, 0)
    found = evaluator.evaluate_here(predictions, target, weights)
    losses = predictions[:, 1].astype(float) ** 2 if kind == "clustering" else None
    if losses is None:
        losses = evaluator.loss(predictions, target)
    half = weighted_half_width(*weighted_mean_sums(losses, weights))
    if kind == "regression":
        half /= 2 * found.headline_value
    assert found.interval.high - found.headline_value == pytest.approx(half, rel=1e-6)


def test_the_interval_of_a_weighted_auc_is_that_of_its_components() -> None:
    evaluator, scores, labels, weights = drawn("classification", 1)
    found = evaluator.evaluate_here(scores, labels, weights)
    wins = (scores[:, None] > scores) + 0.5 * (scores[:, None] == scores)
    variance = 0.0
    for label in (0, 1):
        mine = labels == label
        shares = wins[mine][:, ~mine] @ weights[~mine] / weights[~mine].sum()
        half = weighted_half_width(*weighted_mean_sums(shares, weights[mine]))
        variance += (half / Z95) ** 2
    expected = Z95 * np.sqrt(variance)
    assert found.interval.high - found.headline_value == pytest.approx(expected, rel=1e-6)


# Differences of two models


def two_models(kind: str) -> tuple[Evaluator, list[np.ndarray], np.ndarray]:
    """An evaluator, two models' predictions with the target, and weights."""
    evaluator, first, target, weights = drawn(kind, 0)
    second = np.clip(0.7 * first + 0.1, 0, 1) if kind != "regression" else first + 0.3
    if kind == "classification":
        second = np.where(np.arange(len(first)) % 3, first, second)
    return evaluator, [first, second, target], weights


def difference(evaluator: Evaluator, columns: list[np.ndarray], weights: Any = None) -> Any:
    first, second, target = columns
    both = [evaluator.evaluate_here(scores, target, weights) for scores in (first, second)]
    given = columns if weights is None else [*columns, weights]
    parts = PartedColumns([np.split(values, (1, 900)) for values in given])
    return evaluator.difference(parts, (both[0], both[1]))


of_compared = pytest.mark.parametrize("kind", ["classification", "multiclass", "regression"])


@of_compared
@pytest.mark.parametrize("weight", [1.0, 0.1])
def test_a_difference_by_equal_weights_is_that_without(kind: str, weight: float) -> None:
    evaluator, columns, weights = two_models(kind)
    value, interval = difference(evaluator, columns, np.full(len(weights), weight))
    expected_value, expected = difference(evaluator, columns)
    assert value == pytest.approx(expected_value, rel=1e-9)
    assert interval == pytest.approx(expected, rel=1e-6)


@of_compared
def test_a_weighted_difference_is_that_of_the_headlines(kind: str) -> None:
    evaluator, columns, weights = two_models(kind)
    value, interval = difference(evaluator, columns, weights)
    first, second, target = columns
    headlines = [
        evaluator.evaluate_here(scores, target, weights).headline_value
        for scores in (first, second)
    ]
    assert value == headlines[0] - headlines[1]
    assert interval.low < value < interval.high


def test_a_weighted_difference_has_the_interval_of_a_weighted_mean() -> None:
    evaluator, columns, weights = two_models("multiclass")
    value, interval = difference(evaluator, columns, weights)
    first, second, target = columns
    losses = evaluator.loss(first, target) - evaluator.loss(second, target)
    half = weighted_half_width(*weighted_mean_sums(losses, weights))
    assert interval.high - value == pytest.approx(half, rel=1e-6)


def test_a_difference_of_weighted_parts_on_workers_is_the_same(client: Client) -> None:
    evaluator, columns, weights = two_models("classification")
    both = [evaluator.evaluate_here(scores, columns[2], weights) for scores in columns[:2]]
    parts = PartedColumns([spread(client, values) for values in (*columns, weights)], client)
    _, interval = evaluator.difference(parts, (both[0], both[1]))
    _, expected = difference(evaluator, columns, weights)
    assert interval == pytest.approx(expected, rel=1e-9)


# Baselines, metrics of users, refusals


def counts(targets: np.ndarray, weights: np.ndarray, kind: str) -> Counts:
    """Counts of some rows, read as two parts."""
    halves = []
    for y, w in zip(np.split(targets, [99]), np.split(weights, [99]), strict=True):
        of_target: dict[str, Any] = {
            "target_sum": float(y.sum()),
            "weighted_target_sum": float((w * y).sum(dtype=float)),
        }
        if kind != "regression":
            of_target = {
                "classes": tuple(np.bincount(y).tolist()),
                "class_weights": tuple(np.bincount(y, w).tolist()),
            }
        halves.append(Counts(len(y), len(y), {}, weight=float(w.sum()), **of_target))
    return total(halves)


@pytest.mark.parametrize("kind", ["classification", "multiclass"])
def test_the_baseline_of_classes_is_their_weighted_shares(kind: str) -> None:
    evaluator, predictions, target, weights = drawn(kind, 0)
    train, test = slice(None, 1500), slice(1500, None)
    evaluation = evaluator.evaluate_here(predictions[test], target[test], weights[test])
    trained = counts(target[train], weights[train], kind)
    tested = counts(target[test], weights[test], kind)
    found = evaluator.baseline(evaluation, trained, tested)
    shares = np.bincount(target[train], weights[train]) / weights[train].sum()
    tiled = np.tile(shares, (len(target[test]), 1))
    hits = target[test] == shares.argmax()
    assert found == pytest.approx(
        {
            "accuracy": np.average(hits, weights=weights[test]),
            "log_loss": reference.log_loss(target[test], tiled, sample_weight=weights[test]),
        },
        rel=1e-9,
    )


def test_the_baseline_of_numbers_is_their_weighted_mean() -> None:
    evaluator, predictions, target, weights = drawn("regression", 0)
    target = target.astype(float)
    train, test = slice(None, 1500), slice(1500, None)
    evaluation = evaluator.evaluate_here(predictions[test], target[test], weights[test])
    trained = counts(target[train], weights[train], "regression")
    tested = counts(target[test], weights[test], "regression")
    mean = np.full(len(target[test]), np.average(target[train], weights=weights[train]))
    expected = reference.root_mean_squared_error(target[test], mean, sample_weight=weights[test])
    assert evaluator.baseline(evaluation, trained, tested)["rmse"] == pytest.approx(expected)


@pytest.fixture
def within_one() -> Iterator[None]:
    """A user's metric of regressions."""

    @metric("regression", maximize=True, name="within_one")
    def within_one(target: Any, prediction: Any) -> Any:
        return abs(prediction - target) <= 1

    yield
    base.OWN["regression"].clear()


@pytest.mark.usefixtures("within_one")
def test_a_users_metric_is_a_weighted_mean(client: Client) -> None:
    evaluator, predictions, target, weights = drawn("regression", 0)
    columns = [spread(client, values) for values in (predictions, target)]
    found = evaluator.evaluate(client, *columns, weights=spread(client, weights))
    expected = np.average(np.abs(predictions - target) <= 1, weights=weights)
    assert found.metrics["within_one"] == pytest.approx(expected, rel=1e-9)


@of_each_kind
def test_weights_that_are_all_0_are_refused(kind: str) -> None:
    evaluator, predictions, target, weights = drawn(kind, 0)
    with pytest.raises(TipcastError, match=f"D014.*weights of all {len(target)} rows are 0"):
        evaluator.evaluate_here(predictions, target, 0 * weights)


def test_one_class_with_a_weight_is_refused() -> None:
    scores = np.array([0.1, 0.2, 0.3])
    with pytest.raises(TipcastError, match="D015.*all 2 rows with a weight above 0 are of class 1"):
        Classification().evaluate_here(scores, np.array([0, 1, 1]), np.array([0.0, 1.0, 2.0]))


# Tables and figures


def test_the_table_of_classes_has_their_weight() -> None:
    _, probabilities, targets, weights = drawn("multiclass", 0)
    found = Multiclass().evaluate_here(probabilities, targets, weights)
    table = Multiclass().tables(found)["tables/classes.json"]
    assert "rows" not in table
    assert table["weight"] == pytest.approx(np.bincount(targets, weights).tolist())


def test_the_table_of_calibration_has_weights_with_the_rows_they_are_worth() -> None:
    scores = np.array([0.01, 0.02, 0.99, 0.98])
    weights = np.array([1.0, 3.0, 2.0, 2.0])
    found = Classification().evaluate_here(scores, np.array([0, 1, 0, 1]), weights)
    assert found.calibration["weight"].tolist() == [4, 4]
    assert found.calibration["rows"].tolist() == [16 / 10, 2]


def test_the_rows_of_a_cluster_are_counted() -> None:
    _, predictions, x, weights = drawn("clustering", 0)
    found = Clustering().evaluate_here(predictions, x, weights)
    plain = Clustering().evaluate_here(predictions, x)
    assert Clustering().details(found) == Clustering().details(plain)


def figure_of(evaluator: Evaluator, weights: np.ndarray | None, name: str) -> list[str]:
    """Return all texts of a figure of an evaluation."""
    _, predictions, target, _ = drawn(evaluator.kind.name, 0)
    evaluation = evaluator.evaluate_here(predictions, target, weights)
    figures: list[Figure] = []
    png = page.png
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "png", lambda figure: figures.append(figure) or png(figure))
        getattr(plots, name)({"test": evaluation}, "rows")
    axes = figures[0].axes[0]
    return [text.get_text() for text in (*figures[0].texts, *axes.texts)]


FIGURES = [(kind, name) for kind in KINDS for name in evaluator_of(KINDS[kind]).plots]


@pytest.mark.parametrize(("kind", "name"), FIGURES)
def test_the_title_of_a_figure_says_that_rows_are_weighted(kind: str, name: str) -> None:
    evaluator, *_, weights = drawn(kind, 0)
    assert ", weighted" in figure_of(evaluator, weights, name)[0]
    assert ", weighted" not in figure_of(evaluator, None, name)[0]


def test_a_confusion_matrix_shows_weights() -> None:
    evaluator, *_, weights = drawn("classification", 0)
    cells = figure_of(evaluator, weights, "confusion")[2:]
    assert len(cells) == 4
    assert all("\nweight " in cell for cell in cells)
    plain = figure_of(evaluator, None, "confusion")[2:]
    assert all(cell.endswith(" rows") for cell in plain)


def test_regression_keeps_drawn_rows_that_count() -> None:
    predicted = np.arange(6.0)
    weights = np.array([0.0, 1, 0, 1, 0, 1])
    found = Regression().evaluate_here(predicted, predicted + 1, weights)
    assert found.sums.sample[:, 1].tolist() == [1, 3, 5]
