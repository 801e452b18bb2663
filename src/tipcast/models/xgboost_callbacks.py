"""What XGBoost calls before, between and after the rounds of a training."""

import contextlib
import json
import time
from typing import Any

import xgboost
from distributed import Variable
from xgboost import collective
from xgboost.callback import EarlyStopping, TrainingCallback

from tipcast.config.gate import gate
from tipcast.models.checkpoints import VALIDATION, Checkpoint, EvaluationLog, joined_logs

DEVICE = "tipcast_device"
"""Booster attribute: the device that the rounds really ran on."""
TRAIN = "train"
"""Name of the training rows among those that are evaluated."""
EVERY = 10
"""Rounds from one evaluation of the training rows to the next."""
PRESENT_S = 5.0
"""Seconds after which a variable that does not answer is taken for deleted."""


class RecordTraining(TrainingCallback):
    """Records on the worker which device a booster was trained on, and every few rounds its metric
    on training rows.
    """

    def before_training(self, model: Any) -> Any:
        """Pass the gate of a fit, in every process that takes part, and skip most evaluations of
        training rows.
        """
        gate("fit")
        # Evaluating all training rows in every round would take a fifth of the training.
        evaluate = model.eval_set
        earlier = model.num_boosted_rounds()

        def evaluate_some(evals: Any, epoch: int, *settings: Any) -> Any:
            evaluates_all = (earlier + epoch) % EVERY == 0
            due = [rows for rows in evals if evaluates_all or rows[1] != TRAIN]
            return evaluate(due, epoch, *settings)

        model.eval_set = evaluate_some
        return model

    def after_training(self, model: Any) -> Any:
        """Copy the device from the booster's configuration to an attribute, which is pickled with
        it.
        """
        del model.eval_set
        config = json.loads(model.save_config())
        model.set_attr(**{DEVICE: config["learner"]["generic_param"]["device"]})
        # Otherwise the driver that receives the booster would initialize a GPU, or warn of none.
        model.set_param({"device": "cpu"})
        return model


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


def history_of(log: EvaluationLog) -> dict[str, dict[int, float]]:
    """Return rows and metric -> round -> value; training rows are evaluated every few rounds."""
    history = {}
    for rows, metrics in log.items():
        step = 1
        if rows == TRAIN:
            step = EVERY
        for metric, values in metrics.items():
            history[f"{rows}_{metric}"] = {at * step: value for at, value in enumerate(values)}
    return history
