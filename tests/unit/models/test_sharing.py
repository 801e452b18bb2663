"""Fits that share rows are the fits that do not, bit by bit: alone, cut, grown on, and several at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tipcast.models.base import Split
from tipcast.models.forest import Forest
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


@pytest.mark.parametrize("stop", [None, 4])
def test_cut_boosters_are_those_of_fewer_rounds(rows: Split, stop: int | None) -> None:
    sizes = [2, 5, 9, 40, 12]
    fits = [XGBoost({**DRAWN, "n_estimators": n}, {"early_stopping_rounds": stop}, "cpu") for n in sizes]
    assert [each.trees for each in fits] == sizes
    prepared = fits[0].prepared(rows, threads=1)
    for one, cut in zip(fits, fits[3].cut(prepared, sizes, 7), strict=True):
        alone = one.fit(prepared, 7)
        np.testing.assert_array_equal(scores(cut, rows), scores(alone, rows))
        assert cut.info == alone.info
        assert cut.history == alone.history
        assert cut.importance == alone.importance
        assert cut.model.num_boosted_rounds() == alone.model.num_boosted_rounds()


def grown_to(estimator: XGBoost, prepared: Any, stops: list[int], between: Any) -> Any:
    state = None
    for trees in stops:
        between()
        grown = estimator.grow(prepared, trees, state, 5)
        state = grown.state
        assert grown.trees == trees
    return grown


@pytest.mark.parametrize("metric", ["auc", "logloss"])
def test_a_booster_grown_on_is_the_same_whatever_ran_in_between(rows: Split, metric: str) -> None:
    estimator = xgboost(24, eval_metric=metric)
    prepared = estimator.prepared(rows, threads=1)
    alone = grown_to(estimator, prepared, [3, 8, 24], lambda: None)
    for other in (1, 2):
        with ThreadPoolExecutor(2) as threads:
            task = threads.submit(grown_to, estimator, prepared, [3, 8, 24], partial(estimator.fit, prepared, other))
            threads.submit(estimator.fit, prepared, 9)
            mixed = task.result()
        np.testing.assert_array_equal(scores(mixed.fitted, rows), scores(alone.fitted, rows))
        assert mixed.fitted.history == alone.fitted.history
        assert mixed.over == alone.over


def test_a_booster_grown_on_without_chance_is_one_that_was_not_interrupted(rows: Split) -> None:
    estimator = XGBoost({"n_estimators": 24}, {}, "cpu")
    prepared = estimator.prepared(rows, threads=1)
    grown = grown_to(estimator, prepared, [3, 8, 24], lambda: None)
    np.testing.assert_array_equal(scores(grown.fitted, rows), scores(estimator.fit(prepared, 5), rows))


def test_a_fit_that_would_have_stopped_is_over(rows: Split) -> None:
    estimator = xgboost(200, learning_rate=1.0)
    prepared = estimator.prepared(rows, threads=1)
    first = estimator.grow(prepared, 2, None, 0)
    assert not first.over
    later = estimator.grow(prepared, 60, first.state, 0)
    assert later.over
    assert later.fitted.model.num_boosted_rounds() == later.fitted.info["best_iteration"] + 1 < 56


@pytest.mark.parametrize("metric", ["auc", "error"])
def test_a_booster_grown_past_its_stop_is_the_one_that_stopped(rows: Split, metric: str) -> None:
    noise = np.random.default_rng(1).permutation(len(rows.y))
    mixed = Split(rows.x, rows.y.iloc[noise].reset_index(drop=True), rows.validation)
    later = 0
    for rate in (0.05, 0.1, 0.3, 0.6):
        estimator = XGBoost(
            {"max_depth": 3, "learning_rate": rate, "n_estimators": 120, "eval_metric": metric},
            {"early_stopping_rounds": 2},
            "cpu",
        )
        prepared = estimator.prepared(mixed, threads=1)
        alone = estimator.fit(prepared, 5)
        grown = grown_to(estimator, prepared, [3, 120], lambda: None)
        assert grown.over
        np.testing.assert_array_equal(scores(grown.fitted, rows), scores(alone, rows))
        assert grown.fitted.info == alone.info
        assert grown.fitted.history == alone.history
        pick = max if metric == "auc" else min
        later += grown.state.scores.index(pick(grown.state.scores)) > alone.info["best_iteration"]
    assert later, "a better round came after the stop"


def test_forests_are_cut_and_grown_on(rows: Split) -> None:
    sizes = [3, 12, 7]
    estimator = Forest({"n_estimators": 12, "max_depth": 6}, {}, "cpu")
    prepared = estimator.prepared(rows, threads=1)
    assert prepared is rows
    for size, cut in zip(sizes, estimator.cut(prepared, sizes, 4), strict=True):
        alone = Forest({"n_estimators": size, "max_depth": 6}, {}, "cpu").fit(Split(rows.x, rows.y), 4)
        np.testing.assert_array_equal(scores(cut, rows), scores(alone, rows))
        assert cut.importance == alone.importance
        assert cut.info == alone.info
    state = None
    for trees in (2, 5, 12):
        grown = estimator.grow(prepared, trees, state, 4)
        state = grown.state
        assert len(grown.fitted.model.estimators_) == trees
    np.testing.assert_array_equal(scores(grown.fitted, rows), scores(estimator.cut(prepared, [12], 4)[0], rows))


def test_what_cannot_be_cut_says_so(rows: Split) -> None:
    forest = XGBoost({"n_estimators": 8}, {"num_boost_round": 1}, "cpu")
    assert forest.trees is None
