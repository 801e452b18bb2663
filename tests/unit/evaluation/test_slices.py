"""Metrics of groups of rows against scikit-learn's on the rows of each group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn import metrics as reference

from tipcast.compute.base import Session
from tipcast.evaluation import slices
from tipcast.evaluation.base import evaluator

COUNT = 6000
CUTS = (7, 7, 2500)
"""One part of few rows, one of none."""


def label(name: str, group: int) -> str:
    return f"{name}-{group}"


def made(kind: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return predictions, target and groups: nine of falling size, one of which is not known; and an odd number."""
    r = np.random.default_rng(5)
    nine = np.minimum(r.geometric(0.42, COUNT), 9).astype(np.int32) - 2
    groups = {"nine": nine, "large": r.choice([3, 40_000, 70_000], COUNT).astype(np.int32)}
    if kind == "regression":
        truth = r.normal(10, 3, COUNT).astype(np.float32)
        return truth + r.normal(nine / 10, 1 + np.abs(nine) / 4, COUNT).astype(np.float32), truth, groups
    if kind == "classification":
        scores = r.beta(3, 4, COUNT).astype(np.float32)
        return scores, (r.random(COUNT) < scores).astype(np.int32), groups
    odds = r.gamma(1, 1, (COUNT, 3)) + 0.01
    truth = r.integers(0, 3, COUNT).astype(np.int32)
    odds[np.arange(COUNT), truth] += 0.5
    return (odds / odds.sum(axis=1, keepdims=True)).astype(np.float32), truth, groups


def by_hand(kind: str, predicted: np.ndarray, truth: np.ndarray, threshold: float | None) -> dict[str, float]:
    wide = predicted.astype(float)
    if kind == "regression":
        error = wide - truth
        return {"rmse": reference.root_mean_squared_error(truth, wide), "mae": np.abs(error).mean(),
                "bias": error.mean(), "mean_prediction": wide.mean()}  # fmt: skip
    if kind == "classification":
        return {"auc": reference.roc_auc_score(truth, wide), "log_loss": reference.log_loss(truth, wide),
                "brier": reference.brier_score_loss(truth, wide), "positive_rate": truth.mean(),
                "accuracy": reference.accuracy_score(truth, predicted >= threshold),
                "mean_prediction": wide.mean()}  # fmt: skip
    wide /= wide.sum(axis=1, keepdims=True)
    return {"log_loss": reference.log_loss(truth, wide, labels=[0, 1, 2]),
            "accuracy": reference.accuracy_score(truth, wide.argmax(axis=1))}  # fmt: skip


def spread(client: Client, values: np.ndarray) -> list[Any]:
    return [client.submit(np.array, part, pure=False) for part in np.split(values, CUTS)]


def sliced(client: Client, kind: str, **given: Any) -> list[slices.Slice]:
    predicted, truth, groups = made(kind)
    held = {name: spread(client, values) for name, values in groups.items()}
    columns = spread(client, predicted), spread(client, truth)
    return slices.slices(client, evaluator(kind), *columns, held, label, **given)


@pytest.mark.parametrize("kind", ["classification", "multiclass", "regression"])
def test_equals_scikit_learn(client: Client, kind: str) -> None:
    threshold = 0.45 if kind == "classification" else None
    found = slices.columns(sliced(client, kind, threshold=threshold))
    predicted, truth, groups = made(kind)
    table = pd.DataFrame(found).set_index(["name", "group"])
    assert len(table) == 8 + 3
    headline = evaluator(kind).headline.name
    for (name, group), row in table.iterrows():
        own = groups[name] == int(group.rpartition("-")[2])
        assert row["rows"] == own.sum()
        if kind == "classification" and len(np.unique(truth[own])) == 1:
            assert np.isnan(row["auc"])
            continue
        for metric, value in by_hand(kind, predicted[own], truth[own], threshold).items():
            far = row["auc_resolution"] + 1e-12 if metric == "auc" else 1e-6 * max(abs(value), 1)
            assert abs(row[metric] - value) <= far, (name, group, metric)
        assert row[f"{headline}_low"] < row[headline] < row[f"{headline}_high"]
    if kind == "classification":
        assert 0 < table["auc_resolution"].max() < 1e-3


def test_the_largest_groups_first_and_a_limit(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MOST", 3)
    found = [each for each in sliced(client, "regression") if each.name == "nine"]
    known = pd.Series(made("regression")[2]["nine"]).loc[lambda group: group >= 0].value_counts()
    assert [(each.group, each.rows) for each in found] == [(label("nine", at), known[at]) for at in known.index[:3]]


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_the_worst_have_enough_rows(client: Client, kind: str) -> None:
    judge, found = evaluator(kind), sliced(client, kind)
    ranked = slices.worst(found, judge)
    values = [each.headline for each in ranked]
    assert values == sorted(values, reverse=not judge.headline.maximize)
    assert min(each.rows for each in ranked) >= slices.LEAST_ROWS > min(each.rows for each in found)
    told = slices.remark(found, judge)
    assert f"worst for `{ranked[0].name}` {ranked[0].group} ({ranked[0].rows:,} rows) **{values[0]:.4f}**" in told
    assert slices.remark(found[:1], judge) == ""


def test_nothing_to_group_by(client: Client) -> None:
    assert slices.slices(client, evaluator("regression"), [], [], {}, label) == []
    predicted, truth, _ = made("regression")
    none = {"none": spread(client, np.full(COUNT, -1, dtype=np.int32))}
    given = spread(client, predicted), spread(client, truth)
    assert slices.slices(client, evaluator("regression"), *given, none, label) == []


def test_on_each_device(backend: Session) -> None:
    predicted, truth, groups = made("classification")

    def there(values: Any, frames: Any) -> Any:  # nested, so that it travels by value
        return frames.xp.asarray(values)

    held = [[backend.client.submit(there, each, backend.frames)] for each in (predicted, truth, *groups.values())]
    names = dict(zip(groups, held[2:], strict=True))
    found = slices.slices(backend.client, evaluator("classification"), *held[:2], names, label)
    for each in found:
        own = groups[each.name] == int(each.group.rpartition("-")[2])
        assert each.mean == pytest.approx(predicted[own].mean(), rel=1e-5)
        if each.evaluation:
            near = reference.roc_auc_score(truth[own], predicted[own])
            assert each.headline == pytest.approx(near, abs=each.evaluation.metrics["auc_resolution"] + 1e-12)
