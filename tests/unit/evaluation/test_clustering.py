"""Metrics of clusters against scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn import metrics as reference
from tests.conftest import spread

from tipcast.evaluation import clustering
from tipcast.evaluation.clustering import Clustering

EVALUATOR = Clustering()


def rows(count: int = 3000, features: int = 5, far: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return labels with distances, and features, which may be far from zero."""
    r = np.random.default_rng(features)
    centres = r.normal(0, 4, (4, features))
    x = (centres[r.integers(0, 4, count)] + r.normal(0, 1, (count, features))) * np.arange(
        1, features + 1
    ) + far
    apart = np.linalg.norm(x[:, None] - (centres * np.arange(1, features + 1) + far)[None], axis=2)
    labels = apart.argmin(axis=1)
    return np.stack([labels, apart.min(axis=1)], axis=1).astype(np.float32), x.astype(np.float32)


@pytest.mark.parametrize(("features", "far"), [(5, 0.0), (3, 300.0), (1, 0.0)])
def test_equals_scikit_learn(
    client: Client, monkeypatch: pytest.MonkeyPatch, features: int, far: float
) -> None:
    monkeypatch.setattr(clustering, "BLOCKS", {"numpy": 333})
    monkeypatch.setattr(clustering, "DRAWN", 100)
    predictions, x = rows(features=features, far=far)
    found = EVALUATOR.evaluate(
        client, spread(client, predictions), spread(client, x, wrap=pd.DataFrame)
    )
    labels = predictions[:, 0].astype(int)
    expected = {
        "inertia": np.mean(predictions[:, 1].astype(float) ** 2),
        "davies_bouldin": reference.davies_bouldin_score(x.astype(float), labels),
    }
    assert found.metrics == pytest.approx(expected, rel=1e-8)
    assert found.sums.histogram.tolist() == np.bincount(labels).tolist()
    assert EVALUATOR.details(found)["cluster_1/rows"] == (labels == 1).sum()
    assert found.interval.low < found.headline_value < found.interval.high
    drawn = np.r_[0, np.arange(1, 1000, 30), np.arange(1000, 3000, 30)]  # some rows of every part
    assert (found.sample.tolist(), found.labels.tolist()) == (
        x[drawn].tolist(),
        labels[drawn].tolist(),
    )


def test_a_cluster_without_rows_does_not_count() -> None:
    predictions, x = rows()
    kept = predictions[:, 0] != 1
    found = EVALUATOR.evaluate_here(predictions[kept], x[kept])
    expected = reference.davies_bouldin_score(x[kept].astype(float), predictions[kept, 0])
    assert found.metrics["davies_bouldin"] == pytest.approx(expected)
    assert found.sums.histogram[1] == 0


def test_one_cluster_has_an_index_of_0() -> None:
    predictions, x = rows()
    predictions[:, 0] = 0
    found = EVALUATOR.evaluate_here(predictions, x)
    assert found.metrics["davies_bouldin"] == 0


def test_rows_that_are_all_the_same_are_drawn() -> None:
    flat = np.ones((20, 3), dtype=np.float32)
    found = EVALUATOR.evaluate_here(np.zeros((20, 2), dtype=np.float32), flat)
    assert dict(EVALUATOR.figures({"test": found}, ""))[EVALUATOR.figure].startswith(b"\x89PNG")
