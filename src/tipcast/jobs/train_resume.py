"""`tipcast train resume=RUN`: a training whose process was stopped, as its run was left."""

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tipcast.compute import forkserver
from tipcast.config.errors import TipcastError, incompatible
from tipcast.config.plain import restored, to_plain
from tipcast.config.schema import TrackingSpec, TrainConfig, TrainJobConfig
from tipcast.jobs.repeat import REPEATS
from tipcast.jobs.run_context import (
    given_keys,
    given_keys_of,
    previous_run,
    result_of,
    resume_command,
    value_at,
)
from tipcast.jobs.train_plan import Plan
from tipcast.tracking.artifacts import config_text
from tipcast.tracking.checkpoints import RunCheckpoints
from tipcast.tracking.failures import absent
from tipcast.tracking.lasting_client import offline_file
from tipcast.tracking.lifecycle import open_run
from tipcast.tracking.model_lookup import logged_of
from tipcast.tracking.portable_model import kept_version, version_of_run
from tipcast.tracking.run import Run
from tipcast.tracking.run_lease import check_free

if TYPE_CHECKING:
    from tipcast.tracking.mlflow_types import MlflowRun

LOG = logging.getLogger("tipcast")

KEPT = ("data", "task", "model", "seed")
"""Parts of the configuration that a training keeps from its first process."""
ANEW = ("experiment", "from", "repeat", "other_data")
"""Words that only a new training takes."""


@dataclass(frozen=True)
class PreviousTraining:
    """A training that is resumed."""

    run: Run
    mlflow_run: "MlflowRun"
    """The run as MLflow has it."""
    config: TrainJobConfig
    """Its configuration; backend, cluster and output are those of this command line."""

    @property
    def command(self) -> str:
        """Command that repeats the training."""
        return str(self.mlflow_run.data.tags["command"])

    def finished_result(self) -> dict[str, Any] | None:
        """Return the result of a training that is finished, from its run in the store; None if it
        has something left to do.

        A training that was killed when its model was registered already, the last of its steps, is
        closed. Raises S003 if it is finished without what is asked for: a finished run does not
        change.
        """
        if self.mlflow_run.info.status != "FINISHED" and not self._close_registered():
            return None

        LOG.info("run %s has finished already; nothing is left to do", self.run.id)
        metrics = self.mlflow_run.data.metrics
        return result_of(
            self.run,
            self.command,
            model_uri=self._model_uri(),
            metrics={name: value for name, value in metrics.items() if name.startswith("test/")},
        )

    def _model_uri(self) -> str:
        """Return the address of a finished training's model, or of its version."""
        name = self.config.tracking.register
        where = f"run {self.run.id}"
        anew = f"start a new run: tipcast train from={self.run.id}"

        with absent("S003", where, "is finished, but its model is missing", anew):
            models = logged_of(self.run.store, self.mlflow_run)
        if not models:
            raise TipcastError("S003", where, "is finished, but has no model", anew)
        if not name:
            return f"models:/{models[0].model_id}"

        version = version_of_run(self.run, name)
        if version is None:
            what = f"is finished, but its model is not registered as {name}"
            raise TipcastError("S003", where, what, f"{anew} tracking.register={name}")
        return f"models:/{name}/{version.version}"

    def _close_registered(self) -> bool:
        """Close a run whose model is registered as FINISHED; tell whether it is.

        The model is registered under the name that is asked for, too.
        """
        spec = dataclasses.replace(self.config.tracking, system_metrics=False)
        if not spec.register or version_of_run(self.run) is None:
            return False

        check_free(self.run.store, self.run.id)
        run_name = self.mlflow_run.info.run_name
        with open_run(spec, name=run_name, tags={}, params={}, resume=self.run) as run:
            kept_version(run, spec.register)
            RunCheckpoints(run).remove()
        return True


@contextlib.contextmanager
def previous_training(config: TrainJobConfig, command: str) -> Iterator[PreviousTraining | None]:
    """Hold the training that is resumed, see ``previous_run``; None for a new training.

    Raises C003 if a word of the command line would change what is trained.
    """
    if config.resume is None:
        yield None
        return

    with previous_run(config.tracking, config.resume, "train") as (run, mlflow_run):
        text = config_text(run.store, run.id, "start a new run, without resume")
        resumed = restored(text, config, f"run {run.id}")
        check_same(config, resumed, command)
        yield PreviousTraining(run, mlflow_run, with_original(resumed, mlflow_run))


def with_original(config: TrainJobConfig, mlflow_run: "MlflowRun") -> TrainJobConfig:
    """Return the configuration of a resumed run, with the run that it repeats, if any."""
    repeat = mlflow_run.data.tags.get(REPEATS)
    # Other data were allowed, or refused, when the run was opened.
    return dataclasses.replace(config, resume=None, repeat=repeat, other_data=repeat is not None)


def check_same(given: TrainConfig, resumed: TrainConfig, command: str) -> None:
    """Refuse (C003) a key of the command line that would change what is trained."""
    for key in given_keys(command):
        if key.partition(".")[0] in ANEW:
            raise incompatible(key, "resume", "leave one of the two out")

    for key in given_keys_of(command, KEPT):
        value = value_at(resumed, key)
        if value_at(given, key) != value:
            what = f"the run has {value}, and a resumed run keeps it"
            raise TipcastError("C003", key, what, "leave it out, or leave resume out")


@contextlib.contextmanager
def saying_how_to_go_on(
    run: Run, checkpoints: RunCheckpoints, spec: TrackingSpec
) -> Iterator[None]:
    """If the block ends with an exception and the run has a checkpoint, print the command that
    resumes the run.

    Nothing is printed in a call from Python, where the files of a DataFrame are gone afterwards,
    nor if the store is gone.
    """
    try:
        yield
    except BaseException:
        if checkpoints.kept and forkserver.own_process and not offline_file(run.store):
            command = resume_command("train", run, spec)
            print(f"a checkpoint is stored; continue with: {command}", file=sys.stderr)
        raise


def training_digest(config: TrainConfig, plan: Plan) -> str:
    """Return a digest of the data and of all else that decides what is trained."""
    plain = to_plain(config)
    model = plain["model"]
    decisive = {
        "task": plain["task"],
        "model": [model[name] for name in ("name", "params", "fit")],
        "seed": plain["seed"],
    }
    return plan.identity(decisive)
