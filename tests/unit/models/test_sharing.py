"""Fits that share rows are the fits that do not, bit by bit, also several at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tipcast.models.base import Split
from tipcast.models.xgboost import XGBoost

DRAWN = {"max_depth": 5, "learning_rate": 0.3, "subsample": 0.7, "colsample_bytree": 0.6, "colsample_bynode": 0.7}
"""Parameters with every kind of chance in them."""


@pytest.fixture(scope="module")
def rows() -> Split:
    r = np.random.default_rng(0)
    x = r.integers(0, 200, (6000, 5)).astype(np.float32)
    y = (r.random(6000) < 1 / (1 + np.exp(-np.sin(x[:, 0] / 20) - x[:, 1] / 100 + 1))).astype(np.int32)
    frame, label = pd.DataFrame(x, columns=list("abcde")), pd.Series(y)
    held_out = (frame[4000:].reset_index(drop=True), label[4000:].reset_index(drop=True))
    return Split(frame[:4000], label[:4000], held_out)


def scores(fitted: Any, rows: Split) -> Any:
    return np.asarray(fitted.scorer.score(rows.validation[0]))


def xgboost(trees: int, **more: Any) -> XGBoost:
    return XGBoost({**DRAWN, "n_estimators": trees, **more}, {"early_stopping_rounds": 4}, "cpu")


def test_on_shared_rows_and_at_once(rows: Split) -> None:
    estimators = [xgboost(30, max_depth=depth) for depth in (3, 5, 7, 9)]
    assert {estimator.sharing for estimator in estimators} == {(256, ())}
    prepared = estimators[0].prepared(rows, threads=2)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda estimator: estimator.fit(prepared, 3), estimators))
    for estimator, fitted in zip(estimators, found, strict=True):
        alone = estimator.fit(rows, 3)
        np.testing.assert_array_equal(scores(fitted, rows), scores(alone, rows))
        assert fitted.history == alone.history
