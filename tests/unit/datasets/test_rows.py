"""Rows on the workers: what the driver counts is what is there."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.conftest import high_tip_task
from tests.unit.datasets.conftest import PICKUP

from tipcast.compute.base import Session
from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets import rows
from tipcast.datasets.counts import Counts
from tipcast.datasets.parts import merged
from tipcast.datasets.prepare import Recipe, held_out_rows
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import TripInfo
from tipcast.tasks.base import Task, high_tip
from tipcast.tasks.kinds import MULTICLASS

NAMES = ("pickup_hour", "PULocationID")


def test_a_tip_of_exactly_the_threshold_is_not_high_as_float64_has_it() -> None:
    # as meters show, and some others
    cents = np.array([*range(250, 20_000, 50), 675, 1110, 2345, 5205])
    for more in (-1, 0, 1):
        fare = cents / 100
        tip = (cents // 5 + more) / 100
        high = high_tip({"fare_amount": fare, "tip_amount": tip}, np, threshold=0.2)
        np.testing.assert_array_equal(high, more > 0)
    columns = {
        "fare_amount": fare.astype(np.float32),
        "tip_amount": (cents // 5 / 100).astype(np.float32),
    }
    assert high_tip(columns, np, threshold=np.float64(0.2)).any(), "float32 would flip some of them"


def test_counts_are_those_of_the_rows(cpu_session: Session, trip_files: Any) -> None:
    def spoil(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[:4, "fare_amount"] = 0.0
        return frame

    paths = [
        trip_files.write(
            "yellow_tripdata_2019-01.parquet", month="2019-01", rows=700, row_group_size=200
        ),
        trip_files.write("yellow_tripdata_2019-02.parquet", spoil, rows=500),
    ]
    day = pd.Timestamp("2019-02-15")
    earlier = int((trip_files.trips(500)[PICKUP][5:] < day).sum())
    recipe = Recipe(Taxi(), high_tip_task(NAMES), cutoff=day.value // 1000)
    listing = trip_files.listing(paths, (*recipe.columns, *recipe.optional))
    splits, per_file = rows.collect(
        cpu_session, listing, recipe, rows.start(cpu_session, listing, recipe)
    )
    assert [split.counts.rows for split in splits] == [700 + earlier, 495 - earlier]
    for split in splits:
        x, y = (cpu_session.client.gather(futures) for futures in (split.x, split.y))
        assert tuple(map(len, x)) == tuple(map(len, y)) == split.parts
        assert sum(split.parts) == split.counts.rows
        assert all(split.parts), "empty parts are left out"
        assert sum(int(part.sum()) for part in y) == split.counts.classes[1]
        assert split.summary()["positive_rate"] == split.counts.classes[1] / split.counts.rows
        assert split.counts.bytes == split.counts.rows * (len(NAMES) + 1) * 4
    assert {uri: counts.rows_read for uri, counts in per_file.items()} == {
        str(paths[0]): 700,
        str(paths[1]): 500,
    }
    assert per_file[str(paths[1])].dropped == {"fare_not_positive": 5}
    nothing = rows.Rows([], [], Counts(0, 0, {}, classes=(0, 0)), ()).summary()
    assert np.isnan(nothing["positive_rate"])
    assert nothing["partitions"] == 0


def _fare_class(columns: Any, xp: Any) -> Any:
    """Three classes of fares."""
    return xp.digitize(columns["fare_amount"], [10, 30]).astype(xp.int32)


def test_a_class_that_the_task_does_not_name_is_refused(trip_files: Any) -> None:
    named = {"classes": ("cheap", "usual"), "columns": ("fare_amount",), "function": "fare_class"}
    task = Task("fares", MULTICLASS, NAMES, resolved=_fare_class, **named)
    recipe = Recipe(Taxi(), task)
    listing = trip_files.listing(trip_files.write("t_2019-02.parquet"), recipe.columns)
    says = "D015.*t_2019-02.parquet: the target has 3 classes, the task names 2. Fix: name them all"
    with pytest.raises(TipcastError, match=says):
        trip_files.checked(listing, recipe)


def test_the_first_clean_trips(trip_files: Any) -> None:
    recipe = Recipe(Taxi(), high_tip_task((*NAMES, "trip_distance")))
    # such a distance is a reason for no score
    trips = trip_files.trips().assign(trip_distance=[2.5, 2e6] * 500)
    trips.loc[[0, 4], "fare_amount"] = -1.0
    (fragment,) = trip_files.listing(
        trip_files.write("t_2019-02.parquet", lambda _: trips), recipe.columns
    ).fragments
    expected = trips.query("fare_amount > 0 and trip_distance < 1e6")[:10]
    for colour, time in (("yellow", PICKUP), ("green", "lpep_pickup_datetime")):
        columns, frame = held_out_rows(fragment, recipe, TripInfo(colour=colour), 10)
        assert frame[time].tolist() == expected[PICKUP].tolist()
        assert (
            frame["fare_amount"].tolist()
            == columns["fare_amount"].tolist()
            == expected["fare_amount"].tolist()
        )
        assert {len(values) for values in columns.values()} == {10}


def test_joined_row_groups_give_the_same_rows(cpu_session: Session, trip_files: Any) -> None:
    class Eager(CpuFrames):
        batch_rows = 350

    paths = [trip_files.write("yellow_tripdata_2019-02.parquet", rows=1000, row_group_size=100)]
    paths += [trip_files.write("yellow_tripdata_2019-03.parquet", rows=100, month="2019-03")]
    recipe = Recipe(Taxi(), high_tip_task(NAMES))
    listing = trip_files.listing(paths, recipe.columns)
    first, other = listing.fragments
    parts = (*(dataclasses.replace(first, row_groups=(at,), rows=100) for at in range(10)), other)
    listing = dataclasses.replace(listing, fragments=parts)
    found = []
    for opened in (cpu_session, dataclasses.replace(cpu_session, frames=Eager())):
        (only,), _ = rows.collect(opened, listing, recipe, rows.start(opened, listing, recipe))
        found.append((only.parts, pd.concat(opened.client.gather(only.x), ignore_index=True)))
    assert [parts for parts, _ in found] == [(100,) * 11, (300, 300, 300, 100, 100)], (
        "no two files are"
    )
    pd.testing.assert_frame_equal(found[0][1], found[1][1])
    text = trip_files.listing(
        trip_files.write("yellow_tripdata_2019-02.csv"), block_bytes=20_000
    ).fragments
    assert merged(text, 10_000) == text
    assert len(text) > 1
