"""`tipcast train` as a user runs it, every model, and real trips with the quality they are known to
allow.
"""

import contextlib
import dataclasses
import io
import json
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from tests.conftest import python
from tests.jobs.conftest import MOST_OF_MODEL, TAGS, Ended, of_model, own_tags
from tests.jobs.test_repeat import write

from tipcast import cli
from tipcast.compute.frames import CpuFrames
from tipcast.config import conf_files
from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.datasets.periods import of_months
from tipcast.datasets.prepare import draw_all, prepare_part
from tipcast.jobs.train import fit_notes
from tipcast.jobs.train_plan import Plan, make_plan

ROOT = Path(__file__).resolve().parents[2]
COURSE = ROOT / "benchmarks" / "outside" / "conf"
COMMAND = [
    "train",
    "data.rows=20000",
    "tracking.register=tipcast",
    "print=json",
    "cluster.performance_report=true",
]
PHASES = ["list", "cluster", "read", "fit", "evaluate", "log"]


@dataclass(frozen=True)
class Trained:
    """What one command left behind."""

    folder: Path
    stderr: str
    said: dict[str, Any]
    client: Any
    run: Any


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("train")
    done = python(folder, "-m", "tipcast", *COMMAND)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    return Trained(folder, done.stderr, said, client, client.get_run(said["run_id"]))


def test_the_last_line_says_everything(trained: Trained) -> None:
    said = trained.said
    metrics = said["metrics"]
    assert list(said) == [
        "run_id",
        "experiment_id",
        "run",
        "tracking_uri",
        "model_uri",
        "metrics",
        "phases",
        "command",
    ]
    assert said["model_uri"] == "models:/tipcast/1"
    assert said["tracking_uri"].startswith("sqlite:///")
    assert metrics["test/auc_low"] < metrics["test/auc"] < metrics["test/auc_high"]
    assert list(said["phases"]) == PHASES
    assert shlex.split(said["command"])[1:3] == COMMAND[:2]


def test_the_last_line_leads_to_the_page_of_the_run(trained: Trained) -> None:
    said = trained.said
    page = f"experiments/{said['experiment_id']}/runs/{said['run_id']}"
    assert said["run"] == f"http://127.0.0.1:5000/#/{page}?workflowType=machine_learning"


def test_a_training_says_less_than_ten_lines(trained: Trained) -> None:
    assert len(trained.stderr.splitlines()) < 10


def test_a_training_leaves_nothing_but_its_store(trained: Trained) -> None:
    names = {path.name for path in trained.folder.iterdir()}
    assert {name for name in names if not name.startswith("mlflow.db")} == {"mlruns"}


def test_the_note_has_the_command(trained: Trained) -> None:
    assert trained.said["command"] in trained.run.data.tags["mlflow.note.content"]


def test_the_note_has_the_score(trained: Trained) -> None:
    note = trained.run.data.tags["mlflow.note.content"]
    assert f"{trained.said['metrics']['test/auc']:.3f}" in note


def test_the_run_holds_parameters(trained: Trained) -> None:
    params = trained.run.data.params
    assert params["model.params.max_depth"] == "6"
    assert params["data.rows"] == "20000"
    assert params["seed"] == "0"
    assert (params["backend.name"], params["fit.device"]) == ("cpu", "cpu")
    assert params["parity.ways"] == "estimator, xgboost-cpu"
    assert not any(name.startswith(("model.space", "data.limits", "tracking")) for name in params)


