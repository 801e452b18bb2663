"""Prepared months: planned, written, and known by a manifest that loses nothing to another job."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import filelock
import pyarrow.parquet as pq
import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SampleData
from tipcast.datasets import months
from tipcast.datasets.months import MANIFEST, Month, Written, add_to_manifest, is_current, read_manifest
from tipcast.datasets.taxi.dataset import Taxi


def _planned(named: str, row_group_rows: int = 500, compression: str = "zstd", rows: int = 3000) -> list[Month]:
    spec = SampleData(
        source="sample", train=None, test=None, months=named, rows=rows, seed=0, colour="yellow", block_rows=1000
    )
    dataset = Taxi(spec)
    return months.plan(dataset, dataset.month_files(), row_group_rows, compression)


def test_a_plan_has_one_file_a_month_whose_recipe_tells_what_it_depends_on() -> None:
    planned = _planned("2018-12..2019-02")
    assert [month.name for month in planned] == [
        f"yellow_tripdata_{month}.parquet" for month in ("2018-12", "2019-01", "2019-02")
    ]
    assert all(before.period[1] == after.period[0] for before, after in itertools.pairwise(planned))
    assert all(month.fragments for month in planned)
    settings = [{}, {"row_group_rows": 501}, {"compression": "snappy"}, {"rows": 3001}]
    recipes = [_planned("2019-01", **setting)[0].recipe for setting in settings]
    assert len(set(recipes)) == 4
    assert _planned("2019-01")[0].recipe == recipes[0]


def test_what_was_begun_is_removed_if_the_job_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), months.unfinished(str(tmp_path)) as token:
        for name in ("whole.parquet", f"half.parquet.{token}-1.tmp", "half.parquet.other-1.tmp"):
            (tmp_path / name).write_bytes(b"x")
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.parquet.other-1.tmp", "whole.parquet"]


def test_a_manifest_survives_and_knows_its_files(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert read_manifest(out) == {}
    (month,) = _planned("2019-01")
    (tmp_path / "out").mkdir()
    written = months.write_month(Taxi(), month, out, "job")
    add_to_manifest(out, {month.name: written})
    manifest = read_manifest(out)
    assert manifest == {month.name: written}
    assert is_current(out, month, manifest)
    path = tmp_path / "out" / month.name
    assert pq.read_metadata(path).num_rows == written.rows
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert not is_current(out, month, manifest)
    path.unlink()
    assert not is_current(out, month, manifest)


def test_jobs_that_write_at_once_lose_no_entry_of_each_other(tmp_path: Path) -> None:
    entry = Written(rows=1, bytes=1, sha256="", row_groups=1, recipe="", dropped={})
    names = [[f"{job}-{month}" for month in range(15)] for job in range(4)]

    def job(mine: list[str]) -> None:
        for name in mine:
            add_to_manifest(str(tmp_path), {name: entry})

    threads = [threading.Thread(target=job, args=(mine,)) for mine in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_manifest(str(tmp_path))) == {name for mine in names for name in mine}
    assert {path.name for path in tmp_path.iterdir()} == {MANIFEST, months.LOCK}


def test_a_lock_that_stays_taken_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(months, "LOCK_S", 0.01)
    with filelock.FileLock(tmp_path / months.LOCK), pytest.raises(OSError, match="manifest.json.lock"):
        add_to_manifest(str(tmp_path), {})


@pytest.mark.parametrize("text", ["", "[]", '{"files": {"a": {"rows": 1}}}', '{"files": 5}'])
def test_another_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(TipcastError) as caught:
        read_manifest(str(tmp_path))
    assert caught.value.code == "D020"
