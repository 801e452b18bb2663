"""`tipcast score`: every row scored, in its order and layout; nothing done twice; what a run tells of it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops.io
from sklearn.linear_model import LogisticRegression
from tests.conftest import high_tip_task
from tests.jobs.conftest import QUICK, QUICK_TRAIN

from tipcast.compute.cpu import CpuFrames
from tipcast.config.arguments import to_overrides
from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.sample import sample_block
from tipcast.jobs import prepare, train
from tipcast.jobs import score as score_job
from tipcast.scoring import run as score_run
from tipcast.scoring import writing
from tipcast.scoring.output_folder import file_stamp

Job = Callable[..., Any]
MODELS = {
    "xgboost": "model.params.n_estimators=20",
    "random_forest": "model.params.n_estimators=10",
    "logistic": "seed=0",
}
MONTHS = [f"yellow_tripdata_2019-{month:02}.parquet" for month in (4, 5)]
ADDED = ["probability", "prediction", "model_name", "model_version"]


@pytest.fixture(scope="module")
def trained(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Model -> what its training said; each is registered under its own name, with the alias `champion`."""
    found = {}
    with contextlib.chdir(tmp_path_factory.mktemp("models")):
        for model, more in MODELS.items():
            words = [*QUICK, *QUICK_TRAIN, f"model={model}", more, "data.rows=20000", f"tracking.register={model}"]
            words += [f"tracking.uri={store}", "tracking.experiment=scoring"]
            (composed,) = compose("train", to_overrides(words))
            with contextlib.redirect_stdout(io.StringIO()) as out:
                train.run(to_object(composed.config), "tipcast train")
            found[model] = json.loads(out.getvalue().splitlines()[-1])
            mlflow.MlflowClient(store).set_registered_model_alias(model, "champion", "1")
    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)
    yield found


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of prepared months: the first is what the models were tested on."""
    out = tmp_path_factory.mktemp("months")
    for month in ("2019-04", "2019-05"):
        words = ["data.rows=20000", f"data.months={month}", f"out={out}", "row_group_rows=3000", *QUICK]
        (composed,) = compose("prepare", words)
        with contextlib.redirect_stdout(io.StringIO()):
            prepare.run(to_object(composed.config), "tipcast prepare")
    (out / "manifest.json").unlink()
    return out


@pytest.fixture
def trips(months: Path, tmp_path: Path) -> Path:
    """A folder of trips that a test may change."""
    return Path(shutil.copytree(months, tmp_path / "trips"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where scores go."""
    return tmp_path / "scored"


@pytest.fixture
def score(job: Job, trained: dict[str, Any], trips: Path, out: Path) -> Job:
    """Score with the registered model `xgboost`, or another."""

    def run(*words: str, model: str = "xgboost", uri: str | None = None, given: object = None) -> Any:
        first = [f"model_uri={uri or f'models:/{model}/1'}", f"input={given or trips}", f"output={out}"]
        return job("score", *first, "tracking.experiment=scoring", *words)

    return run


def manifest(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "_manifest.json").read_text()))


def state(out: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p.relative_to(out)): (p.stat().st_mtime_ns, p.read_bytes()) for p in out.rglob("*") if p.is_file()}


def by_mlflow(store: str, uri: str, frame: pd.DataFrame) -> Any:
    """Score raw trips as a user of the registered model does."""
    mlflow.set_tracking_uri(store)
    mlflow.set_registry_uri(store)
    model = mlflow.pyfunc.load_model(uri)
    columns = [column.name for column in model.metadata.signature.inputs.inputs]
    return np.asarray(model.predict(frame[columns]))


