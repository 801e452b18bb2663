"""Load saved models and score with them; this file travels inside saved models and imports nothing of tipcast."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MISSING = "missing"  # booster attribute: the value that means missing; absent: NaN does
MANY_ROWS = 200_000  # from which sending rows to a GPU and back costs less than scoring them on a processor
SCORERS: weakref.WeakSet[Any] = weakref.WeakSet()  # of boosters


@atexit.register
def _free() -> None:
    """Free boosters that are alive as Python ends: later XGBoost's module may have gone, which prints a traceback."""
    for scorer in list(SCORERS):
        scorer.booster.__del__()


def booster_names(features: list[str]) -> list[str]:
    """Return features' names as XGBoost takes them: without [ ] and <, which it refuses, and no two alike."""
    found: dict[str, None] = {}
    for name in features:
        own = name.replace("[", "(").replace("]", ")").replace("<", "_lt_")
        while own in found or (own != name and own in features):
            own += "_"
        found[own] = None
    return list(found)


class XGBoostScorer:
    """Scores by an XGBoost booster, on the processor or on a GPU."""

    def __init__(self, booster: Any, threads: int = 1, device: str = "cpu", here: bool = False) -> None:
        self.booster, self.threads, self.device, self._here = booster, threads, device, False
        SCORERS.add(self)
        if here or device == "cpu":
            self.ready()

    def __reduce__(self) -> tuple[Any, ...]:  # a machine without a GPU forgets the booster's device
        return XGBoostScorer, (self.booster, self.threads, self.device, self._here)

    def ready(self) -> None:
        """Set the booster up for its device, which the process that fitted or loads it may lack.

        At the latest before another thread may pickle it: that fails while a parameter is set, or loses the parameter.
        """
        if not self._here:
            self.booster.set_param({"nthread": self.threads, "device": self.device})
            self._here = True

    def score(self, x: Any) -> Any:
        """Return P(1) or values, (n,) float32, or P of each of several classes, (n, classes)."""
        values = _placed(x, self.device)
        if not len(values):
            return self.score(_one_row(values))[:0]
        self.ready()
        gap = float(self.booster.attr(MISSING) or "nan")
        return self.booster.inplace_predict(values, missing=gap, validate_features=False)


class ForestScorer:
    """Scores by a scikit-learn random forest."""

    def __init__(self, forest: Any, threads: int = 1) -> None:
        forest.n_jobs = threads
        self.forest = forest

    def score(self, x: Any) -> Any:
        """Return P(1) or values, (n,) float64, or P of each of several classes, (n, classes)."""
        values = getattr(x, "values", x)
        if not len(values):
            return self.score(_one_row(values))[:0]
        if not hasattr(self.forest, "predict_proba"):
            return self.forest.predict(values)
        return _second_of_two(self.forest.predict_proba(values))


class NvForestScorer:
    """Scores a treelite checkpoint by nvForest on a GPU; the checkpoint travels, not the model."""

    def __init__(self, checkpoint: bytes) -> None:
        self.checkpoint = checkpoint
        self._model: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return NvForestScorer, (self.checkpoint,)

    def score(self, x: Any) -> Any:
        """Return P(1) or values, (n,) float32, or P of each of several classes, (n, classes)."""
        values = _placed(x, "cuda")
        if not len(values):
            return self.score(_one_row(values))[:0]
        if self._model is None:
            import nvforest
            import treelite

            with warnings.catch_warnings(action="ignore", category=UserWarning):  # as in _load
                model = treelite.Model.deserialize_bytes(self.checkpoint)
                self._model = nvforest.load_from_treelite_model(model, device="gpu")
        if not hasattr(self._model, "predict_proba"):
            return self._model.predict(values).reshape(-1)
        return _second_of_two(self._model.predict_proba(values).clip(0, 1))  # the mean of many ones may round to above


