"""cuML's random forest, which takes scikit-learn's parameter names."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, final

import numpy as np
import treelite

from tipcast.compute.cluster import at_home
from tipcast.config.errors import TipcastError, must_be, travelling, unknown
from tipcast.models import base, native
from tipcast.models.base import Estimator, Fitted, Parts, Progress, Split
from tipcast.models.fit import column_names, holders, watched, worker_lock, workers_of
from tipcast.models.forest import (
    RESERVED,
    TREES,
    Grower,
    check_fit,
    own_parts,
    plan_growers,
    unfitted,
)

if TYPE_CHECKING:
    from distributed import Client, Future

LOG = logging.getLogger("tipcast")

ENOUGH_ROWS = 2_000_000
"""Rows of a GPU from which trees grown from them alone are as good as trees of all rows."""
TOGETHER = 14e9
"""Values times trees from which two GPUs grow trees together faster than one grows them: 20 million
rows of 7 features, 100 trees.
"""
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
class CumlForest(Estimator):
    """One forest, without early stopping; cuML reports no progress.

    If each of several GPUs holds enough rows, it grows its share of the trees from them. Otherwise
    all grow each tree together, from all rows. ``fit.together`` decides for one or the other.
    """

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
        check_fit(self.fit_settings, CUML_PARAMS)

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

    def gains_from(self, gpus: int, rows: int, features: int) -> bool:
        """Yes, where each GPU holds enough rows for trees of its own."""
        if not self.fits_together(gpus, rows):
            return True
        trees = self.params.get("n_estimators") or TREES
        return bool(rows * features * trees >= TOGETHER)

    def load_fit(self, workers: int, rows: int) -> None:
        """Import cuML's module for Dask if several GPUs are to grow each tree."""
        if workers > 1 and self.fits_together(workers, rows):
            import cuml.dask.ensemble  # noqa: F401

    def fits_together(self, gpus: int, rows: int) -> bool:
        """Whether ``gpus`` GPUs with equal shares of the rows grow each tree together, over NCCL.

        They do not if each holds enough rows for trees of its own.
        """
        together: bool | None = self.fit_settings.get("together")
        if together is None:
            return rows < ENOUGH_ROWS * gpus
        return together

    def fit(self, rows: Split, seed: int, threads: int = 1) -> Fitted:
        """Grow the trees from frames in device memory, several at once."""
        import cuml.ensemble

        values, target, _ = base.stacked(rows.x, rows.y)
        model = self._make(cuml.ensemble, random_state=seed).fit(values, target)
        return _fitted_by_cuml(model, base.columns(rows.x), 1)

    def fit_distributed(
        self, client: "Client", rows: Split, seed: int, progress: Progress = None
    ) -> Fitted:
        """Grow trees on each worker from its own rows, or each tree by all from all rows."""
        sides = (rows.x, rows.y)
        places = own_places(client, rows.x)
        fewest = min(own_rows for _, own_rows in places.values())
        if self.fits_together(len(places), len(places) * fewest):
            return self._grow_together(client, rows, seed)

        try:
            return self.grow_apart(client, sides, places, seed)
        except TipcastError as problem:
            if problem.code != "D015" or self.fit_settings.get("together") is False:
                raise

        LOG.info("%-9sall GPUs grow each tree together: the rows of one GPU lack a class", "fit")
        return self._grow_together(client, rows, seed)

    def grow_apart(
        self,
        client: "Client",
        sides: Sequence[Parts],
        places: Mapping[str, tuple[Sequence[int], float]],
        seed: int,
    ) -> Fitted:
        """Grow a share of the trees on each worker, from its own rows; join them.

        ``sides`` are the parts of the features and of the targets, ``places`` those of
        ``own_places``. Raises D015 if the rows of a worker lack a class.
        """
        count = self.params.get("n_estimators") or TREES
        growers = [grower for grower in plan_growers(places, count) if grower.trees]
        workers = [grower.address for grower in growers]
        with worker_lock(client, workers):
            tasks = [self._start_growing(client, grower, sides, seed) for grower in growers]
            try:
                fitted = watched(client, workers, lambda: client.gather(tasks))
            finally:
                client.cancel(tasks)
        return join_shares(fitted, [grower.trees for grower in growers])

    def _start_growing(
        self, client: "Client", grower: Grower, sides: Sequence[Parts], seed: int
    ) -> "Future[Fitted]":
        """Start the task that grows a worker's trees."""
        share = replace(self, params={**self.params, "n_estimators": grower.trees})
        x, y = ([side[number] for number in grower.parts] for side in sides)
        own_seed = share_seed(seed, grower.first)
        return client.submit(_grow, share, x, y, own_seed, pure=False, **at_home(grower.address))

    def _grow_together(self, client: "Client", rows: Split, seed: int) -> Fitted:
        """Grow each tree by all workers together, from the rows of all."""
        import cuml.dask.ensemble

        features = column_names(client, rows.x)
        workers = workers_of(client, rows.x)

        def grow() -> Any:
            model = self._make(
                cuml.dask.ensemble, client=client, workers=workers, random_state=seed
            )
            x, y = (_collection(client, side) for side in (rows.x, rows.y))
            return model.fit(x, y).get_combined_model()

        with worker_lock(client, workers):
            model = watched(client, workers, grow)
        return _fitted_by_cuml(model, features, len(workers))

    def _make(self, module: ModuleType, **settings: Any) -> Any:
        """Return an unfitted forest of a module of cuML's."""
        if self.kind.has_classes:
            return module.RandomForestClassifier(**self.settings, **settings)
        return module.RandomForestRegressor(**self.settings, **settings)


def _collection(client: "Client", parts: Parts) -> Any:
    """Return frames or series that are futures as one Dask DataFrame or Series, which copies none
    of them.
    """
    import dask.dataframe as dd

    meta = client.submit(lambda part: part.iloc[:0], parts[0], pure=False).result()
    return dd.from_delayed(list(parts), meta=meta, verify_meta=False)


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


def own_places(client: "Client", parts: Parts) -> dict[str, tuple[Sequence[int], int]]:
    """Return worker -> numbers of the parts that it holds, and how many rows they are."""
    numbers = own_parts(holders(client, parts))
    part_rows: list[int] = client.gather(client.map(len, parts, pure=False))
    return {
        address: (held, sum(part_rows[number] for number in held))
        for address, held in numbers.items()
    }


@travelling
def _grow(estimator: CumlForest, x: Sequence[Any], y: Sequence[Any], seed: int) -> Fitted:
    """Grow a share of the trees from a worker's own parts; D015 if these lack a class."""
    estimator.need_classes(base.joined(list(y)))
    return estimator.fit(Split(list(x), list(y)), seed)


def share_seed(seed: int, first_tree: int) -> int:
    """Return the seed of a share of the trees: not that of another share, or of a nearby seed."""
    return int(np.random.SeedSequence([seed, first_tree]).generate_state(1)[0] >> 1)


def join_shares(shares: Sequence[Fitted], trees: Sequence[int]) -> Fitted:
    """Return one forest of the trees of several."""
    models = [treelite.Model.deserialize_bytes(share.content(share.scorer)) for share in shares]
    checkpoint = treelite.Model.concatenate(models).serialize_bytes()
    importance = {
        name: float(np.average([share.importance[name] for share in shares], weights=trees))
        for name in shares[0].importance
    }
    return replace(
        shares[0],
        scorer=native.NvForestScorer(checkpoint, device="cuda"),
        importance=importance,
        info={**shares[0].info, "workers": len(shares), "rows_seen": "each worker's own"},
    )
