"""Raw trips under the TLC's names."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.conftest import high_tip_task

from tipcast.datasets.rows import Recipe, held_out_rows
from tipcast.datasets.taxi.dataset import Taxi

YELLOW = {"colour": "yellow"}
RECIPE = Recipe(Taxi(), high_tip_task(("pickup_hour", "passenger_count", "PULocationID")))


def test_the_first_clean_trips(trip_files: Any) -> None:
    def spoil(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[[0, 3], "fare_amount"] = -1.0
        return frame

    path = trip_files.write("yellow_tripdata_2019-02.parquet", spoil)
    (fragment,) = trip_files.listing(path, RECIPE.columns).fragments
    columns, trips = held_out_rows(fragment, RECIPE, YELLOW, 10)
    expected = spoil(trip_files.trips()).query("fare_amount > 0")[:10]
    assert trips["tpep_pickup_datetime"].tolist() == expected["tpep_pickup_datetime"].tolist()
    assert trips["fare_amount"].tolist() == expected["fare_amount"].tolist()
    assert columns["fare_amount"].tolist() == expected["fare_amount"].tolist()
    assert {len(values) for values in columns.values()} == {10}


def test_a_distance_that_cannot_be_is_passed_over(trip_files: Any) -> None:
    recipe = dataclasses.replace(RECIPE, task=high_tip_task(("PULocationID", "trip_distance")))
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