@pytest.mark.parametrize("model", ["xgboost", *(pytest.param(name, marks=pytest.mark.long) for name in [*MODELS][1:])])
@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")  # MLflow's, of its own classes, at import
def test_every_row_in_its_order_as_mlflow_scores_it(
    score: Job, store: str, trips: Path, out: Path, model: str, logged: list[str]
) -> None:
    (trips / "more" / "deep").mkdir(parents=True)
    (trips / MONTHS[1]).rename(trips / "more" / "deep" / MONTHS[1])
    said = score(model=model).said
    told = [line.split() for line in logged if not line.startswith(("model ", "check "))]  # on a slow machine
    assert told[0][:2] == ["run", said["run"].split()[0]], "the link comes first"
    names = [MONTHS[0], f"more/deep/{MONTHS[1]}"]
    assert sorted(line.split()[2] for line in logged if line.startswith("file ")) == sorted(names)
    assert sorted(path for path in state(out) if path != "_manifest.json") == sorted(names)
    files = manifest(out)["files"]
    for name in names:
        given, scored = pq.read_table(trips / name), pq.read_table(out / name)
        assert scored.column_names == [*given.column_names, *ADDED]
        assert scored.select(given.column_names).equals(given.replace_schema_metadata(None))
        probability = scored["probability"].to_numpy()
        assert np.abs(probability - by_mlflow(store, f"models:/{model}/1", given.to_pandas())).max() <= 1e-6
        threshold = manifest(out)["model"]["threshold"]
        assert scored["prediction"].to_pylist() == (probability >= threshold).astype(int).tolist()
        assert set(scored["model_name"].to_pylist()) == {model}
        assert set(scored["model_version"].to_pylist()) == {"1"}
        assert files[name]["rows"] == given.num_rows
        assert files[name]["sha256"] == hashlib.sha256((out / name).read_bytes()).hexdigest()
        assert files[name]["input_sha256"] == hashlib.sha256((trips / name).read_bytes()).hexdigest()
    assert said["rows"] == said["scored_rows"] == sum(entry["rows"] for entry in files.values())
    assert said["unscored"] == said["refused"] == {}
    assert pd.read_parquet(out).shape[0] == said["rows"], "the folder is a data set as it is"
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(".")] == []


