"""What a sweep will try, decided and checked before anything starts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shlex
import uuid
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tipcast.compute.base import Array, Session
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import ModelsSweepConfig, SweepConfig
from tipcast.config.schema import ModelSpec
from tipcast.datasets.base import merged
from tipcast.evaluation.base import bounds, evaluator
from tipcast.models import build
from tipcast.search import space as spaces
from tipcast.search.proposals import LISTED, Halving, InTurn, Known, Listed, Recorded, Searcher, Tpe, ladder
from tipcast.search.space import Space
from tipcast.search.trial import TREES, Measured, Study

if TYPE_CHECKING:  # workers import this module for ``measured`` alone
    from tipcast.jobs.sweep_record import SweepRecord
    from tipcast.jobs.train import Plan

LOG = logging.getLogger("tipcast")

GROWING = ("random", "tpe")
"""Searches of which a longer one begins with the trials of a shorter."""
FREE = ("attempts", "trials_per_gpu", "trial_timeout_s", "timeout_s")
"""Keys of a search that no trial's result depends on."""


def measured(kind: str, predictions: Array, target: Any) -> Measured:
    """Measure a trial of a kind of task on its worker."""
    judge = evaluator(kind)
    found = judge.evaluate_here(predictions, target)
    return Measured({**found.metrics, **bounds(found.interval, judge.headline.name)}, tuple(found.trial_curve))


def given_keys(command: str) -> list[str]:
    """Return the keys that a command line sets."""
    return [word.lstrip("+~").partition("=")[0] for word in shlex.split(command)[2:]]


def without_fixed(config: SweepConfig, command: str) -> SweepConfig:
    """Return a sweep whose models' spaces lack the parameters that the command line sets."""
    given = {key.removeprefix("model.params.") for key in given_keys(command) if key.startswith("model.params.")}
    for name in sorted(given):
        if config.search.space.get(name) is not None:
            what = f"is fixed to {config.model.params.get(name)}, and search.space.{name} searches it"
            raise TipcastError("C003", f"model.params.{name}", what, "leave one of the two out")
    models = [_without_fixed(model, given) for model in config.searched]
    if isinstance(config, ModelsSweepConfig):
        return dataclasses.replace(config, model=models[0], models=models)
    return dataclasses.replace(config, model=models[0])


def _without_fixed(model: ModelSpec, given: Collection[str]) -> ModelSpec:
    if fixed := [name for name in model.space if name in given and name in model.params]:
        values = ", ".join(f"{name} ({model.params[name]})" for name in fixed)
        LOG.info("fixed  %s: set on the command line, so not searched", values)
    space = {name: axis for name, axis in model.space.items() if name not in fixed}
    return dataclasses.replace(model, space=space)


def of_each_model(config: SweepConfig) -> list[SweepConfig]:
    """Return a sweep as it would be of each of its models alone."""
    return [dataclasses.replace(config, model=model) for model in config.searched]


def check(config: SweepConfig, kind: str) -> list[Space]:
    """Refuse a search that cannot be for a kind of task, and return the space of each model."""
    return [_checked_space(each, kind) for each in of_each_model(config)]


def _checked_space(config: SweepConfig, kind: str) -> Space:
    spec, device, own = config.search, config.backend.name, config.search.space
    if spec.name == "halving":
        if own.get(TREES) is not None:
            what, fix = "halving decides how many trees a trial gets", f"set model.params.{TREES} to the most"
            raise TipcastError("C003", f"search.space.{TREES}", what, f"{fix}, or use another search")
        own = {**own, TREES: None}
    space = spaces.merged(config.model, own, alone=spec.name == "grid")
    spaces.check(config.model, space, device, config.task.categorical, kind)
    if spec.name == "halving" and _local(config, _first(space), kind).trees is None:
        what = f"{config.model.name} cannot be grown on"
        raise TipcastError("C003", "search=halving", what, "use search=random, tpe or grid")
    return space


