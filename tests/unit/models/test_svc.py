"""The classifier is scikit-learn's, its probabilities too, and the sample the same for any partitioning."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from tipcast.config.errors import TipcastError
from tipcast.models import native, sampled
from tipcast.models.base import Split
from tipcast.models.build import build


@pytest.mark.parametrize("reach", ["distributed", "local"])
def test_probabilities_are_scikit_learns(client, parts, spec, joined, scattered, reach):
    estimator = build(spec("svc", fit={"rows": 900}, C=2.0, gamma=0.2), "cpu")
    x, y = joined(parts[:3])
    if reach == "distributed":
        empty = (parts[0][0].iloc[:0], parts[0][1].iloc[:0])
        model = estimator.fit_distributed(client, Split(*scattered([empty, *parts[:3]])), seed=5)
    else:
        model = estimator.fit(Split(x, y), seed=5)
    at = np.sort(np.random.default_rng(5).choice(len(x), 900, replace=False))
    values, labels = x.to_numpy().astype(float)[at], y.to_numpy()[at]
    scaler = StandardScaler().fit(values)
    same = CalibratedClassifierCV(SVC(C=2.0, gamma=0.2), cv=3, ensemble=False)
    same.fit(scaler.transform(values), labels)
    held_out = parts[3][0]
    expected = same.predict_proba(scaler.transform(held_out.to_numpy().astype(float)))[:, 1]
    np.testing.assert_allclose(model.scorer.score(held_out), expected, rtol=0, atol=1e-9)
    assert model.info["rows"] == 900
    assert model.info["support_vectors"] == len(same.calibrated_classifiers_[0].estimator.support_)


def test_memory_is_bounded_whatever_the_rows(parts, spec, monkeypatch):
    scorer = build(spec("svc", fit={"rows": 300}), "cpu").fit(Split(*parts[0]), seed=0).scorer
    x = parts[3][0]
    whole, asked = scorer.score(x), []
    kernel = native.kernel

    def watched(z, *more):
        asked.append(len(z))
        return kernel(z, *more)

    monkeypatch.setattr(native, "kernel", watched)
    monkeypatch.setattr(native, "KERNEL_BLOCK", 7 * len(scorer.dual))
    np.testing.assert_allclose(scorer.score(x), whole, rtol=0, atol=1e-12)
    assert set(asked) == {7, len(x) % 7}
    assert sum(asked) == len(x)


def test_the_sample_is_the_same_however_the_rows_are_parted(client, rows, joined):
    x, y = joined([rows(500, 1), rows(300, 2)])
    whole = sampled.take(x, y, sampled.chosen_by_part([800], 200, 3)[0])
    for cuts in ([800], [0, 100, 101, 650, 800], [799, 800]):
        parts = [(x.iloc[a:b], y.iloc[a:b]) for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
        sides = [[client.scatter(part[side], hash=False) for part in parts] for side in (0, 1)]
        taken, every = sampled.start(client, *sides, 200, 3)
        found = sampled.joined(client.gather(taken))
        assert every == 800
        np.testing.assert_array_equal(found[0], whole[0])
        np.testing.assert_array_equal(found[1], whole[1])
    assert sampled.chosen_by_part([800], None, 3) == sampled.chosen_by_part([800], 900, 3) == [slice(None)]
    assert (sampled.chosen_by_part([800], 200, 4)[0] != sampled.chosen_by_part([800], 200, 3)[0]).any()


def test_a_sample_of_one_class_is_refused(client, rows, spec, scattered):
    x, _ = rows(400, 0)
    y = pd.Series(np.arange(400) < 2, dtype="int32")
    with pytest.raises(TipcastError, match="D015.*2 of the 400 rows.*model.fit.rows"):
        build(spec("svc"), "cpu").fit_distributed(client, Split(*scattered([(x, y)])), seed=0)
