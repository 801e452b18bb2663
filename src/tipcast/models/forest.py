"""Scikit-learn's random forest, its trees grown as tasks on all workers."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np
import treelite.sklearn
from joblib import parallel_config
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from tipcast.compute.base import Array
from tipcast.compute.cluster import at_home, completed, worker_info
from tipcast.config.errors import must_be, travelling
from tipcast.models import base, native
from tipcast.models.base import Estimator, Fitted, Parts, Progress, Split
from tipcast.models.fit import column_names, holders
from tipcast.tasks.kinds import Kind

if TYPE_CHECKING:
    from distributed import Client, Future

LOG = logging.getLogger("tipcast")

CHUNKS_PER_THREAD = 8
"""Tasks per thread: enough to finish together and to show progress."""
SHARE_OF_MEMORY = 0.5
"""Share of a worker's memory limit for all rows and the trees' working arrays."""
TREES = 100
"""Trees where none are configured, as in both libraries."""
FIT = ("together",)
"""Settings of the fit."""
RESERVED = {**base.RESERVED, "oob_score": "task.validation"}


@final
@dataclass(frozen=True)
class Forest(Estimator):
    """One forest, fitted inside one process or by all workers.

    If the rows of all workers fit into half of each worker's memory, every tree sees all rows, and
    the forest is the one that scikit-learn grows from the same rows and seed. Otherwise each worker
    grows trees from the rows it holds, in proportion to their number. ``fit.together`` decides for
    one or the other.
    """

    def check(self) -> None:
        """Refuse parameters that scikit-learn would."""
        valid = set(unfitted(self.kind, {}).get_params()) - set(RESERVED)
        base.check_names("params", self.params, valid, RESERVED)
        check_fit(self.fit_settings, valid)
        base.try_params(partial(unfitted, self.kind, self.params), self.params, self.kind)

    @property
    def takes_weights(self) -> bool:
        """Yes: trees draw rows by their weights, or split by them."""
        return True

    def fit(self, rows: Split, seed: int, threads: int = 1) -> Fitted:
        """Grow the trees from frames in memory."""
        values, target, weight = base.stacked(rows.x, rows.y, rows.weight)
        self.need_classes(target)
        forest = unfitted(self.kind, self.params, random_state=seed, n_jobs=threads)
        with parallel_config("threading"):  # a worker may not start processes of joblib
            forest.fit(values, target, sample_weight=weight)
        return _fitted(forest, base.columns(rows.x), {"rows_seen": "all"})

    @property
    def continues(self) -> bool:
        """Yes: trees take their seeds in order."""
        return True

    def continue_fit(self, rows: Split, seed: int, earlier: Any) -> Fitted:
        """Grow the trees that are missing; the state is a list of trees."""
        trees = earlier or []
        count = self.params.get("n_estimators", TREES)
        stacked = base.stacked(rows.x, rows.y, rows.weight)
        forest, grown = _grow(stacked, self, seed, len(trees), count)

        forest.set_params(n_estimators=count, random_state=seed)
        forest.estimators_ = [*trees, *grown]
        info: dict[str, str | float] = {"rows_seen": "all", "grown_trees": len(grown)}
        return replace(_fitted(forest, base.columns(rows.x), info), state=forest.estimators_)

    def fit_distributed(
        self, client: "Client", rows: Split, seed: int, progress: Progress = None
    ) -> Fitted:
        """Grow the trees as tasks of all workers."""
        features = column_names(client, rows.x)
        sides = list(base.sides_of(rows).values())
        count = self.params.get("n_estimators", TREES)

        growers = plan_growers(_places(client, sides, self.fit_settings.get("together")), count)
        tasks = self._start_growing(client, growers, sides, seed)
        forest, trees = _collect_trees(client, tasks, count, progress)

        forest.set_params(n_estimators=count, random_state=seed)
        forest.estimators_ = trees
        rows_seen = "each worker's own"
        if all(len(grower.parts) == len(sides[0]) for grower in growers):
            rows_seen = "all"
        return _fitted(forest, features, {"rows_seen": rows_seen})

    def _start_growing(
        self,
        client: "Client",
        growers: "Sequence[Grower]",
        sides: Sequence[Parts],
        seed: int,
    ) -> "dict[Future[Any], int]":
        """Start several tasks for each thread of a worker; return task -> its first tree.

        ``sides`` are the parts of the features, of the targets and, if any, of the weights.
        """
        threads = client.nthreads()
        tasks: dict[Future[Any], int] = {}

        for grower in growers:
            if not grower.trees:
                continue

            # Another worker takes over if this one dies.
            place = {**at_home(grower.address), "pure": False}
            # Rows are joined once on each worker; the worker's tasks share them.
            sides_to_join = [[side[number] for number in grower.parts] for side in sides]
            joined = client.submit(base.stacked, *sides_to_join, **place)

            chunks = min(threads[grower.address] * CHUNKS_PER_THREAD, grower.trees)
            bounds = np.linspace(grower.first, grower.last, chunks + 1).round().astype(int)
            for start, stop in pairwise(bounds.tolist()):
                task = client.submit(_grow, joined, self, seed, start, stop, **place)
                tasks[task] = start

        return tasks


@dataclass(frozen=True)
class Grower:
    """A worker that grows some of a forest's trees."""

    address: str
    parts: Sequence[int]
    """Numbers of the parts that its trees see."""
    first: int
    """Number of its first tree."""
    last: int
    """Number of the tree after its last one."""

    @property
    def trees(self) -> int:
        """How many trees it grows."""
        return self.last - self.first


