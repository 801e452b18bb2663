"""A registered model through MLflow's own calls and commands: rows of docs/mlflow.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import xgboost
import yaml
from mlflow.exceptions import MlflowException
from mlflow.models import convert_input_example_to_serving_input, validate_serving_input
from tests.conftest import answering

ROOT = Path(__file__).resolve().parents[2]
URI = "models:/tipcast/1"
TIME, ZONES = "tpep_pickup_datetime", ["PULocationID", "DOLocationID"]
LIMIT_S = 600
CACHES = shutil.ignore_patterns("__pycache__")
INFER = """
import json, sys, warnings
warnings.simplefilter("ignore")
import mlflow, pandas
from pyspark.sql import SparkSession, functions
settings = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
rows = spark.createDataFrame(pandas.read_parquet(sys.argv[2]))
udf = mlflow.pyfunc.spark_udf(spark, sys.argv[1], result_type="double", env_manager="local")
found = rows.withColumn("p", udf(functions.struct(*rows.columns))).select("p").toPandas()["p"]
print(json.dumps(found.tolist()))
"""


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Raw trips of one month; of the second the zone cannot be."""
    draw = np.random.default_rng(5)
    made = pd.DataFrame(draw.integers(1, 264, (200, 2)), columns=ZONES)
    made.insert(0, TIME, pd.Timestamp("2019-04-01") + pd.to_timedelta(draw.integers(0, 30 * 86400, 200), unit="s"))
    made.insert(1, "passenger_count", draw.choice([1.0, 2.0, np.nan], 200))
    made.loc[1, "PULocationID"] = 300
    return made


@pytest.fixture
def uri(registered: Path, tmp_path: Path) -> str:
    """The registered model's address in a store of this test alone, which MLflow's calls use."""
    mlflow.set_tracking_uri(f"sqlite:///{shutil.copy(registered, tmp_path)}")
    return URI


@pytest.fixture
def model(uri: str) -> Any:
    """The model as MLflow loads it."""
    return mlflow.pyfunc.load_model(uri)


@pytest.fixture
def folder(uri: str, tmp_path: Path) -> Path:
    """The model's files, copied as to another machine."""
    found = Path(mlflow.artifacts.download_artifacts(uri))
    return Path(shutil.copytree(found, tmp_path / "elsewhere" / "model", ignore=CACHES))


def test_two_flavors_of_one_file(uri: str, model: Any, rows: pd.DataFrame) -> None:
    assert set(model.metadata.flavors) == {"python_function", "xgboost"}
    booster = mlflow.xgboost.load_model(uri)
    assert isinstance(booster, xgboost.Booster)
    features = model.predict(rows, params={"output": "features"})
    assert list(features) == booster.feature_names
    found = booster.predict(xgboost.DMatrix(features, missing=float(booster.attr("missing") or "nan")))
    probability = model.predict(rows)
    assert np.flatnonzero(np.isnan(probability)).tolist() == [1]
    known = ~np.isnan(probability)
    np.testing.assert_allclose(found[known], probability[known], atol=1e-6)
    assert model.unwrap_python_model().manifest["model"] == "xgboost"


def test_what_is_asked_for(model: Any, rows: pd.DataFrame) -> None:
    probability, known = model.predict(rows), np.arange(len(rows)) != 1
    np.testing.assert_array_equal(model.predict(rows, params={"output": "probability"}), probability)
    for threshold in (None, 0.0, 0.4, 1):
        chosen = {} if threshold is None else {"threshold": threshold}
        at = model.unwrap_python_model().manifest["threshold"] if threshold is None else threshold
        label = model.predict(rows, params={"output": "label", **chosen})
        assert label[1] is None
        assert label[known].tolist() == (probability[known] >= at).astype(int).tolist()
    assert model.predict(rows[known], params={"output": "label"}).dtype == np.int64
    parts = model.predict(rows, params={"output": "contributions"})
    assert list(parts) == [*model.unwrap_python_model().manifest["features"], "bias"]
    assert parts.loc[1].isna().all()
    margin = parts.to_numpy()[known].sum(axis=1)
    np.testing.assert_allclose(1 / (1 + np.exp(-margin)), probability[known], atol=1e-6)
    assert parts["bias"][known].nunique() == 1
    for output in ("label", "contributions", "features"):
        assert len(model.predict(rows.head(0), params={"output": output})) == 0


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"output": "odds"}, "output 'odds' is none of this xgboost-ubj model. Fix: use probability, label, contrib"),
        ({"output": "label", "threshold": 2}, "threshold 2 is no probability. Fix: use 0 to 1"),
        ({"output": "label", "threshold": float("nan")}, "threshold nan is no probability"),
        ({"threshold": "high"}, "Invalid parameters found"),
    ],
)
def test_what_cannot_be_asked_for(model: Any, rows: pd.DataFrame, params: dict[str, Any], says: str) -> None:
    with pytest.raises(MlflowException, match=says) as caught:
        model.predict(rows, params=params)
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"
    assert "\n" not in str(caught.value)


