"""Rows on the workers: what the driver counts is what is there."""

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
from tipcast.datasets.base import Counts, merged
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
    day = pd.Timestamp("2019-02-15")
    earlier = int((spoil(trip_files.trips(500))["tpep_pickup_datetime"][5:] < day).sum())
    recipe = Recipe(Taxi(), high_tip_task(NAMES), cutoff=day.value // 1000)
    listing = trip_files.listing(paths, (*recipe.columns, *recipe.optional))
    splits, per_file = rows.collect(session, listing, recipe, rows.start(session, listing, recipe))
    assert [split.counts.rows for split in splits] == [700 + earlier, 495 - earlier]
    for split in splits:
        x, y = (session.client.gather(futures) for futures in (split.x, split.y))
        assert tuple(map(len, x)) == tuple(map(len, y)) == split.parts
        assert sum(split.parts) == split.counts.rows
        assert all(split.parts), "empty parts are left out"
        assert sum(int(part.sum()) for part in y) == split.counts.classes[1]
        assert split.summary()["positive_rate"] == split.counts.classes[1] / split.counts.rows
        assert split.counts.bytes == split.counts.rows * (len(NAMES) + 1) * 4
    assert {uri: counts.rows_read for uri, counts in per_file.items()} == {str(paths[0]): 700, str(paths[1]): 500}
    assert per_file[str(paths[1])].dropped == {"fare_not_positive": 5}
    nothing = rows.Rows([], [], Counts(0, 0, {}, classes=(0, 0)), ()).summary()
    assert np.isnan(nothing["positive_rate"])
    assert nothing["partitions"] == 0
    assert "rows_read" not in nothing


def test_joined_row_groups_give_the_same_rows(session: Session, trip_files: Any) -> None:
    class Eager(CpuFrames):
        batch_rows = 350

    paths = [trip_files.write("yellow_tripdata_2019-02.parquet", rows=1000, row_group_size=100)]
    paths += [trip_files.write("yellow_tripdata_2019-03.parquet", rows=100, month="2019-03")]
    recipe = Recipe(Taxi(), high_tip_task(NAMES))
    listing = trip_files.listing(paths, recipe.columns)
    first, other = listing.fragments
    parts = (*(dataclasses.replace(first, part=(at,), rows=100) for at in range(10)), other)
    listing, found = dataclasses.replace(listing, fragments=parts), []
    for opened in (session, dataclasses.replace(session, frames=Eager())):
        (only,), _ = rows.collect(opened, listing, recipe, rows.start(opened, listing, recipe))
        found.append((only.parts, pd.concat(opened.client.gather(only.x), ignore_index=True)))
    assert [parts for parts, _ in found] == [(100,) * 11, (300, 300, 300, 100, 100)], "no two files are"
    pd.testing.assert_frame_equal(found[0][1], found[1][1])
    text = trip_files.listing(trip_files.write("yellow_tripdata_2019-02.csv"), block_bytes=20_000).fragments
    assert merged(text, 10_000) == text
    assert len(text) > 1
