"""Files of equal content under different names."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tipcast.datasets import address
from tipcast.datasets.listing import BEGINNING, identical


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz"])
def test_a_copy_is_named_with_its_original(trip_files: Any, tmp_path: Path, ending: str) -> None:
    first = trip_files.write(f"a_2019-02.{ending}")
    copy = tmp_path / f"b_2019-02.{ending}"
    shutil.copyfile(first, copy)
    os.utime(copy, (1, 1))
    other = trip_files.write(f"c_2019-02.{ending}", lambda frame: frame.iloc[::-1])
    listing = trip_files.listing([first, copy, other])
    (line,) = identical(listing.fragments)
    assert f"{first} and {copy} have the same content" in line
    assert not identical(trip_files.listing([first, other]).fragments)
    (line,) = identical(trip_files.listing(name).fragments[0] for name in (first, copy))
    assert str(copy) in line


def test_files_that_differ_after_their_beginning_are_not_identical(trip_files: Any, tmp_path: Path) -> None:
    first = trip_files.write("a_2019-02.csv", rows=2000)
    content = bytearray(first.read_bytes())
    assert len(content) > BEGINNING
    content[-2] = ord("1") if content[-2] != ord("1") else ord("2")
    (tmp_path / "b_2019-02.csv").write_bytes(content)
    assert not identical(trip_files.listing([first, tmp_path / "b_2019-02.csv"]).fragments)


def test_remote_files_are_told_by_size_and_etag(trip_files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (fragment,) = trip_files.listing(trip_files.write("a_2019-02.csv")).fragments
    told = {
        "s3://trips/a.csv": {"size": 5, "ETag": "x"},
        "s3://trips/b.csv": {"size": 5, "ETag": "y"},
        "s3://trips/c.csv": {"size": 5, "ETag": "x"},
        "s3://trips/d.csv": {"size": 5},
        "s3://trips/e.csv": {"size": 5},
    }

    class Store:
        def info(self, uri: str) -> dict[str, Any]:
            return told[uri]

    monkeypatch.setattr(address, "filesystem", lambda uri, storage: Store())
    (line,) = identical(dataclasses.replace(fragment, uri=uri) for uri in told)
    assert line.startswith("s3://trips/a.csv and s3://trips/c.csv have")
    assert "more" not in line
