"""Files that are written whole or not at all, on a disk and in an object store; stamps of files."""

import gc
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.parquet import LARGE_BYTES
from tipcast.scoring.folder import ScoreFolder, read_folder
from tipcast.scoring.writing import as_artifact_error, atomic_write, file_stamp


def test_stamp_of_a_link_is_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert file_stamp(str(tmp_path / "link"), {}) == file_stamp(str(tmp_path / "a"), {})


def test_stamp_changes_with_a_content_of_the_same_size(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"1")
    stamp = file_stamp(str(file), {})
    # some disks tell the time in steps
    wait_until(lambda: file.write_bytes(b"2") and file_stamp(str(file), {}) != stamp)


def test_missing_file_has_no_stamp(tmp_path: Path) -> None:
    with pytest.raises(TipcastError, match="D001"):
        file_stamp(str(tmp_path / "none"), {})


def test_file_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a full disk tests/faults tell."""
    steps: list[object] = []
    sync = os.fsync
    rename = Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("sync"), sync(descriptor))[1])
    monkeypatch.setattr(
        Path, "replace", lambda path, to: (steps.append(to.name), rename(path, to))[1]
    )
    with atomic_write(str(tmp_path / "a"), {}) as file:
        file.write(b"1")
    assert steps == ["sync", "a"]


def test_unfinished_file_is_hidden_from_readers_of_the_folder(tmp_path: Path) -> None:
    with atomic_write(str(tmp_path / "a"), {}) as file:
        file.write(b"1")
        assert [path.name[0] for path in tmp_path.iterdir()] == ["_"]


def test_written_file_knows_its_size(tmp_path: Path) -> None:
    with atomic_write(str(tmp_path / "a"), {}) as file:
        file.write(b"1")
    assert file.size == 1


@pytest.mark.parametrize("size", [1, LARGE_BYTES])
def test_written_file_knows_its_digest(tmp_path: Path, size: int) -> None:
    with atomic_write(str(tmp_path / "a"), {}) as file:
        file.write(b"0")
        file.write(b"1" * size)
    assert (tmp_path / "a").stat().st_size == file.size == size + 1
    assert file.digest.hexdigest() == hashlib.sha256(b"0" + b"1" * size).hexdigest()


def test_file_stays_as_it_was_if_its_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with pytest.raises(BlockingIOError), atomic_write(str(tmp_path / "a"), {}) as file:
        file.write(b"2")
        raise BlockingIOError  # of something else
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"1")]


@pytest.mark.parametrize("size", [10, 12 << 20])
@pytest.mark.parametrize(
    "error", [TipcastError("D005", "trips", "damaged", "mend them"), MemoryError("of the GPU")]
)
def test_object_whose_writing_fails_is_not_there(bucket: Any, size: int, error: Exception) -> None:
    """Nor is what was sent of it, where it is sent in pieces."""
    folder = "s3://trips/a_tipcast-b/scored"
    beside = "trips/a_tipcast-b/scored_other/letter"
    storage = address.storage(folder, {"default_block_size": 5 << 20})
    bucket.pipe_file(beside, b"")
    with pytest.raises(type(error)), atomic_write(f"{folder}/a", storage) as file:
        file.write(bytes(size))
        raise error
    gc.collect()  # a file that is closed as it goes would be written now
    bucket.invalidate_cache()
    assert bucket.find("trips") == [beside]
    assert bucket.list_multipart_uploads("trips") == []
    assert read_folder(folder, {}) == ScoreFolder(folder)


@pytest.mark.parametrize("size", [10, 12 << 20])
def test_object_is_written_whole(bucket: Any, size: int) -> None:
    folder = "s3://trips/scored"
    storage = address.storage(folder, {"default_block_size": 5 << 20})
    with atomic_write(f"{folder}/a", storage) as file:
        file.write(bytes(size))
    assert bucket.size(f"{folder}/a") == size
    with pytest.raises(TipcastError, match=r"C011.*holds a, which tipcast did not write"):
        read_folder(folder, {})


@pytest.mark.parametrize(
    ("code", "where", "expected"),
    [("D022", "s3://a/b", "T009"), ("D022", "https://a/b", "D022"), ("D005", "s3://a/b", "D005")],
)
def test_object_store_that_is_away_is_an_error_of_the_artifact_store(
    code: str, where: str, expected: str
) -> None:
    assert as_artifact_error(TipcastError(code, where, "what", "fix")).code == expected
