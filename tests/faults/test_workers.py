"""Workers that die or freeze while they train together: the job says so, and nobody waits for ever."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest
import yaml

from tipcast.compute.session import session
from tipcast.config.conf_files import conf_dir
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, LocalCluster, LocalCudaCluster, ModelSpec
from tipcast.datasets.rows import collection
from tipcast.models.build import build

TTL_S = 5.0
CELLS = [
    ("cpu", "xgboost"),
    pytest.param("gpu", "xgboost", marks=pytest.mark.gpu),
    pytest.param("gpu", "random_forest", marks=pytest.mark.gpu),
]
"""What trains together; on a processor a forest's trees are tasks, which other workers take over."""


def _endless(name: str) -> ModelSpec:
    """A shipped model that trains for minutes."""
    shipped = yaml.safe_load((conf_dir() / "model" / f"{name}.yaml").read_text())
    shipped.pop("defaults")
    more = {"n_estimators": 100_000, "max_depth": 8}
    return ModelSpec(**{**shipped, "params": {**shipped["params"], **more}})


@pytest.mark.parametrize("tries", [1, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize(("hit", "within_s"), [(signal.SIGKILL, 5.0), (signal.SIGSTOP, 2 * TTL_S)])
@pytest.mark.parametrize(("device", "name"), CELLS)
def test_a_lost_worker_ends_the_training(request, forked, placed, device, name, hit, within_s, tries):
    if device == "gpu":
        request.getfixturevalue("gpu")
    draw, model = random.Random(0), _endless(name)
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.random((20_000, 5), dtype=np.float32), columns=list("abcde"))
    y = pd.Series((x["a"] + rng.random(20_000) > 1).astype(np.int32))
    cluster = LocalCudaCluster("local_cuda") if device == "gpu" else LocalCluster("local", n_workers=2)
    cluster.worker_ttl_s = TTL_S
    waited = []
    for _ in range(tries):
        # A worker may also be lost before the training begins: then the session says so.
        with pytest.raises(TipcastError, match="K003"), session(BackendSpec(device), cluster) as opened:
            pids = opened.client.run(os.getpid)
            if len(pids) < 2:
                pytest.skip("one GPU: nothing is trained together")
            rows = [collection(side) for side in placed(opened, [(x, y)] * len(pids))]
            estimator = build(model, opened.device, "distributed")
            delay_s = draw.uniform(1.0, 3.0)
            threading.Timer(delay_s, os.kill, (pids[draw.choice(sorted(pids))], hit)).start()
            start = time.monotonic()
            try:
                estimator.fit(opened.client, *rows, None, seed=0)
            finally:
                waited.append(time.monotonic() - start - delay_s)
    assert max(waited) < within_s, waited
