"""Evaluation inside one process is the evaluation over workers."""

from __future__ import annotations

import numpy as np
from distributed import Client
from sklearn.metrics import roc_auc_score

from tipcast.evaluation.metrics import evaluate, evaluate_here


def test_the_same_as_over_workers(client: Client) -> None:
    r = np.random.default_rng(0)
    scores = np.round(r.beta(4, 4, 5000), 3).astype(np.float32)
    labels = (r.random(5000) < scores).astype(np.int32)
    parts = [slice(0, 2000), slice(2000, 5000)]
    x, y = ([client.submit(np.array, values[part], pure=False) for part in parts] for values in (scores, labels))
    whole, here = evaluate(client, x, y, threshold=None), evaluate_here(scores, labels)
    assert here.metrics.keys() == whole.metrics.keys()
    for name, value in here.metrics.items():
        assert abs(value - whole.metrics[name]) < 1e-12, name
    assert here.threshold == whole.threshold
    assert here.confusion == whole.confusion
    assert here.auc_interval == whole.auc_interval
    assert abs(here.metrics["auc"] - roc_auc_score(labels, scores)) < 1e-12
