"""What a sweep will try, decided and checked before anything starts."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from tipcast.compute.base import Array, Session
from tipcast.config.arguments import given
from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema import SweepConfig
from tipcast.datasets.base import merged
from tipcast.evaluation import evaluator
from tipcast.evaluation.base import bounds
from tipcast.search.trial import Objective, Study

if TYPE_CHECKING:  # workers import this module for ``measured`` alone
    from tipcast.jobs.train_plan import Plan

GROWING = ("random", "tpe")
"""Searches of which a longer one begins with the trials of a shorter."""
FREE = ("attempts", "trials_per_gpu", "trial_timeout_s", "timeout_s")
"""Keys of a search that no trial's result depends on."""


def measured(kind: str, predictions: Array, target: Any) -> tuple[dict[str, float], tuple[float, ...]]:
    """Measure a trial of a kind of task on its worker; return its metrics and curve."""
    judge = evaluator(kind)
    evaluation = judge.evaluate_here(predictions, target)
    return {**evaluation.metrics, **bounds(evaluation.interval, judge.headline.name)}, tuple(evaluation.trial_curve)


def given_keys(command: str) -> list[str]:
    """Return the keys that a command line sets."""
    return [word.lstrip("+~").partition("=")[0] for word in given(command)]


def without_fixed(config: SweepConfig, command: str) -> SweepConfig:
    """Return a sweep whose model's space lacks the parameters that the command line sets."""
    model = config.model
    fixed = {key.removeprefix("model.params.") for key in given_keys(command) if key.startswith("model.params.")}
    for name in sorted(fixed):
        if config.search.space.get(name) is not None:
            what = f"is fixed to {model.params.get(name)}, and search.space.{name} searches it"
            raise TipcastError("C003", f"model.params.{name}", what, "leave one of the two out")
    space = {name: axis for name, axis in model.space.items() if name not in fixed or name not in model.params}
    return dataclasses.replace(config, model=dataclasses.replace(model, space=space))


def study(
    config: SweepConfig, plan: Plan, tried: Iterable[tuple[str, Any]], objective: Objective, workers: Session
) -> Study:
    """Return what all trials have in common; ``tried`` are names and values of parameters that they may have."""
    study = Study(
        objective=objective,
        sweep=uuid.uuid4().hex[:8],
        fragments=merged(plan.train.fragments, workers.frames.batch_rows),
        recipe=plan.recipe,
        frames=workers.frames,
        model=config.model,
        device=workers.device,
        categorical=tuple(config.task.categorical),
        seed=config.seed,
        measure=partial(measured, plan.task.kind),
    )
    shared = {study.estimator(params).sharing for params in ({}, *({name: value} for name, value in tried))}
    return dataclasses.replace(study, again=len(shared) > 1 or None in shared)


def identity(config: SweepConfig, plan: Plan) -> str:
    """Return a digest of the data and of all else that decides what trials are proposed and what comes of them."""
    plain = to_plain(config)
    search, model = plain["search"], plain["model"]
    without_effect = {*FREE, *(("trials",) if search["name"] in GROWING else ())}
    facts = {
        "task": plain["task"],
        "model": [model[name] for name in ("name", "params", "fit", "space")],
        "search": {name: value for name, value in search.items() if name not in without_effect},
        "seed": plain["seed"],
    }
    return plan.identity(facts)[:8]
