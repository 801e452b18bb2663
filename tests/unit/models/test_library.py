"""Estimators of scikit-learn by name: what the adapter adds to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import SpectralClustering
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score

from tipcast.config.errors import TipcastError
from tipcast.models import native
from tipcast.models.base import Split
from tipcast.models.library import Library

X, GROUPS = make_moons(400, noise=0.05, random_state=0)
FRAME = pd.DataFrame(X.astype(np.float32), columns=["a", "b"])
SPECTRAL = {"n_clusters": 2, "affinity": "nearest_neighbors"}


def clusters(library: str, params: dict[str, object], training: dict[str, object]) -> Library:
    return Library(params, training, "cpu", (), "clustering", 0, library=library, reference=library)


@pytest.mark.parametrize("standardize", [False, True])
def test_clusters_without_a_rule_for_other_rows(tmp_path: Path, standardize: bool) -> None:
    """Two moons, which no centres tell apart; rows of the fit keep their cluster, others get the nearest one's."""
    training = {"rows": 300, "standardize": standardize}
    fitted = clusters("sklearn.cluster.SpectralClustering", SPECTRAL, training).fit(Split([FRAME]), seed=0)
    assert fitted.info["rows"] == 300
    saved = fitted.save(tmp_path)
    labels, far = native.load(saved.path, saved.format).score(FRAME.to_numpy()).T
    assert adjusted_rand_score(GROUPS, labels) == 1.0
    assert (far < 1e-6).sum() == 300
    others, _ = make_moons(100, noise=0.05, random_state=1)
    expected = [labels[np.argmin(((X - row) ** 2).sum(axis=1) + 1e9 * (far >= 1e-6))] for row in others]
    if not standardize:
        np.testing.assert_array_equal(fitted.scorer.score(others.astype(np.float32))[:, 0], expected)


@pytest.mark.filterwarnings("ignore:Graph is not fully connected:UserWarning")
def test_clusters_are_the_librarys() -> None:
    own = clusters("sklearn.cluster.SpectralClustering", SPECTRAL, {}).fit(Split([FRAME]), seed=0)
    theirs = SpectralClustering(**SPECTRAL, random_state=0).fit(X)
    assert adjusted_rand_score(own.scorer.score(FRAME.to_numpy())[:, 0], theirs.labels_) == 1.0


def test_rows_in_no_cluster_are_refused() -> None:
    scattered = clusters("sklearn.cluster.DBSCAN", {"eps": 0.001}, {})
    with pytest.raises(TipcastError, match=r"C003.*100\.0% of the training rows in no cluster"):
        scattered.fit(Split([FRAME]), seed=0)
