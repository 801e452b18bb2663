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

Array = Any  # a NumPy or CuPy array: the device decides
Rows = Any  # such an array, or a pandas or cuDF frame

MISSING_ATTRIBUTE = "missing"  # of a booster: the value that means missing; absent: NaN does
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
    """Return names of features that XGBoost takes: without [ ] and <, which it refuses, and no two
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
    function: Callable[[Any], Any], rows: Rows, threads: int, least: int, most: int | None = None
) -> Any:
    """Apply a function to slices of rows on threads; return its results as one array.

    A slice has at least ``least`` rows, but never more than ``most``.
    """
    step = max(-(-len(rows) // threads), least)
    if most is not None:
        step = min(step, most)
    if len(rows) <= step:
        return function(rows)

    slices = [rows[start : start + step] for start in range(0, len(rows), step)]
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate([*pool.map(function, slices)])


def rows_at_once(columns: int) -> int:
    """Return how many dense rows of that many columns are made at a time."""
    return max(DENSE_VALUES // max(columns, 1), 1)


def columns_of(encoder: Any) -> int:
    """Return how many columns a fitted ColumnTransformer makes: one for each value of a category,
    and one for each other feature.
    """
    categories = encoder.named_transformers_["categories"].categories_
    numbers = int(encoder.n_features_in_) - len(categories)
    return sum(len(values) for values in categories) + numbers


class OneHotRows:
    """Rows with a column of 0 and 1 for each value of a category; only slices of them are dense.

    With many values, all dense rows at once would be more than the memory holds.
    """

    def __init__(self, rows: Array, encoder: Any) -> None:
        self._rows = rows
        self._encoder = encoder
        self.shape = (len(rows), columns_of(encoder))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, slice_of_rows: slice) -> Array:
        """Return (rows, columns) on the device of the rows."""
        rows = self._rows[slice_of_rows]
        if isinstance(rows, np.ndarray):
            return self._encoded(rows)

        import cupy

        return cupy.asarray(self._encoded(rows.get()))

    def _encoded(self, rows: Array) -> Array:
        """Return dense (rows, columns) on the host."""
        columns = self._encoder.transform(rows)
        if hasattr(columns, "toarray"):  # a sparse matrix
            return columns.toarray()
        return columns


class Scorer:
    """Scores frames or arrays of features by a model."""

    device = "cpu"

    def score(self, x: Rows) -> Array:
        """Score (n, features) rows.

        Returns P(1) or values, (n,); P of each of several classes, (n, classes); or label and
        distance, (n, 2).
        """
        return self._apply(self._score, x)

    def one_hot_rows(self, x: Rows) -> Any:
        """Return (n, features) rows, with a column for each value of a category if the model needs
        that: clusters are evaluated on these.
        """
        return x

    def _apply(self, function: Callable[[Array], Array], x: Rows) -> Array:
        """Call a function with the rows as an array on the scorer's device; return its result
        where the rows are.

        Libraries refuse to score no rows: the function gets one row in their place.
        """
        values: Array = getattr(x, "values", x)
        if self.device != "cpu" and isinstance(values, np.ndarray):
            import cupy

            return cupy.asnumpy(self._apply(function, cupy.asarray(values)))

        if len(values):
            return function(values)

        module = sys.modules[type(values).__module__.partition(".")[0]]  # numpy or cupy
        return function(module.zeros((1, values.shape[1]), dtype=np.float32))[:0]

    def _score(self, values: Array) -> Array:
        raise NotImplementedError


class SavedScorer(Scorer):
    """Scores by the content of a model's file. Only the content is pickled: the library's object is
    made where it scores.
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

    def contributions(self, x: Rows) -> Array:
        """Return what each feature, and last the bias, adds to the margin of each row, before the
        link function.

        The array is (n, features + 1) float32 on the host; (n, classes, features + 1) with several
        classes. By TreeSHAP (Lundberg et al. 2020, https://doi.org/10.1038/s42256-019-0138-9).
        """
        return self._apply(self._contributions, x)

    @property
    def _missing(self) -> float:
        """The value that means missing."""
        return float(self.booster.attr(MISSING_ATTRIBUTE) or "nan")

    def _score(self, values: Array) -> Array:
        return self.booster.inplace_predict(values, missing=self._missing, validate_features=False)

    def _contributions(self, values: Array) -> Array:
        import xgboost

        matrix = xgboost.DMatrix(
            values,
            missing=self._missing,
            feature_types=self.booster.feature_types,
            nthread=self.threads,
            enable_categorical=True,
        )
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

    def _score(self, values: Array) -> Array:
        if not hasattr(self.model, "predict_proba"):
            return self.model.predict(values).reshape(-1)

        # The mean of many ones may round to more than 1.
        return _second_of_two(self.model.predict_proba(values).clip(0, 1))


