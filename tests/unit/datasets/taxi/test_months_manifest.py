"""The manifest of prepared months: it survives, knows its files, and loses nothing to another job."""

from __future__ import annotations

import threading
from pathlib import Path

import filelock
import pyarrow.parquet as pq
import pytest

from tipcast.compute.base import Frames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import SampleData
from tipcast.datasets.taxi import months
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.months import MANIFEST, Written, add_to_manifest, is_current, read_manifest
from tipcast.datasets.taxi.schema import COLUMNS


def test_a_manifest_survives_and_knows_its_files(tmp_path: Path, frames: Frames) -> None:
    out, layout = str(tmp_path / "out"), months.Layout(500, "zstd")
    assert read_manifest(out) == {}
    spec = SampleData("sample", None, None, "2019-01", rows=3000, seed=0, colour="yellow", block_rows=1000)
    (month,) = months.plan(Taxi(spec).scan("months", ("pickup", "fare_amount"), optional=COLUMNS), layout)
    (tmp_path / "out").mkdir()
    written = months.write_month(month, out, layout, tuple(COLUMNS), "yellow", frames, "job")
    add_to_manifest(out, {month.name: written})
    manifest = read_manifest(out)
    assert manifest == {month.name: written}
    assert is_current(out, month.name, month.recipe, manifest)
    path = tmp_path / "out" / month.name
    assert pq.read_metadata(path).num_rows == written.rows
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert not is_current(out, month.name, month.recipe, manifest)
    path.unlink()
    assert not is_current(out, month.name, month.recipe, manifest)


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
