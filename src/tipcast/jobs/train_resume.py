"""`tipcast train resume=RUN`: a training whose process was killed, as its run was left."""

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tipcast.config.errors import TipcastError
from tipcast.config.plain import restored, to_plain
from tipcast.config.schema import TrainConfig, TrainJobConfig
from tipcast.jobs.run_context import given_keys, previous_run, result_of, value_at
from tipcast.jobs.train_plan import Plan
from tipcast.tracking.artifacts import CONFIG, read_artifact
from tipcast.tracking.model_lookup import logged_of
from tipcast.tracking.run import Run

if TYPE_CHECKING:
    from tipcast.tracking.mlflow_types import MlflowRun

KEPT = ("data", "task", "model", "seed")
"""Parts of the configuration that a training keeps from its first process."""


@dataclass(frozen=True)
class PreviousTraining:
    """A training that is resumed."""

    run: Run
    stored: "MlflowRun"
    """The run as MLflow has it."""
    config: TrainJobConfig
    """Its configuration; backend, cluster and output are those of this command line."""

    @property
    def command(self) -> str:
        """Command that repeats the training."""
        return str(self.stored.data.tags["command"])

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do."""
        return bool(self.stored.info.status == "FINISHED")

    def finished_result(self) -> dict[str, Any]:
        """Return the result of a training that is finished, from its run in the store."""
        metrics = self.stored.data.metrics
        model = logged_of(self.run.store, self.stored)[0]
        return result_of(
            self.run,
            self.command,
            model_uri=f"models:/{model.model_id}",
            metrics={name: value for name, value in metrics.items() if name.startswith("test/")},
        )


@contextlib.contextmanager
def previous_training(config: TrainJobConfig, command: str) -> Iterator[PreviousTraining | None]:
    """Hold the training that is resumed, see ``previous_run``; None for a new training.

    Raises C003 for a word of the command line that the run has another value of.
    """
    if config.resume is None:
        yield None
        return

    with previous_run(config.tracking, config.resume, "train") as (run, stored):
        text = read_artifact(run.store, run.id, CONFIG)
        resumed = restored(text, config, f"run {run.id}")
        check_same(config, resumed, command)
        yield PreviousTraining(run, stored, dataclasses.replace(resumed, resume=None))


def check_same(given: TrainConfig, resumed: TrainConfig, command: str) -> None:
    """Refuse (C003) a key of the command line that would change what is trained."""
    for key in given_keys(command):
        section = key.partition(".")[0]
        if section not in KEPT or key.startswith("data.storage_options"):
            continue

        value = value_at(resumed, key)
        if value_at(given, key) != value:
            what = f"the run has {value}, and a resumed one keeps it"
            raise TipcastError("C003", key, what, "leave it out, or leave resume out")


def identity(config: TrainConfig, plan: Plan) -> str:
    """Return a digest of the data and of all else that decides what is trained."""
    plain = to_plain(config)
    model = plain["model"]
    decisive = {
        "task": plain["task"],
        "model": [model[name] for name in ("name", "params", "fit")],
        "seed": plain["seed"],
    }
    return plan.identity(decisive)
