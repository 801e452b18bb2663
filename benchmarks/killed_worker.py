"""What becomes of `tipcast train` on two workers when one of them is killed in a random round.

    PYTHONPATH=src python benchmarks/killed_worker.py --device gpu --at-once 4 --out FOLDER

Each try is a process of its own, from a sqlite store of its own. The first and the second worker
are killed in turn. Two kinds of tries:

- `successor`: the workers are the job's own, and another takes the place of the killed one.
- `fewer`: the workers are those of a Dask scheduler that runs already, and none takes its place.

A few tries without a kill say how long an undisturbed training takes; as many processes run at once
there. The models are compared by their files, by their scores of random rows and by their AUC.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from harness import options, write_result

HANG_S = 400.0
UNDISTURBED = 3
"""Trainings without a kill."""
LAST_SHARE = 0.97
"""Rounds after this share are left out: the training might end before the kill."""
LOOK_S = 0.002
SCORED_ROWS = 20_000
CLUSTER = (
    "tracking.system_metrics=false",
    "cluster.performance_report=false",
    "cluster.n_workers=2",
)
"""What a training is started with, and again when it is resumed."""
MODEL = ("model.fit.early_stopping_rounds=null", "model.params.subsample=0.8")
NO_SUCCESSOR_S = {"cpu": 5.0, "gpu": 30.0}
"""Device -> seconds for which a training waits for a successor that does not come. The other worker
may have to start again meanwhile.
"""


@dataclass
class Training:
    """A training in a process of its own, and the points that it has passed."""

    folder: Path
    words: Sequence[str]
    passed: Path = field(init=False)
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.passed = self.folder / "passed"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the process; at the end, kill what is left of it."""
        with (self.folder / "said").open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "tipcast", "train", *self.words],
                cwd=self.folder,
                env={**os.environ, **self.variables},
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
            try:
                yield
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the process, and of workers that are not its own."""
        return {
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder}/mlflow.db",
            "TIPCAST_GATE": f":{self.passed}",
        }

    def at(self, point: str) -> list[int]:
        """Return the processes that have passed a point, as often as they have."""
        if not self.passed.exists():
            return []
        lines = (line.split() for line in self.passed.read_text().splitlines())
        return [int(pid) for name, pid in lines if name == point]

    def wait_for(self, moment: float) -> bool:
        """Wait for a moment in rounds, as 12.3; tell whether the training runs then."""
        end = time.monotonic() + HANG_S
        first = None
        while self.process.poll() is None and time.monotonic() < end:
            rounds = len(self.at("round"))
            if rounds and first is None:
                first = time.monotonic()
            if first and rounds >= moment:
                round_s = (time.monotonic() - first) / rounds
                time.sleep(round_s * (moment % 1))
                return self.process.poll() is None
            time.sleep(LOOK_S)
        return False

    def end(self) -> dict[str, Any]:
        """Wait for the end; return the exit code, and the last words of a training that failed."""
        try:
            code = self.process.wait(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            return {"exit_code": None, "said": "hangs"}

        ended: dict[str, Any] = {"exit_code": code}
        if code:
            ended["said"] = (self.folder / "said").read_text(errors="replace")[-1500:]
        return ended


def kill_worker(training: Training, victim: int) -> None:
    """Kill one of the two workers that train, with what is in its group of processes."""
    pid = training.at("fit")[victim]
    group = os.getpgid(pid)
    if group == training.process.pid:
        os.kill(pid, signal.SIGKILL)
    else:  # with the nanny that would start another
        os.killpg(group, signal.SIGKILL)


def recorded(folder: Path) -> dict[str, Any]:
    """Return what the run recorded: its status, AUC and recoveries, and the model's file."""
    with sqlite3.connect(folder / "mlflow.db") as database:
        statuses = [status for (status,) in database.execute("select status from runs")]
        tags = dict(database.execute("select key, value from tags").fetchall())
        metrics = dict(database.execute("select key, value from latest_metrics").fetchall())

    # One of a killed process may be there too.
    models = sorted(folder.rglob("*.ubj"), key=lambda path: path.stat().st_mtime)
    content = models[-1].read_bytes() if models else b""
    return {
        "status": ", ".join(statuses),
        "recoveries": int(tags.get("recoveries", 0)),
        "recovery_s": float(tags.get("recovery_s", 0)),
        "auc": metrics.get("test/auc"),
        "fit_s": metrics.get("seconds/fit"),
        "model": hashlib.sha256(content).hexdigest() if content else None,
        "content": content,
    }


def attempt(words: Sequence[str], moment: float | None = None, victim: int = 0) -> dict[str, Any]:
    """Train on the job's own workers, and kill one at a moment in rounds; None: let it train."""
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder), words)
        return outcome(training, moment, victim)


