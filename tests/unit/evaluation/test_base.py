"""What all kinds share: refusals, sums of parts, finding an evaluator, metrics of users, keys in
MLflow.
"""

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client
from sklearn import metrics as reference
from tests.conftest import spread
from tests.unit.evaluation import (
    test_classification,
    test_clustering,
    test_multiclass,
    test_regression,
)

from tipcast.config.errors import TipcastError
from tipcast.datasets.counts import Counts
from tipcast.evaluation import base, evaluator_of, metric
from tipcast.evaluation.base import logged
from tipcast.evaluation.regression import Regression
from tipcast.evaluation.sums import Interval, mean_interval
from tipcast.tasks.kinds import BINARY, KINDS, named

ROWS = {
    "classification": test_classification.rows,
    "multiclass": test_multiclass.rows,
    "regression": test_regression.rows,
    "clustering": test_clustering.rows,
}
"""Kind -> what makes predictions, and what they are judged by."""
UNKNOWN = {"classification": -1, "multiclass": -1, "regression": np.nan}
FOUR = [0.1, 0.2, 0.3, 0.4]


@pytest.fixture(autouse=True)
def _none_registered() -> Iterator[None]:
    yield
    for kind in KINDS:
        base.OWN[kind].clear()


of_each_kind = pytest.mark.parametrize("kind", KINDS)


@of_each_kind
def test_parts_over_workers_are_judged_as_the_whole(client: Client, kind: str) -> None:
    evaluator, (predictions, target) = evaluator_of(KINDS[kind]), ROWS[kind]()
    whole = evaluator.evaluate_here(predictions, target)
    parts = evaluator.evaluate(client, spread(client, predictions), spread(client, target))
    assert parts.metrics == pytest.approx(whole.metrics, rel=1e-9)
    assert parts.interval == pytest.approx(whole.interval)
    assert parts.threshold == whole.threshold


@of_each_kind
def test_metrics_are_listed_from_the_headline_on(kind: str) -> None:
    evaluator, (predictions, target) = evaluator_of(KINDS[kind]), ROWS[kind]()
    metrics = evaluator.evaluate_here(predictions, target).metrics
    assert list(metrics)[: len(evaluator.metrics)] == [listed.name for listed in evaluator.metrics]


@dataclass(frozen=True)
class Counted:
    """Rows that are counted part by part while they are scored, of which every other target may
    not be known.
    """

    evaluator: base.Evaluator
    predictions: np.ndarray
    whole: base.Evaluation
    """Of all rows and their targets."""
    known: base.Evaluation
    """Of the rows whose targets are known."""
    sums: Any


