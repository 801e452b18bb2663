"""Checkpoints of a boosting: what a training needs to go on as if nothing had happened.

From XGBoost 3.4 on, a training that goes on from a checkpoint ends with the trees of one that was
never interrupted, bit for bit on processors. An older XGBoost that samples rows or columns draws
other ones after it.
"""

import base64
import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import xgboost
from distributed import Variable
from xgboost import collective
from xgboost.callback import EarlyStopping, TrainingCallback

from tipcast.config.gate import gate

DIGEST_BYTES = hashlib.sha256().digest_size
PRESENT_S = 5.0
"""Seconds after which a variable that does not answer is taken for deleted."""
VALIDATION = "validation"
"""Name of the rows that decide when a training stops."""
EXACT = (3, 4)
"""First release of XGBoost whose configuration has the state of the random numbers."""
SHARES = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")
"""Parameters that are shares of rows or columns, which XGBoost draws at random."""

EvaluationLog = Mapping[str, Mapping[str, Sequence[Any]]]
"""Rows, as ``validation`` -> metric -> its value in each round, as XGBoost logs them."""


@dataclass(frozen=True)
class Checkpoint:
    """A booster after some of its rounds."""

    rounds: int
    model: bytes
    """Trees and attributes, as UBJSON."""
    config: str
    """XGBoost's internal configuration, as JSON, with the state of its random numbers."""
    log: EvaluationLog
    """Metrics of all rounds so far."""

    @classmethod
    def of(cls, booster: xgboost.Booster, log: EvaluationLog) -> Self:
        """Return the checkpoint of a booster that is being trained."""
        config = json.loads(booster.save_config())
        # Otherwise a driver that reads it would initialize a GPU, or warn of none.
        config["learner"]["generic_param"]["device"] = "cpu"
        model = bytes(booster.save_raw("ubj"))
        return cls(booster.num_boosted_rounds(), model, json.dumps(config), log)

    def booster(self) -> xgboost.Booster:
        """Return the booster, ready to be trained for more rounds."""
        booster = xgboost.Booster(model_file=bytearray(self.model))
        booster.load_config(self.config)
        return booster

    def to_bytes(self) -> bytes:
        """Return the content of a checkpoint's file: a digest, and then JSON."""
        fields = {
            "rounds": self.rounds,
            "model": base64.b64encode(self.model).decode("ascii"),
            "config": self.config,
            "log": self.log,
        }
        body = json.dumps(fields).encode()
        return hashlib.sha256(body).digest() + body

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Return the checkpoint of a file's content; None if the file is damaged or cut off."""
        digest = content[:DIGEST_BYTES]
        body = content[DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            return None

        fields = json.loads(body)
        model = base64.b64decode(fields["model"])
        return cls(fields["rounds"], model, fields["config"], fields["log"])


class KeepCheckpoints(TrainingCallback):
    """Keeps the newest checkpoint of a training on Dask's scheduler, which outlives all workers."""

    def __init__(self, variable: str, every_s: float, earlier: EvaluationLog) -> None:
        """Make a callback.

        ``variable`` is the name of one of the scheduler's, ``every_s`` the least seconds between
        two checkpoints. ``earlier`` has the metrics of rounds before those of this training.
        """
        self._variable = variable
        self._every_s = every_s
        self._earlier = earlier

    def before_training(self, model: xgboost.Booster) -> xgboost.Booster:
        """Start the clock."""
        self._kept = time.monotonic()
        return model

    def after_iteration(
        self, model: xgboost.Booster, epoch: int, evals_log: TrainingCallback.EvalsLog
    ) -> bool:
        """Keep a checkpoint if it is due. Never ends the training."""
        if collective.get_rank():
            return False

        gate("round")
        if time.monotonic() - self._kept >= self._every_s:
            checkpoint = Checkpoint.of(model, joined_logs(self._earlier, evals_log))
            variable = Variable(self._variable)
            with contextlib.suppress(OSError):  # a scheduler that is gone ends the fit anyway
                # The variable of a driver that is gone is deleted, and is not made again.
                variable.get(timeout=PRESENT_S)
                variable.set(checkpoint.to_bytes())
            self._kept = time.monotonic()
            gate("checkpoint")
        return False


def stopping_after(rounds: int, checkpoint: Checkpoint | None) -> EarlyStopping:
    """Return XGBoost's early stopping, which has seen the rounds of a checkpoint, if any."""
    # Named: a training that goes on may evaluate these rows before the training rows.
    stopping = EarlyStopping(rounds=rounds, data_name=VALIDATION)
    if checkpoint is None:
        return stopping

    booster = checkpoint.booster()
    metrics = checkpoint.log[VALIDATION]
    n_rounds = len(next(iter(metrics.values())))
    for epoch in range(n_rounds):
        seen = {metric: list(values[: epoch + 1]) for metric, values in metrics.items()}
        stopping.after_iteration(booster, epoch, {VALIDATION: seen})
    return stopping


def newest(contents: Iterable[bytes]) -> bytes:
    """Return the content of the checkpoint with the most rounds; empty if none is whole."""
    rounds = {b"": 0}
    for content in contents:
        checkpoint = Checkpoint.from_bytes(content)
        if checkpoint:
            rounds[content] = checkpoint.rounds
    return max(rounds, key=lambda content: rounds[content])


def joined_logs(earlier: EvaluationLog, later: EvaluationLog) -> dict[str, dict[str, list[Any]]]:
    """Return the metrics of rounds, followed by those of the rounds after them."""
    logs: dict[str, dict[str, list[Any]]] = {}
    for log in (earlier, later):
        for rows, metrics in log.items():
            for metric, values in metrics.items():
                logs.setdefault(rows, {}).setdefault(metric, []).extend(values)
    return logs


def resumes_exactly(params: Mapping[str, Any]) -> bool:
    """Tell whether a training that goes on draws the rows and columns that it would have drawn."""
    samples = any(params.get(name) not in (None, 1) for name in SHARES)
    release = tuple(map(int, xgboost.__version__.split(".")[:2]))
    return release >= EXACT or not samples
