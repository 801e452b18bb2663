"""From raw trips to features and a label, on small files whose rows are known."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.conftest import high_tip_task

from tipcast.compute.base import Frames
from tipcast.datasets.base import Listing
from tipcast.datasets.rows import Recipe, held_out_rows, prepare_fragment
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.tasks.base import high_tip

NAMES = ("pickup_hour", "passenger_count", "PULocationID")
YELLOW = {"colour": "yellow"}
HELD_OUT = Recipe(Taxi(), high_tip_task(NAMES))


def _listing(trip_files: Any, recipe: Recipe, change: Any = None, **more: Any) -> Listing:
    path = trip_files.write("yellow_tripdata_2019-02.parquet", change, **more)
    found: Listing = trip_files.listing(path, recipe.columns, **{})
    return found


def test_a_tip_of_exactly_the_threshold_is_not_high() -> None:
    for cents in (250, 675, 1000, 1110, 2345, 5205):
        fare = np.array([cents / 100] * 3)
        tip = np.round(fare * 0.2, 2) + np.array([-0.01, 0.0, 0.01])
        exact = np.array([round(value * 100) * 5 for value in tip]) > cents
        assert (exact[0], exact[2]) == (False, True)
        assert high_tip({"fare_amount": fare, "tip_amount": tip}, np, threshold=0.2).tolist() == exact.tolist()


def test_the_label_is_decided_in_float64() -> None:
    cents = np.arange(250, 20_000, 50)
    fare, tip = cents / 100, (cents // 5) / 100  # what a meter shows, and exactly 20 % of it
    assert not high_tip({"fare_amount": fare, "tip_amount": tip}, np, threshold=0.2).any()
    narrow = high_tip(
        {"fare_amount": fare.astype(np.float32), "tip_amount": tip.astype(np.float32)}, np, threshold=np.float64(0.2)
    )
    assert narrow.any(), "float32 would flip some of them"


def test_one_part(trip_files: Any, frames: Frames) -> None:
    def spoil(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[0, "fare_amount"] = -5.0
        frame.loc[1, "fare_amount"] = np.nan
        frame.loc[2, "passenger_count"] = np.nan
        return frame

    recipe = Recipe(Taxi(), high_tip_task(NAMES))
    (fragment,) = _listing(trip_files, recipe, spoil).fragments
    (part,) = prepare_fragment(fragment, frames, recipe)
    trips = spoil(trip_files.trips())[2:]
    assert part.counts.rows == 998
    assert part.counts.rows_read == 1000
    assert part.counts.dropped == {"fare_not_positive": 1, "fare_missing": 1}
    assert list(part.x.columns) == list(NAMES)
    assert part.x.dtypes.unique().tolist() == [np.dtype("float32")]
    assert part.x["passenger_count"].iloc[0] == -1
    assert part.x["PULocationID"].tolist() == trips["PULocationID"].tolist()
    assert part.x["pickup_hour"].tolist() == trips["tpep_pickup_datetime"].dt.hour.tolist()
    assert part.y.dtype == np.int32
    assert part.y.tolist() == (trips["tip_amount"] / trips["fare_amount"] > 0.2).astype(int).tolist()
    assert part.counts.classes == (998 - part.y.sum(), part.y.sum())


def test_two_parts_are_cut_at_a_time(trip_files: Any, frames: Frames) -> None:
    whole = Recipe(Taxi(), high_tip_task(NAMES))
    (fragment,) = _listing(trip_files, whole).fragments
    (all_rows,) = prepare_fragment(fragment, frames, whole)
    cut = int(pd.Timestamp("2019-02-20").value // 1000)
    before, after = prepare_fragment(fragment, frames, Recipe(Taxi(), high_tip_task(NAMES), cutoff=cut))
    expected = int((trip_files.trips()["tpep_pickup_datetime"] < pd.Timestamp("2019-02-20")).sum())
    assert (before.counts.rows, after.counts.rows) == (expected, 1000 - expected)
    assert [sum(both) for both in zip(before.counts.classes, after.counts.classes, strict=True)] == list(
        all_rows.counts.classes
    )
    assert (before.counts.rows_read, after.counts.rows_read) == (1000, 0)
    for cutoff, rows in ((fragment.period[0], (0, 1000)), (fragment.period[1], (1000, 0))):
        parts = prepare_fragment(fragment, frames, dataclasses.replace(whole, cutoff=cutoff))
        assert tuple(part.counts.rows for part in parts) == rows


def test_the_first_clean_trips(trip_files: Any) -> None:
    def spoil(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[[0, 3], "fare_amount"] = -1.0
        return frame

    path = trip_files.write("yellow_tripdata_2019-02.parquet", spoil)
    (fragment,) = trip_files.listing(path, HELD_OUT.columns).fragments
    columns, trips = held_out_rows(fragment, HELD_OUT, YELLOW, 10)
    expected = spoil(trip_files.trips()).query("fare_amount > 0")[:10]
    assert trips["tpep_pickup_datetime"].tolist() == expected["tpep_pickup_datetime"].tolist()
    assert trips["fare_amount"].tolist() == expected["fare_amount"].tolist()
    assert columns["fare_amount"].tolist() == expected["fare_amount"].tolist()
    assert {len(values) for values in columns.values()} == {10}


def test_a_distance_that_cannot_be_is_passed_over(trip_files: Any) -> None:
    recipe = dataclasses.replace(HELD_OUT, task=high_tip_task(("PULocationID", "trip_distance")))
    path = trip_files.write(
        "yellow_tripdata_2019-02.parquet", lambda frame: frame.assign(trip_distance=[2.5, 2e6] * (len(frame) // 2))
    )
    (fragment,) = trip_files.listing(path, recipe.columns).fragments
    assert set(held_out_rows(fragment, recipe, YELLOW, 10)[0]["trip_distance"]) == {2.5}


@pytest.mark.parametrize(("colour", "name"), [("yellow", "tpep_pickup_datetime"), ("green", "lpep_pickup_datetime")])
def test_names_and_missing_times(colour: str, name: str) -> None:
    pickup = np.array([0, np.iinfo(np.int64).min], dtype=np.int64)
    frame = Taxi().raw_frame({"pickup": pickup, "fare_amount": np.array([1.0, np.nan])}, {"colour": colour})
    assert list(frame.columns) == [name, "fare_amount"]
    assert frame[name].dtype == np.dtype("datetime64[us]")
    assert frame[name][0] == pd.Timestamp("1970-01-01")
    assert frame.isna().sum().tolist() == [1, 1]