def check_fit(settings: Mapping[str, Any], params: Iterable[str]) -> None:
    """Refuse settings of a forest's fit that are unknown (C001) or bad (C003); ``params`` are the
    forest's parameters.
    """
    base.check_names("fit", settings, FIT, base.below_params(params))
    together = settings.get("together")
    if together is not None and not isinstance(together, bool):
        raise must_be("model.fit.together", "true, false or null", repr(together))


def plan_growers(places: Mapping[str, tuple[Sequence[int], float]], count: int) -> list[Grower]:
    """Share a number of trees out among the workers.

    ``places`` are worker -> numbers of the parts that its trees see, and its share of the trees,
    not scaled.
    """
    ends = np.cumsum([share for _, share in places.values()])
    lasts = np.round(ends / ends[-1] * count).astype(int).tolist()
    return [
        Grower(address, parts, first, last)
        for (address, (parts, _)), first, last in zip(
            places.items(), [0, *lasts[:-1]], lasts, strict=True
        )
    ]


def _collect_trees(
    client: "Client", tasks: "dict[Future[Any], int]", count: int, progress: Progress
) -> tuple[Any, list[Any]]:
    """Wait for all tasks and remove them from ``tasks``; return a forest without trees, and the
    trees in order.
    """
    grown: dict[int, list[Any]] = {}
    forest: Any = None
    for task, (empty, trees) in completed(client, list(tasks)):
        forest = empty
        grown[tasks.pop(task)] = trees
        task.release()
        if progress:
            progress(sum(map(len, grown.values())), count)

    return forest, [tree for start in sorted(grown) for tree in grown[start]]


def unfitted(kind: Kind, params: Mapping[str, Any], **settings: Any) -> Any:
    """Return scikit-learn's forest for a kind of task; a null criterion is the library's
    default.
    """
    arguments = {**params, **settings}
    if arguments.get("criterion") is None:
        arguments.pop("criterion", None)

    if kind.has_classes:
        return RandomForestClassifier(**arguments)
    return RandomForestRegressor(**arguments)


def _places(
    client: "Client", sides: Sequence[Parts], together: bool | None
) -> dict[str, tuple[Sequence[int], float]]:
    """Return worker -> numbers of the parts that it uses, and its share of the trees, not scaled.

    ``sides`` are the parts of the features, of the targets and, if any, of the weights. Each worker
    uses all parts if ``together``, or if that is None and all rows fit into its memory.
    """
    threads = client.nthreads()
    homes = holders(client, list(chain.from_iterable(sides)))
    parts = own_parts(homes[: len(sides[0])])
    if together is None:
        together = _fit_into_each_memory(client, sides)
        if not together:
            message = "a worker cannot hold all rows: each of %d grows trees from its own"
            LOG.warning(message, len(parts))
    if together:
        return {address: (range(len(sides[0])), threads[address]) for address in sorted(threads)}

    sizes = client.nbytes([part.key for part in sides[0]], summary=False)
    return {
        address: (numbers, sum(sizes[sides[0][number].key] for number in numbers))
        for address, numbers in parts.items()
    }


def own_parts(homes: Sequence[Collection[str]]) -> dict[str, list[int]]:
    """Return worker -> numbers of the parts that it grows trees from; ``homes`` are the workers
    that hold each part.
    """
    parts: dict[str, list[int]] = {}
    for number, home in enumerate(homes):
        parts.setdefault(min(home), []).append(number)
    return parts


def _fit_into_each_memory(client: "Client", sides: Sequence[Parts]) -> bool:
    """Tell whether each worker can hold all rows and grow trees from them."""
    futures = chain.from_iterable(sides)
    sizes = client.nbytes([future.key for future in futures], summary=False)
    # A row is in memory twice while parts are joined, its label once more as float64; each growing
    # tree needs about 40 bytes a row. The seven base features and the label take 32 bytes: the
    # other numbers are scaled by that.
    threads = client.nthreads().values()
    need = sum(sizes.values()) * (2 + (8 + 40 * max(threads)) / 32)
    limits = [worker["memory_limit"] for worker in worker_info(client).values()]
    return all(not limit or need <= SHARE_OF_MEMORY * limit for limit in limits)


@travelling
def _grow(
    rows: tuple[Array, Array, Array | None],
    estimator: Forest,
    seed: int,
    start: int,
    stop: int,
) -> tuple[Any, list[Any]]:
    """Grow trees start to stop of the forest; return the forest without trees, and the trees."""
    x, y, weight = rows
    estimator.need_classes(y)
    state = np.random.RandomState(seed)
    # Skip the seeds of earlier trees, drawn as scikit-learn draws them.
    state.randint(np.iinfo(np.int32).max, size=start)
    settings = {"n_estimators": stop - start, "random_state": state, "n_jobs": 1}
    forest = unfitted(estimator.kind, estimator.params, **settings)
    forest.fit(x, y, sample_weight=weight)

    trees = forest.estimators_
    forest.estimators_ = []
    forest._sample_weight = None  # a weight for every row, which the driver does not need
    return forest, trees


def _fitted(forest: Any, features: Sequence[str], info: Mapping[str, str | float]) -> Fitted:
    forest.n_jobs = 1  # parts are scored side by side
    forest._sample_weight = None  # a weight for every row, which scoring does not need
    return Fitted(
        scorer=native.SklearnScorer(forest, np.float32),
        importance=base.shares(features, forest.feature_importances_),
        importance_kind="decrease of impurity",
        info={"device": "cpu", "trees": len(forest.estimators_), **info},
        format="treelite",
        content=_checkpoint,
    )


def _checkpoint(scorer: native.SklearnScorer) -> Any:
    return treelite.sklearn.import_model(scorer.model).serialize_bytes()
