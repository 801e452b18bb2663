"""A registered model through MLflow's own calls and commands: rows of docs/mlflow.md."""

import shutil
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import xgboost
import yaml
from mlflow.exceptions import MlflowException
from mlflow.models import Model, convert_input_example_to_serving_input, validate_serving_input
from tests import warm
from tests.jobs.conftest import QUICK, QUICK_TRAIN

ROOT = Path(__file__).resolve().parents[2]
URI = "models:/tipcast/1"
TIME = "tpep_pickup_datetime"
ZONES = ["PULocationID", "DOLocationID"]
WITHIN = """import mlflow, sys, tipcast
store = sys.argv[1]
mlflow.set_tracking_uri(store)
experiment = mlflow.create_experiment("own")
mlflow.autolog(silent=True)
with mlflow.start_run(experiment_id=experiment) as own:
    ended = tipcast.train(
        tracking={"uri": store, "experiment": "own"},
        overrides=[*sys.argv[2:], f"+tracking.tags={{mlflow.parentRunId: {own.info.run_id}}}"],
    )
    mlflow.log_metric("mine", 1)
print(own.info.run_id, ended.run_id)
"""


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Raw trips of one month; of the second the zone cannot be."""
    draw = np.random.default_rng(5)
    trips = pd.DataFrame(draw.integers(1, 264, (200, 2)), columns=ZONES)
    trips.insert(
        0,
        TIME,
        pd.Timestamp("2019-04-01") + pd.to_timedelta(draw.integers(0, 30 * 86400, 200), unit="s"),
    )
    trips.insert(1, "passenger_count", draw.choice([1.0, 2.0, np.nan], 200))
    trips.loc[1, "PULocationID"] = 300
    return trips


@pytest.fixture
def uri(registered: Path, tmp_path: Path) -> str:
    """The registered model's address in a store of this test alone, which MLflow's calls use."""
    mlflow.set_tracking_uri(f"sqlite:///{shutil.copy(registered, tmp_path)}")
    return URI


@pytest.fixture(scope="module")
def loaded(registered: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model as MLflow loads it."""
    store = shutil.copy(registered, tmp_path_factory.mktemp("loaded"))
    mlflow.set_tracking_uri(f"sqlite:///{store}")
    try:
        return mlflow.pyfunc.load_model(URI)
    finally:
        mlflow.set_tracking_uri(None)


@pytest.fixture
def model(uri: str, loaded: Any) -> Any:
    """The loaded model, in a store of this test alone."""
    return loaded


def test_two_flavors_of_one_file(uri: str, model: Any, rows: pd.DataFrame) -> None:
    assert set(model.metadata.flavors) == {"python_function", "xgboost"}
    booster = mlflow.xgboost.load_model(uri)
    assert isinstance(booster, xgboost.Booster)
    features = model.predict(rows, params={"output": "features"})
    assert list(features) == booster.feature_names
    found = booster.predict(
        xgboost.DMatrix(features, missing=float(booster.attr("missing") or "nan"))
    )
    probability = model.predict(rows)
    assert np.flatnonzero(np.isnan(probability)).tolist() == [1]
    known = ~np.isnan(probability)
    np.testing.assert_allclose(found[known], probability[known], atol=1e-6)
    assert model.unwrap_python_model().manifest["model"] == "xgboost"


def test_what_is_asked_for(model: Any, rows: pd.DataFrame) -> None:
    """That of models of other kinds is told in test_kinds.py, of other formats and of a server
    among the unit tests.
    """
    probability = model.predict(rows)
    known = np.arange(len(rows)) != 1
    for threshold in ({}, {"threshold": 0.0}, {"threshold": 0.4}):
        at = threshold.get("threshold", model.unwrap_python_model().manifest["threshold"])
        label = model.predict(rows, params={"output": "label", **threshold})
        assert label[1] is None
        assert label[known].tolist() == (probability[known] >= at).astype(int).tolist()
    parts = model.predict(rows, params={"output": "contributions"})
    assert parts.loc[1].isna().all()
    margin = parts.to_numpy()[known].sum(axis=1)
    np.testing.assert_allclose(1 / (1 + np.exp(-margin)), probability[known], atol=1e-6)
    for output in ("label", "contributions", "features"):
        assert len(model.predict(rows.head(0), params={"output": output})) == 0
    for params, says in (
        (
            {"output": "odds"},
            "output 'odds' is not available for this xgboost-ubj model. "
            "Fix: use probability, label, contrib",
        ),
        (
            {"output": "label", "threshold": float("nan")},
            "threshold nan is not a probability. Fix: use 0 to 1",
        ),
    ):
        with pytest.raises(MlflowException, match=f"^[^\n]*{says}[^\n]*$") as caught:
            model.predict(rows, params=params)
        assert caught.value.error_code == "INVALID_PARAMETER_VALUE"