class SklearnScorer(Scorer):
    """Scores by an estimator of scikit-learn's, or a pipeline of them, on the processor: float64.

    ``dtype`` is what the model computes with: a forest copies any rows that are not float32.
    ``threads`` score parts of the rows side by side. The threads of a forest itself would add up
    its trees in any order, which changes the last digit.
    """

    def __init__(self, model: Any, dtype: Any = np.float64, threads: int = 1) -> None:
        self.model = model
        self.dtype = dtype
        self.threads = threads

    def one_hot_rows(self, x: Rows) -> Any:
        """Return rows with a column of 0 and 1 for each value of a category, first; without
        categories, the rows as they are.
        """
        encoder = self._encoder
        if encoder is None:
            return x
        return OneHotRows(getattr(x, "values", x), encoder)

    @property
    def _encoder(self) -> Any:
        """The step that gives each value of a category a column; None without categories."""
        return getattr(self.model, "named_steps", {}).get("encoder")

    @property
    def _most_rows(self) -> int | None:
        """Rows that are scored at a time; None for all."""
        encoder = self._encoder
        if encoder is None or encoder.sparse_output_:
            return None
        return rows_at_once(columns_of(encoder))

    def _score(self, values: Array) -> Array:
        if isinstance(values, np.ndarray):
            return self._score_slices(values)

        import cupy

        # The scores go back to the GPU, where the rows are.
        return cupy.asarray(self._score_slices(values.get()))

    def _score_slices(self, values: Array) -> Array:
        rows = values.astype(self.dtype, copy=False)
        return shared_out(self._score_rows, rows, self.threads, ROWS_OF_THREAD, self._most_rows)

    def _score_rows(self, rows: Array) -> Array:
        """Score (n, features) rows on the host, see ``score``."""
        from sklearn.base import is_classifier, is_regressor

        if is_regressor(self.model):
            return np.asarray(self.model.predict(rows), dtype=np.float64).reshape(-1)
        if is_classifier(self.model):
            return self._class_scores(rows)

        last_step = self.model
        if hasattr(self.model, "steps"):  # a pipeline
            last_step = self.model[-1]
        if hasattr(last_step, "predict"):
            return self._predicted_clusters(rows)
        return self._nearest_clusters(rows, last_step)

    def _class_scores(self, rows: Array) -> Array:
        """Return P(1), (n,), or P of each of several classes, (n, classes)."""
        if hasattr(self.model, "predict_proba"):
            return _second_of_two(self.model.predict_proba(rows))

        from scipy.special import expit, softmax

        # These are not calibrated: the logistic function only keeps the order of margins.
        margin = self.model.decision_function(rows)
        if margin.ndim == 1:
            return expit(margin)
        return softmax(margin, axis=1)

    def _predicted_clusters(self, rows: Array) -> Array:
        """Return label and distance from the centre, (n, 2); the distance is 0 if the model has no
        centres.
        """
        labels = np.asarray(self.model.predict(rows), dtype=np.float64)
        distances = np.zeros(len(rows))
        if hasattr(self.model, "transform"):
            distances = self.model.transform(rows).min(axis=1)
        return np.stack([labels, distances], axis=1)

    def _nearest_clusters(self, rows: Array, neighbors: Any) -> Array:
        """Return the label of the nearest row of the fit, and the distance from it, (n, 2).

        Only rows of the fit have a cluster, see ``models.library``.
        """
        if neighbors is not self.model:
            rows = self.model[:-1].transform(rows)
        distances, places = neighbors.kneighbors(rows)
        return np.column_stack([neighbors.labels_[places[:, 0]], distances])


PATHS: dict[str, dict[str, tuple[str, ...]]] = {
    "xgboost-ubj": {"xgboost-cpu": ("xgboost",), "xgboost-cuda": ("xgboost", "cupy")},
    "treelite": {
        # Four times as fast as treelite's interpreter, with the same numbers.
        "scikit-learn": ("treelite", "sklearn"),
        "nvforest-cuda": ("treelite", "nvforest", "cupy"),
    },
    "skops": {"sklearn": ("sklearn", "skops")},
}
"""Format -> way to score it, best first -> packages that the way needs."""
FILES = {"xgboost-ubj": "model.ubj", "treelite": "model.tl", "skops": "model.skops"}
"""Format -> name of a saved model's file."""
NEEDS = {
    "xgboost-ubj": (("xgboost-cpu", "xgboost", "xgboost-cu13", "xgboost-cu12"),),
    "treelite": (("treelite",), ("scikit-learn",)),
    "skops": (("scikit-learn",), ("skops",)),
}
"""Format -> packages that a machine needs to score it; of several builds, one is enough."""
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
"""Types that a saved model may hold, besides those that skops itself trusts."""


