"""The regression solves scikit-learn's objective, whatever the parts."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from tipcast.models.base import Split
from tipcast.models.build import build


@pytest.mark.parametrize("C", [1.0, 0.001])
@pytest.mark.parametrize("reach", ["distributed", "local"])
def test_coefficients_are_scikit_learns(client, parts, spec, C, reach, joined, scattered):  # noqa: N803
    estimator = build(spec("logistic", C=C), "cpu")
    x, y = joined(parts[:3])
    if reach == "distributed":
        empty = (parts[0][0].iloc[:0], parts[0][1].iloc[:0])
        model = estimator.fit_distributed(client, Split(*scattered([empty, *parts[:3]])), seed=0)
    else:
        model = estimator.fit(Split(x, y), seed=0)
    scaler = StandardScaler().fit(x.to_numpy().astype(float))
    same = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-7).fit(scaler.transform(x.to_numpy()), y)
    np.testing.assert_allclose(model.model.coef, same.coef_[0], atol=1e-6)
    assert model.model.intercept == pytest.approx(same.intercept_[0], abs=1e-6)
    held_out = parts[3][0]
    expected = same.predict_proba(scaler.transform(held_out.to_numpy()))[:, 1]
    np.testing.assert_allclose(model.scorer.score(held_out), expected, atol=1e-6)
    assert model.info["converged"] == "true"


def test_the_loss_falls_and_importance_is_of_standardised_coefficients(client, parts, spec, scattered):
    model = build(spec("logistic"), "cpu").fit_distributed(client, Split(*scattered(parts[:3])), seed=0)
    losses = model.history["train"]["logloss"]
    assert losses[0] == pytest.approx(np.log(2))
    assert losses == sorted(losses, reverse=True)
    assert sum(model.importance.values()) == pytest.approx(1)
    coefficients = np.abs(model.model.coef)
    np.testing.assert_allclose(list(model.importance.values()), coefficients / coefficients.sum())


def test_a_constant_feature_has_no_weight(client, parts, spec, joined, scattered):
    x, y = joined(parts[:3])
    x = x.assign(pickup_minute=np.float32(7))
    model = build(spec("logistic"), "cpu").fit_distributed(client, Split(*scattered([(x, y)])), seed=0)
    assert model.importance["pickup_minute"] == 0
    assert np.isfinite(model.scorer.score(x)).all()


def test_too_few_iterations_are_told(client, parts, spec, caplog, scattered):
    with caplog.at_level(logging.WARNING, logger="tipcast"):
        model = build(spec("logistic", max_iter=1), "cpu").fit_distributed(client, Split(*scattered(parts[:3])), seed=0)
    assert model.info["converged"] == "false"
    assert "model.params.max_iter" in caplog.text
