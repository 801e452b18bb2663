"""Fresh stores, a real tracking server, and small models in MLflow."""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import skops.io
import treelite.sklearn
import xgboost
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from tests.conftest import high_tip_task, without_mlflow

from tipcast.config.schema import TrackingSpec
from tipcast.datasets.taxi import features
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import TripInfo
from tipcast.tracking.lifecycle import open_run
from tipcast.tracking.portable_model import PortableModel, log_model, register
from tipcast.tracking.run import Run

FACTS = {
    "features": list(features.BASE_FEATURES),
    "task": high_tip_task(features.BASE_FEATURES).to_manifest(),
    "data_digest": "5" * 64,
    "git_commit": "c" * 40,
    "versions": {"tipcast": "0.1.0", "numpy": np.__version__},
}
"""What a training run says of its model."""
clean = pytest.fixture(autouse=True)(without_mlflow)


@pytest.fixture
def spec(tables: Path, tmp_path: Path) -> TrackingSpec:
    """Tracking in an sqlite file of this test alone."""
    uri = f"sqlite:///{shutil.copy(tables, tmp_path / 'mlflow.db')}"
    return TrackingSpec(uri=uri, experiment="taxi", system_metrics=False)


@dataclass(frozen=True)
class Saved:
    """A model in MLflow, and what it should say."""

    folder: Path
    """The logged model's files."""
    run: Run
    logged: PortableModel
    expected: np.ndarray
    """(rows,) scores of ``trips`` by the estimator."""


@pytest.fixture(scope="session")
def columns() -> dict[str, np.ndarray]:
    """Canonical columns of 300 trips; some lack their passengers, one its time."""
    rng = np.random.default_rng(7)
    pickup = 1_551_398_400_000_000 + rng.integers(0, 31 * 86_400, 300) * 1_000_000
    pickup[5] = features.NULL_TIME
    passengers = rng.integers(0, 7, 300).astype(np.float64)
    passengers[::10] = np.nan
    zones = rng.integers(1, 266, (2, 300))
    return {
        "pickup": pickup,
        "passenger_count": passengers,
        "PULocationID": zones[0],
        "DOLocationID": zones[1],
    }


@pytest.fixture(scope="session")
def trips(columns: dict[str, np.ndarray]) -> pd.DataFrame:
    """The same trips as a user has them."""
    return Taxi().raw_frame(columns, TripInfo())


@pytest.fixture(scope="session")
def natives(
    columns: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Any]]:
    """Format -> a small model's native file, and its scores of the trips."""
    folder = tmp_path_factory.mktemp("native")
    x = features.compute(columns, features.BASE_FEATURES)
    y = (x[:, 1] + x[:, 5] / 20 > 18).astype(np.int32)
    booster = xgboost.train(
        {"max_depth": 3, "objective": "binary:logistic"}, xgboost.DMatrix(x, y, missing=-1.0), 5
    )
    booster.set_attr(missing="-1.0")
    booster.feature_names = list(features.BASE_FEATURES)
    booster.save_model(folder / "model.ubj")
    forest = RandomForestClassifier(5, max_depth=4, random_state=0).fit(x, y)
    treelite.sklearn.import_model(forest).serialize(folder / "model.tl")
    trees = ExtraTreesClassifier(5, max_depth=4, random_state=0).fit(x, y)
    skops.io.dump(trees, folder / "model.skops")
    return {
        "skops": (folder / "model.skops", trees.predict_proba(x)[:, 1]),
        "xgboost-ubj": (folder / "model.ubj", booster.inplace_predict(x, missing=-1.0)),
        "treelite": (folder / "model.tl", forest.predict_proba(x)[:, 1]),
    }


@pytest.fixture(scope="session")
def saved(
    tables: Path, natives: Any, trips: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Saved]:
    """Format -> a small model as logged, and registered as `FORMAT@champion`; read only."""
    folder = tmp_path_factory.mktemp("saved")
    uri = f"sqlite:///{shutil.copy(tables, folder / 'mlflow.db')}"
    models = {}
    spec = TrackingSpec(uri=uri, experiment="taxi", system_metrics=False)
    with contextlib.chdir(folder), open_run(spec, name="n", tags={}, params={"seed": 3}) as run:
        run.log_metrics({"test/auc": 0.65, "seconds/fit": 3.0})
        for format, (file, expected) in natives.items():
            logged = log_model(run, file, format, FACTS, Taxi(), TripInfo(), trips.head(5))
            register(run, logged, format, 0.0, {}, "")
            run.store.set_registered_model_alias(format, "champion", "1")
            (path,) = folder.glob(
                f"mlruns/*/models/{logged.uri.removeprefix('models:/')}/artifacts"
            )
            models[format] = Saved(path, run, logged, expected)
    return models


@pytest.fixture
def current(saved: dict[str, Saved]) -> dict[str, Saved]:
    """The same, in the store that MLflow's own calls use."""
    mlflow.set_tracking_uri(saved["skops"].run.store_uri)
    mlflow.set_registry_uri(saved["skops"].run.store_uri)
    return saved
