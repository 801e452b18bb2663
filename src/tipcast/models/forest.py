"""Random forests: scikit-learn's, its trees fitted as tasks on all workers, and cuML's, which takes
scikit-learn's parameter names.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, final

import numpy as np
import treelite.sklearn
from joblib import parallel_config
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from tipcast.compute.base import Array
from tipcast.compute.cluster import completed, worker_info
from tipcast.config.errors import must_be, travelling, unknown
from tipcast.models import base, native
from tipcast.models.base import Estimator, Fitted, Parts, Progress, Split
from tipcast.models.fit import holders, parts_of, watched, worker_lock, workers_of
from tipcast.tasks.kinds import Kind

if TYPE_CHECKING:
    from distributed import Client, Future

CHUNKS_PER_THREAD = 8
"""Tasks per thread: enough to finish together and to show progress."""
SHARE_OF_MEMORY = 0.5
"""Share of a worker's memory limit for all rows and the trees' working arrays."""
RESERVED = {**base.RESERVED, "oob_score": "task.validation"}

CUML_ONLY = ("n_bins", "max_batch_size")
"""Parameters that scikit-learn lacks."""
CUML_NAMES = {"criterion": "split_criterion", "max_leaf_nodes": "max_leaves"}
"""scikit-learn's name -> cuML's, if they differ."""
CUML_PARAMS = (
    "n_estimators",
    "max_depth",
    "min_samples_leaf",
    "min_samples_split",
    "min_impurity_decrease",
    "max_features",
    "max_leaf_nodes",
    "max_samples",
    "bootstrap",
    "criterion",
    *CUML_ONLY,
)
CRITERIA = {
    "gini": "gini",
    "entropy": "entropy",
    "log_loss": "entropy",
    "squared_error": "mse",
    "poisson": "poisson",
}
"""scikit-learn's name -> cuML's."""


@final
@dataclass(frozen=True)
class Forest(Estimator):
    """One forest, fitted inside one process or by all workers.

    If the rows of all workers fit into half of each worker's memory, every tree sees all rows, and
    the forest is the one that scikit-learn grows from the same rows and seed. Otherwise each worker
    grows trees from the rows it holds, in proportion to their number.
    """

    def check(self) -> None:
        """Refuse parameters that scikit-learn would."""
        valid = set(unfitted(self.kind, {}).get_params()) - set(RESERVED)
        base.check_names("params", self.params, valid, RESERVED)
        base.check_names("fit", self.fit_settings, (), base.below_params(valid))
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
        count = self.params.get("n_estimators", 100)
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
        sides = [parts_of(client, side) for side in base.sides_of(rows).values()]
        count = self.params.get("n_estimators", 100)

        growers = _plan_growers(client, sides, count)
        tasks = self._start_growing(client, growers, sides, seed)
        forest, trees = _collect_trees(client, tasks, count, progress)

        forest.set_params(n_estimators=count, random_state=seed)
        forest.estimators_ = trees
        rows_seen = "each worker's own"
        if all(len(grower.parts) == len(sides[0]) for grower in growers):
            rows_seen = "all"
        return _fitted(forest, base.columns(rows.x), {"rows_seen": rows_seen})

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
            trees = grower.last - grower.first
            if not trees:
                continue

            # Another worker takes over if this one dies.
            place = {"workers": [grower.address], "allow_other_workers": True, "pure": False}
            # Rows are joined once on each worker; the worker's tasks share them.
            sides_to_join = [[side[number] for number in grower.parts] for side in sides]
            joined = client.submit(base.stacked, *sides_to_join, **place)

            chunks = min(threads[grower.address] * CHUNKS_PER_THREAD, trees)
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


def _plan_growers(client: "Client", sides: Sequence[Parts], count: int) -> list[Grower]:
    """Share a number of trees out among the workers."""
    places = _places(client, sides)
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


def _places(client: "Client", sides: Sequence[Parts]) -> dict[str, tuple[Sequence[int], float]]:
    """Return worker -> numbers of the parts that it uses, and its share of the trees, not scaled.

    ``sides`` are the parts of the features, of the targets and, if any, of the weights.
    """
    futures = list(chain.from_iterable(sides))
    homes = holders(client, futures)
    threads = client.nthreads()
    sizes = client.nbytes([future.key for future in futures], summary=False)
    # A row is in memory twice while parts are joined, its label once more as float64; each growing
    # tree needs about 40 bytes a row. The seven base features and the label take 32 bytes: the
    # other numbers are scaled by that.
    need = sum(sizes.values()) * (2 + (8 + 40 * max(threads.values())) / 32)
    limits = [worker["memory_limit"] for worker in worker_info(client).values()]
    if all(not limit or need <= SHARE_OF_MEMORY * limit for limit in limits):
        return {address: (range(len(sides[0])), threads[address]) for address in sorted(threads)}

    parts: dict[str, list[int]] = {}
    for number, home in enumerate(homes[: len(sides[0])]):
        parts.setdefault(min(home), []).append(number)

    message = "a worker cannot hold all rows: each of %d grows trees from its own"
    logging.getLogger("tipcast").warning(message, len(parts))
    return {
        address: (numbers, sum(sizes[sides[0][number].key] for number in numbers))
        for address, numbers in parts.items()
    }


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


@final
@dataclass(frozen=True)
class CumlForest(Estimator):
    """One forest, without early stopping; cuML reports no progress."""

    def check(self) -> None:
        """Refuse parameters that cuML would; scikit-learn's forest validates the values of
        parameters that both have.
        """
        _ = self.settings
        not_shared = (*CUML_ONLY, "max_samples")
        shared = {
            name: value
            for name, value in self.params.items()
            if value is not None and name not in not_shared
        }
        base.try_params(partial(unfitted, self.kind, shared), shared, self.kind)

    @property
    def settings(self) -> dict[str, Any]:
        """``params`` by cuML's names; C001 for an unknown name, C003 for a value that cuML takes
        for something else.
        """
        hints = {**RESERVED, "class_weight": "backend=cpu"}
        base.check_names("params", self.params, CUML_PARAMS, hints)
        base.check_names("fit", self.fit_settings, (), base.below_params(CUML_PARAMS))

        params = {name: value for name, value in self.params.items() if value is not None}
        for name in set(CUML_ONLY) & set(params):
            base.positive(f"model.params.{name}", params[name])

        share = params.get("max_samples", 1.0)
        if not isinstance(share, float) or not 0 < share <= 1:
            rule = "a share of the rows above 0 and at most 1.0 for cuML's forest"
            fix = "change it, or use backend=cpu"
            raise must_be("model.params.max_samples", rule, repr(share), fix)

        criterion = params.get("criterion")
        if criterion:
            params["criterion"] = _cuml_criterion(criterion)

        # For cuML, null means all features in max_features, and its default of max_depth has
        # changed between releases.
        params["max_features"] = self.params.get("max_features", "sqrt")
        params["max_depth"] = params.get("max_depth")
        return {CUML_NAMES.get(name, name): value for name, value in params.items()}

    def fit(self, rows: Split, seed: int, threads: int = 1) -> Fitted:
        """Grow the trees from frames in device memory, several at once."""
        import cuml.ensemble

        values, target, _ = base.stacked(rows.x, rows.y)
        model = self._make(cuml.ensemble, random_state=seed).fit(values, target)
        return _fitted_by_cuml(model, base.columns(rows.x), 1)

    def fit_distributed(
        self, client: "Client", rows: Split, seed: int, progress: Progress = None
    ) -> Fitted:
        """Grow each tree by all workers together, from the rows of all."""
        import cuml.dask.ensemble

        workers = workers_of(client, parts_of(client, rows.x))

        def grow() -> Any:
            model = self._make(
                cuml.dask.ensemble, client=client, workers=workers, random_state=seed
            )
            return model.fit(rows.x, rows.y).get_combined_model()

        with worker_lock(client, workers):
            model = watched(client, workers, grow)
        return _fitted_by_cuml(model, base.columns(rows.x), len(workers))

    def _make(self, module: ModuleType, **settings: Any) -> Any:
        """Return an unfitted forest of a module of cuML's."""
        if self.kind.has_classes:
            return module.RandomForestClassifier(**self.settings, **settings)
        return module.RandomForestRegressor(**self.settings, **settings)


def _cuml_criterion(name: str) -> str:
    """Return cuML's name of scikit-learn's criterion; C003 for one that cuML lacks."""
    if name not in CRITERIA:
        raise unknown("model.params.criterion", "criterion of cuML's", name, CRITERIA, "C003")
    return CRITERIA[name]


def _fitted_by_cuml(model: Any, features: Sequence[str], workers: int) -> Fitted:
    import cupy

    checkpoint = model.as_treelite().serialize_bytes()
    importance = cupy.asnumpy(cupy.asarray(model.feature_importances_))
    return Fitted(
        scorer=native.NvForestScorer(checkpoint, device="cuda"),
        importance=base.shares(features, np.maximum(np.nan_to_num(importance), 0)),
        importance_kind="decrease of impurity",
        info={"device": f"cuda:{cupy.cuda.Device().id}", "workers": workers},
        format="treelite",
        content=attrgetter("content"),
    )
