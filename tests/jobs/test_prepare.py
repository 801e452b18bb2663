"""`tipcast prepare`: months on disk and in an object store, whole or not at all, and nothing done
twice.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.parquet as pq
import pytest
from tests.jobs.conftest import QUICK, damaged

from tipcast import cli
from tipcast.config.errors import TipcastError
from tipcast.datasets import months

SAMPLE = ("data.rows=6000", "data.block_rows=2000")
MONTHS = ("data.months=2019-01..2019-03", *SAMPLE)
FILES = ("data=files", "data.train=null", "data.test=null")
NAMES = [f"yellow_tripdata_2019-{month:02}.parquet" for month in (1, 2, 3)]
Job = Callable[..., Any]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "months"


def test_the_run_that_mlflow_opened_is_named(
    store: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = mlflow.MlflowClient(store)
    runs = [client.create_run("0", run_name=name).info.run_id for name in ("gentle-ox-12", "mine")]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    for run_id in runs:
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
        assert cli.main(["prepare", *QUICK, *MONTHS, f"out={out}"]) == 0
    names = ["prepare months=2019-01..2019-03 rows=6000 ...", "mine"]
    assert [client.get_run(run_id).info.run_name for run_id in runs] == names


def test_months_are_written_once(job: Job, out: Path, logged: list[str]) -> None:
    def prepare(row_group_rows: int = 500) -> tuple[dict[str, Any], dict[str, tuple[int, bytes]]]:
        """Return what the job says, and each file's time and content."""
        said = job("prepare", *MONTHS, f"out={out}", f"row_group_rows={row_group_rows}").said
        return said, {
            path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()
        }

    said, files = prepare()
    assert [line.split()[1] for line in logged if line.startswith("month ")] == [
        "1/3",
        "2/3",
        "3/3",
    ]
    assert said["files"] == sorted(files) == NAMES
    assert said["written"] == 3
    footers = [pq.read_metadata(out / name) for name in NAMES]
    for name, footer in zip(NAMES, footers, strict=True):
        groups = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        assert len(groups) >= 3
        assert max(groups) <= 500
        months = pq.read_table(out / name, columns=["tpep_pickup_datetime"])[
            "tpep_pickup_datetime"
        ].to_pandas()
        assert set(months.dt.strftime("%Y-%m")) == {name[16:23]}
    assert said["rows"] == sum(footer.num_rows for footer in footers) == 6000, (
        "data.rows is of all months together"
    )

    again, same = prepare()
    assert (again["written"], again["rows"]) == (0, said["rows"])
    assert "cluster" not in again["phases"]
    assert same == files

    (out / NAMES[1]).write_bytes(damaged(out / NAMES[1]))
    (out / NAMES[2]).unlink()
    mended, same = prepare()
    assert mended["written"] == 2
    assert {name: content for name, (_, content) in same.items()} == {
        name: files[name][1] for name in NAMES
    }
    assert same[NAMES[0]] == files[NAMES[0]]

    assert prepare(1000)[0]["written"] == 3
    assert pq.read_metadata(out / NAMES[0]).row_group(0).num_rows > 500


def test_csv_becomes_months(job: Job, out: Path, taxi: Path) -> None:
    source = taxi / "no_repo_license" / "green_tripdata_2020-10.csv.gz"
    said = job("prepare", *FILES, f"data.months={source}", f"out={out}").said
    assert said["files"] == ["green_tripdata_2020-10.parquet"]
    table = pq.read_table(out / "green_tripdata_2020-10.parquet")
    assert table.num_rows == said["rows"] == 95_120 - sum(said["dropped"].values())
    assert sum(said["dropped"].values()) < 950
    assert "lpep_pickup_datetime" in table.column_names
    assert table["passenger_count"].null_count == pytest.approx(0.447 * 95_120, rel=0.02)


def test_a_source_that_breaks_off_leaves_no_half_file(job: Job, out: Path) -> None:
    job("prepare", *MONTHS, f"out={out}", "row_group_rows=500")
    (out / NAMES[1]).write_bytes(damaged(out / NAMES[1]))
    again = out.with_name("again")
    with pytest.raises(TipcastError, match=f"D005.*{NAMES[1]}"):
        job("prepare", *FILES, f"data.months={out}", f"out={again}")
    assert {path.name for path in again.iterdir()} <= {NAMES[0], NAMES[2]}


def test_months_in_an_object_store(job: Job, bucket: Any) -> None:
    for written in (3, 0):
        assert job("prepare", *MONTHS, "out=s3://trips/months").said["written"] == written
        bucket.invalidate_cache()
        assert sorted(path.rpartition("/")[2] for path in bucket.ls("trips/months")) == NAMES


def test_a_folder_below_a_file_cannot_be_written(job: Job, out: Path) -> None:
    out.write_text("a file")
    with pytest.raises(TipcastError, match="D023.*cannot be written"):
        job("prepare", *MONTHS, f"out={out}/months")


def test_months_go_through_no_link_and_unfinished_ones_of_killed_jobs_go(
    job: Job, out: Path, tmp_path: Path
) -> None:
    (out / "folder").mkdir(parents=True)
    for name in ("yellow_tripdata_2018-01.parquet.0123abcd-4567cdef.tmp", "of_others.tmp"):
        (out / name).touch()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (out / NAMES[0]).symlink_to(foreign)
    with pytest.raises(TipcastError, match=r"C011.*a link"):
        job("prepare", *MONTHS, f"out={out}")
    assert list(foreign.iterdir()) == []
    assert sorted(path.name for path in out.iterdir()) == ["folder", "of_others.tmp", NAMES[0]]


def test_a_second_job_does_not_prepare_into_the_same_folder_at_once(job: Job, out: Path) -> None:
    with (
        months.locked_folder(str(out)),
        pytest.raises(TipcastError, match=r"S011.*another job is writing into it"),
    ):
        job("prepare", *MONTHS, f"out={out}")
    assert not out.exists()
