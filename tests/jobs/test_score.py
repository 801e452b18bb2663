"""`tipcast score`: every row scored, in its order and layout; nothing done twice; what a run tells
of it.
"""

import contextlib
import hashlib
import http.server
import io
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from tests.jobs.conftest import TAGS, damaged, own_tags, run_job

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets.taxi.sample import sample_block
from tipcast.jobs.score import lines_for_people, refusal
from tipcast.scoring import worker
from tipcast.scoring.writing import file_stamp

Job = Callable[..., Any]
MONTHS = [f"yellow_tripdata_2019-{month:02}.parquet" for month in (4, 5)]
ADDED = ["probability", "prediction", "model_name", "model_version"]
SCORING = "tracking.experiment=scoring"


@pytest.fixture(scope="module")
def store(registered: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the registered models `tipcast`, of XGBoost, and `other`, of scikit-learn."""
    folder = tmp_path_factory.mktemp("models")
    uri = f"sqlite:///{shutil.copy(registered, folder)}"
    with contextlib.chdir(folder):
        run_job(
            uri, "train", "model=logistic", "data.rows=3000", SCORING, "tracking.register=other"
        )
    mlflow.MlflowClient(uri).set_registered_model_alias("tipcast", "champion", "1")
    return uri


@pytest.fixture(scope="module")
def months(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of prepared months: the first is what the models were tested on."""
    out = tmp_path_factory.mktemp("months")
    for month in ("2019-04", "2019-05"):  # alone the rows are those that a training tests on
        run_job(
            store,
            "prepare",
            "data.rows=20000",
            f"data.months={month}",
            f"out={out}",
            "row_group_rows=3000",
        )
    return out


@pytest.fixture
def trips(months: Path, tmp_path: Path) -> Path:
    """A folder of trips that a test may change."""
    return Path(shutil.copytree(months, tmp_path / "trips"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "scored"


@pytest.fixture
def score(job: Job, trips: Path, out: Path) -> Job:
    """Score with the registered model `tipcast`, or another."""

    def run(*words: str, uri: str = "models:/tipcast/1", given: object = None) -> Any:
        return job(
            "score", f"model_uri={uri}", f"input={given or trips}", f"output={out}", SCORING, *words
        )

    return run


def manifest(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "_manifest.json").read_text()))


def state(out: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(p.relative_to(out)): (p.stat().st_mtime_ns, p.read_bytes())
        for p in out.rglob("*")
        if p.is_file()
    }


def same_rows(scored: Any, given: Path) -> None:
    """Check that scores have a file's columns, as they are, and theirs."""
    rows = pq.read_table(given)
    table = pq.read_table(scored)
    assert table.column_names == [*rows.column_names, *ADDED]
    assert table.select(rows.column_names).equals(rows.replace_schema_metadata(None))


def test_every_row_in_its_order_as_mlflow_scores_it(
    score: Job, trips: Path, out: Path, store: str
) -> None:
    # below yellow trips green ones of unknown tips
    names = [MONTHS[0], "more/deep/green_tripdata_2019-05.parquet"]
    (trips / "more" / "deep").mkdir(parents=True)
    green = pd.read_parquet(trips / MONTHS[1]).rename(
        columns=lambda name: name.replace("tpep_", "lpep_")
    )
    green.drop(columns="tip_amount").to_parquet(trips / names[1], index=False)
    (trips / MONTHS[1]).unlink()
    ended = score()
    assert set(state(out)) == {*names, "_manifest.json"}
    assert [
        path for path in out.parent.rglob("*") if path.name.startswith((".", "_tipcast-"))
    ] == []
    files = manifest(out)["files"]
    threshold = manifest(out)["model"]["threshold"]
    mlflow.set_tracking_uri(store)
    model = mlflow.pyfunc.load_model("models:/tipcast/1")
    for name in names:
        same_rows(out / name, trips / name)
        rows = pd.read_parquet(trips / name)
        scored = pd.read_parquet(out / name)
        rows = rows.rename(columns=lambda name: name.replace("lpep_", "tpep_"))
        expected = model.predict(
            rows[[column.name for column in model.metadata.signature.inputs.inputs]]
        )
        assert np.abs(scored["probability"] - np.asarray(expected)).max() <= 1e-6
        assert (scored["prediction"] == (scored["probability"] >= threshold)).all()
        assert {*zip(scored["model_name"], scored["model_version"], strict=True)} == {
            ("tipcast", "1")
        }
        assert files[name]["rows"] == len(rows)
        for digest, folder in (("sha256", out), ("input_sha256", trips)):
            assert files[name][digest] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert pd.read_parquet(out / "more").shape[0] == files[names[1]]["rows"], (
        "a folder is a data set as it is"
    )
    said = ended.said
    run = ended.run
    metrics = ended.run.data.metrics
    client = mlflow.MlflowClient(store)
    assert said["rows"] == said["scored_rows"] == sum(entry["rows"] for entry in files.values())
    assert said["unscored"] == said["refused"] == {}

    tags = run.data.tags
    note = run.data.tags["mlflow.note.content"]
    assert own_tags(run) == {*TAGS, "model.uri"}
    assert (run.info.status, tags["job"], tags["model.uri"]) == (
        "FINISHED",
        "score",
        "models:/tipcast/1",
    )
    (dataset,), (used,) = run.inputs.dataset_inputs, run.inputs.model_inputs
    assert dataset.tags[0].value == "score"
    assert json.loads(dataset.dataset.profile)["rows"] == said["rows"]
    tested = client.get_run(client.get_model_version("tipcast", "1").run_id)
    assert client.get_logged_model(used.model_id).source_run_id == tested.info.run_id
    for name in ("auc", "log_loss", "brier", "accuracy", "average_precision"):
        assert metrics[f"labelled/{name}"] == pytest.approx(
            tested.data.metrics[f"test/{name}"], abs=1e-4
        ), name
    assert metrics["score/rows_per_s"] > 0
    assert [metrics[f"score/{name}"] for name in ("files", "kept_files", "refused_files")] == [
        2,
        0,
        0,
    ]
    paths = {
        entry.path
        for folder in ("plots", "tables")
        for entry in client.list_artifacts(run.info.run_id, folder)
    }
    assert {"plots/roc.png", "tables/files.json"} <= paths
    assert "models:/tipcast/1" in note
    assert "get-artifact?path=plots%2Froc.png" in note


def test_nothing_is_done_twice(score: Job, trips: Path, out: Path, logged: list[str]) -> None:
    first = score().said
    assert sorted(line.split()[2] for line in logged if line.startswith("file ")) == MONTHS
    before = state(out)
    again = score()
    assert (again.said["scored"], again.said["rows"], again.run) == (0, first["rows"], None)
    assert set(again.said["phases"]) == {"list", "model"}
    assert state(out) == before

    (trips / MONTHS[0]).touch()
    (out / MONTHS[1]).touch()
    assert (score().said["scored"], score().run) == (0, None), "the same content"
    entries = manifest(out)["files"]
    assert entries[MONTHS[0]]["input_stamp"] == file_stamp(str(trips / MONTHS[0]), {}), (
        "it is not read each time"
    )
    assert {name: state(out)[name][1] for name in MONTHS} == {
        name: before[name][1] for name in MONTHS
    }

    before = state(out)
    table = pq.read_table(trips / MONTHS[0])
    # as a job that is killed leaves it, of which tests/faults tells more
    (out / "_manifest.json").unlink()
    pq.write_table(table.slice(100), trips / MONTHS[0])
    changed = score()
    assert (changed.said["scored"], changed.said["scored_rows"]) == (1, table.num_rows - 100)
    assert manifest(out)["run_id"] == changed.run.info.run_id
    assert pq.read_metadata(out / MONTHS[0]).num_rows == table.num_rows - 100
    assert state(out)[MONTHS[1]] == before[MONTHS[1]]

    shutil.copy(out / MONTHS[0], out / MONTHS[1])
    (trips / MONTHS[0]).unlink()
    less = score().said
    assert (less["scored"], less["files"]) == (1, 1), "scores of another size are made again"
    assert state(out)[MONTHS[1]][1] == before[MONTHS[1]][1]
    assert set(state(out)) == {MONTHS[1], "_manifest.json"}, "of a file that is not named any more"

    assert score(uri="models:/other/1").said["scored"] == 1
    assert manifest(out)["model"]["name"] == "other"


def test_any_number_of_workers_gives_the_same_files(
    score: Job, trips: Path, out: Path, monkeypatch: Any
) -> None:
    made = []
    for cluster in ([], ["cluster.n_workers=2", "cluster.threads_per_worker=1"]):
        score(*cluster, uri="models:/other/1")
        made.append(
            {name: content for name, (_, content) in state(out).items() if name != "_manifest.json"}
        )
        shutil.rmtree(out)
    assert made[0] == made[1]
    assert set(made[0]) == set(MONTHS)
    monkeypatch.setattr(worker, "ROW_GROUP", 700)
    # as for a device: many rows a task, files written beside it
    monkeypatch.setattr(CpuFrames, "batch_rows", 10_000)
    score(uri="models:/other/1")
    for name in MONTHS:
        same_rows(out / name, trips / name)
        scored = pq.ParquetFile(out / name).metadata
        assert {scored.row_group(at).num_rows for at in range(scored.num_row_groups - 1)} <= {
            700,
            *range(700),
        }
        assert scored.num_row_groups >= scored.num_rows / 700


def test_addresses_of_models(score: Job, store: str, out: Path, trips: Path) -> None:
    (trips / MONTHS[1]).unlink()
    assert score(uri="models:/tipcast@champion").said["model_uri"] == "models:/tipcast/1"
    by_version = pd.read_parquet(out / MONTHS[0])
    assert score().said["scored"] == 0, "the alias stands for that version"
    run_id = mlflow.MlflowClient(store).get_model_version("tipcast", "1").run_id
    (output,) = mlflow.MlflowClient(store).get_run(run_id).outputs.model_outputs
    assert score(uri=f"models:/{output.model_id}").said["scored"] == 1
    scored = pd.read_parquet(out / MONTHS[0])
    assert set(scored["model_name"]) == {output.model_id}
    assert scored["model_version"].isna().all()
    assert scored["probability"].equals(by_version["probability"])
    assert score(uri=f"runs:/{run_id}/xgboost-high_tip").said["scored"] == 0


def test_no_row_is_dropped_and_few_columns_are_needed(
    score: Job, out: Path, tmp_path: Path
) -> None:
    start, stop = (int(pd.Timestamp(day).value // 1000) for day in ("2019-04-01", "2019-05-01"))
    names = (
        "tpep_pickup_datetime",
        "passenger_count",
        "PULocationID",
        "DOLocationID",
        "fare_amount",
        "tip_amount",
    )
    made = sample_block((start, stop), 0, 0, 400, "yellow", names)
    columns = {
        name: made[name].view("datetime64[us]") if "datetime" in name else made[name]
        for name in names
    }
    trips = pd.DataFrame(columns).astype(
        {"PULocationID": float, "DOLocationID": float, "passenger_count": float}
    )
    folder = tmp_path / "odd"
    name = "yellow_tripdata_2019-04.parquet"
    odd = {
        "PULocationID": {0: np.nan, 1: 300.0, 2: 0.0},
        "DOLocationID": {1: -5.0, 3: 2.0**40},
        "passenger_count": {4: np.inf, 5: np.nan, 6: -np.inf, 7: 1e300},
        "fare_amount": {8: 0.0, 9: np.nan, 10: np.inf},
        "tip_amount": {11: np.nan},
        "tpep_pickup_datetime": {
            12: pd.NaT,
            13: pd.Timestamp("2008-12-31"),
            14: pd.Timestamp("2090-01-01"),
            15: pd.Timestamp("2018-07-01"),
        },
    }
    folder.mkdir()
    bare = trips.assign(tip_amount=np.nan)
    few = bare.drop(columns=["passenger_count", "fare_amount"])
    few.to_parquet(folder / "a_2019-04.parquet")
    for ending in ("csv", "csv.gz"):
        few.assign(store_and_fwd_flag="N", VendorID=2).to_csv(
            folder / f"c_2019-04.{ending}", index=False
        )
    bare.assign(passenger_count=np.nan).to_parquet(folder / "b_2019-04.parquet")
    for column, values in odd.items():
        for row, value in values.items():
            trips.loc[row, column] = value
    trips.to_parquet(folder / name)
    ended = score("block_bytes=3000", given=folder)
    one, other = (
        pq.read_table(out / bare)["probability"]
        for bare in ("a_2019-04.parquet", "b_2019-04.parquet")
    )
    assert one.equals(other)
    assert one.null_count == 0
    scored = pd.read_parquet(out / name)
    metrics = ended.run.data.metrics
    assert len(scored) == len(trips)
    unscored = {1, 2, 3, 4, 6, 7, 13, 14}
    for column in ("probability", "prediction"):
        assert set(scored.index[scored[column].isna()]) == unscored
    assert ended.said["unscored"] == {"pickup_impossible": 2, "non_finite": 3, "bad_zone": 3}
    assert manifest(out)["files"][name]["unscored"] == ended.said["unscored"]
    assert (metrics["score/unscored"], metrics["unscored/bad_zone"]) == (8, 3)
    labelled = len(trips) - len(unscored | {0, 8, 9, 10, 11, 12, 15})
    assert labelled - 10 <= metrics["labelled/rows"] <= labelled, (
        "the sample has negative fares of its own"
    )
    plain, packed = (
        pq.read_table(out / f"c_2019-04.{ending}.parquet") for ending in ("csv", "csv.gz")
    )
    assert plain.equals(packed)
    assert plain["probability"].equals(one)
    types = {
        "tpep_pickup_datetime": pa.timestamp("us"),
        "PULocationID": pa.int64(),
        "VendorID": pa.int64(),
    }
    for column, kind in {**types, "store_and_fwd_flag": pa.string()}.items():
        assert plain.schema.field(column).type == kind
    assert pq.read_metadata(out / "c_2019-04.csv.parquet").num_row_groups > 3


def test_a_scoring_is_recorded_in_the_experiment_of_the_training(
    job: Job, trips: Path, out: Path, store: str
) -> None:
    run = job("score", "model_uri=models:/other/1", f"input={trips}", f"output={out}").run
    assert mlflow.MlflowClient(store).get_experiment(run.info.experiment_id).name == "scoring"


def test_refused_files(
    score: Job, trips: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score("colour=yellow")
    first = state(out)
    months = {name: (trips / name).read_bytes() for name in MONTHS}
    green = pd.read_parquet(trips / MONTHS[1]).rename(
        columns=lambda name: name.replace("tpep_", "lpep_")
    )
    green.to_parquet(trips / "green_tripdata_2019-05.parquet", index=False)
    (trips / "broken.parquet").write_bytes(months[MONTHS[0]][:5000])
    (trips / "late_2019-05.parquet").write_bytes(damaged(trips / MONTHS[1]))
    codes = {
        "green_tripdata_2019-05.parquet": "[D0",
        "broken.parquet": "[D005]",
        "late_2019-05.parquet": "[D005]",
    }
    for _ in range(2):  # what its footer does not show is tried again
        capsys.readouterr()
        with pytest.raises(TipcastError, match=r"S010.*3 of 5 files") as caught:
            score("colour=yellow")
        assert caught.value.exit_code == 7
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert {name: why[: len(codes[name])] for name, why in said["refused"].items()} == codes
        assert "so it is a green-taxi file" in said["refused"]["green_tripdata_2019-05.parquet"]
        assert set(manifest(out)["refused"]) == set(codes)
        assert set(state(out)) == {*MONTHS, "_manifest.json"}
        assert {name: state(out)[name] for name in MONTHS} == {name: first[name] for name in MONTHS}

    for name in codes:
        (trips / name).unlink()
    score("colour=yellow")
    before = state(out)
    (trips / MONTHS[0]).write_bytes(damaged(trips / MONTHS[0]))
    (trips / MONTHS[1]).write_bytes(b"PAR1")
    for given, code in ((trips, "S010"), (trips / MONTHS[1], "D005"), (trips / MONTHS[0], "D005")):
        # an only file's own error, be it found while it is scored
        with pytest.raises(TipcastError, match=code):
            score("colour=yellow", given=given)
        assert state(out) == before, "when all are refused, the scores stay"


def test_every_readable_era_with_one_model(score: Job, taxi: Path, out: Path) -> None:
    with pytest.raises(TipcastError, match="S010"):
        score(given=taxi)
    files = manifest(out)["files"]
    refused = manifest(out)["refused"]
    everything = {
        str(path.relative_to(taxi))
        for path in taxi.rglob("*")
        if path.suffix in {".parquet", ".csv", ".gz"}
    }
    assert {
        name.removesuffix(".parquet") if ".csv" in name else name for name in {*files, *refused}
    } == everything
    codes = {name: entry["code"] for name, entry in refused.items()}
    assert codes["drift/yellow_2009_trip_schema_small.csv.parquet"] == "D017"
    assert set(codes.values()) <= {"D005", "D007", "D008", "D010", "D017"}
    assert files["no_repo_license/green_tripdata_2020-10.csv.gz.parquet"]["rows"] == 95_120
    assert files["no_repo_license/green_tripdata_2023-12.parquet"]["rows"] == 64_215
    assert len([name for name in files if name.startswith("yellow/")]) == 19
    for name, entry in files.items():
        scores = pq.read_table(out / name, columns=["probability"])["probability"]
        assert len(scores) == entry["rows"]
        assert scores.null_count == sum(entry["unscored"].values()) < 0.05 * len(scores), name


def test_trips_and_scores_in_an_object_store(
    job: Job, months: Path, bucket: Any, tmp_path: Path
) -> None:
    def scored() -> dict[str, bytes]:
        bucket.invalidate_cache()
        return {
            path.removeprefix("trips/scored/"): bucket.cat_file(path)
            for path in bucket.find("trips/scored")
        }

    for name in MONTHS:
        bucket.put(str(months / name), f"trips/months/2019/{name}")
    words = [
        "model_uri=models:/tipcast/1",
        "input=s3://trips/months/",
        "output=s3://trips/scored",
        SCORING,
    ]
    said = job("score", *words).said
    objects = scored()
    assert set(objects) == {"_manifest.json", *(f"2019/{name}" for name in MONTHS)}
    entries = json.loads(objects["_manifest.json"])["files"]
    for name in MONTHS:
        assert (
            entries[f"2019/{name}"]["sha256"] == hashlib.sha256(objects[f"2019/{name}"]).hexdigest()
        )
        same_rows(io.BytesIO(objects[f"2019/{name}"]), months / name)
    assert said["rows"] == sum(entry["rows"] for entry in entries.values())
    assert job("score", *words).said["scored"] == 0
    bucket.rm_file("trips/scored/_manifest.json")  # as by a job that was killed
    assert job("score", *words).said["scored"] == 0
    assert json.loads(scored()["_manifest.json"])["files"] == entries

    pq.write_table(pq.read_table(months / MONTHS[0]).slice(7), tmp_path / "changed.parquet")
    bucket.put(str(tmp_path / "changed.parquet"), f"trips/months/2019/{MONTHS[0]}")
    bucket.pipe_file(f"trips/months/2019/{MONTHS[1]}", damaged(months / MONTHS[1]))
    with pytest.raises(TipcastError, match=r"S010.*1 of 2 files"):
        job("score", *words)
    objects = scored()
    assert set(objects) == {f"2019/{MONTHS[0]}", "_manifest.json"}, (
        "a file that is refused has no scores"
    )
    found = json.loads(objects["_manifest.json"])
    assert (set(found["files"]), set(found["refused"])) == (
        {f"2019/{MONTHS[0]}"},
        {f"2019/{MONTHS[1]}"},
    )

    bucket.chmod(f"trips/months/2019/{MONTHS[0]}", acl="public-read")
    web = f"{os.environ['AWS_ENDPOINT_URL']}/trips/months/2019/{MONTHS[0]}"
    local = [words[0], f"input={web}", f"output={tmp_path / 'web'}", SCORING]
    assert job("score", *local).said["scored"] == 1
    assert (tmp_path / "web" / MONTHS[0]).read_bytes() == objects[f"2019/{MONTHS[0]}"]
    assert job("score", *local).said["scored"] == 0


class Refusing(http.server.BaseHTTPRequestHandler):
    """An object store that refuses every request."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        Refusing.asked.append(f"{self.command} {self.path}")
        self.send_error(403)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET
    log_message = print  # which pytest captures


def test_a_store_that_is_away_is_told_in_one_line_without_the_keys(
    job: Job, closed_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trips.parquet").touch()
    secrets = {"AWS_ACCESS_KEY_ID": "canaryKEYx7Yq", "AWS_SECRET_ACCESS_KEY": "canarySECRETx7Yq"}
    for name, value in {**secrets, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    words = [
        "model_uri=models:/tipcast/1",
        f"input={tmp_path / 'trips.parquet'}",
        "output=s3://mybucket/some/prefix/",
    ]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for port in (server.server_address[1], closed_port):
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            s3fs.S3FileSystem.clear_instance_cache()
            with pytest.raises(TipcastError, match=r"error\[T009\] .*mybucket.* Fix: ") as caught:
                job("score", *words)
            assert not [secret for secret in secrets.values() if secret in str(caught.value)]
        server.shutdown()
    s3fs.S3FileSystem.clear_instance_cache()
    assert Refusing.asked
    assert all(Refusing.asked.count(request) <= 3 for request in Refusing.asked), Refusing.asked


def test_lines_for_people_say_that_files_were_counted() -> None:
    result = {"run": "seen before", "scored": 1, "scored_rows": 1000}
    assert lines_for_people(result) == {"scored_files": 1, "scored_rows": 1000}


@pytest.mark.parametrize(
    ("n_files", "n_refused", "code", "fix"),
    [
        (1, 1, "D005", "mend it"),
        (2, 1, "S010", "mend or leave out the files that are listed"),
        (2, 2, "S010", "mend it"),
    ],
)
def test_error_of_refused_files_is_that_of_the_only_one_or_names_the_first(
    n_files: int, n_refused: int, code: str, fix: str
) -> None:
    errors = {
        str(at): TipcastError("D005", f"{at}.csv", "damaged", "mend it") for at in range(n_refused)
    }
    plan: Any = SimpleNamespace(n_files=n_files)
    error = refusal(plan, errors)
    assert error is not None
    assert (error.code, error.fix) == (code, fix)
    assert "0.csv" in str(error)
