"""A kind of task of a user's own, in a folder of theirs: trained, scored and served."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from mlflow.models import convert_input_example_to_serving_input, validate_serving_input
from tests.jobs.conftest import QUICK, QUICK_TRAIN

COUNTING = '''
import re
from dataclasses import dataclass

from tipcast.evaluation import metric, regression
from tipcast.tasks import kinds


@dataclass(frozen=True)
class Counts(kinds.Regression):
    """A count of events; predicted is the number to expect."""

    name = "counts"
    evaluator = "counting.Evaluator"
    boosting = kinds.Boosting("count:poisson", "poisson-nloglik", re.compile("poisson-nloglik"))

    def scored_columns(self, classes):
        return ("expected",)


kinds.register(Counts())


class Evaluator(regression.Regression):
    kind = Counts()


@metric("counts", maximize=False)
def overestimate(target, prediction):
    return prediction - target
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: a package with the kind, and a table of visits."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "counting.py").write_text(COUNTING)
    package = folder / "counting-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[tipcast.kinds]\ncounts = counting:Counts\n")

    draw = np.random.default_rng(3)
    size = draw.uniform(0, 3, 2000)
    visits = draw.poisson(np.exp(size))
    pd.DataFrame({"size": size, "visits": visits}).to_csv(folder / "visits.csv", index=False)
    return folder


def tipcast(folder: Path, *words: str) -> dict[str, object]:
    """Run a job in the folder as a process of its own; return its last line."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "tipcast",
        *words,
        "print=json",
        "tracking.uri=sqlite:///mlflow.db",
        *QUICK[1:],
    ]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    said: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    return said


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, object]:
    """A training of the kind, which registers its model."""
    return tipcast(
        folder,
        *("train", "data=table", "data.train=visits.csv", "task.target=visits"),
        *("task.kind=counts", "model=xgboost", "model.kinds=[counts]"),
        *("model.params.n_estimators=30", "tracking.register=visits", *QUICK_TRAIN),
    )


@pytest.fixture
def model(folder: Path, trained: dict[str, object]) -> mlflow.pyfunc.PyFuncModel:
    """The registered model, which needs none of the user's code."""
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    return mlflow.pyfunc.load_model("models:/visits/1")


@pytest.fixture
def metrics(folder: Path, trained: dict[str, object]) -> dict[str, float]:
    """What the training logged."""
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    return dict(client.get_run(str(trained["run_id"])).data.metrics)


def test_a_training_logs_what_its_evaluator_says(metrics: dict[str, float]) -> None:
    assert metrics["test/rmse"] < metrics["baseline/rmse"]


def test_a_training_logs_the_metric_of_the_user(metrics: dict[str, float]) -> None:
    assert metrics["test/overestimate"] == pytest.approx(0, abs=0.5)


def test_the_library_learns_by_the_kind_s_objective(model: mlflow.pyfunc.PyFuncModel) -> None:
    booster = mlflow.xgboost.load_model("models:/visits/1")
    assert json.loads(booster.save_config())["learner"]["objective"]["name"] == "count:poisson"
    assert (model.predict(pd.DataFrame({"size": [0.0, 1.0, 2.0]})) > 0).all()


def test_scores_stand_in_the_kind_s_own_column(
    folder: Path, model: mlflow.pyfunc.PyFuncModel
) -> None:
    tipcast(folder, "score", "model_uri=models:/visits/1", "input=visits.csv", "output=scored")
    scores = pq.read_table(folder / "scored").to_pandas()
    assert "prediction" not in scores
    np.testing.assert_allclose(scores["expected"], model.predict(scores[["size"]]), rtol=1e-6)


@pytest.mark.filterwarnings("ignore")  # of MLflow's server in this process
def test_a_server_answers_with_what_the_model_predicts(model: mlflow.pyfunc.PyFuncModel) -> None:
    rows = pd.DataFrame({"size": [0.5, 2.5]})
    served = validate_serving_input(
        "models:/visits/1", convert_input_example_to_serving_input(rows)
    )
    np.testing.assert_allclose(served, model.predict(rows))
