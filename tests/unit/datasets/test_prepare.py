"""From raw trips to features and a label, on small files whose rows are known."""

from typing import Any

import numpy as np
import pandas as pd
from tests.conftest import high_tip_task
from tests.unit.datasets.conftest import PICKUP

from tipcast.compute.base import Frames
from tipcast.datasets.base import Fragment
from tipcast.datasets.rows import Recipe, held_out_rows, prepare_fragment
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.tasks.base import high_tip

NAMES = ("pickup_hour", "passenger_count", "PULocationID")
RECIPE = Recipe(Taxi(), high_tip_task(NAMES))


def _fragment(trip_files: Any, recipe: Recipe = RECIPE, **changes: Any) -> tuple[Fragment, pd.DataFrame]:
    """Return a file's only fragment and the trips in it, good ones but for some columns."""
    trips = trip_files.trips().assign(**changes)
    (fragment,) = trip_files.listing(trip_files.write("t_2019-02.parquet", lambda _: trips), recipe.columns).fragments
    return fragment, trips


def test_a_tip_of_exactly_the_threshold_is_not_high_as_float64_has_it() -> None:
    cents = np.array([*range(250, 20_000, 50), 675, 1110, 2345, 5205])  # as meters show, and some others
    for more in (-1, 0, 1):
        fare, tip = cents / 100, (cents // 5 + more) / 100
        high = high_tip({"fare_amount": fare, "tip_amount": tip}, np, threshold=0.2)
        np.testing.assert_array_equal(high, more > 0)
    columns = {"fare_amount": fare.astype(np.float32), "tip_amount": (cents // 5 / 100).astype(np.float32)}
    assert high_tip(columns, np, threshold=np.float64(0.2)).any(), "float32 would flip some of them"


def test_one_part(trip_files: Any, frames: Frames) -> None:
    good = trip_files.trips()
    fares, passengers = good["fare_amount"].to_numpy().copy(), good["passenger_count"].to_numpy().copy()
    fares[:2], passengers[2] = (-5.0, np.nan), np.nan
    fragment, trips = _fragment(trip_files, fare_amount=fares, passenger_count=passengers)
    (part,) = prepare_fragment(fragment, frames, RECIPE)
    trips = trips[2:]
    assert (part.counts.rows, part.counts.rows_read) == (998, 1000)
    assert part.counts.dropped == {"fare_not_positive": 1, "fare_missing": 1}
    assert list(part.x.columns) == list(NAMES)
    assert part.x.dtypes.unique().tolist() == [np.dtype("float32")]
    assert part.x["passenger_count"].iloc[0] == -1
    assert part.x["PULocationID"].tolist() == trips["PULocationID"].tolist()
    assert part.x["pickup_hour"].tolist() == trips["tpep_pickup_datetime"].dt.hour.tolist()
    assert part.y.dtype == np.int32
    assert part.y.tolist() == (trips["tip_amount"] / trips["fare_amount"] > 0.2).astype(int).tolist()
    assert part.counts.classes == (998 - part.y.sum(), part.y.sum())


def test_the_first_clean_trips(trip_files: Any) -> None:
    recipe = Recipe(Taxi(), high_tip_task((*NAMES, "trip_distance")))
    fares, miles = trip_files.trips()["fare_amount"].to_numpy().copy(), np.array([2.5, 2e6] * 500)
    fares[[0, 4]] = -1.0
    fragment, trips = _fragment(trip_files, recipe, fare_amount=fares, trip_distance=miles)
    expected = trips.query("fare_amount > 0 and trip_distance < 1e6")[:10]  # such a distance is a reason for no score
    for colour, time in (("yellow", PICKUP), ("green", "lpep_pickup_datetime")):
        columns, frame = held_out_rows(fragment, recipe, {"colour": colour}, 10)
        assert frame[time].tolist() == expected[PICKUP].tolist()
        assert frame["fare_amount"].tolist() == columns["fare_amount"].tolist() == expected["fare_amount"].tolist()
        assert {len(values) for values in columns.values()} == {10}