def study(sweep: SweepRecord, workers: Session) -> Study:
    """Return what all trials have in common."""
    config, plan = sweep.config, sweep.record.plan
    shared = {
        (at, _local(own, params, plan.task.kind).sharing)
        for at, (own, space) in enumerate(zip(of_each_model(config), sweep.spaces, strict=True))
        for params in ({}, *({name: value} for name, axis in space.items() for value in axis.tried))
    }
    return Study(
        objective=sweep.objective,
        sweep=uuid.uuid4().hex[:8],
        fragments=merged(plan.train.fragments, workers.frames.batch_rows),
        recipe=plan.recipe,
        frames=workers.frames,
        model=config.searched[0],
        others=tuple(config.searched[1:]),
        device=workers.device,
        categorical=tuple(config.task.categorical),
        seed=config.seed,
        measure=partial(measured, plan.task.kind),
        again=len(shared) > 1 or (0, None) in shared,
    )


def data_digest(plan: Plan) -> str:
    """Return a digest of all files."""
    return hashlib.sha256(f"{plan.train.digest} {plan.test.digest}".encode()).hexdigest()[:16]


def identity(plain: Mapping[str, Any], data: str) -> str:
    """Return a digest of all that decides what trials are proposed and what comes of them.

    ``plain`` is the configuration as ``config.yaml`` of the sweep's run has it: later releases may read it as more.
    """
    search, models = plain["search"], plain.get("models") or [plain["model"]]
    without_effect = set(FREE)
    without_effect |= {"trials"} if search["name"] in GROWING else set()
    without_effect |= set() if search["name"] == "tpe" else {"max_concurrent"}
    without_effect |= {name for name in ("metric", "baseline") if not search.get(name)}  # earlier releases had none
    facts = {
        "data": data,
        "task": plain["task"],
        "model": [model.get(name) for model in models for name in ("name", "params", "fit", "space")],
        "search": {name: value for name, value in search.items() if name not in without_effect},
        "seed": plain["seed"],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


def searcher(sweep: SweepRecord) -> Searcher:
    """Return what decides on the next trial, given those that an earlier run of the sweep has proposed and ended."""
    configs = of_each_model(sweep.config)
    if len(configs) == 1:
        return _searcher(sweep, configs[0], sweep.spaces[0], sweep.trials, sweep.recorded)
    found = []
    for turn, (config, space) in enumerate(zip(configs, sweep.spaces, strict=True)):
        numbers = {number: number // len(configs) for number in sweep.recorded if number % len(configs) == turn}
        known = {
            own: dataclasses.replace(sweep.trials[number], number=own)
            for number, own in numbers.items()
            if number in sweep.trials
        }
        recorded = {own: sweep.recorded[number] for number, own in numbers.items()}
        found.append(_searcher(sweep, config, space, known, recorded))
    return InTurn(found)


def baseline(config: SweepConfig, space: Space) -> dict[str, Any] | None:
    """Return the parameters of trial 0 where it has those that are configured."""
    params = config.model.params
    return {name: params[name] for name in space if name in params} if config.search.baseline else None


def _searcher(
    sweep: SweepRecord, config: SweepConfig, space: Space, known: Known, recorded: Recorded
) -> Listed | Tpe | Halving:
    spec, objective, first = config.search, sweep.objective, baseline(config, space)
    if spec.name == "tpe":
        return Tpe(space, config.seed, objective, spec.trials or 0, spec.max_concurrent, known, recorded, first)
    proposals = LISTED[spec.name](spec, space, config.seed, recorded, first)
    if spec.name == "halving":
        rungs = ladder(int(config.model.params.get(TREES, 100)), spec.eta, spec.min_rounds)
        return Halving(proposals, rungs, spec.eta, known, objective, baseline=spec.baseline)
    kind = sweep.record.plan.task.kind
    return Listed(proposals, known, cuts=TREES in space and _local(config, _first(space), kind).trees is not None)


def _local(config: SweepConfig, params: Mapping[str, Any], kind: str | None) -> Any:
    model = dataclasses.replace(config.model, params={**config.model.params, **params})
    return build.build(model, config.backend.name, config.task.categorical, kind)


def _first(space: Space) -> dict[str, Any]:
    return {name: axis.tried[0] for name, axis in space.items()}
