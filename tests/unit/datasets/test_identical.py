"""Files of equal content under different names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tipcast.datasets.listing import identical


@pytest.mark.parametrize("ending", ["parquet", "csv"])
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
