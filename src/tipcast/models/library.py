"""Any estimator of scikit-learn or cuML, by the class that a model's yaml names: ``fit`` and
``predict`` are enough.
"""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, final

import numpy as np
from joblib import parallel_config

from tipcast.compute.base import Array, Frame, module_of, to_host
from tipcast.config.errors import TipcastError, travelling
from tipcast.models import base, native
from tipcast.models.base import Fitted, Parts, Progress, Split
from tipcast.models.estimator_type import check_type
from tipcast.models.fit import (
    column_names,
    holders,
    watched,
    watched_task,
    worker_lock,
    workers_of,
)
from tipcast.models.library_class import (
    as_sklearn,
    check_saved,
    find_class,
    fit_weighted,
    importance,
    skops_content,
    takes_sample_weight,
)
from tipcast.models.library_dask import DaskRows, fit_dask_class
from tipcast.models.library_rows import LibraryRows, chosen_by_part, rows_at, weight_and_sum
from tipcast.models.preprocessing import Preprocessing, moments

if TYPE_CHECKING:
    from distributed import Client

AUTO = "auto"
"""Value of ``fit.passes``: as many passes as a linear model needs for the number of rows."""
ROWS_TO_CONVERGE = 1_000_000
"""Rows of all passes together after which stochastic gradient descent has converged, as a rule;
see https://scikit-learn.org/stable/modules/sgd.html.
"""
FEWEST_PASSES = 2
MOST_PASSES = 50
FIT = ("rows", "standardize", "passes", "folds")
"""Keys of ``model.fit``."""