def counted(kind: str) -> Counted:
    evaluator, (predictions, target) = evaluator_of(KINDS[kind]), ROWS[kind]()
    whole = evaluator.evaluate_here(predictions, target)
    known = evaluator.evaluate_here(predictions[1::2], target[1::2])
    if kind in UNKNOWN:
        target = target.copy()
        target[::2] = UNKNOWN[kind]
    cuts = 0, 5, 700, 700, len(target)
    pairs = [(predictions[a:b], target[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    sums = evaluator.total([evaluator.count(*pair, threshold=known.threshold) for pair in pairs])
    return Counted(evaluator, predictions, whole, known, sums)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_rows_without_an_answer_are_left_out(kind: str) -> None:
    rows = counted(kind)
    scored = rows.evaluator.of_sums(rows.sums, rows.known.threshold)
    assert scored is not None
    assert scored.metrics == pytest.approx(rows.known.metrics, rel=1e-9)


def test_a_scoring_has_no_targets_of_clusters() -> None:
    rows = counted("clustering")
    assert rows.evaluator.of_sums(rows.sums, rows.known.threshold) is None


@of_each_kind
def test_predictions_alone_are_not_judged(kind: str) -> None:
    evaluator, (predictions, _) = evaluator_of(KINDS[kind]), ROWS[kind]()
    assert evaluator.of_sums(evaluator.count(predictions), 0.5) is None
    assert evaluator.of_sums(evaluator.total([]), 0.5) is None


@of_each_kind
def test_the_summary_of_a_scoring_has_the_mean_of_its_predictions(kind: str) -> None:
    rows = counted(kind)
    summary = rows.evaluator.summary(rows.sums)
    mean = {
        "classification": rows.predictions.mean(),
        "regression": rows.predictions.mean(),
        "clustering": rows.whole.headline_value,
    }
    assert summary.get("inertia", summary.get("mean")) == pytest.approx(mean.get(kind))


def test_the_summary_of_two_classes_has_the_share_above_the_threshold() -> None:
    rows = counted("classification")
    share = (rows.predictions >= rows.known.threshold).mean()
    assert rows.evaluator.summary(rows.sums)["predicted_rate"] == share


def test_the_summary_of_several_classes_has_shares_of_one_whole() -> None:
    rows = counted("multiclass")
    assert sum(rows.evaluator.summary(rows.sums).values()) == pytest.approx(1)


@of_each_kind
def test_the_summary_of_no_rows_is_empty(kind: str) -> None:
    evaluator = evaluator_of(KINDS[kind])
    assert evaluator.summary(evaluator.total([])) == {}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_the_baseline_knows_no_features(kind: str) -> None:
    evaluator, (predictions, target) = evaluator_of(KINDS[kind]), ROWS[kind]()
    train, test = np.split(target, [300])
    classes = tuple(np.bincount(train)) if kind != "regression" else ()
    trained = Counts(300, 300, {}, classes=classes, target_sum=train.sum())
    tested = Counts(len(test), 0, {}, classes=classes and tuple(np.bincount(test)))
    found = evaluator.baseline(evaluator.evaluate_here(predictions[300:], test), trained, tested)
    if kind == "regression":
        expected = reference.root_mean_squared_error(test, np.full(len(test), train.mean()))
        assert found == {"rmse": pytest.approx(expected)}
        return
    shares = np.tile(np.bincount(train) / 300, (len(test), 1))
    expected = np.mean(test == np.bincount(train).argmax()), reference.log_loss(test, shares)
    assert (found["accuracy"], found["log_loss"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "predictions", "targets", "code", "said"),
    [
        (
            "classification",
            [0.1, np.nan, 0.3],
            [0, 1, 1],
            "D030",
            "1 of 3 scores are outside 0..1 or NaN",
        ),
        ("classification", [np.inf, 1.5, -1e-30], [0, 1, 1], "D030", "3 of 3 scores are outside"),
        ("classification", [0.1, 0.2, 0.3], [2, -1, 1], "D031", "2 of 3 labels"),
        ("classification", [0.1, 0.2, 0.3], [1, 1, 1], "D015", "all 3 rows are of class 1"),
        ("classification", [0.1, 0.2, 0.3], [0, 0, 0], "D015", "all 3 rows are of class 0"),
        ("classification", [], [], "D014", "no rows"),
        (
            "multiclass",
            [[0.1, 0.2, np.nan, 0.4], [0.1, 0.2, 1.5, 0.4]],
            [0, 0],
            "D030",
            "2 of 2 rows",
        ),
        ("multiclass", [FOUR, FOUR], [0, 4], "D031", "1 of 2 labels"),
        ("multiclass", np.zeros((0, 4)), [], "D014", "no rows"),
        ("regression", [1, np.inf, np.nan], [1, 2, 3], "D030", "2 of 3 predictions"),
        ("regression", [1, 2, 3], [1, np.nan, 3], "D031", "1 of 3 targets"),
        ("regression", [], [], "D014", "no rows"),
        ("clustering", [[0, 0.5], [1, np.nan]], [[1], [2]], "D030", "1 of 2 rows have no cluster"),
    ],
)
def test_refuses(
    client: Client, kind: str, predictions: list, targets: list, code: str, said: str
) -> None:
    dtype = float if kind == "regression" else int
    columns = [np.asarray(predictions, np.float32), np.asarray(targets, dtype)]
    with pytest.raises(TipcastError) as caught:
        evaluator_of(KINDS[kind]).evaluate(
            client, *(spread(client, values, (0, 1)) for values in columns), where="data.test"
        )
    assert caught.value.code == code
    assert said in str(caught.value)
    assert "data.test" in str(caught.value)


def test_a_users_metric_is_the_mean_over_all_rows(client: Client) -> None:
    @metric("regression", maximize=True)
    def within_one(target: Any, prediction: Any) -> Any:
        return abs(prediction - target) <= 1

    r = np.random.default_rng(0)
    targets = r.normal(0, 1, 1000)
    predicted = r.normal(0, 1, 1000)
    expected = np.mean(np.abs(targets - predicted) <= 1)
    found = Regression().evaluate(
        client, *(spread(client, values, (10, 700)) for values in (predicted, targets))
    )
    assert found.metrics["within_one"] == pytest.approx(expected)
    assert list(found.metrics)[-1] == "within_one"
    assert Regression().evaluate_here(predicted, targets).metrics["within_one"] == pytest.approx(
        expected
    )
    metric("classification", maximize=False, name="misses")(
        lambda target, score: (score < 0.5) & (target == 1)
    )
    classes = evaluator_of(BINARY).evaluate_here(
        np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])
    )
    assert (list(classes.metrics)[0], classes.metrics["misses"]) == ("auc", 1 / 4)


def test_what_is_no_metric_is_refused(client: Client) -> None:
    with pytest.raises(TipcastError, match="C003.*unknown kind 'ranking'"):
        named("ranking")
    for name in ("rmse", "rows"):
        with pytest.raises(TipcastError, match="is reserved"):
            metric("regression", maximize=False, name=name)(lambda target, prediction: target)
    with pytest.raises(TipcastError, match="is not a valid metric name in MLflow"):
        metric("regression", maximize=False, name="cost (k$)")(lambda target, prediction: target)
    metric("regression", maximize=False, name="median")(
        lambda target, prediction: np.median(target)
    )
    with pytest.raises(TipcastError, match="return one value for each row"):
        Regression().evaluate_here(np.zeros(3), np.ones(3))


def test_installed_packages_register_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metric("regression", maximize=False, name="installed")
    point = SimpleNamespace(load=lambda: installed(lambda target, prediction: abs(target)))
    found = {"tipcast.metrics": [point]}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found.get(group, []))
    base.load_entry_points.cache_clear()
    assert Regression().evaluate_here(np.zeros(3), np.full(3, 2.0)).metrics["installed"] == 2
    base.load_entry_points.cache_clear()


def test_the_interval_of_a_mean() -> None:
    values = np.random.default_rng(0).normal(3, 2, 500)
    half = 1.959963984540054 * values.std(ddof=1) / np.sqrt(500)
    found = mean_interval(500, values.sum(), (values**2).sum())
    assert found == pytest.approx((values.mean() - half, values.mean() + half))
    assert mean_interval(1, 3.0, 9.0) == Interval(0, np.inf)


def test_the_interval_of_a_loss_does_not_go_below_0() -> None:
    """Also where the half width is more than the mean."""
    assert mean_interval(3, 1.0, 1.0).low == 0


@pytest.fixture
def logged_keys() -> list[str]:
    """Keys of a regression's metrics in MLflow."""
    found = Regression().evaluate_here(np.array([1.0, 4.0]), np.array([1.0, 3.0]))
    return list(logged(Regression(), found, "test"))


def test_keys_in_mlflow_begin_with_the_headline(logged_keys: list[str]) -> None:
    assert logged_keys[0] == "test/rmse"


def test_keys_in_mlflow_end_with_the_interval(logged_keys: list[str]) -> None:
    assert logged_keys[-2:] == ["test/rmse_low", "test/rmse_high"]