def test_signature_and_input_example(uri: str, model: Any) -> None:
    signature = model.metadata.signature
    assert signature.inputs.input_names() == [TIME, "passenger_count", *ZONES]
    assert [str(each.type) for each in signature.outputs.inputs] == ["DataType.double"]
    threshold = model.unwrap_python_model().manifest["threshold"]
    defaults = {each.name: (each.dtype.name, each.default) for each in signature.params}
    assert defaults == {"output": ("string", "probability"), "threshold": ("double", threshold)}
    example = model.input_example
    assert len(example) == 5
    with pytest.warns(FutureWarning, match="deprecated"):
        found = validate_serving_input(uri, convert_input_example_to_serving_input(example))
    np.testing.assert_array_equal(found, model.predict(example))


@pytest.mark.parametrize(("declared", "given"), [("double", "int64"), ("long", "float64"), ("string", "int64")])
def test_declared_types_would_refuse_files(folder: Path, rows: pd.DataFrame, declared: str, given: str) -> None:
    known = rows.drop(index=1).astype(dict.fromkeys(ZONES, given))
    assert np.isfinite(mlflow.pyfunc.load_model(str(folder)).predict(known)).all()
    described = yaml.safe_load((folder / "MLmodel").read_text())
    inputs = json.loads(described["signature"]["inputs"])
    for column in inputs:
        column["type"] = declared if column["name"] in ZONES else column["type"]
    described["signature"]["inputs"] = json.dumps(inputs)
    (folder / "MLmodel").write_text(yaml.safe_dump(described))
    with pytest.raises(MlflowException, match="Failed to enforce schema"):
        mlflow.pyfunc.load_model(str(folder)).predict(known)


def test_the_folder_moves_to_another_machine(model: Any, folder: Path, rows: pd.DataFrame, registered: Path) -> None:
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert str(registered.parent).encode() not in path.read_bytes(), path
        assert str(ROOT).encode() not in path.read_bytes(), path
    described = yaml.safe_load((folder / "MLmodel").read_text())
    assert described["flavors"]["python_function"]["model_code_path"] == "model.py"
    uris = {each["uri"] for each in described["flavors"]["python_function"]["artifacts"].values()}
    assert uris == {str(path.relative_to(folder)) for path in (folder / "artifacts").glob("*.*")}
    np.testing.assert_array_equal(mlflow.pyfunc.load_model(str(folder)).predict(rows), model.predict(rows))
    assert mlflow.xgboost.load_model(str(folder)).num_features() == len(described["metadata"]["tipcast"]["features"])


def test_logged_models_are_searched_by_metrics_of_a_dataset(uri: str, model: Any) -> None:
    client = mlflow.MlflowClient()
    run = client.get_run(model.metadata.run_id)
    of = {each.tags[0].value: each.dataset for each in run.inputs.dataset_inputs}
    assert set(of) == {"train", "validation", "test"}

    def search(split: str, condition: str) -> list[str]:
        dataset = {"dataset_name": of[split].name, "dataset_digest": of[split].digest}
        found = client.search_logged_models([run.info.experiment_id], condition, datasets=[dataset])
        return [each.model_id for each in found]

    auc = run.data.metrics["test/auc"]
    assert search("test", f"name = 'xgboost-high_tip' AND metrics.`test/auc` > {auc - 1e-6}") == [model.model_id]
    assert search("test", f"metrics.`test/auc` > {auc + 1e-6}") == []
    assert search("validation", "metrics.`test/auc` > 0") == []
    assert search("validation", "metrics.`validation/auc` > 0") == [model.model_id]
    logged = client.get_logged_model(model.model_id)
    names = [each.key for each in logged.metrics]
    assert len(names) == len(set(names)), "each once"
    assert {each.key: each.value for each in logged.metrics}.items() <= run.data.metrics.items()