def test_nothing_is_done_twice(score: Job, trips: Path, out: Path, trained: dict[str, Any]) -> None:
    first = score().said
    before = state(out)
    again = score()
    assert again.said["scored"] == again.said["scored_rows"] == 0
    assert again.said["rows"] == first["rows"]
    assert again.run is None
    assert set(again.said["phases"]) == {"list"}
    assert state(out) == before

    (trips / MONTHS[0]).touch()
    (out / MONTHS[1]).touch()
    alike = score()
    assert alike.said["scored"] == 0, "the same content"
    assert alike.run is None
    assert {name: content for name, (_, content) in state(out).items() if name in MONTHS} == {
        name: before[name][1] for name in MONTHS
    }
    entries = manifest(out)["files"]
    assert entries[MONTHS[0]]["input_stamp"] == file_stamp(str(trips / MONTHS[0]), {}, strict=True)
    assert entries[MONTHS[1]]["stamp"] == file_stamp(str(out / MONTHS[1]), {}, strict=False)
    before = state(out)
    assert set(score().said["phases"]) == {"list"}, "neither is read again"
    assert state(out) == before

    table = pq.read_table(trips / MONTHS[0])
    pq.write_table(table.slice(100), trips / MONTHS[0])
    changed = score().said
    assert changed["scored"] == 1
    assert changed["scored_rows"] == table.num_rows - 100
    assert pq.read_metadata(out / MONTHS[0]).num_rows == table.num_rows - 100
    assert state(out)[MONTHS[1]] == before[MONTHS[1]]

    content = bytearray((out / MONTHS[1]).read_bytes())
    content[len(content) // 2] ^= 1
    (out / MONTHS[1]).write_bytes(content)
    assert score().said["scored"] == 1, "scores that were changed are made again"
    assert state(out)[MONTHS[1]][1] == before[MONTHS[1]][1]

    (trips / MONTHS[0]).unlink()
    less = score().said
    assert less["scored"] == 0
    assert less["files"] == 1
    assert set(state(out)) == {MONTHS[1], "_manifest.json"}

    other = score(model="logistic").said
    assert other["scored"] == 1
    assert manifest(out)["model"]["name"] == "logistic"


def test_any_number_of_workers_gives_the_same_files(score: Job, out: Path) -> None:
    made = []
    for cluster in ([], ["cluster.threads_per_worker=1"], ["cluster.n_workers=2"]):
        score("compression=snappy", *cluster)
        made.append({name: content for name, (_, content) in state(out).items() if name != "_manifest.json"})
        shutil.rmtree(out)
    assert made[0] == made[1] == made[2]
    assert set(made[0]) == set(MONTHS)


def test_many_row_groups_of_a_fragment_are_one_part(score: Job, trips: Path, out: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP", 700)
    monkeypatch.setattr(CpuFrames, "batch_rows", 10_000)  # as for a device: many rows a task, files written beside it
    score()
    for name in MONTHS:
        given, scored = pq.read_table(trips / name), pq.ParquetFile(out / name)
        assert scored.read().select(given.column_names).equals(given.replace_schema_metadata(None))
        assert {scored.metadata.row_group(at).num_rows for at in range(scored.num_row_groups - 1)} <= {700, *range(700)}
        assert scored.num_row_groups >= given.num_rows / 700


def test_addresses_of_models(score: Job, trained: dict[str, Any], store: str, out: Path) -> None:
    by_version = score().said
    rows = state(out)[MONTHS[0]]
    by_alias = score(uri="models:/xgboost@champion").said
    assert by_alias["model_uri"] == by_version["model_uri"] == "models:/xgboost/1"
    assert by_alias["scored"] == 0, "the alias stands for that version"
    run_id = trained["xgboost"]["run_id"]
    (output,) = mlflow.MlflowClient(store).get_run(run_id).outputs.model_outputs
    logged = score(uri=f"models:/{output.model_id}").said
    assert logged["scored"] == 2
    scored = pq.read_table(out / MONTHS[0])
    assert set(scored["model_name"].to_pylist()) == {output.model_id}
    assert scored["model_version"].null_count == scored.num_rows
    assert scored["probability"].equals(pq.read_table(io.BytesIO(rows[1]))["probability"])
    assert score(uri=f"runs:/{run_id}/model").said["scored"] == 0


@pytest.mark.parametrize("uri", ["models:/nobody/1", "models:/xgboost/99", "models:/xgboost@nobody", "models:/m-0f"])
def test_a_model_that_is_not_there(score: Job, out: Path, uri: str) -> None:
    with pytest.raises(TipcastError) as caught:
        score(uri=uri)
    assert caught.value.code == "M001"
    assert caught.value.exit_code == 6
    assert not out.exists()


def test_kept_columns(score: Job, trips: Path, out: Path) -> None:
    score("keep=[DOLocationID,pickup]")
    scored = pq.read_table(out / MONTHS[0])
    assert scored.column_names == ["tpep_pickup_datetime", "DOLocationID", *ADDED]
    score("keep=[]")
    assert pq.read_table(out / MONTHS[0]).column_names == ADDED
    assert pq.read_metadata(out / MONTHS[0]).num_rows == pq.read_metadata(trips / MONTHS[0]).num_rows
    with pytest.raises(TipcastError) as caught:
        score("keep=[no_such_column]")
    assert caught.value.code == "S010"
    assert "no_such_column" in str(caught.value)
    with pytest.raises(TipcastError) as caught:
        score("keep=[probability]")
    assert caught.value.code == "C003"


def test_scores_are_scored_again(score: Job, out: Path, trips: Path, tmp_path: Path) -> None:
    score()
    shutil.move(out, tmp_path / "first")
    score(given=tmp_path / "first", model="logistic")
    again, first = pq.read_table(out / MONTHS[0]), pq.read_table(tmp_path / "first" / MONTHS[0])
    assert again.column_names == first.column_names
    assert set(again["model_name"].to_pylist()) == {"logistic"}


def frame(rows: int = 400) -> pd.DataFrame:
    """Raw trips of April 2019."""
    start, stop = (int(pd.Timestamp(day).value // 1000) for day in ("2019-04-01", "2019-05-01"))
    names = ("tpep_pickup_datetime", "passenger_count", "PULocationID", "DOLocationID", "fare_amount", "tip_amount")
    made = sample_block((start, stop), 0, 0, rows, "yellow", names)
    columns = {name: made[name].view("datetime64[us]") if "datetime" in name else made[name] for name in names}
    return pd.DataFrame(columns).astype({"PULocationID": float, "DOLocationID": float, "passenger_count": float})


@pytest.mark.parametrize("model", ["xgboost", pytest.param("random_forest", marks=pytest.mark.long)])
def test_no_row_is_dropped(score: Job, out: Path, tmp_path: Path, model: str) -> None:
    trips = frame()
    odd = {
        "PULocationID": {0: np.nan, 1: 300.0, 2: 0.0},
        "DOLocationID": {1: -5.0, 3: 2.0**40},
        "passenger_count": {4: np.inf, 5: np.nan, 6: -np.inf, 7: 1e300},
        "fare_amount": {8: 0.0, 9: np.nan, 10: np.inf},
        "tip_amount": {11: np.nan},
        "tpep_pickup_datetime": {12: pd.NaT, 13: pd.Timestamp("2008-12-31"), 14: pd.Timestamp("2090-01-01"),
                                 15: pd.Timestamp("2018-07-01")},
    }  # fmt: skip
    for name, values in odd.items():
        for row, value in values.items():
            trips.loc[row, name] = value
    (tmp_path / "odd").mkdir()
    trips.to_parquet(tmp_path / "odd" / "yellow_tripdata_2019-04.parquet")
    ended = score(given=tmp_path / "odd", model=model)
    scored = pq.read_table(out / "yellow_tripdata_2019-04.parquet").to_pandas()
    assert len(scored) == len(trips)
    unscored = {1, 2, 3, 4, 6, 7, 13, 14}
    assert set(scored.index[scored["probability"].isna()]) == unscored
    assert set(scored.index[scored["prediction"].isna()]) == unscored
    assert ended.said["unscored"] == {"pickup_impossible": 2, "non_finite": 3, "bad_zone": 3}
    assert ended.run.data.metrics["score/unscored"] == 8
    assert ended.run.data.metrics["unscored/bad_zone"] == 3
    assert manifest(out)["files"]["yellow_tripdata_2019-04.parquet"]["unscored"] == ended.said["unscored"]
    labelled = len(trips) - len(unscored | {0, 8, 9, 10, 11, 12, 15})
    assert ended.run.data.metrics["labelled/rows"] <= labelled
    assert ended.run.data.metrics["labelled/rows"] >= labelled - 10, "the sample has negative fares of its own"


def test_columns_that_scoring_does_without(score: Job, out: Path, tmp_path: Path, store: str) -> None:
    trips = frame()
    trips["tip_amount"] = np.nan
    folder = tmp_path / "bare"
    folder.mkdir()
    trips.drop(columns=["passenger_count", "fare_amount"]).to_parquet(folder / "a_2019-04.parquet")
    trips.assign(passenger_count=np.nan).to_parquet(folder / "b_2019-04.parquet")
    ended = score(given=folder)
    one, other = (pq.read_table(out / name) for name in ("a_2019-04.parquet", "b_2019-04.parquet"))
    assert one["probability"].equals(other["probability"])
    assert one["probability"].null_count == 0
    assert not [name for name in ended.run.data.metrics if name.startswith("labelled/")]
    assert "no answers to compare with" in ended.run.data.tags["mlflow.note.content"]


def test_csv_in_parquet_out(score: Job, out: Path, tmp_path: Path) -> None:
    trips = frame(3000).assign(store_and_fwd_flag="N", VendorID=2)
    folder = tmp_path / "text"
    folder.mkdir()
    trips.to_csv(folder / "yellow_tripdata_2019-04.csv", index=False)
    trips.to_csv(folder / "yellow_tripdata_2019-05.csv.gz", index=False)
    trips.to_parquet(folder / "z_2019-04.parquet")
    score("block_bytes=20000", given=folder)
    plain, packed, same = (pq.read_table(path) for path in sorted(out.glob("*.parquet")))
    assert sorted(path.name for path in out.glob("*.parquet"))[0] == "yellow_tripdata_2019-04.csv.parquet"
    assert plain.schema == packed.schema
    assert plain.equals(packed)
    assert plain["probability"].equals(same["probability"])
    assert plain.schema.field("tpep_pickup_datetime").type == pa.timestamp("us")
    assert plain.schema.field("PULocationID").type == plain.schema.field("VendorID").type == pa.int64()
    assert plain.schema.field("store_and_fwd_flag").type == pa.string()
    assert pq.read_metadata(out / "yellow_tripdata_2019-04.csv.parquet").num_row_groups > 3


def damaged(path: Path) -> bytes:
    """Return a file with one bit of a page changed, which its footer does not show."""
    content, group = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(3)
    columns = (group.column(at) for at in range(group.num_columns))
    column = next(found for found in columns if found.path_in_schema == "tpep_pickup_datetime")
    content[column.data_page_offset + 200] ^= 4
    return bytes(content)


def test_a_refused_file_stops_only_that_file(score: Job, trips: Path, out: Path, capsys: Any) -> None:
    score()
    first = state(out)
    (trips / "broken.parquet").write_bytes((trips / MONTHS[0]).read_bytes()[:5000])
    pq.write_table(pa.table({"a": [1]}), trips / "other.parquet")
    (trips / "late_2019-05.parquet").write_bytes(damaged(trips / MONTHS[1]))
    for _ in range(2):
        capsys.readouterr()
        with pytest.raises(TipcastError) as caught:
            score()
        assert caught.value.code == "S010"
        assert caught.value.exit_code == 7
        assert "3 of 5 files" in str(caught.value)
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert set(said["refused"]) == {"broken.parquet", "other.parquet", "late_2019-05.parquet"}
        assert {name: why[:6] for name, why in said["refused"].items()} == {
            "broken.parquet": "[D005]", "other.parquet": "[D007]", "late_2019-05.parquet": "[D005]"
        }  # fmt: skip
        assert set(manifest(out)["refused"]) == set(said["refused"])
        assert set(state(out)) == {*MONTHS, "_manifest.json"}
        assert {name: state(out)[name] for name in MONTHS} == {name: first[name] for name in MONTHS}
    assert "run_id" not in said, "the second time nothing is tried again"


def test_files_of_another_colour_are_refused(score: Job, trips: Path, out: Path, capsys: Any) -> None:
    green = pd.read_parquet(trips / MONTHS[1]).rename(columns=lambda name: name.replace("tpep_", "lpep_"))
    green.to_parquet(trips / "green_tripdata_2019-05.parquet", index=False)
    with pytest.raises(TipcastError) as caught:
        score("colour=yellow")
    assert caught.value.code == "S010"
    refused = json.loads(capsys.readouterr().out.splitlines()[-1])["refused"]
    assert list(refused) == ["green_tripdata_2019-05.parquet"]
    assert "so it is a green-taxi file" in refused["green_tripdata_2019-05.parquet"]
    assert set(state(out)) == {*MONTHS, "_manifest.json"}
    assert score().said["files"] == 3, "each is taken for what its pickup column says"
    scored = pd.read_parquet(out / "green_tripdata_2019-05.parquet")
    assert np.array_equal(scored["probability"], pd.read_parquet(out / MONTHS[1])["probability"])


def test_when_all_are_refused_the_scores_stay(score: Job, months: Path, trips: Path, out: Path) -> None:
    score()
    before = state(out)
    for name in MONTHS:
        (trips / name).write_bytes(b"PAR1")
    with pytest.raises(TipcastError) as caught:
        score()
    assert caught.value.code == "S010"
    assert state(out) == before
    with pytest.raises(TipcastError) as caught:
        score(given=trips / MONTHS[0])
    assert caught.value.code == "D005", "the only file's own error"
    assert state(out) == before
    (trips / MONTHS[0]).write_bytes(damaged(months / MONTHS[0]))
    with pytest.raises(TipcastError) as caught:
        score(given=trips / MONTHS[0])
    assert (caught.value.code, caught.value.exit_code) == ("D005", 3), "found while it was scored"
    assert state(out) == before


def test_what_comes_into_the_folder_meanwhile_is_left(score: Job, out: Path) -> None:
    real = score_run.score

    def meanwhile(change: Callable[[], object]) -> str:
        with pytest.MonkeyPatch.context() as patched, pytest.raises(TipcastError) as caught:
            patched.setattr(score_run, "score", lambda *given: (real(*given), change())[0])
            score("keep=[]")
        assert [path.name for path in out.parent.iterdir() if path.name.startswith(".")] == []
        return caught.value.code

    def letter() -> None:
        out.mkdir()
        (out / "letter.txt").write_text("dear")

    assert meanwhile(letter) == "C011"
    assert {name: content for name, (_, content) in state(out).items()} == {"letter.txt": b"dear"}
    shutil.rmtree(out)
    score()
    before = state(out)
    other = before["_manifest.json"][1].replace(b'"run_id": "', b'"run_id": "f')
    assert meanwhile(lambda: (out / "_manifest.json").write_bytes(other)) == "S011"
    assert {name: content for name, (_, content) in state(out).items()} == {
        **{name: content for name, (_, content) in before.items()}, "_manifest.json": other
    }  # fmt: skip


def test_what_a_run_tells(score: Job, trained: dict[str, Any], store: str, trips: Path) -> None:
    (trips / MONTHS[1]).unlink()
    ended = score()
    run, client = ended.run, mlflow.MlflowClient(store)
    assert run.info.status == "FINISHED"
    tags = run.data.tags
    assert tags["job"] == "score"
    assert tags["model.uri"] == "models:/xgboost/1"
    assert tags["model.run_id"] == trained["xgboost"]["run_id"]
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.tags[0].value == "score"
    assert json.loads(dataset.dataset.profile)["rows"] == ended.said["rows"]
    (model,) = run.inputs.model_inputs
    assert client.get_logged_model(model.model_id).source_run_id == trained["xgboost"]["run_id"]
    metrics = run.data.metrics
    tested = client.get_run(trained["xgboost"]["run_id"]).data.metrics
    for name in ("auc", "log_loss", "brier", "accuracy", "average_precision"):
        assert metrics[f"labelled/{name}"] == pytest.approx(tested[f"test/{name}"], abs=1e-4), name
    assert metrics["labelled/auc_resolution"] < 1e-3
    assert metrics["score/rows_per_s"] > 0
    assert metrics["drift/score"] < 0.1
    assert all(value < 0.1 for name, value in metrics.items() if name.startswith("drift/"))
    assert {name.removeprefix("drift/") for name in metrics if name.startswith("drift/")} == {
        "score", "pickup_weekday", "pickup_hour", "pickup_week_hour", "pickup_minute", "passenger_count",
        "PULocationID", "DOLocationID",
    }  # fmt: skip
    paths = {entry.path for folder in ("plots", "tables") for entry in client.list_artifacts(run.info.run_id, folder)}
    assert {"plots/scores.png", "plots/drift.png", "plots/roc.png", "tables/files.json", "tables/drift.json"} <= paths
    table = json.loads(Path(client.download_artifacts(run.info.run_id, "tables/drift.json")).read_text())
    assert {row[-1] for row in table["data"]} == {"little"}
    note = tags["mlflow.note.content"]
    assert "models:/xgboost/1" in note
    assert "get-artifact?path=plots%2Fscores_small.png" in note


def test_labels_that_the_model_was_trained_on_are_told(
    score: Job, trips: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pq.read_table(trips / MONTHS[0])
    march = table["tpep_pickup_datetime"].to_numpy() - np.timedelta64(31, "D")
    (trips / MONTHS[0]).unlink()
    at = table.column_names.index("tpep_pickup_datetime")
    pq.write_table(table.set_column(at, "tpep_pickup_datetime", pa.array(march)), trips / MONTHS[0].replace("04", "03"))
    ended = score()
    metrics = ended.run.data.metrics
    assert metrics["labelled/rows"] == pytest.approx(40_000, rel=0.02)
    assert metrics["labelled/rows_of_training"] == pytest.approx(20_000, rel=0.02)
    told = " rows whose answer is known are of 2019-01-01..2019-03-31, which the model was trained on"
    assert told in caplog.text
    assert told in ended.run.data.tags["mlflow.note.content"]
    caplog.clear()
    (trips / MONTHS[0].replace("04", "03")).unlink()
    (trips / "more").mkdir()
    pq.write_table(table, trips / "more" / MONTHS[0])
    ended = score("keep=[]")
    assert ended.run.data.metrics["labelled/rows_of_training"] == 0
    assert "trained on" not in caplog.text
    assert "trained on" not in ended.run.data.tags["mlflow.note.content"]


def test_drift_is_seen(score: Job, trips: Path) -> None:
    for name in MONTHS:
        table = pq.read_table(trips / name)
        at = table.column_names.index("PULocationID")
        pq.write_table(table.set_column(at, "PULocationID", pa.array(np.full(table.num_rows, 7))), trips / name)
    ended = score()
    assert ended.said["drift"]["PULocationID"] > 0.25
    assert "pickup_hour" not in ended.said["drift"]


def test_every_readable_era_with_one_model(score: Job, taxi: Path, out: Path, capsys: Any) -> None:
    with pytest.raises(TipcastError) as caught:
        score(given=taxi)
    assert caught.value.code == "S010"
    files, refused = manifest(out)["files"], manifest(out)["refused"]
    everything = {str(path.relative_to(taxi)) for path in taxi.rglob("*") if path.suffix in {".parquet", ".csv", ".gz"}}
    assert {name.removesuffix(".parquet") if ".csv" in name else name for name in {*files, *refused}} == everything
    readable = {name for name in files if not name.startswith("yellow/")}
    for name in (
        "drift/ge_renamed_columns/yellow_tripdata_sample_2018-01.csv.parquet",
        "drift/ge_planted/yellow_tripdata_sample_2019-02_passenger0.csv.parquet",
        "no_repo_license/green_tripdata_2020-10.csv.gz.parquet",
        "no_repo_license/green_tripdata_2023-12.parquet",
        "no_repo_license/yellow_2021-01_us_dates_10k.csv.parquet",
        "no_repo_license/yellow_tripdata_2024-01_first10k.csv.parquet",
    ):
        assert name in readable
    assert len([name for name in files if name.startswith("yellow/")]) == 19
    codes = {name: entry["code"] for name, entry in refused.items()}
    assert codes["drift/yellow_2009_trip_schema_small.csv.parquet"] == "D017"
    assert codes["drift/camelcase_latlon/yellowTaxiData_2016-01.csv.parquet"] == "D017"
    assert set(codes.values()) <= {"D005", "D007", "D008", "D010", "D017"}
    rows = {name: pq.read_metadata(out / name).num_rows for name in files}
    assert rows["no_repo_license/green_tripdata_2020-10.csv.gz.parquet"] == 95_120
    assert rows["no_repo_license/green_tripdata_2023-12.parquet"] == 64_215
    assert rows == {name: entry["rows"] for name, entry in files.items()}
    for name, entry in files.items():
        scores = pq.read_table(out / name, columns=["probability"])["probability"]
        assert scores.null_count == sum(entry["unscored"].values()) < 0.05 * len(scores), name


def test_trips_and_scores_in_an_object_store(
    job: Job, trained: dict[str, Any], months: Path, bucket: Any, tmp_path: Path
) -> None:
    for name in MONTHS:
        bucket.put(str(months / name), f"trips/months/2019/{name}")
    words = ["model_uri=models:/xgboost/1", "input=s3://trips/months/", "output=s3://trips/scored"]
    said = job("score", *words, "tracking.experiment=scoring").said
    bucket.invalidate_cache()
    found = sorted(path.removeprefix("trips/scored/") for path in bucket.find("trips/scored"))
    assert found == sorted(["_manifest.json", *(f"2019/{name}" for name in MONTHS)])
    entries = json.loads(bucket.cat_file("trips/scored/_manifest.json"))["files"]
    for name in MONTHS:
        content = bucket.cat_file(f"trips/scored/2019/{name}")
        assert entries[f"2019/{name}"]["sha256"] == hashlib.sha256(content).hexdigest()
        given = pq.read_table(months / name)
        assert pq.read_table(io.BytesIO(content)).select(given.column_names).equals(given.replace_schema_metadata(None))
    assert said["rows"] == sum(entry["rows"] for entry in entries.values())
    assert job("score", *words).said["scored"] == 0
    pq.write_table(pq.read_table(months / MONTHS[0]).slice(7), months.parent / "changed.parquet")
    bucket.put(str(months.parent / "changed.parquet"), f"trips/months/2019/{MONTHS[0]}")
    bucket.rm_file(f"trips/months/2019/{MONTHS[1]}")
    changed = job("score", *words, "tracking.experiment=scoring").said
    assert (changed["scored"], changed["files"]) == (1, 1)
    bucket.invalidate_cache()
    assert sorted(bucket.find("trips/scored")) == ["trips/scored/2019/" + MONTHS[0], "trips/scored/_manifest.json"]
    bucket.chmod(f"trips/months/2019/{MONTHS[0]}", acl="public-read")
    web = f"{os.environ['AWS_ENDPOINT_URL']}/trips/months/2019/{MONTHS[0]}"
    local = [words[0], f"input={web}", f"output={tmp_path / 'web'}"]
    assert job("score", *local, "tracking.experiment=scoring").said["scored"] == 1
    assert (tmp_path / "web" / MONTHS[0]).read_bytes() == bucket.cat_file(f"trips/scored/2019/{MONTHS[0]}")
    assert job("score", *local).said["scored"] == 0
    with pytest.raises(TipcastError) as caught:
        job("score", *words[:2], "output=s3://trips/months")
    assert caught.value.code == "C011"


def test_a_file_refused_in_scoring_leaves_no_scores_in_a_store(
    job: Job, trained: dict[str, Any], months: Path, bucket: Any
) -> None:
    for name in MONTHS:
        bucket.put(str(months / name), f"trips/months/{name}")
    words = ["model_uri=models:/xgboost/1", "input=s3://trips/months/", "output=s3://trips/scored"]
    job("score", *words, "tracking.experiment=scoring")
    bucket.pipe_file(f"trips/months/{MONTHS[1]}", damaged(months / MONTHS[1]))
    with pytest.raises(TipcastError) as caught:
        job("score", *words, "tracking.experiment=scoring")
    assert caught.value.code == "S010"
    bucket.invalidate_cache()
    assert set(bucket.find("trips/scored")) == {f"trips/scored/{MONTHS[0]}", "trips/scored/_manifest.json"}
    found = json.loads(bucket.cat_file("trips/scored/_manifest.json"))
    assert (set(found["files"]), set(found["refused"])) == ({MONTHS[0]}, {MONTHS[1]})


def plant(store: str, folder: Path, name: str, facts: dict[str, Any]) -> None:
    """Register a logistic model of one feature, `passenger_count`."""
    from tipcast.config.schema import TrackingSpec
    from tipcast.tracking.portable import log_model
    from tipcast.tracking.registry import register
    from tipcast.tracking.run import open_run

    skops.io.dump(LogisticRegression().fit([[0], [6]], [0, 1]), folder / "model.skops")
    spec = TrackingSpec(uri=store, experiment="scoring", system_metrics=False)
    origin = {"data_digest": "5" * 64, "versions": {"tipcast": "0.1.0"}}
    facts = {"features": ["passenger_count"], "threshold": 0.5, **facts, **origin}
    with open_run(spec, name="other", tags={}, params={}) as run:
        logged = log_model(run, folder / "model.skops", "skops", facts, Taxi(), {"colour": "yellow"}, frame(5))
        register(run, logged, name, 0.0, {}, "")


def test_a_model_for_another_task(score: Job, store: str, trained: dict[str, Any], out: Path, tmp_path: Path) -> None:
    plant(store, tmp_path, "other", {"task": {"kind": "regression", "name": "tip_fraction"}})
    with pytest.raises(TipcastError) as caught:
        score(model="other")
    assert caught.value.code == "M006"
    assert caught.value.exit_code == 6
    assert not out.exists()


def test_a_version_of_another_registry_is_another_model(
    score: Job, store: str, trips: Path, out: Path, tmp_path: Path
) -> None:
    task = {"task": high_tip_task(["passenger_count"]).facts()}
    (tmp_path / "other").mkdir()
    for uri, threshold in ((store, 0.5), ("sqlite:///other/mlflow.db", 0.9)):
        plant(uri, tmp_path, "twice", {**task, "threshold": threshold})
    score(model="twice")
    assert score(model="twice").run is None
    words = [*QUICK, *QUICK_TRAIN, "model_uri=models:/twice/1", f"input={trips}", f"output={out}"]
    (composed,) = compose("score", to_overrides([*words, "tracking.uri=sqlite:///other/mlflow.db"]))
    score_job.run(to_object(composed.config), "tipcast score")
    assert manifest(out)["model"]["threshold"] == 0.9
    assert manifest(out)["model"]["registry"] == f"sqlite:///{tmp_path}/other/mlflow.db"
    assert score(model="twice").said["scored"] == 2


def test_a_model_without_a_feature_of_time(score: Job, store: str, out: Path, tmp_path: Path) -> None:
    """Rows that training would drop are told from the others by their time too, which the features do not need."""
    plant(store, tmp_path, "timeless", {"task": high_tip_task(["passenger_count"]).facts()})
    trips = frame()
    trips["fare_amount"], trips["passenger_count"] = trips["fare_amount"].abs() + 1, 1.0
    trips.loc[3, "fare_amount"] = 0.0
    trips.loc[5, "tpep_pickup_datetime"] = pd.Timestamp("2018-07-01")
    (tmp_path / "odd").mkdir()
    trips.to_parquet(tmp_path / "odd" / "yellow_tripdata_2019-04.parquet")
    ended = score(model="timeless", given=tmp_path / "odd")
    assert pq.read_table(out / "yellow_tripdata_2019-04.parquet")["probability"].null_count == 0
    assert ended.run.data.metrics["labelled/rows"] == len(trips) - 2
