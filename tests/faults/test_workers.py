"""Workers that die or freeze while they train together: the job says so, and nobody waits for ever.

Each case is a process of its own: XGBoost's tracker stays behind in the process of a training that was given up, and
complains there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import yaml

from tipcast.compute.session import session
from tipcast.config.conf_files import conf_dir
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, LocalCluster, LocalCudaCluster, ModelSpec
from tipcast.datasets.rows import collection
from tipcast.models.base import Split
from tipcast.models.build import build

TTL_S = 5.0
HANG_S = 60.0
"""What only a training that waits for its lost worker reaches: libraries do for minutes."""
ALONE = "one GPU: nothing is trained together"
CELLS = [
    ("cpu", "xgboost"),
    pytest.param("gpu", "xgboost", marks=pytest.mark.gpu),
    pytest.param("gpu", "random_forest", marks=pytest.mark.gpu),
]
"""What trains together; on a processor a forest's trees are tasks, which other workers take over."""


@pytest.mark.parametrize("tries", [1, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(("device", "name"), CELLS)
def test_a_lost_worker_ends_the_training(request, device, name, hit, tries):
    if device == "gpu":
        request.getfixturevalue("gpu")
    command = [sys.executable, __file__, device, name, str(int(hit)), str(tries)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120 + 90 * tries)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    if ALONE in found["endings"]:
        pytest.skip(ALONE)
    assert all(ending.startswith("error[K003]") for ending in found["endings"]), found
    assert max(found["waited_s"]) < HANG_S, found


def _endless(name: str) -> ModelSpec:
    """A shipped model that trains for minutes."""
    shipped = yaml.safe_load((conf_dir() / "model" / f"{name}.yaml").read_text())
    shipped.pop("defaults")
    more = {"n_estimators": 100_000, "max_depth": 8}
    return ModelSpec(**{**shipped, "params": {**shipped["params"], **more}})


def _x(frames: Any) -> Any:
    matrix = frames.xp.empty((20_000, 5), dtype="float32", order="F")
    matrix[...] = frames.xp.asarray(np.random.default_rng(0).random((20_000, 5)))
    return frames.frame(matrix, list("abcde"))


def _y(x: Any, frames: Any) -> Any:
    return frames.series((frames.xp.asarray(x.values)[:, 0] > 0.5).astype("int32"), "target")


def _lose(device: str, name: str, hit: int, delay_s: float, draw: random.Random) -> tuple[str, float]:
    """Train on two workers until one is hit; return how that ends, and how many seconds after."""
    cluster = LocalCudaCluster("local_cuda") if device == "gpu" else LocalCluster("local", n_workers=2)
    cluster.worker_ttl_s = TTL_S
    waited_s = 0.0
    try:
        with session(BackendSpec(device), cluster) as opened:
            pids = opened.client.run(os.getpid)
            if len(pids) < 2:
                return ALONE, waited_s
            places = [{"workers": [each], "allow_other_workers": True, "pure": False} for each in pids]
            x = [opened.client.submit(_x, opened.frames, **place) for place in places]
            y = [opened.client.submit(_y, part, opened.frames, **place) for part, place in zip(x, places, strict=True)]
            estimator = build(_endless(name), opened.device)
            threading.Timer(delay_s, os.kill, (pids[draw.choice(sorted(pids))], hit)).start()
            start = time.monotonic()
            try:
                estimator.fit_distributed(opened.client, Split(collection(x), collection(y)), seed=0)
            finally:
                waited_s = time.monotonic() - start - delay_s
    except TipcastError as problem:  # the session's where the worker is lost before the training begins
        return str(problem), waited_s
    return "trained", waited_s


if __name__ == "__main__":
    drawn = random.Random(0)
    told = [_lose(*sys.argv[1:3], int(sys.argv[3]), drawn.uniform(1.0, 3.0), drawn) for _ in range(int(sys.argv[4]))]
    endings, seconds = zip(*told, strict=True)
    print(json.dumps({"endings": endings, "waited_s": seconds}), flush=True)
    os._exit(0)  # without the tracker's last words