def attempt_with_fewer(
    device: str, words: Sequence[str], moment: float, victim: int
) -> dict[str, Any]:
    """Train on workers of a scheduler that runs already, and kill one, which nothing replaces."""
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder), words)
        with outside_workers(device, training) as address:
            place = ["cluster=scheduler", f"cluster.address={address}"]
            training.words = [*words, *place, f"cluster.wait_s={NO_SUCCESSOR_S[device]}"]
            return outcome(training, moment, victim)


def outcome(training: Training, moment: float | None, victim: int) -> dict[str, Any]:
    """Run a training to its end, with a kill if there is a moment for it; return how it ended."""
    began = time.monotonic()
    with training.running():
        killed = moment is not None and training.wait_for(moment)
        if killed:
            kill_worker(training, victim)
        row = {"round": moment, "killed": killed, **training.end()}

    row |= {"seconds": time.monotonic() - began, **recorded(training.folder)}
    print({name: value for name, value in row.items() if name != "content"}, flush=True)
    return row


@contextlib.contextmanager
def outside_workers(device: str, training: Training) -> Iterator[str]:
    """Start a scheduler and two workers, each in a group of processes; yield its address."""
    from distributed import Client

    file = training.folder / "scheduler.json"
    common = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
    half = max(1, (os.cpu_count() or 2) // 2)
    kind = ["cuda", "worker"] if device == "gpu" else ["worker", "--nthreads", str(half)]
    with contextlib.ExitStack() as stack:

        def start(words: Sequence[str], **variables: str) -> None:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *words, *common],
                cwd=training.folder,
                env={**os.environ, **training.variables, **variables},
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(_kill_group, process.pid)

        start(["scheduler", "--port", "0"])
        for number in range(2):
            start(kind, NCCL_COMM_BLOCKING="1", CUDA_VISIBLE_DEVICES=str(number))

        end = time.monotonic() + HANG_S
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=HANG_S)
        yield str(address)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def scores(content: bytes) -> Any:
    """Return the scores of random rows by a booster."""
    booster = xgboost.Booster(model_file=bytearray(content))
    draw = np.random.default_rng(0)
    rows = draw.uniform(0, 60, (SCORED_ROWS, booster.num_features())).astype(np.float32)
    return booster.inplace_predict(rows)


def compare_models(rows: Sequence[dict[str, Any]], undisturbed: Sequence[dict[str, Any]]) -> None:
    """Add to each row how its model differs from the nearest undisturbed one.

    On a busy machine two trainings may have their rows on other workers, and so other models.
    """
    whole = {row["model"]: row for row in undisturbed}
    expected = {model: scores(row["content"]) for model, row in whole.items()}
    for row in rows:
        if not row["content"]:
            continue

        scored = scores(row["content"])
        apart = {model: float(np.abs(scored - others).max()) for model, others in expected.items()}
        nearest = min(apart, key=lambda model: apart[model])
        row["same_model"] = row["model"] in whole
        row["apart"] = apart[nearest]
        row["auc_apart"] = abs(row["auc"] - whole[nearest]["auc"])


def training_words(given: Any) -> list[str]:
    """Return the words of a training by a script's options."""
    return [
        f"backend={given.device}",
        f"data.rows={given.rows}",
        f"model.params.n_estimators={given.trees}",
        f"model.fit.checkpoint_s={given.checkpoint_s}",
        *MODEL,
        *CLUSTER,
    ]


def main() -> None:
    """Run the benchmark."""
    given = options(
        __doc__,
        device="cpu",
        tries=20,
        fewer=5,
        at_once=1,
        seed=0,
        rows=200_000,
        trees=300,
        checkpoint_s=1.0,
    )
    words = training_words(given)
    draw = random.Random(given.seed)  # noqa: S311 - moments, no secrets

    def moments(number: int) -> list[tuple[float, int]]:
        return [(draw.uniform(1, LAST_SHARE * given.trees), at % 2) for at in range(number)]

    def side_by_side(run: Callable[[Any], dict[str, Any]], tries: Sequence[Any]) -> list[Any]:
        with ThreadPoolExecutor(given.at_once) as pool:
            return list(pool.map(run, tries))

    undisturbed = side_by_side(lambda _: attempt(words), range(max(UNDISTURBED, given.at_once)))
    killed = side_by_side(lambda kill: attempt(words, *kill), moments(given.tries))
    # One after another: each has all of the machine's GPUs.
    fewer = [attempt_with_fewer(given.device, words, *kill) for kill in moments(given.fewer)]

    compare_models([*killed, *fewer], undisturbed)
    seconds = statistics.median(row["seconds"] for row in undisturbed)
    for row in (*killed, *fewer, *undisturbed):
        del row["content"]
        row["ratio"] = row["seconds"] / seconds

    rows = [
        *({"part": "successor", **row} for row in killed),
        *({"part": "fewer", **row} for row in fewer),
    ]
    facts = {**vars(given), "undisturbed_s": seconds, "undisturbed": undisturbed}
    write_result(f"killed_worker_{given.device}", rows, **facts)


if __name__ == "__main__":
    main()
