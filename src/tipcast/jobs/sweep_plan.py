"""What a sweep will try, decided and checked before anything starts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tipcast.backends.base import Array, Session
from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema_sweep import SearchSpec, SweepConfig
from tipcast.data.base import merged
from tipcast.estimators import build, sharing
from tipcast.evaluation.base import bounds, evaluator
from tipcast.jobs.sweep_again import FREE, GROWING
from tipcast.jobs.training import Plan
from tipcast.search import space as spaces
from tipcast.search.halving import Halving, ladder
from tipcast.search.proposals import LISTED, Proposal
from tipcast.search.searchers import Asked, Known, Listed, Searcher
from tipcast.search.space import Space
from tipcast.search.trial import TREES, Measured, Study

SEARCHES = ("random", "tpe", "grid", "halving")
THROUGH = ("pool", "joblib")


def measured(scores: Array, labels: Any) -> Measured:
    """Measure a trial on its worker."""
    judge = evaluator("classification")
    found = judge.evaluate_here(scores, labels)
    return Measured({**found.metrics, **bounds(found.interval, judge.headline.name)}, tuple(found.trial_curve))


def check(config: SweepConfig) -> Space:
    """Refuse a search that cannot be, and return its space.

    Raises
    ------
    TipcastError
        C001 a parameter that the model lacks, C003 a value that cannot be.

    """
    spec, device = config.search, config.backend.name
    _check_numbers(spec)
    if not 0 < config.task.validation < 1:
        raise TipcastError(
            "C003", "task.validation", "trials are compared on validation rows", "hold some out, as 0.15"
        )
    own = spec.space
    if spec.name == "halving":
        if own.get(TREES) is not None:
            raise TipcastError(
                "C003",
                f"search.space.{TREES}",
                "halving decides how many trees a trial gets",
                f"set model.params.{TREES} to the most, or use another search",
            )
        own = {**own, TREES: None}
    space = spaces.merged(config.model, own, alone=spec.name == "grid")
    spaces.check(config.model, space, device, config.task.categorical)
    if spec.name == "halving" and not sharing.grows(_local(config, space)):
        raise TipcastError(
            "C003", "search=halving", f"{config.model.name} cannot be grown on", "use search=random, tpe or grid"
        )
    if spec.through == "joblib":
        _check_joblib(config, space)
    return space


def study(config: SweepConfig, plan: Plan, space: Space, workers: Session) -> Study:
    """Return what all trials have in common."""
    extremes = [{name: value} for name, axis in space.items() for value in axis.extremes]
    estimators = [_local(config, space, each) for each in extremes]
    alike = len({sharing.sharing(each) for each in estimators}) == 1 and isinstance(estimators[0], sharing.Shares)
    return Study(
        id=identity(config, plan, space),
        sweep=uuid.uuid4().hex[:8],
        fragments=merged(plan.train.fragments, workers.frames.batch_rows),
        recipe=plan.recipe,
        frames=workers.frames,
        model=config.model,
        device=workers.device,
        categorical=tuple(config.task.categorical),
        seed=config.seed,
        measure=measured,
        again=not alike,
    )


def identity(config: SweepConfig, plan: Plan, space: Space) -> str:
    """Return a digest of all that decides what trials are proposed and what comes of them."""
    search = to_plain(config.search)
    own = () if config.search.through == "joblib" else ("through", "rows")  # of no effect on the pool's trials
    more = ("trials",) if search["name"] in GROWING else ()
    for name in (*FREE, "space", *own, *more):
        del search[name]
    facts = {
        "train": plan.train.digest,
        "test": plan.test.digest,
        "task": to_plain(config.task),
        "model": [config.model.name, to_plain(config.model.params), to_plain(config.model.fit)],
        "search": search,
        "space": [repr(axis) for axis in space.values()],
        "seed": config.seed,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


def searcher(config: SweepConfig, space: Space, known: Known, begun: Sequence[Proposal]) -> Searcher:
    """Return what decides on the next trial.

    Parameters
    ----------
    config, space
        Of the sweep.
    known
        Trials that have ended in an earlier run of it.
    begun
        Trials that were proposed in an earlier run of it.

    """
    spec = config.search
    if spec.name == "tpe":
        from tipcast.search.tpe import Tpe  # imports Optuna, which takes a second

        return Asked(Tpe(space, config.seed, taken=len(begun)), spec.trials or 0, known, begun)
    proposals = LISTED[spec.name](spec, space, config.seed)
    if spec.name == "halving":
        return Halving(proposals, rungs(config), spec.eta, known)
    return Listed(proposals, known, cuts=TREES in space and sharing.grows(_local(config, space)))


def rungs(config: SweepConfig) -> tuple[int, ...]:
    """Return the numbers of trees at which halving compares trials."""
    return ladder(int(config.model.params.get(TREES, 100)), config.search.eta, config.search.min_rounds)


def _local(config: SweepConfig, space: Space, params: Mapping[str, Any] | None = None) -> Any:
    given = {name: axis.extremes[0] for name, axis in space.items()} if params is None else params
    model = dataclasses.replace(config.model, params={**config.model.params, **given})
    return build.build(model, config.backend.name, "local", config.task.categorical)


def _check_joblib(config: SweepConfig, space: Space) -> None:
    """Refuse what scikit-learn's GridSearchCV cannot search."""
    from tipcast.estimators import scikit_learn  # imports scikit-learn, which takes a second

    spec = config.search
    problem = ""
    if spec.name not in ("grid", "random"):
        problem = f"{spec.name} does not know its trials beforehand"
    elif config.backend.name != "cpu":
        problem = "its trials compute on processors"
    elif not scikit_learn.known(_local(config, space)):
        problem = f"scikit-learn has no {config.model.name} of its own"
    if problem:
        fix = "use search.through=pool, or search=grid_joblib and backend=cpu with svc, knn, random_forest or logistic"
        raise TipcastError("C003", "search.through=joblib", problem, fix)


def _check_numbers(spec: SearchSpec) -> None:
    if spec.name not in SEARCHES:
        raise TipcastError("C003", "search.name", f"no such search: {spec.name}", f"use {', '.join(SEARCHES)}")
    if spec.through not in THROUGH:
        raise TipcastError("C003", "search.through", f"no such way: {spec.through}", f"use {' or '.join(THROUGH)}")
    least = {"trials": 1, "points": 2, "eta": 2, "min_rounds": 1, "attempts": 1, "trials_per_gpu": 1, "rows": 1}
    for name, low in least.items():
        value = getattr(spec, name)
        if value is not None and value < low:
            raise TipcastError("C003", f"search.{name}", f"{value} is too small", f"use {low} or more")
    if (spec.trials or 0) > spaces.MOST:
        raise TipcastError(
            "C003", "search.trials", f"{spec.trials:,} are more than {spaces.MOST:,}", f"use at most {spaces.MOST:,}"
        )
    limit = spec.trial_timeout_s
    if limit is not None and not 0 < limit < math.inf:
        raise TipcastError("C003", "search.trial_timeout_s", f"no trial ends in {limit} s", "set seconds, or null")
    if spec.trials is None and spec.name != "grid":
        raise TipcastError("C003", "search.trials", f"{spec.name} needs a number of trials", "set search.trials=32")
