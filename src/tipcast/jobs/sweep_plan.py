"""The plan of a sweep, made before its run is opened or any worker starts; for a sweep that is
resumed, with what its run in the store says.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tipcast.config.arguments import command_words, with_words
from tipcast.config.errors import TipcastError
from tipcast.config.plain import restored, to_plain
from tipcast.config.schema import SweepConfig
from tipcast.evaluation import ranking
from tipcast.jobs.preflight import check_search
from tipcast.jobs.run_context import (
    given_keys,
    given_keys_of,
    previous_run,
    result_of,
    value_at,
    without_keys,
)
from tipcast.jobs.train_plan import Plan, check_model, make_plan
from tipcast.measure.progress import Clock, progress
from tipcast.models import base
from tipcast.models.build import build
from tipcast.search import TREES
from tipcast.search.halving import plan_rungs
from tipcast.search.proposals import Params, Space, check_space, merged_space
from tipcast.search.trial import Objective, Rungs
from tipcast.tasks.kinds import named_by
from tipcast.tracking.artifacts import CONFIG, read_artifact
from tipcast.tracking.model_lookup import logged_of
from tipcast.tracking.portable_model import TRIAL_TAG
from tipcast.tracking.run import BEST, Run

if TYPE_CHECKING:
    from tipcast.tracking.mlflow_types import MlflowRun

SWEEP_DIGEST = "sweep.study"
"""Tag of a sweep: its ``Objective.sweep_digest``, which it keeps when it is resumed."""
GROWING = ("random", "tpe")
"""Searches in which a longer one begins with the trials of a shorter one."""
FREE = ("attempts", "trials_per_gpu", "trial_timeout_s", "timeout_s")
"""Keys of a search that do not change the result of any trial."""
KEPT = ("data", "task", "model", "search", "seed")
"""Parts of the configuration that a sweep keeps from its first run."""


@dataclass(frozen=True)
class PreviousSweep:
    """A sweep that is resumed, as its run was left."""

    run: Run
    mlflow_run: "MlflowRun"
    """The run as MLflow has it."""
    config: SweepConfig
    """Its first configuration; backend, cluster and output are those of the command line."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags of the run."""
        tags: Mapping[str, str] = self.mlflow_run.data.tags
        return tags


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that can be run: all that can be checked beforehand has been checked."""

    config: SweepConfig
    """The configuration; its model's space lacks the parameters that the command line fixes."""
    command: str
    """Command that repeats the sweep with as many trials as it has now."""
    data: Plan
    space: Space
    objective: Objective
    previous: PreviousSweep | None = None
    """None: a new sweep."""

    @property
    def varied(self) -> list[str]:
        """Parameters that differ from trial to trial."""
        if self.objective.rungs is None:
            return [*self.space]
        return [TREES, *self.space]

    @property
    def baseline(self) -> Params | None:
        """Parameters of trial 0, as the model is configured; None if the search begins without
        them.
        """
        if not self.config.search.baseline:
            return None
        params = self.config.model.params
        return {name: params[name] for name in self.space if name in params}


@contextlib.contextmanager
def previous_sweep(config: SweepConfig) -> Iterator[PreviousSweep | None]:
    """Hold the sweep that is resumed, see ``previous_run``; None for a new sweep."""
    if config.resume is None:
        yield None
        return

    with previous_run(config.tracking, config.resume, "sweep") as (run, mlflow_run):
        text = read_artifact(run.store, run.id, CONFIG)
        yield PreviousSweep(run, mlflow_run, restored(text, config, f"run {run.id}"))


def plan_sweep(
    config: SweepConfig, command: str, previous: PreviousSweep | None, clock: Clock
) -> SweepPlan:
    """List the files, and check the space and the metric that trials are ranked by.

    Raises C-errors if the space or the metric is wrong, D-errors for the files, S003 if data or
    configuration of a resumed sweep have changed.
    """
    if previous is None:
        config = without_fixed(config, command)  # stored so, for a sweep that is resumed
    else:
        config = apply_overrides(config, previous.config, command)

    check_model(config, named_by(config.task.kind))
    check_search(config)
    rungs = rungs_of(config)
    with clock.phase("list"), progress("list"):
        data = make_plan(config)

    kind = data.task.kind
    space = merged_space(config.model, config.search.space, alone=config.search.name == "grid")
    check_space(config.model, space, config.backend.name, config.task.categorical, kind)
    metric = ranking(kind, config.search.metric, "search.metric")

    objective = Objective(sweep_digest(config, data), metric.name, metric.maximize, rungs)
    if previous is not None:
        check_unchanged(previous, objective)
        command = whole_command(previous, config, command)

    return SweepPlan(config, command, data, space, objective, previous)


def rungs_of(config: SweepConfig) -> Rungs | None:
    """Return the rungs of search=halving, None for another search; C003 for a model whose fits do
    not go on.
    """
    if config.search.name != "halving":
        return None

    model = config.model
    if not build(model, config.backend.name, config.task.categorical).continues:
        what = f"halving adds trees to the previous rung's models, and {model.name} cannot do that"
        fix = "use model=xgboost, or model=random_forest with backend=cpu, or search=random"
        raise TipcastError("C003", "search", what, fix)

    trees = base.positive(f"model.params.{TREES}", model.params.get(TREES))
    return plan_rungs(config.search, trees)