@final
@dataclass(frozen=True)
class Library(LibraryRows):
    """A library's class on the rows of one process, or the library's Dask class on those of all
    workers.

    Without a Dask class, one worker fits on a sample of the rows, at most ``fit.rows``.
    """

    def check(self) -> None:
        """Refuse parameters that the library would: it checks the values itself, on some rows."""
        cls = find_class(self.reference)
        for name in filter(None, (self.reference, self.library, self.distributed)):
            check_type(find_class(name), name, self.kind, f"model.classes.{self.kind}")

        names = set(inspect.signature(cls).parameters) - {"self", "args", "kwargs"}
        base.check_names("params", list(self.params), names - set(base.RESERVED), base.RESERVED)
        self._check_fit_settings(cls)

        if self.device == "cpu":  # the driver may have no GPU
            sparse = bool(self.categorical) and not self.dense
            make = partial(self.make, cls, 0, 1)
            model = base.try_params(make, self.params, self.kind, sparse=sparse)
            check_saved(model)

    def _check_fit_settings(self, cls: type) -> None:
        """Refuse settings of the fit that are unknown (C001), or not counts (C003)."""
        settings = self.fit_settings
        base.check_names("fit", list(settings), FIT, {})
        passes = settings.get("passes")
        counts = {"rows": settings.get("rows"), "folds": settings.get("folds")}
        if passes != AUTO:
            counts["passes"] = passes

        for key, value in counts.items():
            if value is not None:
                base.positive(f"model.fit.{key}", value)

        if passes is not None and not hasattr(cls, "partial_fit"):
            what = f"{cls.__name__} has no partial_fit, which takes rows part by part"
            fix = "leave it out, or use another class"
            raise TipcastError("C003", "model.fit.passes", what, fix)

    @property
    def takes_weights(self) -> bool:
        """Yes, if each class that may fit the model takes ``sample_weight``."""
        method = "partial_fit" if self.by_part else "fit"
        names = filter(None, (self.library, self.distributed))
        return all(takes_sample_weight(find_class(name), method) for name in names)

    def fit(self, rows: Split, seed: int, threads: int = 1) -> Fitted:
        """Fit on a sample of the rows at once; with ``fit.passes``, on all rows part by part."""
        features = base.columns(rows.x)
        sides = {name: base.parts(side) for name, side in base.sides_of(rows).items()}
        if not self.by_part:
            numbers = chosen_by_part(map(len, sides["x"]), self.fit_settings.get("rows"), seed)
            parts = zip(numbers, base.by_part(sides), strict=True)
            sample = [rows_at(chosen, **part) for chosen, part in parts]
            return self.learn_sample(sample, features, seed, threads)

        positions = self.places(features)
        steps = self.preprocessing([moments(frame, positions) for frame in sides["x"]], features)
        offset = self.offset([*map(weight_and_sum, *targets_of(sides))])
        model = self.make(find_class(self.library), seed, threads)
        passes = self.passes(steps.scaler.n_samples_seen_)
        for part in base.by_part(sides) * passes:
            model = self.learn_part(model, **part, steps=steps, offset=offset)

        return self.fitted(with_offset(model, offset), features, steps)

    def fit_distributed(
        self, client: "Client", rows: Split, seed: int, progress: Progress = None
    ) -> Fitted:
        """Fit by the library's Dask class; without one, on one worker with a sample, or, with
        ``fit.passes``, part by part.
        """
        features = column_names(client, rows.x)
        sides = base.sides_of(rows)
        if self.distributed:
            return self._fit_on_all_workers(client, sides, features, seed)
        if self.by_part:
            return self._fit_part_by_part(client, sides, features, seed)
        return self._fit_on_one_worker(client, sides, features, seed)

    def _fit_part_by_part(
        self, client: "Client", sides: Mapping[str, Parts], features: Sequence[str], seed: int
    ) -> Fitted:
        """Send the model from part to part, where the parts lie: one worker's memory may not hold
        all rows.
        """
        workers = workers_of(client, sides["x"])
        steps = self._distributed_steps(client, sides["x"], features)
        sums = client.map(weight_and_sum, *targets_of(sides), pure=False)
        offset = self.offset(client.gather(sums))
        passes = self.passes(steps.scaler.n_samples_seen_)

        settings = {"steps": steps, "offset": offset, "pure": False}
        learning = client.submit(self.make, find_class(self.library), seed, 1, pure=False)
        for part in base.by_part(sides) * passes:
            learning = client.submit(self.learn_part, learning, **part, **settings)

        model = watched_task(client, workers, learning)
        return self.fitted(with_offset(model, offset), features, steps)

    def _fit_on_one_worker(
        self, client: "Client", sides: Mapping[str, Parts], features: Sequence[str], seed: int
    ) -> Fitted:
        """Fit on a sample of the rows, on the worker with the most threads."""
        sample = self._sample(client, sides, seed)
        address, threads = max(client.nthreads().items(), key=lambda item: (item[1], item[0]))
        task = client.submit(
            self.learn_sample, sample, features, seed, threads, workers=[address], pure=False
        )
        fitted: Fitted = watched_task(client, [address], task)
        return fitted

    def _fit_on_all_workers(
        self, client: "Client", sides: Mapping[str, Parts], features: Sequence[str], seed: int
    ) -> Fitted:
        """Fit by the library's Dask class, on a sample if ``fit.rows`` asks for one."""
        if self.fit_settings.get("rows") is not None:
            sample = self._sample(client, sides, seed)
            sides = {name: client.map(attrgetter(name), sample, pure=False) for name in sides}

        homes = [min(holding) for holding in holders(client, sides["x"])]
        workers = sorted(set(homes))
        steps = self._distributed_steps(client, sides["x"], features)

        rows = DaskRows(client, sides, homes, steps)

        def fit() -> Any:
            return fit_dask_class(self, rows, seed)

        with worker_lock(client, workers):
            model = watched(client, workers, fit)
        return self.fitted(model, features, steps)

    def _sample(self, client: "Client", sides: Mapping[str, Parts], seed: int) -> Parts:
        """Return futures of a ``Split`` of each part: its rows that are in the sample."""
        sizes = client.gather(client.map(len, sides["x"], pure=False))
        numbers = chosen_by_part(sizes, self.fit_settings.get("rows"), seed)
        # One by one: in a single graph, the numbers of the rows are so large that Dask warns.
        return [
            client.submit(rows_at, chosen, **part, pure=False)
            for chosen, part in zip(numbers, base.by_part(sides), strict=True)
        ]

    def _distributed_steps(
        self, client: "Client", frames: Parts, features: Sequence[str]
    ) -> Preprocessing:
        """Return the preprocessing of the rows, learnt from the moments of their parts."""
        places = self.places(features)
        parts = client.gather(client.map(moments, frames, pure=False, categories=places))
        return self.preprocessing(parts, features)

    @property
    def by_part(self) -> bool:
        """Whether a fit goes over the rows part by part; otherwise it takes them all at once."""
        return self.kind.has_target and bool(self.fit_settings.get("passes"))

    def passes(self, rows: int) -> int:
        """Return how often a fit goes over that many rows."""
        passes = self.fit_settings["passes"]
        if passes == AUTO:
            return min(max(-(-ROWS_TO_CONVERGE // rows), FEWEST_PASSES), MOST_PASSES)
        return int(passes)

    def offset(self, targets: Sequence[tuple[float, float]]) -> float:
        """Return the mean of the targets, from each part's sum of weights and weighted sum of
        targets; 0 if the model has no intercept to add it to.

        A fit of a few passes would not get that far: on sparse rows, the steps of scikit-learn's
        intercept are a hundredth of those of other coefficients.
        """
        linear = self.reference.startswith("sklearn.linear_model.")
        is_number = self.kind.has_target and not self.kind.has_classes
        if not (is_number and linear and self.params.get("fit_intercept", True)):
            return 0.0
        weight, total = np.sum(targets, axis=0)
        return float(total / weight)

    @travelling
    def learn_part(
        self,
        model: Any,
        x: Frame,
        y: Frame,
        weight: Frame | None = None,
        *,
        steps: Preprocessing,
        offset: float,
    ) -> Any:
        """Return a copy of a model that has learnt from one more part, whose targets are reduced by
        ``offset``.
        """
        if not len(x):
            return model

        z = to_host(self.values([x], steps)).astype(np.float64, copy=False)
        target = to_host(y.values)
        if offset:
            target = target.astype(np.float64) - offset

        settings: dict[str, Any] = {}
        if self.kind.has_classes:
            settings["classes"] = np.arange(self.classes or 2)
        if weight is not None:
            settings["sample_weight"] = to_host(weight.values)

        model = deepcopy(model)  # Dask may run the task again
        return model.partial_fit(z, target, **settings)

    @travelling
    def learn_sample(
        self, sample: Sequence[Split], features: Sequence[str], seed: int, threads: int
    ) -> Fitted:
        """Fit on rows of this process, part by part."""
        frames = [part.x for part in sample]
        xp = module_of(frames[0].values)
        positions = self.places(features)
        steps = self.preprocessing([moments(frame, positions) for frame in frames], features)

        z = self.values(frames, steps)
        y = None
        if sample[0].y is not None:
            y = self.targets([part.y for part in sample])
            self.need_classes(y)
        weight = None
        if sample[0].weight is not None:
            weight = base.joined([part.weight for part in sample])

        model = self._unfitted(seed, threads)
        if "folds" in self.fit_settings:  # scikit-learn's folds are in host memory
            z = to_host(z)
            y = to_host(y)
            weight = None if weight is None else to_host(weight)
        self._fit_rows(model, z, y, weight)

        if not hasattr(model, "predict"):
            model = self.nearest_cluster_model(to_host(z), to_host(xp.asarray(model.labels_)))
        elif xp is not np and hasattr(model, "kneighbors"):
            # The model is these rows. Brute force, which scikit-learn would use for a cuML model,
            # rounds by the number of threads, which can change which of two rows is nearer. A tree
            # does not.
            model = self.make(find_class(self.reference), seed, threads)
            model = model.fit(to_host(z), to_host(y))

        return self.fitted(model, features, steps)

    def _unfitted(self, seed: int, threads: int) -> Any:
        """Return an object of the class, inside scikit-learn's calibration if ``fit.folds`` asks
        for it.
        """
        cls = find_class(self.library)
        params: dict[str, Any] = {}
        if "copy_X" in inspect.signature(cls).parameters:
            params["copy_X"] = False  # no other estimator uses these rows

        model = self.make(cls, seed, threads, **params)
        if "folds" not in self.fit_settings:
            return model

        from sklearn.calibration import CalibratedClassifierCV

        if "output_type" in model.get_params():
            # For cuML's estimators: scikit-learn's folds are in host memory.
            model.set_params(output_type="numpy")
        return CalibratedClassifierCV(model, cv=self.fit_settings["folds"], ensemble=False)

    def _fit_rows(self, model: Any, z: Array, y: Array | None, weight: Array | None) -> None:
        """Fit a model in place; C003 for rows that it refuses."""
        try:
            # Ignored are warnings such as too few iterations. A worker may not start processes of
            # joblib's.
            with warnings.catch_warnings(action="ignore"), parallel_config("threading"):
                fit_weighted(model, z, y, weight)
                if hasattr(model, "predict"):
                    model.predict(z[:1])  # more neighbours than rows fail only here
        except ValueError as problem:
            what = f"rejects the training rows: {problem}"
            fix = "use a model that supports such rows, or other parameters"
            raise TipcastError("C003", self.library, what, fix) from problem

    def nearest_cluster_model(self, z: Array, labels: Array) -> Any:
        """Return a model that gives any row the cluster of the nearest of (n, features) rows, which
        have (n,) labels.
        """
        from sklearn.neighbors import NearestNeighbors

        if labels.min() < 0:
            what = f"leaves {(labels < 0).mean():.1%} of the training rows in no cluster"
            fix = "use a model that assigns every row to a cluster"
            raise TipcastError("C003", self.library, what, fix)

        neighbors = NearestNeighbors(n_neighbors=1).fit(z.astype(np.float64))
        neighbors.labels_ = labels.astype(np.int64)
        return neighbors

    def fitted(self, model: Any, features: Sequence[str], steps: Preprocessing) -> Fitted:
        """Return the fit's result with scikit-learn's object, whatever fitted it; D015 if a class
        has no row.
        """
        model = as_sklearn(model)
        # A fit on frames keeps names; scoring passes arrays without names.
        vars(model).pop("feature_names_in_", None)
        if hasattr(model, "_sample_weight"):  # a weight for every row, which scoring does not need
            model._sample_weight = None
        if "n_jobs" in model.get_params():
            model.set_params(n_jobs=1)  # parts are scored side by side

        if hasattr(model, "classes_"):
            self.need_classes(np.arange(len(model.classes_)))

        info: dict[str, str | float] = {"device": self.device, "rows": steps.scaler.n_samples_seen_}
        iterations = getattr(model, "n_iter_", None)
        if iterations is not None and np.ndim(iterations) == 0:
            info["iterations"] = int(iterations)

        weights, kind = importance(model, steps)
        shares: dict[str, float] = {}
        if weights is not None:
            shares = base.shares(features, weights)

        return Fitted(
            scorer=native.SklearnScorer(steps.pipeline(model)),
            importance=shares,
            importance_kind=kind,
            info=info,
            format="skops",
            content=skops_content,
        )


def targets_of(sides: Mapping[str, Parts]) -> list[Parts]:
    """Return the parts of the targets and, if any, those of their weights."""
    return [sides[name] for name in ("y", "weight") if name in sides]


def with_offset(model: Any, offset: float) -> Any:
    """Return a linear model whose predictions are higher by an offset."""
    if offset:
        model = copy(model)
        model.intercept_ = model.intercept_ + offset
    return model
