"""Metrics of several classes against scikit-learn."""

import numpy as np
import pytest
from distributed import Client
from sklearn import metrics as reference
from tests.conftest import spread

from tipcast.evaluation.multiclass import Multiclass
from tipcast.evaluation.sums import Interval, PartedColumns

EVALUATOR = Multiclass()


def rows(count: int = 4000, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    targets = r.integers(0, classes, count).astype(np.int32)
    scores = r.normal(0, 1, (count, classes))
    scores[np.arange(count), targets] += 1.2
    odds = np.exp(scores)
    return (odds / odds.sum(axis=1, keepdims=True)).astype(np.float32), targets


def test_equals_scikit_learn(client: Client) -> None:
    probabilities, targets = rows()
    found = EVALUATOR.evaluate(client, spread(client, probabilities), spread(client, targets))
    called = probabilities.argmax(axis=1)
    wide = probabilities.astype(float)
    expected = {
        "log_loss": reference.log_loss(targets, wide / wide.sum(axis=1, keepdims=True)),
        "accuracy": reference.accuracy_score(targets, called),
        "f1_macro": reference.f1_score(targets, called, average="macro"),
        "brier": np.mean(((wide - np.eye(4)[targets]) ** 2).sum(axis=1)),
    }
    for name, value in expected.items():
        assert found.metrics[name] == pytest.approx(value, rel=1e-6), name
    names = ["a/b", "a?b", "..", "setosa"]
    precision, recall, *_ = reference.precision_recall_fscore_support(targets, called)
    keys = ["recall/a_b", "recall/a_b_2", "recall/_", "recall/setosa"]
    assert EVALUATOR.details(found, names) == pytest.approx(dict(zip(keys, recall, strict=True)))
    assert set(EVALUATOR.summary(found.sums, names)) == {
        key.replace("recall", "predicted_rate") for key in keys
    }
    table = EVALUATOR.tables(found, names)["tables/classes.json"]
    assert (table["class"], table["precision"]) == (names, pytest.approx(precision.tolist()))
    assert not EVALUATOR.details(EVALUATOR.evaluate_here(*rows(classes=11))), (
        "of many classes the table alone has it"
    )
    assert found.sums.confusion.tolist() == reference.confusion_matrix(targets, called).tolist()
    few = targets < 2  # of the other classes there is no row
    found = EVALUATOR.evaluate_here(probabilities[few], targets[few])
    score = reference.f1_score(targets[few], called[few], average="macro")
    assert found.metrics["f1_macro"] == pytest.approx(score)
    assert [*EVALUATOR.details(found)] == ["recall/0", "recall/1"]


@pytest.fixture(scope="module")
def compared(client: Client) -> tuple[float, Interval, np.ndarray]:
    """The difference of two models with its interval, and that of their losses of each row."""
    first, targets = rows(3000, seed=1)
    second = 0.5 * first + 0.5 / 4
    futures = [spread(client, values) for values in (first, second, targets)]
    both = [EVALUATOR.evaluate_here(scores, targets) for scores in (first, second)]
    value, interval = EVALUATOR.difference(PartedColumns(futures, client), both)
    losses = [-np.log(scores[np.arange(3000), targets].astype(float)) for scores in (first, second)]
    return value, interval, losses[0] - losses[1]


def test_the_difference_is_the_mean_of_that_of_each_row(
    compared: tuple[float, Interval, np.ndarray],
) -> None:
    value, _, by_row = compared
    assert value == pytest.approx(by_row.mean(), rel=1e-9)


def test_the_interval_of_a_difference_is_that_of_a_mean(
    compared: tuple[float, Interval, np.ndarray],
) -> None:
    _, interval, by_row = compared
    half = 1.959963984540054 * by_row.std(ddof=1) / np.sqrt(3000)
    assert interval.low == pytest.approx(by_row.mean() - half, rel=1e-9)