def without_fixed(config: SweepConfig, command: str) -> SweepConfig:
    """Return the configuration, its model's space without parameters that the command line sets."""
    model = config.model
    fixed = {
        key.removeprefix("model.params.")
        for key in given_keys(command)
        if key.startswith("model.params.")
    }
    for name in sorted(fixed):
        if config.search.space.get(name) is not None:
            what = f"is fixed to {model.params.get(name)}, but search.space.{name} searches it"
            raise TipcastError("C003", f"model.params.{name}", what, "leave one of the two out")

    if config.search.name == "halving":
        fixed.add(TREES)
    space = {
        name: axis
        for name, axis in model.space.items()
        if name not in fixed or name not in model.params
    }
    return dataclasses.replace(config, model=dataclasses.replace(model, space=space))


def apply_overrides(composed: SweepConfig, stored: SweepConfig, command: str) -> SweepConfig:
    """Return a sweep's stored configuration with the changes that the command line may make.

    ``composed`` is the command line's configuration. Raises C003 for a key that a resumed sweep
    keeps.
    """
    changes: dict[str, Any] = {}
    for key in given_keys_of(command, KEPT):
        section, _, name = key.partition(".")
        value = value_at(composed, key)
        stored_value = value_at(stored, key)
        if (section == "search" and name in FREE) or _asks_for_more(key, value, stored):
            changes[name] = value
        elif value != stored_value:
            what = f"the sweep has {stored_value}, and a resumed sweep keeps it"
            raise TipcastError("C003", key, what, "leave it out, or start a new sweep")

    return dataclasses.replace(stored, search=dataclasses.replace(stored.search, **changes))


def _asks_for_more(key: str, value: int | None, stored: SweepConfig) -> bool:
    """Tell whether a key asks for more trials, after those that the sweep has."""
    if key != "search.trials" or stored.search.name not in GROWING or not value:
        return False
    return value >= (stored.search.trials or 0)


def sweep_digest(config: SweepConfig, data: Plan) -> str:
    """Return a digest of the data and of all else that decides which trials are proposed, and their
    results.
    """
    plain = to_plain(config)
    model = plain["model"]
    search = {name: value for name, value in plain["search"].items() if name not in FREE}
    if search["name"] in GROWING:
        del search["trials"]

    decisive = {
        "task": plain["task"],
        "model": [model[name] for name in ("name", "params", "fit", "space")],
        "search": search,
        "seed": plain["seed"],
    }

    return data.identity(decisive)[:8]


def check_unchanged(previous: PreviousSweep, objective: Objective) -> None:
    """Refuse (S003) to resume a sweep that would now have other trials."""
    if objective.sweep_digest != previous.tags.get(SWEEP_DIGEST):
        what = "its data or configuration have changed"
        fix = "restore the data, or start a new sweep"
        raise TipcastError("S003", previous.run.id, what, fix)


def whole_command(previous: PreviousSweep, config: SweepConfig, command: str) -> str:
    """Return the command that repeats a resumed sweep as a whole: its first command, with the
    current number of trials.
    """
    first_command = previous.tags.get("command", command)
    if "search.trials" not in given_keys(command):
        return first_command

    words = command_words(without_keys(first_command, "search.trials"))
    return with_words(first_command, [*words, f"search.trials={config.search.trials}"])


def finished_result(plan: SweepPlan) -> dict[str, Any] | None:
    """Return the result of a resumed sweep that is finished, from its run in the store; None if the
    sweep is new or has something left to do.
    """
    previous = plan.previous
    if previous is None or not is_finished(plan, previous):
        return None

    run = previous.run
    mlflow_run = previous.mlflow_run
    metrics = mlflow_run.data.metrics
    metric = plan.objective.metric
    finished = int(metrics["sweep/finished"])
    number = int(previous.tags[TRIAL_TAG].rpartition("-")[2])
    score = metrics[f"sweep/best_validation_{metric}"]
    params = json.loads(previous.tags[BEST])

    return result_of(
        run,
        plan.command,
        model_uri=f"models:/{logged_of(run.store, mlflow_run)[0].model_id}",
        metrics={name: value for name, value in metrics.items() if name.startswith("test/")},
        trials={"finished": finished, "failed": 0, "all": finished},
        best={"trial": number, f"validation/{metric}": score, **params},
    )


def is_finished(plan: SweepPlan, previous: PreviousSweep) -> bool:
    """Tell whether a sweep has nothing left to do: the same number of trials was asked for, all
    ended well, and its model is registered under the configured name.

    A space of few points has fewer trials than were asked for.
    """
    metrics = previous.mlflow_run.data.metrics
    finished = metrics.get("sweep/finished")
    if finished is None or finished != metrics["sweep/trials"]:
        return False
    if previous.mlflow_run.info.status != "FINISHED":
        return False
    if plan.config.search.trials != previous.config.search.trials:
        return False

    register = plan.config.tracking.register
    if not register:
        return True
    versions = previous.run.store.search_model_versions(f"run_id = '{previous.run.id}'")
    return register in [version.name for version in versions]