def available(format: str, devices: Sequence[str] = ("cpu", "cuda")) -> list[str]:
    """Return the ways to score a format that work on this machine, by preference; ValueError for an
    unknown format.
    """
    if format not in PATHS:
        raise ValueError(f"unknown model format {format!r}")
    # A way is tried only if its device is asked for: trying a GPU's way initializes the GPU.
    return [way for way in PATHS[format] if _device_of(way) in devices and _works(format, way)]


def _device_of(way: str) -> str:
    if way.endswith("-cuda"):
        return "cuda"
    return "cpu"


def _works(format: str, way: str) -> bool:
    """Tell whether this machine has the packages and the device of a way."""
    if any(importlib.util.find_spec(name) is None for name in PATHS[format][way]):
        return False
    if way == "xgboost-cuda":
        build = importlib.import_module("xgboost").build_info()
        if not build.get("USE_CUDA"):
            return False
    return _device_of(way) == "cpu" or gpus() > 0


def gpus() -> int:
    """Return how many NVIDIA GPUs this process sees. CUDA's driver is asked, without a package."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0

    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def load(
    path: str | os.PathLike[str] | bytes,
    format: str,
    device: str = "cpu",
    threads: int = 1,
    through: str | None = None,
) -> Any:
    """Load a saved model in one of the formats of ``PATHS``; ValueError for another format.

    ``path`` is a file, or its content, whose digest the caller has checked: a damaged file can
    crash the process. ``device`` is ``cpu`` or ``cuda``. ``threads`` is the number of threads of
    one call of ``score``; 0 takes all cores. ``through`` is one of ``available(format)``; None
    takes the first way that works on the device.

    Returns an object with ``score(x)``: (n, features) float32 -> (n,) P(1) or values, (n, classes)
    P of each of several classes, or (n, 2) label of the cluster and distance.
    """
    way = through or _first_way(format, device)
    content = path if isinstance(path, bytes) else Path(path).read_bytes()

    if way.startswith("xgboost"):
        scorer = XGBoostScorer(content, threads, way.partition("-")[2])
        scorer.booster.num_features()  # a file that is no booster is refused here
        return scorer
    if way == "nvforest-cuda":
        return NvForestScorer(content, threads, "cuda")
    if way == "scikit-learn":
        return _load_forest(content, threads)

    import skops.io

    return SklearnScorer(skops.io.loads(content, trusted=list(TRUSTED)))


def _first_way(format: str, device: str) -> str:
    """Return the best way to score a format on a device; ValueError if none works here."""
    devices = [device]
    if format == "skops":  # the processor scores these models beside a GPU too
        devices = ["cpu"]
    ways = available(format, devices)
    if ways:
        return ways[0]

    needed = " and ".join(min(builds, key=len) for builds in NEEDS[format])
    raise ValueError(f"no installed package can score {format} on {device}; a CPU needs {needed}")


def _load_forest(content: bytes, threads: int) -> SklearnScorer:
    """Make scikit-learn's forest of a treelite checkpoint."""
    import treelite.sklearn

    # treelite warns of files of newer releases that it can read, and refuses others.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        model = treelite.Model.deserialize_bytes(content)
    forest = treelite.sklearn.export_model(model)
    return SklearnScorer(forest, np.float32, threads or os.cpu_count() or 1)


def _second_of_two(scores: Array) -> Array:
    """Return P(1), (n,), for two classes, and the only column if there is one; otherwise P of each
    class.
    """
    if scores.shape[1] <= 2:
        return scores[:, -1]
    return scores


def describe_model(path: str | os.PathLike[str], format: str) -> dict[str, Any]:
    """Load a model; return its number of features, their names if its file has them, and its
    predictions of two rows of zeros.
    """
    scorer = load(path, format, threads=1)
    booster = getattr(scorer, "booster", None)
    if booster is None:
        n_features = int(scorer.model.n_features_in_)
    else:
        n_features = int(booster.num_features())

    rows = np.zeros((2, n_features), dtype=np.float32)
    predictions = np.asarray(scorer.score(rows), dtype=np.float64)
    return {
        "number": n_features,
        "names": getattr(booster, "feature_names", None),
        "predictions": predictions.tolist(),
    }


if __name__ == "__main__":  # a process of its own: a file of unknown origin may crash it
    print(json.dumps(describe_model(*sys.argv[1:3])))
