"""`model=incremental`: learnt part by part, where the parts lie, so that rows may be more than
memory holds.
"""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler
from tests.conftest import shipped_model

from tipcast.datasets.rows import collection
from tipcast.models.base import Split
from tipcast.models.build import build

PARAMS = {"loss": "log_loss", "alpha": 0.0001, "penalty": "l2", "average": True}


def rows(n: int, seed: int) -> tuple[pd.DataFrame, pd.Series]:
    draw = np.random.default_rng(seed)
    x = (draw.normal(size=(n, 4)) * [1, 10, 100, 0.1] + [0, 5, 50, 1]).astype(np.float32)
    return pd.DataFrame(x, columns=list("abcd")), pd.Series(
        (x[:, 0] + x[:, 1] / 10 > 0.5).astype(np.int32)
    )


def test_parts_are_learnt_in_their_order_wherever_they_lie(cpu_session: Any) -> None:
    parts, client = [rows(n, n) for n in (800, 500, 0, 700)], cpu_session.client
    x, y = (
        collection([client.scatter(part[side], hash=False) for part in parts]) for side in (0, 1)
    )
    held_out, model = rows(300, 7)[0].to_numpy(), build(shipped_model("incremental"), "cpu")
    found = model.fit_distributed(client, Split(x, y), seed=3)
    here = model.fit(Split([x for x, _ in parts], [y for _, y in parts]), seed=3)
    np.testing.assert_array_equal(found.scorer.score(held_out), here.scorer.score(held_out))
    assert found.info["rows"] == here.info["rows"] == 2000
    scaler = StandardScaler().fit(np.concatenate([x.to_numpy(np.float64) for x, _ in parts]))
    own = SGDClassifier(**PARAMS, random_state=3)
    for x, y in [part for part in parts if len(part[0])] * 2:
        own.partial_fit(scaler.transform(x.to_numpy(np.float64)), y, classes=[0, 1])
    expected = own.predict_proba(scaler.transform(held_out.astype(float)))[:, 1]
    np.testing.assert_allclose(found.scorer.score(held_out), expected, atol=1e-6)
