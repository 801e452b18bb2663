"""Checkpoints of a boosting: what a training needs to go on as if nothing had happened.

From XGBoost 3.4 on, a training that goes on from a checkpoint ends with the trees of one that was
never interrupted, bit for bit on processors. An older XGBoost that samples rows or columns draws
other ones after it.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import xgboost

DIGEST_BYTES = hashlib.sha256().digest_size
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
    def of(cls, booster: "xgboost.Booster", log: EvaluationLog) -> Self:
        """Return the checkpoint of a booster that is being trained."""
        config = json.loads(booster.save_config())
        # Otherwise a driver that reads it would initialize a GPU, or warn of none.
        config["learner"]["generic_param"]["device"] = "cpu"
        model = bytes(booster.save_raw("ubj"))
        return cls(booster.num_boosted_rounds(), model, json.dumps(config), log)

    def booster(self) -> "xgboost.Booster":
        """Return the booster, ready to be trained for more rounds."""
        import xgboost

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
    import xgboost

    samples = any(params.get(name) not in (None, 1) for name in SHARES)
    release = tuple(map(int, xgboost.__version__.split(".")[:2]))
    return release >= EXACT or not samples