def test_the_run_holds_where_it_came_from(trained: Trained) -> None:
    tags = trained.run.data.tags
    assert trained.run.info.status == "FINISHED"
    assert own_tags(trained.run) == TAGS
    assert tags["command"] == trained.said["command"]
    if (ROOT / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{40}", tags["tipcast.commit"])
    assert "mlflow.source.git.commit" not in tags, "the working folder is in no repository"


def test_the_experiment_shows_scores_first(trained: Trained) -> None:
    experiment = trained.client.get_experiment(trained.run.info.experiment_id)
    view = json.loads(experiment.tags["mlflow.sharedViewState.tipcast"])
    assert view["selectedColumns"][:2] == ["metrics.`test/auc`", "metrics.`validation/auc`"]
    assert "/runs?viewStateShareKey=tipcast" in trained.stderr


def test_the_history_has_a_loss_for_each_round(trained: Trained) -> None:
    metrics = trained.run.data.metrics
    (name,) = [name for name in metrics if name.startswith("history/validation_")]
    losses = trained.client.get_metric_history(trained.said["run_id"], name)
    assert [loss.step for loss in losses] == list(range(len(losses)))
    assert losses[0].value > min(loss.value for loss in losses)


def test_rows_are_shared_out_as_asked_for(trained: Trained) -> None:
    metrics = trained.run.data.metrics
    validation = metrics["validation/rows"]
    learned = metrics["train/rows"] + validation
    assert learned == pytest.approx(20_000, rel=0.02)
    assert metrics["test/rows"] == pytest.approx(20_000, rel=0.02)
    assert validation / learned == pytest.approx(0.15, abs=0.02)


def test_the_run_holds_metrics(trained: Trained) -> None:
    metrics = trained.run.data.metrics
    for name, value in trained.said["metrics"].items():
        assert metrics[name] == pytest.approx(value)
    for name in PHASES:
        assert metrics[f"seconds/{name}"] >= 0
    assert metrics["memory/driver_peak_bytes"] > 50e6
    assert metrics["parity/max_abs_diff"] <= 1e-5
    assert len(of_model(metrics)) <= MOST_OF_MODEL, of_model(metrics)
    assert not any(name.startswith("system/") for name in metrics)


def test_the_baseline_answers_the_commoner_class(trained: Trained) -> None:
    rate = trained.run.data.metrics["test/positive_rate"]
    accuracy = trained.said["metrics"]["baseline/accuracy"]
    assert accuracy == pytest.approx(max(rate, 1 - rate))


def test_the_score_is_the_first_metric_of_the_run(trained: Trained) -> None:
    """So MLflow's pages show it first."""
    first = (
        "select key from latest_metrics where key not like 'system/%' order by timestamp, "
        "rowid limit 1"
    )
    with contextlib.closing(sqlite3.connect(trained.folder / "mlflow.db")) as database:
        assert database.execute(first).fetchone() == ("test/auc",)


def test_the_run_holds_its_data(trained: Trained) -> None:
    inputs = {entry.tags[0].value: entry.dataset for entry in trained.run.inputs.dataset_inputs}
    assert set(inputs) == {"train", "validation", "test"}
    profiles = {name: json.loads(dataset.profile) for name, dataset in inputs.items()}
    assert profiles["train"]["rows"] == trained.run.data.metrics["train/rows"]
    assert {name: profile["period"] for name, profile in profiles.items()} == {
        "train": "2019-01-01..2019-03-18",  # 85 % of 90 days end within the 18th
        "validation": "2019-03-18..2019-03-31",
        "test": "2019-04-01..2019-04-30",
    }
    assert re.fullmatch(r"[0-9a-f]{16,}", inputs["train"].digest)


def _artifact(trained: Trained, path: str) -> bytes:
    return Path(trained.client.download_artifacts(trained.said["run_id"], path)).read_bytes()


def test_the_page_of_dask_needs_no_network(trained: Trained) -> None:
    page = _artifact(trained, "dask/dask.html").decode()
    assert "<script" in page
    assert re.findall(r"<script[^>]+src=|<link[^>]+stylesheet[^>]+http", page) == []


def test_plots_are_pictures(trained: Trained) -> None:
    paths = [entry.path for entry in trained.client.list_artifacts(trained.said["run_id"], "plots")]
    assert len(paths) >= 6
    for path in paths:
        with Image.open(io.BytesIO(_artifact(trained, path))) as picture:
            assert picture.format == "PNG"
            assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 10, f"{path} is blank"


def test_the_table_of_the_roc_curve_has_the_area_of_the_score(trained: Trained) -> None:
    table = json.loads(_artifact(trained, "tables/roc.json"))
    curve = np.array(table["data"], dtype=float)
    area = np.trapezoid(curve[:, 1], curve[:, 0])
    assert table["columns"] == ["fpr", "tpr", "threshold"]
    assert curve[0, :2].tolist() == [0, 0]
    assert curve[-1, :2].tolist() == [1, 1]
    assert area == pytest.approx(trained.said["metrics"]["test/auc"], abs=1e-3)


def test_the_run_holds_its_configuration(trained: Trained) -> None:
    config = yaml.safe_load(_artifact(trained, "config.yaml"))
    assert config["data"]["rows"] == 20_000
    assert config["model"]["params"]["tree_method"] == "hist"


def test_tables_are_json_that_a_browser_reads(trained: Trained) -> None:
    """It knows no Infinity."""
    for path in (trained.folder / "mlruns").rglob("*.json"):
        json.loads(path.read_text(), parse_constant=lambda constant: pytest.fail(constant))


def test_one_partition_a_worker_has_the_same_rows(job: Callable[..., Ended]) -> None:
    words = ("train", "model=logistic", "data.rows=20000", "cluster.n_workers=2")
    for block in (1000, 20_000):  # many parts on each worker; of test rows one part on one of them
        more = (*words, f"data.block_rows={block}")
        parts, joined = (
            job(*more, f"cluster.partition_per_worker={joins}").run.data.metrics
            for joins in (False, True)
        )
        assert parts["test/partitions"] == 20_000 // block
        for split in ("train", "validation", "test"):
            assert joined[f"{split}/partitions"] == 2
            assert joined[f"{split}/rows"] == parts[f"{split}/rows"]
        assert joined["test/auc"] == pytest.approx(parts["test/auc"], abs=1e-4)


def test_the_command_repeats_the_run(
    trained: Trained,
    store: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert cli.main(shlex.split(trained.said["command"])[1:]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["metrics"] == trained.said["metrics"]
    assert again["run_id"] != trained.said["run_id"]


def _files(train: Path, test: Path) -> list[str]:
    return ["data=files", f"data.train={train}", f"data.test={test}"]


def test_real_yellow_trips(job: Callable[..., Any], taxi: Path) -> None:
    files = (
        taxi / "yellow" / f"yellow_tripdata_{name}.parquet" for name in ("2018_120k", "2019-03_10k")
    )
    ended = job("train", *_files(*files))
    assert ended.auc >= 0.585
    assert any(
        entry.dataset.name.split()[-1].startswith("2018-01-01")
        for entry in ended.run.inputs.dataset_inputs
    )
    assert ended.run.data.metrics["train/dropped/fare_not_positive"] > 0


def test_real_green_trips(job: Callable[..., Any], taxi: Path) -> None:
    folder = taxi / "no_repo_license"
    ended = job(
        "train",
        *_files(
            folder / "green_tripdata_2020-10.csv.gz", folder / "green_tripdata_2023-12.parquet"
        ),
    )
    assert ended.auc >= 0.665
    assert ended.run.data.params["task.threshold"] == "0.2"


def test_a_course_s_published_number(
    job: Callable[..., Any], taxi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlops-zoomcamp, module 1: least squares on the pair of zones, one-hot, and the distance."""
    monkeypatch.setenv(conf_files.OWN, "")  # set back at the end
    green = taxi / "no_repo_license" / "green_months" / "green_tripdata_2021-01.parquet"
    files = (green, green.with_stem("green_tripdata_2021-02"))
    if not all(file.exists() for file in files):
        pytest.skip(f"no months of green trips below {taxi}")
    words = [
        "task=zoomcamp_duration",
        "model=linear",
        "model.fit.standardize=false",
        "data.limits.stray=null",
    ]
    metrics = job("train", f"--config-dir={COURSE}", *words, *_files(*files)).run.data.metrics
    assert metrics["test/rmse"] == pytest.approx(7.7587152, abs=1e-6)
    assert metrics["test/rows"] == 61_921
    assert metrics["parity/max_abs_diff"] <= 1e-5


def test_a_model_without_a_clean_row_to_hold_it_against_is_not_logged(
    job: Callable[..., Ended], tmp_path: Path
) -> None:
    """Its test rows have a distance that no trip has: they are measured, and get no score."""
    for month in ("2019-01", "2019-02"):
        write(tmp_path, month)
    test = tmp_path / "yellow_2019-02.parquet"
    pd.read_parquet(test).assign(trip_distance=2e6).to_parquet(test, index=False)
    words = ("task.features=[PULocationID,trip_distance]", "model.params.n_estimators=3")
    says = "M011. data.test: has no clean row to check the model with. Fix: test on other rows"
    with pytest.raises(TipcastError, match=says):
        job("train", *_files(tmp_path / "yellow_2019-01.parquet", test), *words)


def plan_of_a_year(folder: Path) -> Plan:
    """Plan a training on three months of a year, one of which is there twice."""
    for month in ("2019-01", "2019-02", "2019-12", "2020-01"):
        write(folder, month, rows=200)
    shutil.copyfile(folder / "yellow_2019-02.parquet", folder / "copy_2019-02.parquet")
    words = _files(folder / "*_2019-*.parquet", folder / "yellow_2020-01.parquet")
    (composed,) = compose("train", [*words, "task.validation=0.1"])
    return make_plan(to_object(composed.config))


def test_a_plan_holds_out_time_that_files_cover(tmp_path: Path) -> None:
    """A tenth of three months, not of the year that they are spread over."""
    nine_days = 9 * 86_400_000_000
    assert plan_of_a_year(tmp_path).recipe.cutoff == of_months("2019-12")[1] - nine_days


def test_a_plan_names_files_of_equal_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan_of_a_year(tmp_path)
    assert "copy_2019-02.parquet and yellow_2019-02.parquet have the same content" in caplog.text


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_text_that_only_rows_to_test_on_have_is_a_missing_value(
    tmp_path: Path, ending: str
) -> None:
    rows = pd.DataFrame(
        {"word": [f"w{row}" if row < 60 else "often" for row in range(300)], "y": [0, 1, 1] * 100}
    )
    rows.to_csv(tmp_path / "t.csv", index=False)
    rows.to_parquet(tmp_path / "t.parquet", row_group_size=80)
    words = [
        "data=table",
        f"data.train={tmp_path}/t.{ending}",
        "data.block_bytes=1024",
        "+data.types.word=category",
    ]
    (composed,) = compose("train", [*words, "task.target=y"])
    plan = make_plan(to_object(composed.config))
    drawn = dataclasses.replace(plan.recipe.draw, splits=("train", "validation", "test"))
    recipe = dataclasses.replace(plan.test_recipe, draw=drawn)
    parts = draw_all([prepare_part(part, CpuFrames(), recipe) for part in plan.test.parts], recipe)
    train, held_out, test = (
        pd.concat([part[side].x for part in parts])["word"] for side in range(3)
    )
    (listed,) = (column.categories for column in plan.dataset.columns if column.name == "word")
    assert 30 < len(listed) < 60
    assert {*train, *held_out} == {*range(len(listed))}
    assert test.isna().any()
    assert set(test.dropna()) == {listed.index("often")}


@pytest.mark.parametrize(
    ("info", "notes"),
    [
        pytest.param({"rounds": 70, "device": "cpu"}, ["70 rounds"], id="all rows"),
        pytest.param({"iterations": 9, "rows": 2000}, ["9 iterations", "2,000 rows"], id="as many"),
        pytest.param({"rows": 1500}, ["1,500 of 2,000 rows"], id="some rows"),
    ],
)
def test_a_fit_says_how_many_rows_it_used(info: dict[str, Any], notes: list[str]) -> None:
    assert fit_notes(info, train_rows=2000) == notes
