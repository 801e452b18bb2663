"""Load saved models and score with them; this file travels inside saved models and imports nothing
of tipcast.
"""

import atexit
import ctypes
import functools
import importlib.util
import json
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

MISSING = "missing"  # booster attribute: the value that means missing; absent: NaN does
ROWS_OF_THREAD = 500  # fewer rows cost less than another thread
DENSE_VALUES = 1 << 24  # rows x columns of 0 and 1 that are made at a time: 128 MB of float64
BOOSTERS: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _free() -> None:
    """Free boosters that are alive as Python ends: later XGBoost's module may have gone, which
    prints a traceback.
    """
    for booster in list(BOOSTERS):
        booster.__del__()


def booster_names(features: list[str]) -> list[str]:
    """Return features' names as XGBoost takes them: without [ ] and <, which it refuses, and no two
    alike.
    """
    # A set, for quick lookup: there may be thousands of features.
    as_given = set(features)
    names = dict[str, None]()
    for feature in features:
        name = feature.replace("[", "(").replace("]", ")").replace("<", "_lt_")
        while name in names or (name != feature and name in as_given):
            name += "_"
        names[name] = None
    return list(names)


def shared_out(
    function: Callable[[Any], Any], rows: Any, threads: int, least: int, most: int | None = None
) -> Any:
    """Apply a function to slices of rows on threads; return all that it returned.

    A slice has at least so many rows, but never more than ``most``.
    """
    step = max(-(-len(rows) // threads), least)
    step = step if most is None else min(step, most)
    if len(rows) <= step:
        return function(rows)

    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(
            [*pool.map(function, [rows[at : at + step] for at in range(0, len(rows), step)])]
        )


def rows_at_once(columns: int) -> int:
    """Return how many dense rows of so many columns are made at a time."""
    return max(DENSE_VALUES // max(columns, 1), 1)


def columns_of(encoder: Any) -> int:
    """Return the columns that a fitted ColumnTransformer makes: one for each value of a category,
    and the other features.
    """
    categories = encoder.named_transformers_["categories"].categories_
    numbers = int(encoder.n_features_in_) - len(categories)
    return sum(len(values) for values in categories) + numbers


class OneHotRows:
    """Rows with a column of 0 and 1 for each value of a category: dense where a slice is taken.

    Of many values all rows at once would be more than the memory holds.
    """

    def __init__(self, rows: Any, encoder: Any) -> None:
        self._rows = rows
        self._encoder = encoder
        self.shape = (len(rows), columns_of(encoder))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, slice_of_rows: slice) -> Any:
        """Return (rows, columns) on the device of the rows."""
        rows = self._rows[slice_of_rows]
        on_host = isinstance(rows, np.ndarray)
        columns = self._encoder.transform(rows if on_host else rows.get())
        dense = columns.toarray() if hasattr(columns, "toarray") else columns
        if on_host:
            return dense
        import cupy

        return cupy.asarray(dense)


class Scorer:
    """Scores frames or arrays of features by a model."""

    device = "cpu"

    def score(self, x: Any) -> Any:
        """Score (n, features) rows.

        Returns P(1) or values, (n,); P of each of several classes, (n, classes); or label and
        distance, (n, 2).
        """
        return self._apply(self._score, x)

    def judged(self, x: Any) -> Any:
        """Return (n, features) rows as clusters of them are judged: where codes have no order, a
        column for each.
        """
        return x

    def _apply(self, function: Callable[[Any], Any], x: Any) -> Any:
        """Call a function of an array with rows where the device can read them; libraries refuse to
        score no rows.
        """
        values = getattr(x, "values", x)
        if self.device != "cpu" and isinstance(values, np.ndarray):
            import cupy

            values = cupy.asarray(values)
        if len(values):
            return function(values)
        module = sys.modules[type(values).__module__.partition(".")[0]]  # numpy or cupy
        return function(module.zeros((1, values.shape[1]), dtype=np.float32))[:0]

    def _score(self, values: Any) -> Any:
        raise NotImplementedError


class SavedScorer(Scorer):
    """Scores by the content of a model's file, which alone travels: the library's object is made
    where it scores.
    """

    def __init__(self, content: bytes, threads: int = 1, device: str = "cpu") -> None:
        self.content = content
        self.threads = threads
        self.device = device

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.content, self.threads, self.device)


class XGBoostScorer(SavedScorer):
    """Scores by an XGBoost booster, on the processor or on a GPU: float32."""

    @functools.cached_property
    def booster(self) -> Any:
        """The booster, set up for its device."""
        import xgboost

        booster = xgboost.Booster(model_file=bytearray(self.content))
        booster.set_param({"nthread": self.threads, "device": self.device})
        BOOSTERS.add(booster)
        return booster

    def contributions(self, x: Any) -> Any:
        """Return what each feature, and last the bias, adds to the margin of each row, before the
        link function.

        (n, features + 1) float32 on the host; of several classes (n, classes, features + 1). By
        TreeSHAP (Lundberg et al. 2020, https://doi.org/10.1038/s42256-019-0138-9).
        """
        return self._apply(self._contributions, x)

    def _score(self, values: Any) -> Any:
        missing = float(self.booster.attr(MISSING) or "nan")
        return self.booster.inplace_predict(values, missing=missing, validate_features=False)

    def _contributions(self, values: Any) -> Any:
        import xgboost

        how = {
            "missing": float(self.booster.attr(MISSING) or "nan"),
            "feature_types": self.booster.feature_types,
        }
        matrix = xgboost.DMatrix(values, nthread=self.threads, enable_categorical=True, **how)
        return self.booster.predict(matrix, pred_contribs=True, validate_features=False)


class NvForestScorer(SavedScorer):
    """Scores a treelite checkpoint by nvForest on a GPU: float32."""

    @functools.cached_property
    def model(self) -> Any:
        """nvForest's model."""
        import nvforest
        import treelite

        with warnings.catch_warnings(action="ignore", category=UserWarning):  # as in ``load``
            model = treelite.Model.deserialize_bytes(self.content)
            return nvforest.load_from_treelite_model(model, device="gpu")

    def _score(self, values: Any) -> Any:
        if not hasattr(self.model, "predict_proba"):
            return self.model.predict(values).reshape(-1)
        # The mean of many ones may round to more than 1.
        return _second_of_two(self.model.predict_proba(values).clip(0, 1))


class SklearnScorer(Scorer):
    """Scores by an estimator of scikit-learn's, or a pipeline of them, on the processor: float64.

    ``dtype`` is what the model computes with: a forest converts any other than float32 by a copy.
    ``threads`` score parts of the rows side by side. A forest's own threads add up its trees in any
    order, which moves the last digit.
    """

    def __init__(self, model: Any, dtype: Any = np.float64, threads: int = 1) -> None:
        self.model = model
        self.dtype = dtype
        self.threads = threads

    def judged(self, x: Any) -> Any:
        """Return rows with a column of 0 and 1 for each value of a category, first; frames as they
        are without one.
        """
        encoder = self._encoder
        return x if encoder is None else OneHotRows(getattr(x, "values", x), encoder)

    @property
    def _encoder(self) -> Any:
        """What gives each value of a category a column; None: the model has no categories."""
        return getattr(self.model, "named_steps", {}).get("encoder")

    @property
    def _most_rows(self) -> int | None:
        """Rows that are scored at a time; None: as many as there are."""
        encoder = self._encoder
        if encoder is None or encoder.sparse_output_:
            return None
        return rows_at_once(columns_of(encoder))

    def _score(self, values: Any) -> Any:
        if isinstance(values, np.ndarray):
            return self._score_slices(values)
        import cupy

        # The scores go back to the GPU, where the rows are.
        return cupy.asarray(self._score_slices(values.get()))

    def _score_slices(self, values: Any) -> Any:
        rows = values.astype(self.dtype, copy=False)
        return shared_out(self._on_host, rows, self.threads, ROWS_OF_THREAD, self._most_rows)

    def _on_host(self, values: Any) -> Any:
        from scipy.special import expit, softmax
        from sklearn.base import is_classifier, is_regressor

        if is_regressor(self.model):
            return np.asarray(self.model.predict(values), dtype=np.float64).reshape(-1)
        if is_classifier(self.model):
            if hasattr(self.model, "predict_proba"):
                return _second_of_two(self.model.predict_proba(values))
            # These are not calibrated: the logistic function only keeps the order of margins.
            margin = self.model.decision_function(values)
            return expit(margin) if margin.ndim == 1 else softmax(margin, axis=1)
        last = self.model[-1] if hasattr(self.model, "steps") else self.model
        # Only rows of the fit have a cluster, see models.library: others take the nearest row's.
        if not hasattr(last, "predict"):
            far, places = last.kneighbors(
                values if last is self.model else self.model[:-1].transform(values)
            )
            return np.column_stack([last.labels_[places[:, 0]], far])
        labels = np.asarray(self.model.predict(values), dtype=np.float64)
        far = (
            self.model.transform(values).min(axis=1)
            if hasattr(self.model, "transform")
            else np.zeros(len(values))
        )
        return np.stack([labels, far], axis=1)


PATHS: dict[str, dict[str, tuple[str, ...]]] = {
    "xgboost-ubj": {"xgboost-cpu": ("xgboost",), "xgboost-cuda": ("xgboost", "cupy")},
    "treelite": {
        # Four times as fast as treelite's interpreter, with the same numbers.
        "scikit-learn": ("treelite", "sklearn"),
        "nvforest-cuda": ("treelite", "nvforest", "cupy"),
    },
    "skops": {"sklearn": ("sklearn", "skops")},
}
"""Format -> the ways to score it, best first -> the packages that each needs."""
FILES = {"xgboost-ubj": "model.ubj", "treelite": "model.tl", "skops": "model.skops"}
"""Format -> name of a saved model's file."""
NEEDS = {
    "xgboost-ubj": (("xgboost-cpu", "xgboost", "xgboost-cu13", "xgboost-cu12"),),
    "treelite": (("treelite",), ("scikit-learn",)),
    "skops": (("scikit-learn",), ("skops",)),
}
"""Format -> what a machine needs to score it, in the first of the builds that is installed here."""
TRUSTED = (
    "scipy.sparse._csr.csr_array",
    "scipy.sparse._csr.csr_matrix",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._ball_tree.BallTree",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.tree._tree.Tree",
    "sklearn.utils._bunch.Bunch",
)
"""Types beside those that skops itself trusts which a saved model may hold."""


def available(format: str, devices: Sequence[str] = ("cpu", "cuda")) -> list[str]:
    """Return the ways to score a format that work on this machine, by preference; ValueError for an
    unknown format.
    """
    if format not in PATHS:
        raise ValueError(f"unknown model format {format!r}")
    ways = (way for way in PATHS[format] if ("cuda" if way.endswith("-cuda") else "cpu") in devices)
    # Asking for a GPU's way initializes the GPU.
    return [way for way in ways if _works(format, way)]


def _works(format: str, way: str) -> bool:
    if any(importlib.util.find_spec(name) is None for name in PATHS[format][way]):
        return False
    if way == "xgboost-cuda" and not importlib.import_module("xgboost").build_info().get(
        "USE_CUDA"
    ):
        return False
    return not way.endswith("-cuda") or gpus() > 0


def gpus() -> int:
    """Return how many NVIDIA GPUs this process sees: CUDA's driver tells, without a package."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return (
        count.value
        if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
        else 0
    )


def load(
    path: str | os.PathLike[str] | bytes,
    format: str,
    device: str = "cpu",
    threads: int = 1,
    through: str | None = None,
) -> Any:
    """Load a saved model of one of the formats of ``PATHS``; ValueError for another.

    ``path`` is a file, or its content, whose digest the caller has checked: a damaged one can crash
    the process. ``device`` is ``cpu`` or ``cuda``. ``threads`` are those of one call of ``score``;
    0 takes all cores. ``through`` is one of ``available(format)``; None takes the first of the
    device.

    Returns an object with ``score(x)``: (n, features) float32 -> (n,) P(1) or values, (n, classes)
    P of each of several classes, or (n, 2) label of the cluster and distance.
    """
    # What skops saves is scored by the processor beside a GPU too.
    ways = [through] if through else available(format, ["cpu" if format == "skops" else device])
    if not ways:
        needed = " and ".join(min(builds, key=len) for builds in NEEDS[format])
        raise ValueError(
            f"nothing that is installed here scores {format} on {device}; a processor "
            f"needs {needed}"
        )
    content = path if isinstance(path, bytes) else Path(path).read_bytes()
    way = ways[0]
    if way.startswith("xgboost"):
        scorer = XGBoostScorer(content, threads, way.partition("-")[2])
        scorer.booster.num_features()  # a file that is no booster is refused here
        return scorer
    if way == "nvforest-cuda":
        return NvForestScorer(content, threads, "cuda")
    if way == "scikit-learn":
        import treelite.sklearn

        # treelite warns of files of newer releases that it can read, and refuses others.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            model = treelite.Model.deserialize_bytes(content)
        forest = treelite.sklearn.export_model(model)
        return SklearnScorer(forest, np.float32, threads or os.cpu_count() or 1)
    import skops.io

    return SklearnScorer(skops.io.loads(content, trusted=list(TRUSTED)))


def _second_of_two(scores: Any) -> Any:
    """Return P(1) where there are two classes, (n,), as well as the one column of values; else P of
    each class.
    """
    return scores[:, -1] if scores.shape[1] <= 2 else scores


def facts(path: str | os.PathLike[str], format: str) -> dict[str, Any]:
    """Load a model; return its number of features, their names where its file has them, and what
    two rows get.
    """
    scorer = load(path, format, threads=1)
    booster = getattr(scorer, "booster", None)
    number = int(scorer.model.n_features_in_ if booster is None else booster.num_features())
    scores = np.asarray(scorer.score(np.zeros((2, number), dtype=np.float32)), dtype=np.float64)
    return {
        "number": number,
        "names": getattr(booster, "feature_names", None),
        "predictions": scores.tolist(),
    }


if __name__ == "__main__":  # a process of its own: a file of unknown origin may crash it
    print(json.dumps(facts(*sys.argv[1:3])))
