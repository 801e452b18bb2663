"""`model=incremental`: learnt part by part, where the parts lie, so that rows may be more than
memory holds.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge, SGDClassifier, SGDRegressor
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tests.conftest import shipped_model

from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.tasks.kinds import REGRESSION

PARAMS = {"loss": "log_loss", "alpha": 0.0001, "penalty": "l2", "average": True}


def rows(n: int, seed: int) -> tuple[pd.DataFrame, pd.Series]:
    draw = np.random.default_rng(seed)
    x = (draw.normal(size=(n, 4)) * [1, 10, 100, 0.1] + [0, 5, 50, 1]).astype(np.float32)
    return pd.DataFrame(x, columns=list("abcd")), pd.Series(
        (x[:, 0] + x[:, 1] / 10 > 0.5).astype(np.int32)
    )


def test_parts_are_learnt_in_their_order_wherever_they_lie(cpu_session: Any) -> None:
    parts = [rows(n, n) for n in (800, 500, 0, 700)]
    client = cpu_session.client
    x, y = ([client.scatter(part[side], hash=False) for part in parts] for side in (0, 1))
    held_out = rows(300, 7)[0].to_numpy()
    model = build(shipped_model("incremental"), "cpu")
    found = model.fit_distributed(client, Split(x, y), seed=3)
    here = model.fit(Split([x for x, _ in parts], [y for _, y in parts]), seed=3)
    np.testing.assert_array_equal(found.scorer.score(held_out), here.scorer.score(held_out))
    assert found.info["rows"] == here.info["rows"] == 2000
    scaler = StandardScaler().fit(np.concatenate([x.to_numpy(np.float64) for x, _ in parts]))
    by_hand = SGDClassifier(**PARAMS, random_state=3)
    for x, y in [part for part in parts if len(part[0])] * 2:
        by_hand.partial_fit(scaler.transform(x.to_numpy(np.float64)), y, classes=[0, 1])
    expected = by_hand.predict_proba(scaler.transform(held_out.astype(float)))[:, 1]
    np.testing.assert_allclose(found.scorer.score(held_out), expected, atol=1e-6)


def flats(n: int, seed: int, base: float) -> tuple[pd.DataFrame, pd.Series]:
    """Make sizes and towns, and rents that are far from 0 by ``base``."""
    draw = np.random.default_rng(seed)
    x = pd.DataFrame({"size": draw.normal(50, 20, n), "town": draw.integers(0, 12, n)})
    of_town = np.random.default_rng(1).normal(0, 3, 12)
    rent = base + 0.1 * x["size"] + of_town[x["town"]] + draw.normal(0, 0.5, n)
    return x.astype(np.float32), rent.astype(np.float32)


def explained(found: Any, expected: Any) -> float:
    return 1 - np.mean((found - expected) ** 2) / np.var(expected)


@pytest.mark.parametrize("base", [0.0, 100.0, -5000.0])
def test_values_far_from_0_with_texts_are_learnt_as_well_as_by_ridge(
    cpu_session: Any, base: float
) -> None:
    """Scikit-learn's class alone does not get there: see ``Library.offset``."""
    parts = [flats(n, n, base) for n in (800, 500, 0, 700)]
    client = cpu_session.client
    sides = [[client.scatter(part[side], hash=False) for part in parts] for side in (0, 1)]
    held_out, rents = flats(1000, 7, base)
    model = build(shipped_model("incremental_linear"), "cpu", ["town"], REGRESSION)
    model.check()
    found = model.fit_distributed(client, Split(*sides), seed=3).scorer.score(held_out)
    here = model.fit(Split(*map(list, zip(*parts, strict=True))), seed=3).scorer.score(held_out)
    np.testing.assert_array_equal(found, here)

    x = pd.concat([x for x, _ in parts])
    y = pd.concat([y for _, y in parts])
    encoder = OneHotEncoder().fit(x[["town"]])
    ridge = Ridge().fit(np.c_[encoder.transform(x[["town"]]).toarray(), x["size"]], y)
    theirs = ridge.predict(np.c_[encoder.transform(held_out[["town"]]).toarray(), held_out["size"]])
    assert explained(found, rents) > explained(theirs, rents) - 0.02


def test_targets_are_learnt_as_differences_from_their_mean() -> None:
    parts = [flats(n, n, 100.0) for n in (300, 200)]
    parts = [(x[["size"]], y) for x, y in parts]
    spec = shipped_model("incremental_linear", fit={"passes": 3})
    found = build(spec, "cpu", (), REGRESSION).fit(
        Split(*map(list, zip(*parts, strict=True))), seed=3
    )
    x, y = (np.concatenate([part[side] for part in parts]).astype(float) for side in (0, 1))
    scaler = StandardScaler().fit(x)
    mean = y.mean()
    theirs = SGDRegressor(average=True, random_state=3)
    for sizes, rents in parts * 3:
        theirs.partial_fit(scaler.transform(sizes.to_numpy(float)), rents.to_numpy(float) - mean)
    expected = theirs.predict(scaler.transform(x)) + mean
    np.testing.assert_allclose(found.scorer.score(x.astype(np.float32)), expected, rtol=1e-6)


@pytest.mark.parametrize(("rows", "passes"), [(100, 50), (20_000, 50), (300_000, 4), (10**9, 2)])
def test_few_rows_are_gone_over_more_often(rows: int, passes: int) -> None:
    model = build(shipped_model("incremental_linear"), "cpu", (), REGRESSION)
    assert model.passes(rows) == passes


def test_a_model_without_an_intercept_keeps_its_targets() -> None:
    spec = shipped_model("incremental_linear", fit_intercept=False)
    assert build(spec, "cpu", (), REGRESSION).offset([(4, 40.0)]) == 0