class SklearnScorer:
    """Scores by an estimator of scikit-learn's, or a pipeline of them, on the processor."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def score(self, x: Any) -> Any:
        """Return P(1) or values, (n,), P of each of several classes, (n, classes), or label and distance, (n, 2)."""
        values = getattr(x, "values", x)
        if not hasattr(values, "get"):
            return self._score(np.asarray(values, dtype=np.float64))
        import cupy

        return cupy.asarray(self._score(values.get().astype(np.float64)))  # back to where the rows are

    def _score(self, values: Any) -> Any:
        from sklearn.base import is_classifier, is_regressor

        if not len(values):
            return self._score(_one_row(values).astype(np.float64))[:0]
        if is_regressor(self.model):
            return np.asarray(self.model.predict(values), dtype=np.float64).reshape(-1)
        if is_classifier(self.model):
            return _second_of_two(self._probabilities(values))
        last = self.model[-1] if hasattr(self.model, "steps") else self.model
        if not hasattr(last, "predict"):  # clusters that only the rows of the fit have, see models.library
            far, places = last.kneighbors(values if last is self.model else self.model[:-1].transform(values))
            return np.column_stack([last.labels_[places[:, 0]], far])
        labels = np.asarray(self.model.predict(values), dtype=np.float64)
        far = self.model.transform(values).min(axis=1) if hasattr(self.model, "transform") else np.zeros(len(values))
        return np.stack([labels, far], axis=1)

    def _probabilities(self, values: Any) -> Any:
        if hasattr(self.model, "predict_proba"):
            return self.model.predict_proba(values)
        margin = self.model.decision_function(values)  # not calibrated: the logistic function keeps their order
        if margin.ndim == 1:
            p = 0.5 * (1 + np.tanh(0.5 * margin))
            return np.stack([1 - p, p], axis=1)
        p = np.exp(margin - margin.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)


class BySizeScorer:
    """Scores few rows on the processor and many on a GPU, which is set up when it is first needed."""

    def __init__(self, small: Any, large: Callable[[], Any]) -> None:
        self.small, self._make = small, large
        self._large: Any = None

    def score(self, x: Any) -> Any:
        """Return P(1), (n,), on the host."""
        if len(x) < MANY_ROWS:
            return self.small.score(x)
        if self._large is None:
            self._large = self._make()
        scores = self._large.score(x)
        return scores.get() if hasattr(scores, "get") else scores


PATHS: dict[str, dict[str, tuple[str, ...]]] = {
    "xgboost-ubj": {"xgboost-cpu": ("xgboost",), "xgboost-cuda": ("xgboost", "cupy")},
    "treelite": {
        "scikit-learn": ("treelite", "sklearn"),  # four times as fast as treelite's interpreter, the same numbers
        "nvforest-cuda": ("treelite", "nvforest", "cupy"),
    },
    "skops": {"sklearn": ("sklearn", "skops")},
}
"""Format -> the ways to score it, best first -> the packages that each needs."""
FILES = {
    "xgboost-ubj": "model.ubj",
    "treelite": "model.tl",
    "skops": "model.skops",
}
"""Format -> name of a saved model's file."""
NEEDS = {
    "xgboost-ubj": (("xgboost-cpu", "xgboost", "xgboost-cu13", "xgboost-cu12"),),
    "treelite": (("treelite",), ("scikit-learn",)),
    "skops": (("scikit-learn",), ("skops",)),
}
"""Format -> what a machine needs to score it, in the first of the builds that is installed here."""
TRUSTED = (
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
_ON_GPU = ("xgboost-cuda", "nvforest-cuda")


def available(format: str) -> tuple[str, ...]:
    """Return the ways to score a format that work on this machine, by preference; ValueError for an unknown format."""
    return tuple(way for way in _ways(format) if _works(format, way))


def _ways(format: str) -> tuple[str, ...]:
    if format not in PATHS:
        raise ValueError(f"unknown model format {format!r}")
    return tuple(PATHS[format])


def _works(format: str, way: str) -> bool:
    if any(importlib.util.find_spec(name) is None for name in PATHS[format][way]) or (way in _ON_GPU and not gpus()):
        return False
    return way != "xgboost-cuda" or bool(importlib.import_module("xgboost").build_info().get("USE_CUDA"))


def gpus() -> int:
    """Return how many NVIDIA GPUs this process sees: CUDA's driver tells, without a package."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def load(
    path: str | os.PathLike[str] | bytes, format: str, device: str = "cpu", threads: int = 1, through: str | None = None
) -> Any:
    """Load a saved model of one of the formats of ``PATHS``; ValueError for another.

    ``path`` is a file, or its content, whose digest the caller has checked: a damaged one can crash the process.
    ``device`` is ``cpu``, ``cuda``, or ``auto``: few rows on the processor, many on a GPU where there is one, back on
    the host. ``threads`` are those of one call of ``score``; 0 takes all cores. ``through`` is one of
    ``available(format)``; None takes the first of the device.

    Returns an object with ``score(x)``: (n, features) float32 -> (n,) P(1) or values, (n, classes) P of each of several
    classes, or (n, 2) label of the cluster and distance.
    """
    on_gpu = device == "cuda" and format != "skops"  # which has no other way
    ways = (way for way in _ways(format) if (way in _ON_GPU) == on_gpu and _works(format, way))
    content = path if isinstance(path, bytes) else Path(path).read_bytes()
    if device == "auto":
        small = load(content, format, "cpu", threads)

        def large() -> Any:
            there = next((way for way in available(format) if way in _ON_GPU), None)
            return small if there is None else _load(content, there, threads)

        return BySizeScorer(small, large)
    chosen = through or next(ways, None)
    if chosen is None:
        raise ValueError(f"nothing that is installed here scores {format} on {device}")
    return _load(content, chosen, threads)


def _load(content: bytes, way: str, threads: int) -> Any:
    kind, _, device = way.partition("-")
    if kind == "xgboost":
        import xgboost

        return XGBoostScorer(xgboost.Booster(model_file=bytearray(content)), threads, device, here=True)
    if kind == "nvforest":
        return NvForestScorer(content)
    if kind == "scikit":
        import treelite.sklearn

        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of newer releases; others it refuses
            model = treelite.Model.deserialize_bytes(content)
        return ForestScorer(treelite.sklearn.export_model(model), threads or -1)
    import skops.io

    return SklearnScorer(skops.io.loads(content, trusted=list(TRUSTED)))


def _second_of_two(scores: Any) -> Any:
    """Return P(1) where there are two classes, (n,), as well as the one column of values; else P of each class."""
    return scores[:, -1] if scores.shape[1] <= 2 else scores


def _one_row(values: Any) -> Any:
    return _module(values).zeros((1, values.shape[1]), dtype=np.float32)


def _module(values: Any) -> Any:
    return sys.modules[type(values).__module__.partition(".")[0]]  # numpy or cupy


def _placed(x: Any, device: str) -> Any:
    """Return a frame's or an array's values where the device can read them."""
    values = getattr(x, "values", x)
    if device == "cpu" or not isinstance(values, np.ndarray):
        return values
    import cupy

    return cupy.asarray(values)
