"""Folds, groups and weights with backend=gpu, held against the same on the CPU."""

from pathlib import Path

import mlflow
import pandas as pd
import pytest
from tests.jobs.conftest import Ended, run_job
from tests.jobs.test_folds import make_table

WORDS = {
    "classes": ("task.weight=size", "task.class_weight=balanced", "task.target=kind"),
    "groups": ("data.group=owner", "task.target=kind"),
    "time": ("data.time=when", "task.weight=size", "task.target=value"),
}
"""How rows are divided -> words of the command."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu_folds") / "table.csv"
    rows = make_table(6000)
    rows.assign(size=rows["size"].abs()).to_csv(path, index=False)
    return path


def train(store: str, table: Path, job: str, *words: str) -> Ended:
    given = ("data=table", f"data.train={table}", "task.features=[age,speed]", "task.folds=3")
    return run_job(store, job, *given, *words)


def out_of_fold(store: str, ended: Ended) -> pd.DataFrame:
    """Return the predictions of the rows that folds test, by row."""
    mlflow.set_tracking_uri(store)
    path = mlflow.artifacts.download_artifacts(
        run_id=ended.run.info.run_id, artifact_path="folds/predictions.parquet"
    )
    return pd.read_parquet(path).set_index("row").sort_index()


@pytest.mark.gpu
@pytest.mark.parametrize("divided", WORDS)
def test_folds_of_a_gpu_are_those_of_the_cpu(store: str, table: Path, divided: str) -> None:
    words = WORDS[divided]
    on_cpu = train(store, table, "train", *words)
    on_gpu = train(store, table, "train", "backend=gpu", *words)

    expected = out_of_fold(store, on_cpu)
    found = out_of_fold(store, on_gpu)
    pd.testing.assert_frame_equal(found[["fold", "target"]], expected[["fold", "target"]])

    name = "validation/rmse" if divided == "time" else "validation/auc"
    metrics = on_gpu.run.data.metrics
    assert metrics[name] == pytest.approx(on_cpu.run.data.metrics[name], abs=0.02)
    assert metrics["parity/max_abs_diff"] <= 1e-5


@pytest.mark.gpu
def test_trials_of_a_gpu_fit_folds(store: str, table: Path) -> None:
    words = ("backend=gpu", "task.target=kind", "data.group=owner", "search.trials=3")
    ended = train(store, table, "sweep", *words)

    best = ended.said["best"]["validation/auc"]
    assert ended.run.data.metrics["validation/auc"] == pytest.approx(best, abs=1e-3)


@pytest.mark.gpu
def test_halving_goes_on_with_a_booster_of_a_gpu(store: str, table: Path) -> None:
    words = ("backend=gpu", "search=halving", "task.target=kind", "search.trials=9")
    ended = train(store, table, "sweep", *words)

    assert ended.said["trials"]["failed"] == 0
    assert ended.said["trials"]["finished"] == ended.said["trials"]["all"] > 9