def test_the_signature_has_the_columns_of_raw_rows(model: Any) -> None:
    signature = model.metadata.signature
    assert signature.inputs.input_names() == [TIME, "passenger_count", *ZONES]
    assert [str(column.type) for column in signature.outputs.inputs] == ["DataType.double"]


def test_the_signature_has_the_parameters_of_a_prediction(model: Any) -> None:
    threshold = model.unwrap_python_model().manifest["threshold"]
    params = model.metadata.signature.params
    defaults = {param.name: (param.dtype.name, param.default) for param in params}
    assert defaults == {"output": ("string", "probability"), "threshold": ("double", threshold)}


def test_the_input_example_is_scored_as_a_server_would(uri: str, model: Any) -> None:
    example = model.input_example
    assert len(example) == 5
    with pytest.warns(FutureWarning, match="deprecated"):
        found = validate_serving_input(uri, convert_input_example_to_serving_input(example))
    np.testing.assert_array_equal(found, model.predict(example))


def test_the_folder_moves_to_another_machine(
    model: Any, rows: pd.DataFrame, registered: Path, tmp_path: Path
) -> None:
    found = mlflow.artifacts.download_artifacts(URI)
    folder = Path(
        shutil.copytree(found, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("__pycache__"))
    )
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert str(registered.parent).encode() not in path.read_bytes(), path
        assert str(ROOT).encode() not in path.read_bytes(), path
    described = yaml.safe_load((folder / "MLmodel").read_text())
    assert described["flavors"]["python_function"]["model_code_path"] == "model.py"
    artifacts = described["flavors"]["python_function"]["artifacts"].values()
    uris = {artifact["uri"] for artifact in artifacts}
    assert uris == {str(path.relative_to(folder)) for path in (folder / "artifacts").glob("*.*")}
    np.testing.assert_array_equal(
        mlflow.pyfunc.load_model(str(folder)).predict(rows), model.predict(rows)
    )
    features = model.unwrap_python_model().manifest["features"]
    assert mlflow.xgboost.load_model(str(folder)).num_features() == len(features)


def test_logged_models_are_searched_by_metrics_of_a_dataset(uri: str, model: Any) -> None:
    client = mlflow.MlflowClient()
    run = client.get_run(model.metadata.run_id)
    datasets = {used.tags[0].value: used.dataset for used in run.inputs.dataset_inputs}
    assert set(datasets) == {"train", "validation", "test"}

    def search(split: str, condition: str) -> list[str]:
        dataset = {"dataset_name": datasets[split].name, "dataset_digest": datasets[split].digest}
        models = client.search_logged_models(
            [run.info.experiment_id], condition, datasets=[dataset]
        )
        return [model.model_id for model in models]

    auc = run.data.metrics["test/auc"]
    assert search("test", f"name = 'xgboost-high_tip' AND metrics.`test/auc` > {auc - 1e-6}") == [
        model.model_id
    ]
    assert search("test", f"metrics.`test/auc` > {auc + 1e-6}") == []
    assert search("validation", "metrics.`test/auc` > 0") == []
    assert search("validation", "metrics.`validation/auc` > 0") == [model.model_id]
    logged = client.get_logged_model(model.model_id)
    names = [metric.key for metric in logged.metrics]
    assert len(names) == len(set(names)), "each once"
    values = {metric.key: metric.value for metric in logged.metrics}
    assert values.items() <= run.data.metrics.items()


def test_a_run_is_found_by_what_it_logged(model: Any) -> None:
    run = mlflow.get_run(model.metadata.run_id)
    condition = "metrics.`test/auc` > 0 and params.`model.name` = 'xgboost' and tags.job = 'train'"
    found = mlflow.search_runs(
        experiment_names=["tipcast"], filter_string=condition, order_by=["metrics.`test/auc` DESC"]
    ).set_index("run_id")
    assert found.loc[run.info.run_id, "metrics.test/auc"] == run.data.metrics["test/auc"]


def test_the_experiment_of_a_run_is_found_by_its_name(model: Any) -> None:
    run = mlflow.get_run(model.metadata.run_id)
    experiments = mlflow.search_experiments(filter_string="name = 'tipcast'")
    assert [experiment.name for experiment in experiments] == ["tipcast"]
    assert mlflow.get_experiment_by_name("tipcast").experiment_id == run.info.experiment_id


def test_a_table_of_a_run_is_loaded(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "tipcast")  # what load_table searches
    run_id = model.metadata.run_id
    assert len(mlflow.load_table("tables/roc.json", run_ids=[run_id])) > 10
    assert mlflow.artifacts.load_dict(f"runs:/{run_id}/tables/roc.json")["columns"]


def test_a_plot_of_a_run_is_loaded(model: Any) -> None:
    plot = mlflow.artifacts.load_image(f"runs:/{model.metadata.run_id}/plots/roc.png")
    assert plot.size[0] > 0


