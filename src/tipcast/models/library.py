"""Any estimator of scikit-learn or cuML, by the class that a model's yaml names: ``fit`` and
``predict`` are enough.
"""

import importlib
import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, final

import numpy as np
from joblib import parallel_config
from sklearn.utils import InputTags, get_tags

from tipcast.compute.base import Array, Frame, module_of, to_host
from tipcast.config.errors import TipcastError, travelling
from tipcast.models import base, native
from tipcast.models.base import Estimator, Fitted, Progress, Split
from tipcast.models.estimator_type import check_type
from tipcast.models.fit import holders, parts_of, watched, worker_lock, workers_of
from tipcast.models.preprocessing import Preprocessing, moments

TREES = ("sklearn.ensemble.", "sklearn.tree.", "cuml.ensemble.")
"""Beginnings of the names of classes that grow trees."""
ALLOWED = ("sklearn.", "cuml.", "dask_ml.")
"""Beginnings of class names that an override may give."""
BOOSTING = ("xgboost.", "lightgbm.", "catboost.")
"""Of classes whose models only a pickle would hold."""
MOST_DENSE_COLUMNS = 4_096
"""Columns of 0 and 1 that a library gets of categories where it takes no sparse matrix: of a
million rows 33 GB.
"""
AUTO = "auto"
"""Of ``fit.passes``: as many passes as a linear model needs, by the number of the rows."""
ROWS_TO_CONVERGE = 1_000_000
"""Rows of all passes together after which stochastic gradient descent has converged, as a rule;
see https://scikit-learn.org/stable/modules/sgd.html.
"""
FEWEST_PASSES = 2
MOST_PASSES = 50
FIT = ("rows", "standardize", "passes", "folds")
DASK_ML = {"LinearRegression": {"solver": "newton", "max_iter": 10}}
"""Class of Dask-ML -> parameters that scikit-learn's of the name has none of: here the solver
without a penalty.
"""
TRIES = 5
"""Fits by a Dask class of cuML's. Beside other processes on a GPU least squares of 26.10 get wrong
coefficients now and then, from rows that stay as they are (a race like that of
https://github.com/rapidsai/cuml/pull/4539)."""


def chosen_by_part(rows: Iterable[int], most: int | None, seed: int) -> list[Array | slice]:
    """Return the row numbers to take within each part, from the parts' sizes: all, or ``most``
    drawn uniformly.
    """
    ends = np.cumsum(list(rows))
    if most is None or ends[-1] <= most:
        return [slice(None)] * len(ends)  # no part is copied
    numbers = np.sort(np.random.default_rng(seed).choice(ends[-1], most, replace=False))
    own = np.split(numbers, np.searchsorted(numbers, ends[:-1]))
    return [at - first for at, first in zip(own, [0, *ends[:-1]], strict=True)]


def rows_at(numbers: Array | slice, *sides: Frame) -> list[Frame]:
    """Return some rows of a part, and of their targets, where they are; neither these nor the part
    keep an index.
    """
    return [side.reset_index(drop=True).iloc[numbers].reset_index(drop=True) for side in sides]


def rows_and_sum(target: Frame) -> tuple[int, float]:
    """Return a part's number of rows, and the sum of their targets."""
    values = target.values
    return len(values), float(values.sum(dtype=np.float64))


def moved(model: Any, offset: float) -> Any:
    """Return a linear model whose predictions are higher by an offset."""
    if offset:
        model = copy(model)
        model.intercept_ = model.intercept_ + offset
    return model


def named(name: str, where: str = "model.classes") -> Any:
    """Return the class of a dotted name; C006 one of another library, C002 one that is not there or
    has no ``fit``.
    """
    if name.startswith(BOOSTING):
        what = f"{name} cannot be saved without a pickle, which tipcast does not write"
        raise TipcastError("C006", where, what, "use model=xgboost or model=hist_gradient_boosting")

    if not name.startswith(ALLOWED):
        raise TipcastError(
            "C006",
            where,
            f"{name} is outside {', '.join(ALLOWED)}",
            "name a class of these libraries",
        )

    module, _, attribute = name.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        fix = (
            "name one that is installed; pip install '.[dask-ml]' in tipcast's checkout brings "
            "Dask-ML"
        )
        raise TipcastError("C002", where, f"no class {name}: {problem}", fix) from problem

    # of clusters without a rule for other rows
    predicts = hasattr(cls, "predict") or hasattr(cls, "fit_predict")
    if not inspect.isclass(cls) or not hasattr(cls, "fit") or not predicts:
        raise TipcastError(
            "C002", where, f"{name} is not a class with fit and predict", "name an estimator"
        )

    return cls


