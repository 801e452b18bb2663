"""Warming up: where a process compiles what it computes with on first use, it does so before the clock runs."""

from __future__ import annotations

import dataclasses
import operator
from functools import partial
from typing import TYPE_CHECKING, Any

from tipcast.compute.base import Frames, Session
from tipcast.config.errors import travelling
from tipcast.config.schema import ModelSpec, TrainConfig
from tipcast.datasets.base import Fragment, timed
from tipcast.datasets.rows import Recipe, collection, prepare_fragment
from tipcast.evaluation import evaluator
from tipcast.models.base import Split
from tipcast.models.build import build

if TYPE_CHECKING:
    from tipcast.jobs.train_plan import Plan


def warm_up(workers: Session, config: TrainConfig, plan: Plan) -> None:
    """Take one fragment through the whole job on every worker, with a tiny model."""
    client, model, task = workers.client, config.model, plan.task
    fit = {**model.fit, "num_boost_round": None} if "num_boost_round" in model.fit else model.fit
    small = dataclasses.replace(model, params={**model.params, **model.tiny}, fit=fit)
    train, test = (plan.train.fragments[0], plan.recipe), (plan.test.fragments[0], plan.test_recipe)
    tasks = [
        client.submit(_whole_job, train, test, workers.frames, small, workers.device, workers=[address], pure=False)
        for address in client.nthreads()
    ]
    usable = client.gather(client.map(partial(operator.is_not, None), tasks, pure=False))
    if len(tasks) > 1 and all(usable):  # what the workers say to each other has a first time too
        x, y = (client.map(operator.itemgetter(at), tasks, pure=False) for at in (0, 1))
        frames = collection(x), collection(y) if task.kind != "clustering" else None
        estimator = build(small, workers.device, task.categorical, task.kind, len(task.classes))
        estimator.fit_distributed(client, Split(*frames, frames), seed=0)


@travelling
def _whole_job(
    train: tuple[Fragment, Recipe], test: tuple[Fragment, Recipe], frames: Frames, model: ModelSpec, device: str
) -> tuple[Any, Any] | None:
    """Return features and labels to fit on, None where they are of one class: the real rows may well have both."""
    fragment, recipe = train
    if recipe.cutoff is not None:
        recipe = dataclasses.replace(recipe, cutoff=sum(timed(fragment.period)) // 2)
    part = max(prepare_fragment(fragment, frames, recipe), key=lambda each: each.counts.rows)
    (tested,) = prepare_fragment(test[0], frames, test[1])
    if not all(part.counts.classes) or not all(tested.counts.classes):
        return None
    task = recipe.task
    estimator = build(model, device, task.categorical, task.kind, len(task.classes))
    scores = estimator.fit(Split(part.x, part.y, (part.x, part.y)), seed=0).scorer.score(tested.x)
    judge = evaluator(task.kind)
    judge.evaluate_here(scores, tested.x if tested.y is None else tested.y)
    return part.x, part.y
