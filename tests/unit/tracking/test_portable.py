"""The portable model on its way into MLflow: what is logged, held against the estimator, registered and served."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.data import features
from tipcast.tracking import portable
from tipcast.tracking.run import open_run
from tipcast.tracking.store import open_store

FORMATS = tuple(portable.NEEDS)
FACTS = {"features": list(features.BASE_FEATURES)}
TIME = "tpep_pickup_datetime"


def _use(saved: Any) -> None:
    mlflow.set_tracking_uri(saved.run.store)
    mlflow.set_registry_uri(saved.run.store)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_logged(saved: Any, natives: Any, format: str) -> None:
    folder = saved[format].folder
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    native = natives[format][0]
    scorer = "artifacts/native_svc.py" if format == "npz-svc" else "artifacts/native.py"
    assert {"MLmodel", "model.py", "requirements.txt", "artifacts/features.py", scorer} <= files
    assert (folder / "artifacts" / native.name).read_bytes() == native.read_bytes()
    manifest = json.loads((folder / "artifacts" / "manifest.json").read_text())
    assert manifest["format"] == format
    assert manifest["features"] == FACTS["features"]
    described = yaml.safe_load((folder / "MLmodel").read_text())
    assert described["run_id"] == saved[format].run.id
    inputs = {column["name"]: column for column in json.loads(described["signature"]["inputs"])}
    assert list(inputs) == [TIME, "passenger_count", "PULocationID", "DOLocationID"]
    assert [name for name, column in inputs.items() if not column["required"]] == ["passenger_count"]


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_is_pickled(saved: Any, format: str) -> None:
    for path in (path for path in saved[format].folder.rglob("*") if path.is_file()):
        assert path.suffix not in {".pkl", ".pickle", ".joblib", ".cloudpickle", ".dill"}
        assert not path.read_bytes().startswith(b"\x80"), path  # the first byte of every pickle since protocol 2
    assert (
        "python_model"
        not in yaml.safe_load((saved[format].folder / "MLmodel").read_text())["flavors"]["python_function"]
    )


def test_a_logged_model_belongs_to_run_and_experiment(saved: Any) -> None:
    one = saved["xgboost-ubj"]
    model = one.run.client.get_logged_model(one.logged.uri.removeprefix("models:/"))
    assert model.source_run_id == one.run.id
    assert model.experiment_id == one.run.experiment_id
    assert {item.model_id for item in one.run.client.get_run(one.run.id).outputs.model_outputs} >= {model.model_id}


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


def test_requirements_are_what_is_installed() -> None:
    common = [f"{name}=={version(name)}" for name in ("mlflow", "numpy", "pandas")]
    assert portable.requirements("npz-logistic") == common
    more = [f"treelite=={version('treelite')}", f"scikit-learn=={version('scikit-learn')}"]
    assert portable.requirements("treelite") == common + more
    (build,) = portable.requirements("xgboost-ubj")[3:]
    assert build.partition("==")[0] in {"xgboost-cpu", "xgboost"}


def test_a_build_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(portable.NEEDS, "new", (("no-such-package-1", "no-such-package-2"),))
    with pytest.raises(TipcastError) as caught:
        portable.requirements("new")
    assert caught.value.code == "M012"


def test_registering(spec: TrackingSpec, natives: Any, trips: pd.DataFrame) -> None:
    file, expected = natives["npz-logistic"]
    with open_run(spec, name="n", tags={}, params={}) as run:
        logged = portable.log_model(run, file, "npz-logistic", FACTS, "yellow", trips.head(5))
        difference = portable.parity(logged, trips, expected)
        first = portable.register(run, logged, "tips", difference, {"test/auc": 0.654321987}, "# One")
        second = portable.register(run, logged, "tips", difference, {}, "")
    assert (first.registered, second.registered) == ("models:/tips/1", "models:/tips/2")
    assert first.uri == logged.uri
    made = open_store(spec).get_model_version("tips", "1")
    assert made.tags == {"test/auc": "0.654322"}
    assert made.description == "# One"
    assert made.run_id == run.id
    scored = mlflow.pyfunc.load_model("models:/tips/1").predict(trips)
    np.testing.assert_allclose(scored, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("difference", "metrics", "says"),
    [
        (1.1e-5, {"test/auc": 0.6}, "differ by 1.1e-05"),
        (float("nan"), {"test/auc": 0.6}, "differ by nan"),
        (0.0, {"test/auc": 0.6, "test/log_loss": float("inf")}, "test/log_loss is inf"),
        (0.0, {"test/auc": float("nan")}, "test/auc is nan"),
    ],
)
def test_a_doubtful_model_is_not_registered(spec: TrackingSpec, difference: float, metrics: Any, says: str) -> None:
    with pytest.raises(TipcastError, match=says) as caught, open_run(spec, name="n", tags={}, params={}) as run:
        portable.register(run, portable.Logged("models:/m-1"), "tips", difference, metrics, "")
    assert caught.value.code == "M011"
    client = open_store(spec)
    assert client.search_registered_models() == []
    assert client.get_run(run.id).data.tags["error.code"] == "M011"


def test_the_largest_difference_that_passes(spec: TrackingSpec, saved: Any) -> None:
    one = saved["npz-logistic"]
    _use(one)
    assert portable.register(one.run, one.logged, "edge", portable.TOLERANCE, {}, "").registered == "models:/edge/1"


def test_a_green_model_takes_green_trips(spec: TrackingSpec, natives: Any, trips: pd.DataFrame) -> None:
    file, expected = natives["npz-logistic"]
    green = portable.renamed(trips, "green")
    assert list(green)[0] == "lpep_pickup_datetime"
    with open_run(spec, name="n", tags={}, params={}) as run:
        logged = portable.log_model(run, file, "npz-logistic", FACTS, "green", trips.head(5))
        assert portable.parity(logged, green, expected) <= 1e-9
        with pytest.raises(mlflow.exceptions.MlflowException, match="lpep_pickup_datetime"):
            portable.parity(logged, trips, expected)


@pytest.mark.slow
def test_a_model_on_a_server(server: str, natives: Any, trips: pd.DataFrame) -> None:
    file, expected = natives["xgboost-ubj"]
    spec = TrackingSpec(uri=server, experiment="models", system_metrics=False)
    with open_run(spec, name="n", tags={}, params={}) as run:
        logged = portable.log_model(run, file, "xgboost-ubj", FACTS, "yellow", trips.head(5))
        difference = portable.parity(logged, trips, expected)
        assert difference <= 1e-6
        registered = portable.register(run, logged, "served", difference, {"test/auc": 0.6}, "").registered
    assert registered == "models:/served/1"
    np.testing.assert_allclose(mlflow.pyfunc.load_model(registered).predict(trips), expected, atol=1e-6)


def _ask(url: str, body: bytes, kind: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"{url}/invocations", data=body, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


@pytest.mark.slow
def test_a_registered_model_is_served(
    spec: TrackingSpec, natives: Any, trips: pd.DataFrame, tmp_path: Path, serving: Any, free_port: Any
) -> None:
    file, expected = natives["xgboost-ubj"]
    with open_run(spec, name="n", tags={}, params={}) as run:
        logged = portable.log_model(run, file, "xgboost-ubj", FACTS, "yellow", trips.head(5))
        portable.register(run, logged, "tips", 0.0, {}, "")
    port = free_port()
    command = [
        "models",
        "serve",
        "-m",
        "models:/tips/1",
        "--env-manager",
        "local",
        "--host",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    # a row without its time, and one without passengers among those sent
    sent = trips.iloc[[0, 1, 2, 10, 11]]
    rows = json.loads(sent.to_json(orient="records", date_format="iso"))
    split = json.loads(sent.to_json(orient="split", date_format="iso", index=False))
    parquet = io.BytesIO()
    sent.to_parquet(parquet)
    with serving(command, f"http://127.0.0.1:{port}", tmp_path, MLFLOW_TRACKING_URI=str(spec.uri)) as url:
        answers = [
            _ask(url, json.dumps({"dataframe_split": split}).encode(), "application/json"),
            _ask(url, json.dumps({"dataframe_records": rows}).encode(), "application/json"),
            _ask(url, parquet.getvalue(), "application/vnd.apache.parquet"),
        ]
        for status, answer in answers:
            assert status == 200, answer
            np.testing.assert_allclose(answer["predictions"], expected[[0, 1, 2, 10, 11]], atol=1e-6)
        # MLflow reads CSV only for signatures without columns of any type, and says so.
        status, answer = _ask(url, sent.to_csv(index=False).encode(), "text/csv")
        assert status == 400
        assert "Failed to parse input" in answer["message"]
        without = [{name: value for name, value in row.items() if name != "PULocationID"} for row in rows]
        status, answer = _ask(url, json.dumps({"dataframe_records": without}).encode(), "application/json")
        assert status == 400
        assert "Model is missing inputs ['PULocationID']" in answer["message"]
        text = [{**rows[0], "DOLocationID": "JFK"}]
        status, answer = _ask(url, json.dumps({"dataframe_records": text}).encode(), "application/json")
        assert status == 400
        assert "column 'DOLocationID' cannot be read" in answer["message"]
        assert "Traceback" not in json.dumps(answer)
        late = [{**rows[0], TIME: "soon"}]
        status, answer = _ask(url, json.dumps({"dataframe_records": late}).encode(), "application/json")
        assert status == 400
        assert TIME in answer["message"]
