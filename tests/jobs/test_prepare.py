"""`tipcast prepare`: months on disk and in an object store, whole or not at all, and nothing done
twice.
"""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.parquet as pq
import pytest
from tests.jobs.conftest import QUICK, console_lines, damaged, run_job

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


@dataclass(frozen=True)
class Prepared:
    """A preparation, and the months after it."""

    said: dict[str, Any]
    files: dict[str, tuple[int, bytes]]
    """Name -> the time and the content."""

    @property
    def contents(self) -> dict[str, bytes]:
        return {name: content for name, (_, content) in self.files.items()}

    def table(self, name: str) -> pq.ParquetFile:
        return pq.ParquetFile(io.BytesIO(self.contents[name]))

    def groups(self, name: str) -> list[int]:
        """Return the rows of each row group."""
        metadata = self.table(name).metadata
        return [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]


@dataclass(frozen=True)
class Preparations:
    """Of the same months into one folder, in order."""

    lines: list[str]
    """What the console was told by the first."""
    first: Prepared
    unchanged: Prepared
    mended: Prepared
    """The second month was damaged, the third away."""
    larger: Prepared
    """In row groups of another size."""


@pytest.fixture(scope="module")
def prepared(store: str, tmp_path_factory: pytest.TempPathFactory) -> Preparations:
    folder = tmp_path_factory.mktemp("prepared")
    out = folder / "months"

    def prepare(row_group_rows: int = 500) -> Prepared:
        words = (*MONTHS, f"out={out}", f"row_group_rows={row_group_rows}")
        said = run_job(store, "prepare", *words).said
        files = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}
        return Prepared(said, files)

    with contextlib.chdir(folder):
        with console_lines() as lines:
            first = prepare()
        unchanged = prepare()

        (out / NAMES[1]).write_bytes(damaged(out / NAMES[1]))
        (out / NAMES[2]).unlink()
        mended = prepare()
        return Preparations(lines, first, unchanged, mended, prepare(1000))


def test_each_month_is_said_once(prepared: Preparations) -> None:
    numbers = [line.split()[1] for line in prepared.lines if line.startswith("month ")]
    assert numbers == ["1/3", "2/3", "3/3"]


def test_each_month_is_a_file(prepared: Preparations) -> None:
    first = prepared.first
    assert first.said["files"] == sorted(first.files) == NAMES
    assert first.said["written"] == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_month_has_its_trips_alone_in_row_groups(prepared: Preparations, name: str) -> None:
    groups = prepared.first.groups(name)
    table = prepared.first.table(name).read(columns=["tpep_pickup_datetime"])
    pickups = table["tpep_pickup_datetime"].to_pandas()
    assert set(pickups.dt.strftime("%Y-%m")) == {name[16:23]}
    assert len(groups) >= 3
    assert max(groups) <= 500


def test_the_rows_asked_for_are_of_all_months_together(prepared: Preparations) -> None:
    rows = sum(prepared.first.table(name).metadata.num_rows for name in NAMES)
    assert prepared.first.said["rows"] == rows == 6000


def test_months_are_written_once(prepared: Preparations) -> None:
    again = prepared.unchanged
    assert (again.said["written"], again.said["rows"]) == (0, prepared.first.said["rows"])
    assert "cluster" not in again.said["phases"]
    assert again.files == prepared.first.files


def test_months_that_are_damaged_or_missing_are_written_again(prepared: Preparations) -> None:
    assert prepared.mended.said["written"] == 2
    assert prepared.mended.contents == prepared.first.contents


def test_a_month_that_is_whole_is_not_written_again(prepared: Preparations) -> None:
    assert prepared.mended.files[NAMES[0]] == prepared.first.files[NAMES[0]]


def test_months_of_other_row_groups_are_written_again(prepared: Preparations) -> None:
    assert prepared.larger.said["written"] == 3
    assert prepared.larger.groups(NAMES[0])[0] > 500


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


@dataclass(frozen=True)
class Linked:
    """Folders after a preparation that was refused because a month was a link."""

    out: Path
    foreign: Path


@pytest.fixture(scope="module")
def linked(store: str, tmp_path_factory: pytest.TempPathFactory) -> Linked:
    """A link to a foreign folder, a file that a killed job left, and what is of others."""
    folder = tmp_path_factory.mktemp("linked")
    out = folder / "months"
    (out / "folder").mkdir(parents=True)
    for name in ("yellow_tripdata_2018-01.parquet.0123abcd-4567cdef.tmp", "of_others.tmp"):
        (out / name).touch()
    foreign = folder / "foreign"
    foreign.mkdir()
    (out / NAMES[0]).symlink_to(foreign)
    with contextlib.chdir(folder), pytest.raises(TipcastError, match=r"C011.*a link"):
        run_job(store, "prepare", *MONTHS, f"out={out}")
    return Linked(out, foreign)


def test_months_go_through_no_link(linked: Linked) -> None:
    assert list(linked.foreign.iterdir()) == []
    assert (linked.out / NAMES[0]).is_symlink()


def test_unfinished_months_of_killed_jobs_alone_are_removed(linked: Linked) -> None:
    names = sorted(path.name for path in linked.out.iterdir())
    assert names == ["folder", "of_others.tmp", NAMES[0]]


def test_a_second_job_does_not_prepare_into_the_same_folder_at_once(job: Job, out: Path) -> None:
    with (
        months.locked_folder(str(out)),
        pytest.raises(TipcastError, match=r"S011.*another job is writing to it"),
    ):
        job("prepare", *MONTHS, f"out={out}")
    assert not out.exists()
