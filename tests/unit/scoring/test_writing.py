"""Files that appear whole or not at all, on a disk and in an object store."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.scoring import swap
from tipcast.scoring.output_folder import MANIFEST
from tipcast.scoring.writing import written


def test_a_file_whose_writing_fails_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TipcastError) as caught, written(str(tmp_path / "a"), {}) as file:
        file.write(b"half")
        raise OSError(28, "No space left on device")
    assert caught.value.code == "T008"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [10, 12 << 20])
def test_an_object_whose_writing_fails_is_not_there(bucket: Any, size: int) -> None:
    """Nor is what was sent of it, where it is sent in pieces."""
    uri = "s3://trips/a"
    storage = address.storage(uri, {"default_block_size": 5 << 20})
    refused = TipcastError("D005", "trips", "damaged", "mend them")
    with pytest.raises(TipcastError, match="D005"), written(uri, storage) as file:
        file.write(bytes(size))
        raise refused
    gc.collect()  # a file that is closed as it goes would be written now
    bucket.invalidate_cache()
    assert bucket.find("trips") == []
    assert bucket.list_multipart_uploads("trips") == []
    with written(uri, storage) as file:
        file.write(bytes(size))
    assert bucket.size("trips/a") == size


def test_scores_are_on_the_disk_before_the_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files and folders are synced, then the folder is exchanged, then the one above it is synced."""
    steps: list[object] = []
    sync, exchange = os.fsync, swap.exchange

    def synced(descriptor: int) -> None:
        steps.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def exchanged(one: Path, other: Path) -> bool:
        steps.append("exchange")
        return exchange(one, other)

    output = tmp_path / "scored"
    output.mkdir()
    (output / MANIFEST).touch()
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(swap, "exchange", exchanged)
    with swap.beside(output) as work:
        (Path(work.whole) / "2019").mkdir()
        with written(f"{work.whole}/2019/a", {}, synced=True) as file:
            file.write(b"1")
        with written(f"{work.parts}/0", {}) as file:
            file.write(b"1")
        work.commit(lambda: b"manifest", [], b"announced")
    at = steps.index("exchange")
    assert set(steps[:at]) == {path.stat().st_ino for path in (output, *output.rglob("*"))}
    assert steps[at + 1 :] == [tmp_path.stat().st_ino]