@final
@dataclass(frozen=True)
class Library(Estimator):
    """A library's class on the rows of one process; its Dask class, where it has one, on those of
    all workers.

    Where it has none one worker fits on a sample of them, at most ``fit.rows``.
    """

    library: str = ""
    """Dotted name of the class that fits."""
    distributed: str = ""
    """Of the library's own Dask class, as cuML and Dask-ML have them."""
    reference: str = ""
    """Of the class whose parameters count: a GPU's class takes them under the same names."""
    on_gpu: bool = False
    """Whether the model has a class for GPUs too: both are given the same features."""

    def check(self) -> None:
        """Refuse parameters that the library would: it judges the values itself, on some rows."""
        cls = named(self.reference)
        for name in filter(None, (self.reference, self.library, self.distributed)):
            check_type(named(name), name, self.kind, f"model.classes.{self.kind}")

        valid = {
            name
            for name in inspect.signature(cls).parameters
            if name not in ("self", "args", "kwargs")
        }
        base.check_names("params", list(self.params), valid - set(base.RESERVED), base.RESERVED)
        base.check_names("fit", list(self.training), FIT, {})
        passes = self.training.get("passes")
        counts = {"rows": self.training.get("rows"), "folds": self.training.get("folds")}
        if passes != AUTO:
            counts["passes"] = passes
        for key, value in counts.items():
            if value is not None:
                base.positive(f"model.fit.{key}", value)

        if passes is not None and not hasattr(cls, "partial_fit"):
            what = f"{cls.__name__} has no partial_fit, which takes rows part by part"
            raise TipcastError(
                "C003", "model.fit.passes", what, "leave it out, or name another class"
            )

        if self.device == "cpu":  # the driver may have no GPU
            sparse = bool(self.categorical) and not self.dense
            model = base.judge(partial(self.make, cls, 0, 1), self.params, self.kind, sparse=sparse)
            check_saved(model)

    def make(self, cls: Any, seed: int, threads: int, **more: Any) -> Any:
        """Return an unfitted object of a class with the parameters that it knows."""
        accepted = set(inspect.signature(cls).parameters)
        if "kwargs" in accepted:  # cuML's Dask classes pass on what they do not name
            accepted |= set(inspect.signature(named(self.reference)).parameters) - {"n_jobs"}
        own = {
            name: value
            for name, value in {"random_state": seed, "n_jobs": threads}.items()
            if name in accepted
        }
        return cls(**{**own, **self.params, **more})

    @property
    def takes_categories(self) -> bool:
        """Yes, each of their values as a column."""
        return True

    @property
    def takes_missing(self) -> bool:
        """Where scikit-learn says that the class does, and it alone fits the model."""
        if self.on_gpu or self.training.get("standardize"):
            return False
        return bool(self._tags.allow_nan)

    @property
    def one_hot(self) -> bool:
        """All but trees, which can split codes as often as it takes."""
        return not self.reference.startswith(TREES)

    @property
    def dense(self) -> bool:
        """Whether the class takes no sparse matrix, or is better without: neighbours are found in
        trees.
        """
        cls = named(self.reference)
        whole = self.device == "cpu" and not self.distributed and hasattr(cls, "predict")
        return not whole or hasattr(cls, "kneighbors") or not self._tags.sparse

    def check_width(self, values: Mapping[str, int]) -> None:
        """Refuse (C003) categories of more values than there can be dense columns; sparse ones may
        be any number.
        """
        columns = sum(values.values())
        if not self.dense or columns <= MOST_DENSE_COLUMNS:
            return

        widest = max(values, key=lambda name: values[name])
        what = (
            f"{columns:,} values of {', '.join(values)} would each be a dense column of 0 and 1, "
            f"at most {MOST_DENSE_COLUMNS:,} are possible with this model"
        )
        fix = (
            f"leave {widest} out of task.features and task.categorical (of a table by "
            f"data.types={{{widest}: none}}), or use model=random_forest, which takes codes"
        )
        raise TipcastError("C003", self.library, what, fix)

    @property
    def _tags(self) -> Any:
        """What scikit-learn says of the rows that the class takes."""
        try:
            return get_tags(self.make(named(self.reference), 0, 1)).input_tags
        # a class that only looks like scikit-learn's, bad parameters
        except (AttributeError, TypeError, ValueError):
            return InputTags(sparse=False)

    @property
    def by_part(self) -> bool:
        """Whether a fit goes over the rows part by part; otherwise it takes them all at once."""
        return self.kind.has_target and bool(self.training.get("passes"))

    def passes(self, rows: int) -> int:
        """Return how often a fit goes over so many rows."""
        passes = self.training["passes"]
        if passes == AUTO:
            return min(max(-(-ROWS_TO_CONVERGE // rows), FEWEST_PASSES), MOST_PASSES)
        return int(passes)

    def offset(self, targets: Sequence[tuple[int, float]]) -> float:
        """Return the mean of the targets, by the rows and the sum of each part; 0 where the model
        has no intercept for it.

        A fit on a few passes would not get that far: of sparse rows scikit-learn's intercept takes
        steps a hundredth as large as other coefficients.
        """
        linear = self.reference.startswith("sklearn.linear_model.")
        is_number = self.kind.has_target and not self.kind.has_classes
        if not (is_number and linear and self.params.get("fit_intercept", True)):
            return 0.0
        rows, total = np.sum(targets, axis=0)
        return float(total / rows)

    @travelling
    def learnt(self, model: Any, x: Frame, y: Frame, steps: Preprocessing, offset: float) -> Any:
        """Return a model that has learnt from one more part, of whose targets ``offset`` is taken
        off.
        """
        if not len(x):
            return model

        z = to_host(self.values([x], steps)).astype(np.float64, copy=False)
        target = to_host(y.values)
        if offset:
            target = target.astype(np.float64) - offset
        classes = {"classes": np.arange(self.classes or 2)} if self.kind.has_classes else {}
        model = deepcopy(model)  # a part may be asked for again
        return model.partial_fit(z, target, **classes)

    @property
    def precision(self) -> Any:
        """Type of the rows that the library gets: float32 sums of 10M squares are off by
        percents.
        """
        return np.float64 if self.training.get("standardize") or self.categorical else np.float32

    def places(self, features: Sequence[str]) -> list[int]:
        """Return where the categories are among the features."""
        return [features.index(name) for name in self.categorical]

    def preprocessing(self, parts: Sequence[Any], features: Sequence[str]) -> Preprocessing:
        """Return what is done to rows before the library gets them, from the ``moments`` of their
        parts.
        """
        standardize = bool(self.training.get("standardize"))
        dense = bool(self.categorical) and self.dense
        steps = Preprocessing.of_parts(
            parts, self.places(features), standardize=standardize, dense=dense
        )
        self.check_width(dict(zip(self.categorical, steps.widths, strict=True)))
        return steps

    def values(self, frames: list[Frame], steps: Preprocessing) -> Array:
        """Return frames as (n, columns) values as the library takes them; empties their list."""
        order = "F" if self.kind.has_target else "C"
        return steps.transform(base.joined(frames, order, self.precision), order)

    def targets(self, parts: list[Frame]) -> Array:
        """Return parts of the targets as (n,) classes or values of the rows' type; empties their
        list.
        """
        y = base.joined(parts)
        return y.astype(self.precision) if y.dtype.kind == "f" else y

    @travelling
    def learn(
        self, taken: Sequence[Sequence[Frame]], features: Sequence[str], seed: int, threads: int
    ) -> Fitted:
        """Fit on rows of this process: frames of features and, if something is predicted, of
        targets.
        """
        frames, *targets = map(list, zip(*taken, strict=True))
        xp = module_of(frames[0].values)
        at = self.places(features)
        steps = self.preprocessing([moments(frame, at) for frame in frames], features)
        z = self.values(frames, steps)
        y = self.targets(targets[0]) if targets else None
        if y is not None:
            self.need_classes(y)
        cls = named(self.library)
        # z is nobody else's
        spare = {"copy_X": False} if "copy_X" in inspect.signature(cls).parameters else {}
        model = self.make(cls, seed, threads, **spare)
        if "folds" in self.training:
            from sklearn.calibration import CalibratedClassifierCV

            if "output_type" in model.get_params():
                # of cuML: scikit-learn's folds are of the host
                model.set_params(output_type="numpy")
            z = to_host(z)
            y = to_host(y)
            model = CalibratedClassifierCV(model, cv=self.training["folds"], ensemble=False)
        try:
            # Of warnings as that iterations did not suffice; processes of joblib's a worker may not
            # start.
            with warnings.catch_warnings(action="ignore"), parallel_config("threading"):
                model.fit(z) if y is None else model.fit(z, y)
                if hasattr(model, "predict"):
                    model.predict(z[:1])  # more neighbours than rows show here alone
        except ValueError as problem:
            fix = "choose a model that takes such rows, or other parameters"
            raise TipcastError(
                "C003", self.library, f"refuses the training rows: {problem}", fix
            ) from problem
        if not hasattr(model, "predict"):
            model = self.nearest(to_host(z), to_host(xp.asarray(model.labels_)))
        elif xp is not np and hasattr(model, "kneighbors"):
            # The model is these rows. Scikit-learn's search of a cuML model is by brute force,
            # whose rounding, and with it which of two rows is nearer, goes by the number of
            # threads; in a tree it does not.
            model = self.make(named(self.reference), seed, threads).fit(to_host(z), to_host(y))
        return self.fitted(model, features, steps)

    def nearest(self, z: Array, labels: Array) -> Any:
        """Return what gives other rows the cluster of the nearest of (n, features) rows, by their
        (n,) labels.
        """
        from sklearn.neighbors import NearestNeighbors

        if labels.min() < 0:
            what = f"leaves {(labels < 0).mean():.1%} of the training rows in no cluster"
            raise TipcastError(
                "C003", self.library, what, "choose a model that has a cluster for each"
            )
        neighbors = NearestNeighbors(n_neighbors=1).fit(z.astype(np.float64))
        neighbors.labels_ = labels.astype(np.int64)
        return neighbors

    def fit(self, rows: Split, seed: int, threads: int = 1) -> Fitted:
        """Fit on a sample of the rows at once, or with ``fit.passes`` on all of them part by
        part.
        """
        features = base.columns(rows.x)
        sides = [base.parts(side) for side in (rows.x, rows.y) if side is not None]
        if not self.by_part:
            own = chosen_by_part(map(len, sides[0]), self.training.get("rows"), seed)
            taken = [rows_at(*part) for part in zip(own, *sides, strict=True)]
            return self.learn(taken, features, seed, threads)

        at = self.places(features)
        steps = self.preprocessing([moments(frame, at) for frame in sides[0]], features)
        offset = self.offset([rows_and_sum(target) for target in sides[1]])
        model = self.make(named(self.library), seed, threads)
        passes = self.passes(steps.scaler.n_samples_seen_)
        for frame, target in [*zip(*sides, strict=True)] * passes:
            model = self.learnt(model, frame, target, steps, offset)

        return self.fitted(moved(model, offset), features, steps)

    def fit_distributed(
        self, client: Any, rows: Split, seed: int, progress: Progress = None
    ) -> Fitted:
        """Fit by the library's Dask class; without one on a sample on one worker, or with
        ``fit.passes`` part by part.

        There the model goes from part to part, where these lie: rows may be more than a worker's
        memory holds.
        """
        features = base.columns(rows.x)
        run = partial(client.map, pure=False)
        at = self.places(features)
        sides = [parts_of(client, side) for side in (rows.x, rows.y) if side is not None]

        if self.by_part and not self.distributed:
            workers = workers_of(client, sides[0])
            steps = self.preprocessing(
                client.gather(run(moments, sides[0], categories=at)), features
            )
            offset = self.offset(client.gather(run(rows_and_sum, sides[1])))
            given = {"steps": steps, "offset": offset, "pure": False}
            learning = client.submit(self.make, named(self.library), seed, 1, pure=False)
            passes = self.passes(steps.scaler.n_samples_seen_)
            for frame, target in [*zip(*sides, strict=True)] * passes:
                learning = client.submit(self.learnt, learning, frame, target, **given)
            model = watched(client, workers, learning.result)
            return self.fitted(moved(model, offset), features, steps)

        most = self.training.get("rows")
        if most is not None or not self.distributed:
            own = chosen_by_part(client.gather(run(len, sides[0])), most, seed)
            # One by one: as one graph the numbers of the rows are so large that Dask warns of them.
            taken = [
                client.submit(rows_at, *part, pure=False) for part in zip(own, *sides, strict=True)
            ]

        if not self.distributed:
            address, threads = max(client.nthreads().items(), key=lambda item: (item[1], item[0]))
            task = client.submit(
                self.learn, taken, features, seed, threads, workers=[address], pure=False
            )
            fitted: Fitted = watched(client, [address], task.result)
            return fitted

        if most is not None:
            sides = [run(itemgetter(at), taken) for at in range(len(sides))]

        homes = [min(holding) for holding in holders(client, sides[0])]
        workers = sorted(set(homes))
        steps = self.preprocessing(client.gather(run(moments, sides[0], categories=at)), features)

        with worker_lock(client, workers):
            model = watched(
                client, workers, lambda: self._together(client, sides, homes, seed, steps)
            )

        return self.fitted(model, features, steps)

    def _together(
        self, client: Any, sides: Sequence[Any], homes: list[str], seed: int, steps: Preprocessing
    ) -> Any:
        """Fit by the library's Dask class on futures of frames and of their targets, which lie on
        these workers.
        """
        import dask.array as da  # a third of a second that a fit on one worker does without

        cls = named(self.distributed)
        by_part = cls.__module__.startswith("dask_ml.")
        # One array a worker: of each part that is none cuML's classes keep a copy in its place.
        marks: Sequence[Any] = range(len(homes)) if by_part else homes
        groups = [
            [at for at, mark in enumerate(marks) if mark == one] for one in sorted(set(marks))
        ]
        ready = (partial(self.values, steps=steps), base.joined if by_part else self.targets)
        submit = partial(client.submit, pure=False)

        def array(side: Sequence[Any], make: Any) -> Any:
            pieces = [
                submit(make, [side[at] for at in group], workers=[homes[group[0]]])
                for group in groups
            ]
            like = client.gather(
                client.map(lambda piece: (piece.shape, piece.dtype, piece[:0]), pieces, pure=False)
            )
            return da.concatenate(
                [da.from_delayed(piece, *of) for piece, of in zip(pieces, like, strict=True)]
            )

        def arrays() -> list[Any]:
            return [array(side, make) for side, make in zip(sides, ready, strict=False)]

        if by_part:
            # Made of futures themselves Dask-ML's tasks would lose what they need.
            kept = [
                own.astype(np.float64 if self.kind.has_target else np.float32).persist()
                for own in arrays()
            ]
            with warnings.catch_warnings(action="ignore"):
                return self.as_scikit_learn(
                    self.make(cls, seed, 1, **DASK_ML.get(cls.__name__, {})).fit(*kept)
                )
        for _ in range(TRIES):  # of new arrays: cuML moves the mean of their columns to 0, and back
            model = _of_scikit_learn(
                self.make(cls, seed, 1, client=client).fit(*arrays()).get_combined_model()
            )
            if (
                self.kind.has_classes
                or not hasattr(model, "coef_")
                or self.explains(client, model, sides, steps)
            ):
                return model
        what = f"gives coefficients that explain nothing, {TRIES} times"
        fix = "use cluster.n_workers=1, or model=ridge"
        raise TipcastError("C003", self.distributed, what, fix)

    def explains(
        self, client: Any, model: Any, sides: Sequence[Sequence[Any]], steps: Preprocessing
    ) -> bool:
        """Whether a linear model's training rows are no further from its predictions than from a
        constant.
        """
        sums = client.gather(client.map(self.left, *sides, model=model, steps=steps, pure=False))
        rows, total, squares, left = np.sum(sums, axis=0)
        spread = squares - total**2 / rows if self.params.get("fit_intercept", True) else squares
        return bool(left <= spread + 1e-6 * squares)

    def left(self, x: Frame, y: Frame, model: Any, steps: Preprocessing) -> list[float]:
        """Return a part's rows, its targets' sum and sum of squares, and the sum of squares that
        predictions leave.
        """
        z = self.values([x], steps).astype(np.float64, copy=False)
        target = y.values.astype(np.float64)
        off = target - z @ module_of(z).asarray(model.coef_) - model.intercept_
        return [float(len(target)), float(target.sum()), float(target @ target), float(off @ off)]

    def as_scikit_learn(self, model: Any) -> Any:
        """Return scikit-learn's estimator with the centres or the coefficients that Dask-ML's has
        found.
        """
        reference = named(self.reference)
        if not self.kind.has_target:
            centres = np.asarray(model.cluster_centers_, dtype=np.float64)
            return reference(len(centres), init=centres, n_init=1, max_iter=1).fit(centres)
        own = reference(**self.params)
        own.coef_ = np.asarray(model.coef_, dtype=np.float64)
        own.n_features_in_ = len(model.coef_)
        own.intercept_ = float(model.intercept_) if self.params.get("fit_intercept", True) else 0.0
        return own

    def fitted(self, model: Any, features: Sequence[str], steps: Preprocessing) -> Fitted:
        """Return scikit-learn's object, whatever fitted it; D015 a class that no row has."""
        model = _of_scikit_learn(model)
        # of a fit on frames; arrays without names are scored
        vars(model).pop("feature_names_in_", None)
        if "n_jobs" in model.get_params():
            model.set_params(n_jobs=1)  # parts are scored side by side

        if hasattr(model, "classes_"):
            self.need_classes(np.arange(len(model.classes_)))

        info: dict[str, str | float] = {"device": self.device, "rows": steps.scaler.n_samples_seen_}
        iterations = getattr(model, "n_iter_", None)
        if iterations is not None and np.ndim(iterations) == 0:
            info["iterations"] = int(iterations)

        weights, kind = _importance(model, steps)
        return Fitted(
            scorer=native.SklearnScorer(steps.pipeline(model)),
            importance={} if weights is None else base.shares(features, weights),
            importance_kind=kind,
            info=info,
            format="skops",
            content=_content,
        )


def _of_scikit_learn(model: Any) -> Any:
    """Return a model of cuML's as scikit-learn's, with float64 arrays: some take no float32 beside
    float64 rows.
    """
    for calibrated in getattr(model, "calibrated_classifiers_", ()):
        model.estimator = calibrated.estimator = _of_scikit_learn(calibrated.estimator)
    if not hasattr(model, "as_sklearn"):
        return model
    model = model.as_sklearn()
    for name, values in vars(model).items():
        if isinstance(values, np.ndarray) and values.dtype == np.float32:
            setattr(model, name, values.astype(np.float64))
    return model


def _importance(model: Any, steps: Preprocessing) -> tuple[Array | None, str]:
    """Return the features' weights as the library tells them, None where it does not."""
    if hasattr(model, "feature_importances_") and steps.encoder is None:
        return np.asarray(
            model.feature_importances_, dtype=np.float64
        ), "the library's feature_importances_"
    if hasattr(model, "coef_"):
        coefficients = model.coef_.toarray() if hasattr(model.coef_, "toarray") else model.coef_
        return steps.spread(np.atleast_2d(coefficients)), "standardised coefficients"
    return None, ""


def check_saved(model: Any) -> None:
    """Refuse (C003) a fitted model whose file nothing would load, before it is fitted on all
    rows.
    """
    _content(native.SklearnScorer(model))


def _content(scorer: native.SklearnScorer) -> bytes:
    import skops.io

    content: bytes = skops.io.dumps(scorer.model)
    unknown = set(skops.io.get_untrusted_types(data=content)) - set(native.TRUSTED)
    if unknown:
        what = f"its file would hold {', '.join(sorted(unknown))}, which nothing loads"
        raise TipcastError("C003", "model.classes", what, "use another class")
    return content