def test_a_run_tells_where_its_rows_come_from(model: Any) -> None:
    used = mlflow.get_run(model.metadata.run_id).inputs.dataset_inputs
    sources = [mlflow.data.get_source(dataset) for dataset in used]
    assert {type(source).__name__ for source in sources} == {"CodeDatasetSource"}


def test_a_run_that_has_ended_is_added_to(model: Any) -> None:
    run = mlflow.get_run(model.metadata.run_id)
    with mlflow.start_run(run_id=run.info.run_id):
        mlflow.log_metric("mine/dollars", 3.5)
        mlflow.log_text("later", "mine.txt")
        mlflow.set_tag("reviewed", "yes")
    now = mlflow.get_run(run.info.run_id)
    assert (now.info.status, now.data.tags["reviewed"]) == ("FINISHED", "yes")
    assert now.data.metrics == {**run.data.metrics, "mine/dollars": 3.5}


def test_within_a_run_of_ones_own(uri: str, tmp_path: Path) -> None:
    """With MLflow's autologging on, too: it adds nothing, for a training logs by itself.

    In a process of its own, for autologging leaves hooks in the imports of its process.
    """
    script = tmp_path / "within.py"
    script.write_text(WITHIN)
    words = [
        str(script),
        str(mlflow.get_tracking_uri()),
        "data.rows=2000",
        *QUICK[1:],
        *QUICK_TRAIN,
    ]
    code = warm.start(words, tmp_path, warm.environment()).wait(300)
    assert code == 0, (tmp_path / "stderr").read_text()
    outer, training = (tmp_path / "stdout").read_text().split()[-2:]
    runs = {
        run.info.run_id: run
        for run in mlflow.search_runs(experiment_names=["own"], output_format="list")
    }
    assert set(runs) == {outer, training}
    assert runs[outer].data.metrics == {"mine": 1}
    assert runs[training].data.tags["mlflow.parentRunId"] == outer
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_a_model_is_described_without_loading_it(uri: str, model: Any) -> None:
    info = mlflow.models.get_model_info(uri)
    assert info.run_id == model.metadata.run_id
    assert Model.load(uri).signature == info.signature


@pytest.mark.usefixtures("model")
def test_a_model_names_the_packages_that_it_needs(uri: str) -> None:
    assert "mlflow==" in Path(mlflow.pyfunc.get_model_dependencies(uri)).read_text()


@pytest.fixture
def registered_again(uri: str, model: Any) -> tuple[str, str, str]:
    """Addresses of the model in its run, as registered again, and as copied with an alias."""
    client = mlflow.MlflowClient()
    logged = f"runs:/{model.metadata.run_id}/xgboost-high_tip"
    version = mlflow.register_model(logged, "again")
    copied = client.copy_model_version(uri, "production")
    client.set_registered_model_alias("production", "champion", copied.version)
    return logged, f"models:/again/{version.version}", "models:/production@champion"


def test_a_model_scores_the_same_by_every_address(
    registered_again: tuple[str, str, str], model: Any
) -> None:
    rows = model.input_example
    for address in registered_again:
        scores = mlflow.pyfunc.load_model(address).predict(rows)
        np.testing.assert_array_equal(scores, model.predict(rows), err_msg=address)


@pytest.mark.usefixtures("registered_again")
def test_a_copied_version_keeps_its_tags() -> None:
    (copied,) = mlflow.search_model_versions(filter_string="name = 'production'")
    original = mlflow.MlflowClient().get_model_version("tipcast", "1")
    assert copied.tags["sha256.manifest"] == original.tags["sha256.manifest"]


@pytest.mark.usefixtures("registered_again")
def test_registered_models_are_listed() -> None:
    names = {registered.name for registered in mlflow.search_registered_models()}
    assert {"tipcast", "again"} <= names


@pytest.mark.filterwarnings("ignore")  # MLflow's of whole numbers, and its libraries'
def test_evaluate_of_a_classifier(model: Any, rows: pd.DataFrame) -> None:
    known = rows.drop(index=1)
    labels = model.predict(known, params={"output": "label", "threshold": 0.5})
    answers = np.resize([0, 1, 1], len(known))
    found = mlflow.models.evaluate(
        data=known.assign(label=labels, high=answers),
        predictions="label",
        targets="high",
        model_type="classifier",
        evaluators="classifier",
        model_id=model.model_id,
    )
    assert found.metrics["accuracy_score"] == pytest.approx(
        np.mean((model.predict(known) >= 0.5) == answers)
    )
    assert "confusion_matrix" in found.artifacts
    logged = mlflow.MlflowClient().get_logged_model(model.model_id)
    assert "accuracy_score" in {metric.key for metric in logged.metrics}
