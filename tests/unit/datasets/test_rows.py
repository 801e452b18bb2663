"""Rows on the workers: what the driver counts is what is there."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from tests.conftest import high_tip_task

from tipcast.compute.base import Frames, Session
from tipcast.compute.frames import CpuFrames
from tipcast.datasets import rows
from tipcast.datasets.base import Counts, Fragment, merged
from tipcast.datasets.rows import Recipe
from tipcast.datasets.taxi.dataset import Taxi

NAMES = ("pickup_hour", "PULocationID")


@pytest.fixture
def session(client: Client, frames: Frames) -> Session:
    """A session on the shared client."""
    return Session(client=client, device="cpu", frames=frames, n_workers=1, n_threads=2)


def test_counts_are_those_of_the_rows(session: Session, trip_files: Any) -> None:
    def spoil(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[:4, "fare_amount"] = 0.0
        return frame

    paths = [
        trip_files.write("yellow_tripdata_2019-01.parquet", month="2019-01", rows=700, row_group_size=200),
        trip_files.write("yellow_tripdata_2019-02.parquet", spoil, rows=500),
    ]
    cut = int(pd.Timestamp("2019-02-01").value // 1000)
    recipe = Recipe(Taxi(), high_tip_task(NAMES), cutoff=cut)
    listing = trip_files.listing(paths, (*recipe.columns, *recipe.optional))
    (first, second), per_file = rows.collect(session, listing, recipe, rows.start(session, listing, recipe))
    assert (first.counts.rows, second.counts.rows) == (700, 495)
    for split in (first, second):
        x, y = (session.client.gather(futures) for futures in (split.x, split.y))
        assert tuple(len(part) for part in x) == tuple(len(part) for part in y) == split.parts
        assert sum(split.parts) == split.counts.rows
        assert all(split.parts), "empty parts are left out"
        assert sum(int(part.sum()) for part in y) == split.counts.classes[1]
        assert split.summary()["positive_rate"] == split.counts.classes[1] / split.counts.rows
        assert split.counts.bytes == split.counts.rows * (len(NAMES) + 1) * 4
    assert {uri.rpartition("/")[2]: counts.rows_read for uri, counts in per_file.items()} == {
        paths[0].name: 700,
        paths[1].name: 500,
    }
    assert per_file[next(uri for uri in per_file if "02" in uri[-12:])].dropped == {"fare_not_positive": 5}


def test_summary_of_nothing_is_no_number() -> None:
    nothing = rows.Rows([], [], Counts(0, 0, {}, classes=(0, 0)), ())
    assert np.isnan(nothing.summary()["positive_rate"])
    assert nothing.summary()["partitions"] == 0
    assert "rows_read" not in nothing.summary()


def test_row_groups_are_joined_within_a_file_and_a_number_of_rows(trip_files: Any) -> None:
    first = trip_files.write("yellow_tripdata_2019-01.parquet", month="2019-01", rows=1000, row_group_size=100)
    second = trip_files.write("yellow_tripdata_2019-02.parquet", rows=300)
    fragments = [
        Fragment(str(path), "parquet", (group,), {}, (0, 1), "", 100)
        for path, groups in ((first, 10), (second, 3))
        for group in range(groups)
    ]
    assert merged(fragments, 0) == tuple(fragments)
    assert [(each.part, each.rows) for each in merged(fragments, 400)] == [
        ((0, 1, 2, 3), 400),
        ((4, 5, 6, 7), 400),
        ((8, 9), 200),
        ((0, 1, 2), 300),
    ]
    assert [each.uri for each in merged(fragments, 10_000)] == [str(first), str(second)]
    text = [Fragment("a.csv", "csv", (at, 10), {}, (0, 1), "") for at in (0, 10)]
    assert merged(text, 10_000) == tuple(text)


def test_joined_row_groups_give_the_same_rows(session: Session, trip_files: Any) -> None:
    class Eager(CpuFrames):
        batch_rows = 350

    path = trip_files.write("yellow_tripdata_2019-02.parquet", rows=1000, row_group_size=100)
    recipe = Recipe(Taxi(), high_tip_task(NAMES))
    listing = trip_files.listing(path, recipe.columns)
    listing = dataclasses.replace(
        listing,
        fragments=tuple(dataclasses.replace(listing.fragments[0], part=(at,), rows=100) for at in range(10)),
    )
    found = []
    for opened in (session, dataclasses.replace(session, frames=Eager())):
        (only,), _ = rows.collect(opened, listing, recipe, rows.start(opened, listing, recipe))
        x = pd.concat(opened.client.gather(only.x), ignore_index=True)
        found.append((only.parts, x))
    assert len(found[0][0]) == 10
    assert len(found[1][0]) < 10
    pd.testing.assert_frame_equal(found[0][1], found[1][1])
