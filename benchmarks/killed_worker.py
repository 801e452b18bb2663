"""What becomes of `tipcast train` on two workers when one of them is killed, at random moments of
its fit.

    PYTHONPATH=src python benchmarks/killed_worker.py --device gpu --tries 20 --at-once 4 --out
    FOLDER

Each try is a process of its own, from a sqlite store of its own. The killed worker is the first or
the second one in turn. A few tries without a kill say how long an undisturbed training takes; as
many processes run at once there. The models are compared by their files and by their scores of
random rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from harness import options, write_result

HANG_S = 400.0
UNDISTURBED = 3
"""Trainings without a kill."""
SCORED_ROWS = 20_000
WORDS = (
    "model.fit.early_stopping_rounds=null",
    "model.params.subsample=0.8",
    "tracking.system_metrics=false",
    "cluster.performance_report=false",
    "cluster.n_workers=2",
)


def attempt(
    words: list[str], *, share: float | None, victim: int, fit_s: float = 0.0
) -> dict[str, Any]:
    """Train, and kill a worker after a share of an undisturbed fit; return how the training ended.

    ``share`` is None for a training that nobody disturbs.
    """
    with tempfile.TemporaryDirectory() as folder:
        passed = Path(folder) / "passed"
        variables = {
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
            "TIPCAST_GATE": f":{passed}",
        }
        began = time.monotonic()
        job = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tipcast", "train", *words],
            cwd=folder,
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            workers = _fitting(job, passed)
            if share is not None and len(workers) == 2:
                time.sleep(share * fit_s)
                with contextlib.suppress(ProcessLookupError):  # it has ended, which the result says
                    os.kill(workers[victim], signal.SIGKILL)
            _, said = job.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            return {"share": share, "exit_code": None, "said": "hangs"}
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()

        outcome = {
            "share": share,
            "exit_code": job.returncode,
            "seconds": time.monotonic() - began,
            **_recorded(Path(folder)),
        }
        if job.returncode:
            outcome["said"] = said[-1500:]
        print({name: value for name, value in outcome.items() if name != "content"}, flush=True)
        return outcome


def _fitting(job: subprocess.Popen[str], passed: Path) -> list[int]:
    """Wait until two workers begin to fit; return their processes, none if the job ended before."""
    end = time.monotonic() + HANG_S
    while job.poll() is None and time.monotonic() < end:
        lines = passed.read_text().splitlines() if passed.exists() else []
        workers = [int(line.split()[1]) for line in lines if line.startswith("fit ")]
        if len(workers) == 2:
            return workers
        time.sleep(0.05)
    return []


def _recorded(folder: Path) -> dict[str, Any]:
    """Return what the run recorded: its status, AUC and recoveries, and the model's file."""
    with sqlite3.connect(folder / "mlflow.db") as database:
        (status,) = database.execute("select status from runs").fetchone()
        tags = dict(database.execute("select key, value from tags").fetchall())
        metrics = dict(database.execute("select key, value from latest_metrics").fetchall())

    models = sorted(folder.rglob("*.ubj"))
    content = models[0].read_bytes() if models else b""
    return {
        "status": status,
        "recoveries": int(tags.get("recoveries", 0)),
        "recovery_s": float(tags.get("recovery_s", 0)),
        "auc": metrics.get("test/auc"),
        "fit_s": metrics.get("seconds/fit"),
        "model": hashlib.sha256(content).hexdigest() if content else None,
        "content": content,
    }


def scores(content: bytes) -> Any:
    """Return the scores of random rows by a booster."""
    booster = xgboost.Booster(model_file=bytearray(content))
    draw = np.random.default_rng(0)
    rows = draw.uniform(0, 60, (SCORED_ROWS, booster.num_features())).astype(np.float32)
    return booster.inplace_predict(rows)


def main() -> None:
    """Run the benchmark."""
    given = options(
        __doc__,
        device="cpu",
        tries=20,
        at_once=1,
        seed=0,
        rows=500_000,
        trees=300,
        checkpoint_s=5.0,
    )
    words = [
        f"backend={given.device}",
        f"data.rows={given.rows}",
        f"model.params.n_estimators={given.trees}",
        f"model.fit.checkpoint_s={given.checkpoint_s}",
        *WORDS,
    ]
    draw = random.Random(given.seed)  # noqa: S311 - moments, no secrets
    moments = [draw.random() for _ in range(given.tries)]

    with ThreadPoolExecutor(given.at_once) as pool:
        undisturbed = list(
            pool.map(
                lambda _: attempt(words, share=None, victim=0),
                range(max(UNDISTURBED, given.at_once)),
            )
        )
        fit_s = min(row["fit_s"] for row in undisturbed)
        killed = list(
            pool.map(
                lambda at: attempt(words, share=moments[at], victim=at % 2, fit_s=fit_s),
                range(given.tries),
            )
        )

    whole = undisturbed[0]
    expected = scores(whole["content"])
    seconds = statistics.median(row["seconds"] for row in undisturbed)
    rows = [*undisturbed, *killed]
    for row in rows:
        content = row.pop("content", b"")
        if content:
            row["same_model"] = row["model"] == whole["model"]
            row["apart"] = float(np.abs(scores(content) - expected).max())
            row["ratio"] = row["seconds"] / seconds

    facts = {**vars(given), "undisturbed_s": seconds, "fit_s": fit_s}
    write_result(f"killed_worker_{given.device}", killed, undisturbed=undisturbed, **facts)


if __name__ == "__main__":
    main()