@pytest.mark.filterwarnings("ignore")  # MLflow's of whole numbers, and its libraries'
def test_evaluate_of_a_classifier(model: Any, rows: pd.DataFrame) -> None:
    known = rows.drop(index=1)
    labels = model.predict(known, params={"output": "label", "threshold": 0.5})
    answers = np.resize([0, 1, 1], len(known))
    found = mlflow.models.evaluate(
        data=known.assign(label=labels, high=answers), predictions="label", targets="high",
        model_type="classifier", evaluators="classifier", model_id=model.model_id,
    )  # fmt: skip
    assert found.metrics["accuracy_score"] == pytest.approx(np.mean((model.predict(known) >= 0.5) == answers))
    assert "confusion_matrix" in found.artifacts
    logged = mlflow.MlflowClient().get_logged_model(model.model_id)
    assert "accuracy_score" in {each.key for each in logged.metrics}


def _python(variable: str, package: str) -> str:
    """Return the Python of an environment that has a package which tests do without, with MLflow and XGBoost."""
    found = os.environ.get(variable)
    if not found:
        pytest.skip(f"set {variable} to a Python with {package}, mlflow and xgboost")
    return found


def test_spark_udf(folder: Path, rows: pd.DataFrame, model: Any, tmp_path: Path) -> None:
    python = _python("TIPCAST_SPARK_PYTHON", "pyspark (and Java)")
    rows.to_parquet(tmp_path / "rows.parquet")
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", INFER, str(folder), str(tmp_path / "rows.parquet")],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=outside,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout.splitlines()[-1]), model.predict(rows), atol=1e-6)


def test_mlserver(folder: Path, rows: pd.DataFrame, model: Any, tmp_path: Path) -> None:
    python = _python("TIPCAST_MLSERVER_PYTHON", "mlserver-mlflow")
    (own := tmp_path / "served").mkdir()
    described = {"implementation": "mlserver_mlflow.MLflowRuntime", "parameters": {"uri": str(folder)}}
    (own / "model-settings.json").write_text(json.dumps({"name": "tips", **described}))
    settings = {"http_port": 0, "grpc_port": 0, "metrics_endpoint": None, "host": "127.0.0.1", "parallel_workers": 0}
    (own / "settings.json").write_text(json.dumps(settings))
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [Path(python).with_name("mlserver"), "start", own], stdout=log, stderr=log, env=outside, cwd=own
        )
    try:
        sent = rows.head(3).astype({TIME: str})
        url = answering(process, "http://127.0.0.1:0", tmp_path / "log", "v2/health/ready")
        p = model.predict(sent)
        split = json.loads(sent.to_json(orient="split", index=False))
        for body, kind in (
            (json.dumps({"dataframe_split": split}), "application/json"),
            (sent.to_csv(index=False), "text/csv"),
        ):
            found = _ask(f"{url}/invocations", body, kind)["predictions"]
            assert found[1] is None
            np.testing.assert_allclose([found[0], found[2]], [p[0], p[2]], atol=1e-6)
        kinds = {TIME: ("BYTES", "str"), "passenger_count": ("FP64", "np")}
        inputs = [
            {
                "name": name,
                "shape": [2],
                "datatype": (of := kinds.get(name, ("INT64", "np")))[0],
                "data": sent[name].fillna(1).tolist()[::2],
                "parameters": {"content_type": of[1]},
            }
            for name in sent
        ]
        body = json.dumps({"inputs": inputs, "parameters": {"output": "label", "threshold": 0}})
        (output,) = _ask(f"{url}/v2/models/tips/infer", body, "application/json")["outputs"]
        assert output["data"] == [1, 1]
    finally:
        process.terminate()
        process.wait(20)


def _ask(url: str, body: str, kind: str) -> Any:
    request = urllib.request.Request(url, data=body.encode(), headers={"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer, parse_constant=pytest.fail)
