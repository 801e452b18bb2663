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
from dataclasses import dataclass
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
from tests.conftest import object_store
from tests.jobs.conftest import TAGS, console_lines, damaged, own_tags, run_job

from tipcast.compute import gpu_parquet
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


@dataclass(frozen=True)
class Scored:
    """A scoring: what it was given, what it made, its last line and its run."""

    given: Path
    out: Path
    said: dict[str, Any]
    run: Any

    @property
    def files(self) -> dict[str, Any]:
        """The manifest's entries, by the names of files."""
        return dict(manifest(self.out)["files"])


def score_into(
    store: str, given: Path, out: Path, *words: str, uri: str = "models:/tipcast/1"
) -> Scored:
    """Score a folder with the registered model `tipcast`, or another."""
    addresses = (f"model_uri={uri}", f"input={given}", f"output={out}", SCORING)
    ended = run_job(store, "score", *addresses, *words)
    return Scored(given, out, ended.said, ended.run)


MIXED = [MONTHS[0], "more/deep/green_tripdata_2019-05.parquet"]


@pytest.fixture(scope="module")
def mixed(store: str, months: Path, tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """Scores of yellow trips, and of green ones of unknown tips in a folder below."""
    folder = tmp_path_factory.mktemp("mixed")
    given = folder / "trips"
    green = pd.read_parquet(months / MONTHS[1]).rename(
        columns=lambda name: name.replace("tpep_", "lpep_")
    )
    (given / "more" / "deep").mkdir(parents=True)
    shutil.copy2(months / MIXED[0], given)
    green.drop(columns="tip_amount").to_parquet(given / MIXED[1], index=False)
    with contextlib.chdir(folder):
        return score_into(store, given, folder / "scored")


@pytest.mark.parametrize("name", MIXED)
def test_every_row_in_its_order_as_mlflow_scores_it(mixed: Scored, store: str, name: str) -> None:
    mlflow.set_tracking_uri(store)
    model = mlflow.pyfunc.load_model("models:/tipcast/1")
    columns = [column.name for column in model.metadata.signature.inputs.inputs]
    rows = pd.read_parquet(mixed.given / name)
    rows = rows.rename(columns=lambda name: name.replace("lpep_", "tpep_"))
    scored = pd.read_parquet(mixed.out / name)
    same_rows(mixed.out / name, mixed.given / name)
    assert np.abs(scored["probability"] - np.asarray(model.predict(rows[columns]))).max() <= 1e-6


@pytest.mark.parametrize("name", MIXED)
def test_each_row_is_predicted_by_the_threshold(mixed: Scored, name: str) -> None:
    scored = pd.read_parquet(mixed.out / name)
    threshold = manifest(mixed.out)["model"]["threshold"]
    assert (scored["prediction"] == (scored["probability"] >= threshold)).all()


@pytest.mark.parametrize("name", MIXED)
def test_each_row_names_its_model(mixed: Scored, name: str) -> None:
    scored = pd.read_parquet(mixed.out / name)
    models = {*zip(scored["model_name"], scored["model_version"], strict=True)}
    assert models == {("tipcast", "1")}


def test_scores_lie_in_the_folders_of_their_trips(mixed: Scored) -> None:
    assert set(state(mixed.out)) == {*MIXED, "_manifest.json"}


def test_a_scoring_leaves_no_unfinished_file(mixed: Scored) -> None:
    beside = mixed.out.parent.rglob("*")
    assert [path for path in beside if path.name.startswith((".", "_tipcast-"))] == []


def test_a_folder_of_scores_is_read_as_one_data_set(mixed: Scored) -> None:
    below = pd.read_parquet(mixed.out / "more")
    assert len(below) == mixed.files[MIXED[1]]["rows"]


@pytest.mark.parametrize("name", MIXED)
def test_the_manifest_has_the_rows_of_each_file(mixed: Scored, name: str) -> None:
    assert mixed.files[name]["rows"] == pq.read_metadata(mixed.given / name).num_rows


@pytest.mark.parametrize("name", MIXED)
def test_the_manifest_has_the_digests_of_each_file(mixed: Scored, name: str) -> None:
    for digest, folder in (("sha256", mixed.out), ("input_sha256", mixed.given)):
        content = (folder / name).read_bytes()
        assert mixed.files[name][digest] == hashlib.sha256(content).hexdigest()


def test_the_last_line_of_a_scoring_counts_all_rows(mixed: Scored) -> None:
    said = mixed.said
    rows = sum(entry["rows"] for entry in mixed.files.values())
    assert said["rows"] == said["scored_rows"] == rows
    assert said["unscored"] == said["refused"] == {}


def test_a_scoring_is_a_run_of_its_own(mixed: Scored) -> None:
    assert own_tags(mixed.run) == {*TAGS, "model.uri"}
    assert (mixed.run.info.status, mixed.run.data.tags["job"]) == ("FINISHED", "score")


def test_the_run_of_a_scoring_names_its_model(mixed: Scored, store: str) -> None:
    client = mlflow.MlflowClient(store)
    (used,) = mixed.run.inputs.model_inputs
    training = client.get_model_version("tipcast", "1").run_id
    assert mixed.run.data.tags["model.uri"] == "models:/tipcast/1"
    assert client.get_logged_model(used.model_id).source_run_id == training


def test_the_run_of_a_scoring_names_its_rows(mixed: Scored) -> None:
    (dataset,) = mixed.run.inputs.dataset_inputs
    assert dataset.tags[0].value == "score"
    assert json.loads(dataset.dataset.profile)["rows"] == mixed.said["rows"]


def test_known_targets_are_measured_as_the_training_measured_them(
    mixed: Scored, store: str
) -> None:
    client = mlflow.MlflowClient(store)
    training = client.get_run(client.get_model_version("tipcast", "1").run_id)
    for name in ("auc", "log_loss", "brier", "accuracy", "average_precision"):
        assert mixed.run.data.metrics[f"labelled/{name}"] == pytest.approx(
            training.data.metrics[f"test/{name}"], abs=1e-4
        ), name


def test_a_scoring_counts_its_files(mixed: Scored) -> None:
    metrics = mixed.run.data.metrics
    counts = [metrics[f"score/{name}"] for name in ("files", "kept_files", "refused_files")]
    assert counts == [2, 0, 0]


def test_a_scoring_tells_its_pace(mixed: Scored) -> None:
    assert mixed.run.data.metrics["score/rows_per_s"] > 0


@pytest.mark.parametrize("path", ["plots/roc.png", "tables/files.json"])
def test_a_scoring_has_its_artifacts(mixed: Scored, store: str, path: str) -> None:
    client = mlflow.MlflowClient(store)
    folder = path.partition("/")[0]
    artifacts = client.list_artifacts(mixed.run.info.run_id, folder)
    assert path in {artifact.path for artifact in artifacts}


def test_the_note_of_a_scoring_names_the_model(mixed: Scored) -> None:
    assert "models:/tipcast/1" in mixed.run.data.tags["mlflow.note.content"]


def test_the_note_of_a_scoring_shows_its_curve(mixed: Scored) -> None:
    note = mixed.run.data.tags["mlflow.note.content"]
    assert "get-artifact?path=plots%2Froc.png" in note


@dataclass(frozen=True)
class Repeated:
    """A scoring into a folder that may have scores, and what the folder has after it."""

    said: dict[str, Any]
    run: Any
    files: dict[str, tuple[int, bytes]]
    """Name -> the time and the content."""
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Repetitions:
    """The same scoring again and again, in order; each tells what was changed before it."""

    lines: list[str]
    """What the console was told by the first."""
    first: Repeated
    unchanged: Repeated
    touched: Repeated
    """A file of trips and one of scores have another time."""
    stamp: str
    """Of the file of trips, then."""
    cut: Repeated
    """The first file of trips lost 100 rows, and the manifest was lost."""
    rows: int
    """Of the first file of trips before that."""
    removed: Repeated
    """The first file of trips is gone; the scores of the second were overwritten."""
    other_model: Repeated


@pytest.fixture(scope="module")
def repeated(store: str, months: Path, tmp_path_factory: pytest.TempPathFactory) -> Repetitions:
    folder = tmp_path_factory.mktemp("repeated")
    trips = Path(shutil.copytree(months, folder / "trips"))
    out = folder / "scored"

    def score(uri: str = "models:/tipcast/1") -> Repeated:
        ended = score_into(store, trips, out, uri=uri)
        return Repeated(ended.said, ended.run, state(out), manifest(out))

    with contextlib.chdir(folder):
        with console_lines() as lines:
            first = score()
        unchanged = score()

        (trips / MONTHS[0]).touch()
        (out / MONTHS[1]).touch()
        touched = score()
        stamp = file_stamp(str(trips / MONTHS[0]), {})

        # as a job that is killed leaves it, of which tests/faults tells more
        table = pq.read_table(trips / MONTHS[0])
        (out / "_manifest.json").unlink()
        pq.write_table(table.slice(100), trips / MONTHS[0])
        cut = score()

        shutil.copy(out / MONTHS[0], out / MONTHS[1])
        (trips / MONTHS[0]).unlink()
        removed = score()

        other_model = score("models:/other/1")
    return Repetitions(
        lines, first, unchanged, touched, stamp, cut, table.num_rows, removed, other_model
    )


def test_each_file_is_said_once(repeated: Repetitions) -> None:
    assert sorted(line.split()[2] for line in repeated.lines if line.startswith("file ")) == MONTHS


def test_nothing_is_done_twice(repeated: Repetitions) -> None:
    again = repeated.unchanged
    assert (again.said["scored"], again.said["rows"]) == (0, repeated.first.said["rows"])
    assert again.run is None
    assert set(again.said["phases"]) == {"list", "model"}
    assert again.files == repeated.first.files


def test_a_file_of_the_same_content_at_another_time_is_not_scored_again(
    repeated: Repetitions,
) -> None:
    touched = repeated.touched
    assert (touched.said["scored"], touched.run) == (0, None)
    for name in MONTHS:
        assert touched.files[name][1] == repeated.first.files[name][1]


def test_the_new_time_of_a_file_is_remembered(repeated: Repetitions) -> None:
    """Else its content would be read each time."""
    entry = repeated.touched.manifest["files"][MONTHS[0]]
    assert entry["input_stamp"] == repeated.stamp


def test_a_changed_file_alone_is_scored_again_also_without_the_manifest(
    repeated: Repetitions,
) -> None:
    cut = repeated.cut
    rows = repeated.rows - 100
    _, scores = cut.files[MONTHS[0]]
    assert (cut.said["scored"], cut.said["scored_rows"]) == (1, rows)
    assert cut.manifest["run_id"] == cut.run.info.run_id
    assert pq.read_metadata(pa.BufferReader(scores)).num_rows == rows
    assert cut.files[MONTHS[1]] == repeated.touched.files[MONTHS[1]]


def test_overwritten_scores_are_made_again(repeated: Repetitions) -> None:
    removed = repeated.removed
    assert (removed.said["scored"], removed.said["files"]) == (1, 1)
    assert removed.files[MONTHS[1]][1] == repeated.touched.files[MONTHS[1]][1]


def test_scores_of_a_file_that_is_gone_are_removed(repeated: Repetitions) -> None:
    assert set(repeated.removed.files) == {MONTHS[1], "_manifest.json"}


def test_another_model_scores_all_again(repeated: Repetitions) -> None:
    assert repeated.other_model.said["scored"] == 1
    assert repeated.other_model.manifest["model"]["name"] == "other"


def test_any_number_of_workers_gives_the_same_files(
    score: Job, trips: Path, out: Path, monkeypatch: Any
) -> None:
    contents = []
    for cluster in ([], ["cluster.n_workers=2", "cluster.threads_per_worker=1"]):
        score(*cluster, uri="models:/other/1")
        contents.append(
            {name: content for name, (_, content) in state(out).items() if name != "_manifest.json"}
        )
        shutil.rmtree(out)
    assert contents[0] == contents[1]
    assert set(contents[0]) == set(MONTHS)
    monkeypatch.setattr(worker, "ROW_GROUP", 700)
    # as for a device: many rows a task, files written beside it, which are too large for its memory
    monkeypatch.setattr(CpuFrames, "on_gpu", True)
    monkeypatch.setattr(gpu_parquet, "fits", lambda *_: False)
    monkeypatch.setattr(CpuFrames, "batch_values", 80_000)
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


BARE = "a_2019-04"
"""A file without passengers and fares; `c_2019-04` has the same trips as CSV."""
EMPTY = "b_2019-04.parquet"
"""The same trips, whose passengers are all missing."""
ODD = "yellow_tripdata_2019-04.parquet"
"""The same trips, of which some rows have odd values."""
ODD_VALUES = {
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
"""Column -> row -> what it has."""
UNSCORED = {1, 2, 3, 4, 6, 7, 13, 14}
WITHOUT_TARGET = {0, 8, 9, 10, 11, 12, 15}
"""Rows of which no target is known, beside those without a score."""


def april_trips() -> pd.DataFrame:
    """Make 400 trips, numbers as floats."""
    start, stop = (int(pd.Timestamp(day).value // 1000) for day in ("2019-04-01", "2019-05-01"))
    names = (
        "tpep_pickup_datetime",
        "passenger_count",
        "PULocationID",
        "DOLocationID",
        "fare_amount",
        "tip_amount",
    )
    sample = sample_block((start, stop), 0, 0, 400, "yellow", names)
    columns = {
        name: sample[name].view("datetime64[us]") if "datetime" in name else sample[name]
        for name in names
    }
    return pd.DataFrame(columns).astype(
        {"PULocationID": float, "DOLocationID": float, "passenger_count": float}
    )


@pytest.fixture(scope="module")
def odd(store: str, tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """Scores of files that lack columns and values, in blocks of a few rows."""
    folder = tmp_path_factory.mktemp("odd")
    given = folder / "trips"
    given.mkdir()

    trips = april_trips()
    without_tips = trips.assign(tip_amount=np.nan)
    bare = without_tips.drop(columns=["passenger_count", "fare_amount"])
    bare.to_parquet(given / f"{BARE}.parquet")
    with_flag = bare.assign(store_and_fwd_flag="N", VendorID=2)
    for ending in ("csv", "csv.gz"):
        with_flag.to_csv(given / f"c_2019-04.{ending}", index=False)
    without_tips.assign(passenger_count=np.nan).to_parquet(given / EMPTY)

    for column, values in ODD_VALUES.items():
        for row, value in values.items():
            trips.loc[row, column] = value
    trips.to_parquet(given / ODD)
    with contextlib.chdir(folder):
        return score_into(store, given, folder / "scored", "block_bytes=3000")


def test_a_column_that_is_missing_is_one_without_values(odd: Scored) -> None:
    missing, empty = (
        pq.read_table(odd.out / name)["probability"] for name in (f"{BARE}.parquet", EMPTY)
    )
    assert missing.equals(empty)
    assert missing.null_count == 0


def test_impossible_rows_are_kept(odd: Scored) -> None:
    scored = pq.read_metadata(odd.out / ODD)
    assert scored.num_rows == pq.read_metadata(odd.given / ODD).num_rows


@pytest.mark.parametrize("column", ["probability", "prediction"])
def test_impossible_rows_get_no_score(odd: Scored, column: str) -> None:
    scored = pd.read_parquet(odd.out / ODD)
    assert set(scored.index[scored[column].isna()]) == UNSCORED


def test_rows_without_a_score_are_counted_by_their_reason(odd: Scored) -> None:
    metrics = odd.run.data.metrics
    assert odd.said["unscored"] == {"pickup_impossible": 2, "non_finite": 3, "bad_zone": 3}
    assert odd.files[ODD]["unscored"] == odd.said["unscored"]
    assert (metrics["score/unscored"], metrics["unscored/bad_zone"]) == (8, 3)


def test_only_scores_of_known_targets_are_judged(odd: Scored) -> None:
    labelled = pq.read_metadata(odd.given / ODD).num_rows - len(UNSCORED | WITHOUT_TARGET)
    of_negative_fares = 10  # at most: the sample has some of its own
    judged = odd.run.data.metrics["labelled/rows"]
    assert labelled - of_negative_fares <= judged <= labelled


def test_csv_is_scored_as_parquet_packed_or_not(odd: Scored) -> None:
    plain, packed = (
        pq.read_table(odd.out / f"c_2019-04.{ending}.parquet") for ending in ("csv", "csv.gz")
    )
    parquet = pq.read_table(odd.out / f"{BARE}.parquet")
    assert plain.equals(packed)
    assert plain["probability"].equals(parquet["probability"])


def test_columns_of_scored_csv_have_types(odd: Scored) -> None:
    scores = pq.ParquetFile(odd.out / "c_2019-04.csv.parquet")
    types = {
        "tpep_pickup_datetime": pa.timestamp("us"),
        "PULocationID": pa.int64(),
        "VendorID": pa.int64(),
        "store_and_fwd_flag": pa.string(),
    }
    assert {name: scores.schema_arrow.field(name).type for name in types} == types


def test_scores_of_csv_have_a_row_group_for_each_block(odd: Scored) -> None:
    assert pq.read_metadata(odd.out / "c_2019-04.csv.parquet").num_row_groups > 3


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


def test_a_scoring_that_refused_a_file_says_so_in_its_run(
    score: Job, store: str, trips: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with an error, and its run is FINISHED: the other files are scored."""
    (trips / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(TipcastError, match=r"S010.*1 of 3 files was refused: .*broken\.parquet"):
        score()
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    run = mlflow.MlflowClient(store).get_run(said["run_id"])
    assert (run.info.status, run.data.tags["error.code"]) == ("FINISHED", "S010")


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


IN_BUCKET = [f"2019/{name}" for name in MONTHS]


@dataclass(frozen=True)
class StoredStep:
    """A scoring of trips in an object store, and the objects with scores after it."""

    said: dict[str, Any]
    """Nothing where it was refused."""
    objects: dict[str, bytes]

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads(self.objects["_manifest.json"]))


@dataclass(frozen=True)
class Stored:
    """Scorings from one bucket into itself, in order, and one of its public address."""

    first: StoredStep
    unchanged: StoredStep
    without_manifest: StoredStep
    """As after a job that was killed."""
    damaged: StoredStep
    """The first file of trips is another, the second is damaged."""
    from_web: dict[str, Any]
    """What scoring the first file by HTTP says."""
    web_scores: bytes
    from_web_again: dict[str, Any]


@pytest.fixture(scope="module")
def stored(store: str, months: Path, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("stored")
    with contextlib.chdir(folder), object_store() as bucket:
        return _score_stored(store, months, folder, bucket)


def _score_stored(store: str, months: Path, folder: Path, bucket: Any) -> Stored:
    def objects() -> dict[str, bytes]:
        bucket.invalidate_cache()
        return {
            path.removeprefix("trips/scored/"): bucket.cat_file(path)
            for path in bucket.find("trips/scored")
        }

    def score(given: str = "s3://trips/months/", out: object = "s3://trips/scored") -> Any:
        words = ("model_uri=models:/tipcast/1", f"input={given}", f"output={out}", SCORING)
        return run_job(store, "score", *words).said

    for name in MONTHS:
        bucket.put(str(months / name), f"trips/months/2019/{name}")
    first = StoredStep(score(), objects())
    unchanged = StoredStep(score(), objects())
    bucket.rm_file("trips/scored/_manifest.json")
    without_manifest = StoredStep(score(), objects())

    changed = folder / "changed.parquet"
    pq.write_table(pq.read_table(months / MONTHS[0]).slice(7), changed)
    bucket.put(str(changed), f"trips/months/{IN_BUCKET[0]}")
    bucket.pipe_file(f"trips/months/{IN_BUCKET[1]}", damaged(months / MONTHS[1]))
    with pytest.raises(TipcastError, match=r"S010.*1 of 2 files"):
        score()
    refused = StoredStep({}, objects())

    bucket.chmod(f"trips/months/{IN_BUCKET[0]}", acl="public-read")
    web = f"{os.environ['AWS_ENDPOINT_URL']}/trips/months/{IN_BUCKET[0]}"
    from_web = score(web, folder / "web")
    web_scores = (folder / "web" / MONTHS[0]).read_bytes()
    from_web_again = score(web, folder / "web")
    return Stored(first, unchanged, without_manifest, refused, from_web, web_scores, from_web_again)


def test_trips_in_an_object_store_are_scored_below_the_same_names(
    stored: Stored, months: Path
) -> None:
    objects = stored.first.objects
    assert set(objects) == {"_manifest.json", *IN_BUCKET}
    for name in MONTHS:
        same_rows(io.BytesIO(objects[f"2019/{name}"]), months / name)


def test_the_manifest_in_an_object_store_has_digests(stored: Stored) -> None:
    entries = stored.first.manifest["files"]
    assert {name: entry["sha256"] for name, entry in entries.items()} == {
        name: hashlib.sha256(stored.first.objects[name]).hexdigest() for name in IN_BUCKET
    }


def test_the_manifest_in_an_object_store_has_all_rows(stored: Stored) -> None:
    entries = stored.first.manifest["files"]
    assert stored.first.said["rows"] == sum(entry["rows"] for entry in entries.values())


def test_scores_in_an_object_store_are_kept_also_without_their_manifest(stored: Stored) -> None:
    assert stored.unchanged.said["scored"] == 0
    assert stored.without_manifest.said["scored"] == 0
    assert stored.without_manifest.manifest["files"] == stored.first.manifest["files"]


def test_a_damaged_file_in_an_object_store_has_no_scores(stored: Stored) -> None:
    left = stored.damaged
    assert set(left.objects) == {IN_BUCKET[0], "_manifest.json"}
    assert set(left.manifest["files"]) == {IN_BUCKET[0]}
    assert set(left.manifest["refused"]) == {IN_BUCKET[1]}


def test_a_file_of_the_web_is_scored_as_from_its_store(stored: Stored) -> None:
    assert stored.from_web["scored"] == 1
    assert stored.web_scores == stored.damaged.objects[IN_BUCKET[0]]


def test_a_file_of_the_web_is_not_scored_again(stored: Stored) -> None:
    assert stored.from_web_again["scored"] == 0


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
        (2, 1, "S010", "fix or leave out the listed files"),
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
