"""The portable model on its way into MLflow: logged, held against the estimator, and what does not fit on the disk."""

import contextlib
import json
import resource
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml
from mlflow.utils.file_utils import local_file_uri_to_path

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.datasets.taxi import features
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.models import native
from tipcast.tracking import portable
from tipcast.tracking.models import fetch
from tipcast.tracking.run import open_run

FORMATS = tuple(native.NEEDS)
FEATURES = list(features.BASE_FEATURES)
TIME = "tpep_pickup_datetime"


def _use(saved: Any) -> None:
    mlflow.set_tracking_uri(saved.run.store)
    mlflow.set_registry_uri(saved.run.store)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_logged(saved: Any, natives: Any, format: str) -> None:
    folder, file = saved[format].folder, natives[format][0]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {"MLmodel", "model.py", "requirements.txt", "artifacts/features.py", "artifacts/native.py"} <= files.keys()
    assert files[f"artifacts/{file.name}"] == file.read_bytes()
    assert files["artifacts/features.py"] == Path(str(features.__file__)).read_bytes()
    manifest = json.loads(files["artifacts/manifest.json"])
    assert (manifest["format"], manifest["features"]) == (format, FEATURES)
    described = yaml.safe_load(files["MLmodel"])
    assert described["run_id"] == saved[format].run.id
    inputs = {column["name"]: column for column in json.loads(described["signature"]["inputs"])}
    assert list(inputs) == [TIME, "passenger_count", "PULocationID", "DOLocationID"]
    assert [name for name, column in inputs.items() if not column["required"]] == ["passenger_count"]
    of_library = {"xgboost-ubj": {"xgboost"}, "skops": {"sklearn"}}.get(format, set())
    assert described["flavors"].keys() - {"python_function"} == of_library
    assert "python_model" not in described["flavors"]["python_function"]
    for name, content in files.items():
        assert not name.endswith((".pkl", ".pickle", ".joblib", ".cloudpickle", ".dill"))
        assert not content.startswith(b"\x80"), name  # the first byte of every pickle since protocol 2


def test_the_flavor_of_scikit_learn(saved: Any, trips: pd.DataFrame) -> None:
    folder = str(saved["skops"].folder)
    trees = mlflow.sklearn.load_model(folder)
    assert type(trees).__name__ == "ExtraTreesClassifier"
    x = mlflow.pyfunc.load_model(folder).predict(trips, params={"output": "features"})
    np.testing.assert_allclose(trees.predict_proba(x.to_numpy())[:, 1], saved["skops"].expected, atol=1e-12)


def test_labels_are_the_targets_own_values() -> None:
    for classes, function, values, labels in (
        (["no high tip", "high tip"], "high_tip", [], [0, 1]),
        (["no", "yes"], None, [], ["no", "yes"]),
        (["2", "2.5", "7"], None, [2.0, 2.5, 7.0], [2, 2.5, 7]),
        (["0", "1", "2"], None, [], [0, 1, 2]),
        (["short", "long", "far"], "length", [], ["short", "long", "far"]),
    ):
        assert portable._labels({"classes": classes, "function": function, "values": values}) == labels
    assert portable._labels({}) == [0, 1]


@pytest.mark.parametrize("format", FORMATS)
def test_a_logged_model_scores_as_the_estimator(saved: Any, trips: pd.DataFrame, format: str) -> None:
    one = saved[format]
    _use(one)
    assert portable.parity(one.logged, trips, one.expected) <= 1e-6
    wrong = one.expected.copy()
    wrong[17] += 0.25
    assert portable.parity(one.logged, trips, wrong) == pytest.approx(0.25, abs=1e-6)
    wrong[17] = np.nan
    assert np.isnan(portable.parity(one.logged, trips, wrong))


def test_requirements_are_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    common = [f"{name}=={version(name)}" for name in ("mlflow", "numpy", "pandas")]
    learn, tree, skops = (f"{name}=={version(name)}" for name in ("scikit-learn", "treelite", "skops"))
    assert portable.requirements("skops") == [*common, learn, skops]
    assert portable.requirements("treelite") == [*common, tree, learn]
    (build,) = portable.requirements("xgboost-ubj")[3:]
    assert build.partition("==")[0] in {"xgboost-cpu", "xgboost"}
    monkeypatch.setitem(native.NEEDS, "new", (("no-such-package-1", "no-such-package-2"),))
    with pytest.raises(TipcastError, match="M012"):
        portable.requirements("new")


def test_a_green_model_takes_green_trips(
    spec: TrackingSpec, natives: Any, trips: pd.DataFrame, facts: dict[str, Any]
) -> None:
    file, expected = natives["skops"]
    green = trips.rename(columns={"tpep_pickup_datetime": "lpep_pickup_datetime"})
    assert list(green)[0] == "lpep_pickup_datetime"
    with open_run(spec, name="n", tags={}, params={}) as run:
        logged = portable.log_model(run, file, "skops", facts, Taxi(), {"colour": "green"}, green.head(5))
        assert portable.parity(logged, green, expected) <= 1e-9
        with pytest.raises(mlflow.exceptions.MlflowException, match="lpep_pickup_datetime"):
            portable.parity(logged, trips, expected)


LIMIT = 3_000_000


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Let this process write no file of more than 3 MB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_artifact_that_does_not_fit(spec: TrackingSpec) -> None:
    says = "T005.*plots/large.txt.*File too large.*bytes free"
    with pytest.raises(TipcastError, match=says), open_run(spec, name="n", tags={}, params={}) as run, small_files():
        run.log_bytes(b"kept", "plots/kept.png")
        run.log_text("x" * (LIMIT + 1), "plots/large.txt")
    ended = run.client.get_run(run.id).info
    assert ended.status == "FAILED"
    folder = Path(local_file_uri_to_path(ended.artifact_uri))
    assert [path.name for path in (folder / "plots").iterdir()] == ["kept.png"]


def test_a_model_that_does_not_fit(
    spec: TrackingSpec, natives: Any, trips: pd.DataFrame, facts: dict[str, Any], tmp_path: Path
) -> None:
    large = tmp_path / "model.tl"
    large.write_bytes(natives["treelite"][0].read_bytes() + bytes(LIMIT))  # what follows the trees is not read
    with pytest.raises(TipcastError, match="T005"), open_run(spec, name="n", tags={}, params={}) as run, small_files():
        portable.log_model(run, large, "treelite", facts, Taxi(), {"colour": "yellow"}, trips.head(5))
    client = run.client
    (model,) = client.search_logged_models([run.experiment_id])
    assert model.status != "READY"
    with pytest.raises(TipcastError, match="M001.*has logged no model"):
        fetch(client, f"runs:/{run.id}/model", tmp_path)
