"""`tipcast prepare`: months on disk and in an object store, whole or not at all, and nothing done twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.parquet as pq
import pytest
from tests.jobs.conftest import QUICK

from tipcast import cli
from tipcast.config.errors import TipcastError

SAMPLE = ("data.months=2019-01..2019-03", "data.rows=6000", "data.block_rows=2000")
NAMES = [f"yellow_tripdata_2019-{month:02}.parquet" for month in (1, 2, 3)]
Job = Callable[..., Any]


def _written(out: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder that gets the months."""
    return tmp_path / "months"


def test_the_run_that_mlflow_opened_is_named(store: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = mlflow.MlflowClient(store)
    runs = [client.create_run("0", run_name=name).info.run_id for name in ("gentle-ox-12", "mine")]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    for run_id in runs:
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
        assert cli.main(["prepare", *QUICK, *SAMPLE, f"out={out}"]) == 0
    assert [client.get_run(run_id).info.run_name for run_id in runs] == [
        "prepare months=2019-01..2019-03 rows=6000 ...",
        "mine",
    ]


def test_months_are_written_once(job: Job, out: Path, logged: list[str]) -> None:
    said = job("prepare", *SAMPLE, f"out={out}", "row_group_rows=500").said
    assert [line.split()[1] for line in logged if line.startswith("month ")] == ["1/3", "2/3", "3/3"]
    assert said["files"] == NAMES
    assert said["written"] == 3
    assert sorted(path.name for path in out.iterdir()) == NAMES
    rows = 0
    for name in NAMES:
        footer = pq.read_metadata(out / name)
        rows += footer.num_rows
        assert footer.num_row_groups >= 3
        assert max(footer.row_group(group).num_rows for group in range(footer.num_row_groups)) <= 500
        months = pq.read_table(out / name, columns=["tpep_pickup_datetime"])["tpep_pickup_datetime"].to_pandas()
        assert set(months.dt.strftime("%Y-%m")) == {name[16:23]}
    assert said["rows"] == rows == pytest.approx(6000, rel=0.01)

    before = _written(out)
    again = job("prepare", *SAMPLE, f"out={out}", "row_group_rows=500").said
    assert again["written"] == 0
    assert again["rows"] == said["rows"]
    assert "cluster" not in again["phases"]
    assert _written(out) == before

    damaged = out / NAMES[1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    (out / NAMES[2]).unlink()
    mended = job("prepare", *SAMPLE, f"out={out}", "row_group_rows=500").said
    assert mended["written"] == 2
    assert {name: content for name, (_, content) in _written(out).items()} == {
        name: content for name, (_, content) in before.items()
    }
    assert (out / NAMES[0]).stat().st_mtime_ns == before[NAMES[0]][0]

    changed = job("prepare", *SAMPLE, f"out={out}", "row_group_rows=1000").said
    assert changed["written"] == 3
    assert pq.read_metadata(out / NAMES[0]).row_group(0).num_rows > 500


def test_training_on_months_is_training_on_their_source(job: Job, out: Path) -> None:
    model = ("model=logistic", "task.validation=0")
    sample = ("data.rows=6000", "data.block_rows=2000")
    direct = job("train", *model, *sample, "data.train=2019-01..2019-02", "data.test=2019-03")
    for months in ("2019-01..2019-02", "2019-03"):
        job("prepare", *sample, f"data.months={months}", f"out={out}")
    train = f'["{out / NAMES[0]}","{out / NAMES[1]}"]'
    prepared = job("train", *model, "data=files", f"data.train={train}", f"data.test={out / NAMES[2]}")
    for name in ("train/rows", "test/rows", "train/positive_rate", "test/positive_rate"):
        assert prepared.run.data.metrics[name] == direct.run.data.metrics[name]
    assert prepared.auc == pytest.approx(direct.auc, abs=1e-6)


def test_csv_becomes_months(job: Job, out: Path, taxi: Path) -> None:
    source = taxi / "no_repo_license" / "green_tripdata_2020-10.csv.gz"
    said = job("prepare", "data=files", "data.train=null", "data.test=null", f"data.months={source}", f"out={out}").said
    assert said["files"] == ["green_tripdata_2020-10.parquet"]
    table = pq.read_table(out / "green_tripdata_2020-10.parquet")
    assert table.num_rows == said["rows"] == 95_120 - sum(said["dropped"].values())
    assert sum(said["dropped"].values()) < 950
    assert "lpep_pickup_datetime" in table.column_names
    assert table["passenger_count"].null_count == pytest.approx(0.447 * 95_120, rel=0.02)


def test_a_source_that_breaks_off_leaves_no_half_file(job: Job, out: Path, taxi: Path, tmp_path: Path) -> None:
    first = taxi / "yellow" / "yellow_tripdata_2018-01_10k.parquet"
    second = tmp_path / "yellow_tripdata_2018-02.parquet"
    table = pq.read_table(taxi / "yellow" / "yellow_tripdata_2018-02_10k.parquet")
    pq.write_table(table, second, row_group_size=2000, write_page_checksum=True)
    content = bytearray(second.read_bytes())
    group = pq.read_metadata(second).row_group(4)  # of five
    content[group.column(table.column_names.index("fare_amount")).data_page_offset + 200] ^= 4
    second.write_bytes(content)
    copies = [first, second]
    named = ",".join(f'"{copy}"' for copy in copies)
    with pytest.raises(TipcastError) as caught:
        job("prepare", "data=files", "data.train=null", "data.test=null", f"data.months=[{named}]", f"out={out}")
    assert caught.value.code == "D005"
    assert copies[1].name in str(caught.value)
    files = {path.name for path in out.iterdir()}
    assert "yellow_tripdata_2018-02.parquet" not in files
    assert not [name for name in files if name.endswith(".tmp")]


def test_months_in_an_object_store(job: Job, bucket: Any) -> None:
    said = job("prepare", *SAMPLE, "out=s3://trips/months").said
    assert said["written"] == 3
    bucket.invalidate_cache()
    found = bucket.ls("trips/months")
    assert sorted(path.rpartition("/")[2] for path in found) == NAMES
    assert job("prepare", *SAMPLE, "out=s3://trips/months").said["written"] == 0


def test_a_folder_below_a_file_cannot_be_written(job: Job, out: Path) -> None:
    out.write_text("a file")
    with pytest.raises(TipcastError, match="D023.*cannot be written"):
        job("prepare", *SAMPLE, f"out={out}/months")
