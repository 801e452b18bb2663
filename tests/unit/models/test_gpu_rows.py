"""Fits on GPUs: from rows that wait on the host, and by several workers from their own rows."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import treelite
from distributed import Client, LocalCluster
from sklearn.metrics import roc_auc_score
from tests.conftest import NO_PAGES

from tipcast.compute.base import Session
from tipcast.config.errors import TipcastError
from tipcast.config.schema import ModelSpec
from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.models.cuml_forest import CumlForest, own_places

pytestmark = pytest.mark.gpu

Part = tuple[pd.DataFrame, pd.Series]
Spec = Callable[..., ModelSpec]


def on_gpu(values: pd.DataFrame | pd.Series) -> Any:
    import cudf

    return cudf.from_pandas(values)


def placed(client: Client, parts: list[Part], homes: list[str]) -> list[list[Any]]:
    """Put parts on workers, as frames of their GPU: futures of the features, and of the labels."""
    sides = []
    for side in (0, 1):
        host = [client.scatter(part[side], hash=False) for part in parts]
        sides.append(
            [
                client.submit(on_gpu, values, workers=[home], pure=False)
                for values, home in zip(host, homes, strict=True)
            ]
        )
    return sides


@pytest.fixture(scope="module")
def two_workers(gpu: None) -> Iterator[Client]:
    """Two processes that share a GPU."""
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, **NO_PAGES}
    with LocalCluster(**options) as local, Client(local, set_as_default=False) as client:
        yield client


def test_xgboost_learns_the_same_from_rows_on_the_host(
    gpu_session: Session, parts: list[Part], spec: Spec
) -> None:
    estimator = build(spec("xgboost", n_estimators=20, subsample=0.8), "gpu")

    def scores(*, host: bool) -> Any:
        """Fit and score on a worker: the driver of a GPU test needs none."""
        move = (lambda values: values) if host else on_gpu
        train = Split([move(x) for x, _ in parts[:3]], [move(y) for _, y in parts[:3]])
        held_out = Split([move(parts[3][0])], [move(parts[3][1])])
        rows = Split(train.x, train.y, validation=held_out)
        fitted = estimator.fit(rows, seed=5)
        predictions = fitted.scorer.score(move(parts[3][0]))
        assert type(predictions).__module__.partition(".")[0] == ("numpy" if host else "cupy")
        return predictions if host else predictions.get()

    one = min(gpu_session.client.nthreads())
    both = [
        gpu_session.client.submit(scores, host=host, workers=[one], pure=False).result()
        for host in (True, False)
    ]
    np.testing.assert_array_equal(*both)


def test_each_gpu_grows_trees_from_its_own_rows(
    two_workers: Client, parts: list[Part], spec: Spec, joined: Callable[[list[Part]], Part]
) -> None:
    one, other = sorted(two_workers.nthreads())
    sides = placed(two_workers, parts[:3], [one, other, one])
    places = own_places(two_workers, sides[0])
    assert places == {one: ([0, 2], 5500), other: ([1], 1500)}

    forest = build(spec("random_forest", n_estimators=21, max_depth=6), "gpu")
    assert isinstance(forest, CumlForest)
    fitted = forest.grow_apart(two_workers, sides, places, seed=5)
    assert fitted.info["workers"] == 2
    assert sum(fitted.importance.values()) == pytest.approx(1)
    assert treelite.Model.deserialize_bytes(fitted.content(fitted.scorer)).num_tree == 21

    held_out, labels = parts[3]
    alone = forest.fit(Split(*map(on_gpu, joined(parts[:3]))), seed=5)
    scores = [model.scorer.score(on_gpu(held_out)).get() for model in (fitted, alone)]
    auc, of_all_rows = (roc_auc_score(labels, values) for values in scores)
    assert abs(auc - of_all_rows) < 0.02


def test_a_gpu_without_rows_of_a_class_is_named(
    two_workers: Client, parts: list[Part], spec: Spec
) -> None:
    one, other = sorted(two_workers.nthreads())
    x, y = parts[0]
    sides = placed(two_workers, [(x, y), (x, y * 0)], [one, other])
    forest = build(spec("random_forest", n_estimators=4), "gpu")
    assert isinstance(forest, CumlForest)
    with pytest.raises(TipcastError, match=r"D015.*1 of 2 classes"):
        forest.grow_apart(two_workers, sides, own_places(two_workers, sides[0]), seed=5)
