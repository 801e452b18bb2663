"""Files of scores: whole or absent, and what the disk or the store refuses is told apart from what the block raises."""

from __future__ import annotations

import gc
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.scoring.writing import written


def test_a_file_is_synced_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    sync, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("sync"), sync(descriptor))[1])
    monkeypatch.setattr(Path, "replace", lambda path, to: (steps.append(to.name), rename(path, to))[1])
    with written(str(tmp_path / "a"), {}) as file:
        file.write(b"1")
        assert [path.name[0] for path in tmp_path.iterdir()] == ["_"], "readers of the folder do not see it"
    assert steps == ["sync", "a"]
    assert (file.tell(), file.sha256()) == (1, hashlib.sha256(b"1").hexdigest())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TipcastError, match="T008"), written(str(tmp_path / "a"), {}) as file:
        file.write(b"half")
    with pytest.raises(BlockingIOError), written(str(tmp_path / "a"), {}) as file:
        raise BlockingIOError  # of something else
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"1")]


@pytest.mark.parametrize("size", [10, 12 << 20])
def test_an_object_whose_writing_fails_is_not_there(bucket: Any, size: int) -> None:
    """Nor is what was sent of it, where it is sent in pieces."""
    uri = "s3://trips/a"
    storage = address.storage(uri, {"default_block_size": 5 << 20})
    for problem in (TipcastError("D005", "trips", "damaged", "mend them"), MemoryError("of the GPU")):
        with pytest.raises(type(problem)), written(uri, storage) as file:
            file.write(bytes(size))
            raise problem
    gc.collect()  # a file that is closed as it goes would be written now
    bucket.invalidate_cache()
    assert bucket.find("trips") == []
    assert bucket.list_multipart_uploads("trips") == []
    with written(uri, storage) as file:
        file.write(bytes(size))
    assert bucket.size("trips/a") == size
