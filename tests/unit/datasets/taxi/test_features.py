"""Features as the seed made them with pandas' own calendar."""

import numpy as np
import pandas as pd

from tipcast.datasets.taxi import features
from tipcast.datasets.taxi.features import BASE_FEATURES, NULL_TIME, compute


def times(*texts: str) -> np.ndarray:
    return np.array(texts, dtype="datetime64[us]").view(np.int64)


def test_equal_to_the_calendar() -> None:
    random = np.random.default_rng(0)
    seconds = random.integers(1_200_000_000, 1_900_000_000, 5000)
    pickup = pd.Series(pd.to_datetime(seconds, unit="s").astype("datetime64[us]"))
    raw = {
        "passenger_count": np.where(np.arange(5000) % 7, random.integers(0, 7, 5000), np.nan),
        "PULocationID": random.integers(1, 266, 5000),
        "DOLocationID": random.integers(1, 266, 5000).astype(np.int32),
    }
    matrix = compute({"pickup": pickup.to_numpy().view("int64"), **raw}, BASE_FEATURES)
    weekday = pickup.dt.weekday
    hour = pickup.dt.hour
    made = {
        "day": weekday,
        "hour": hour,
        "week_hour": weekday * 24 + hour,
        "minute": pickup.dt.minute,
    }
    assert matrix.dtype == np.float32
    assert matrix.flags.f_contiguous
    np.testing.assert_array_equal(
        matrix, pd.DataFrame({**made, **raw}).astype("float32").fillna(-1)
    )


def test_before_1970_and_null_times() -> None:
    columns = {"pickup": times("1969-12-31T23:59:59", "1970-01-05T00:00:00", "NaT")}
    assert columns["pickup"][2] == NULL_TIME
    matrix = compute(columns, BASE_FEATURES[:4])
    np.testing.assert_array_equal(matrix, [[2, 23, 71, 59], [0, 0, 0, 0], [-1, -1, -1, -1]])


def test_airports_and_distance() -> None:
    columns = {
        "PULocationID": np.array([1, 132, 7]),
        "DOLocationID": np.array([138.0, np.nan, 8.0]),
        "trip_distance": np.array([1.5, np.nan, 0.0]),
    }
    matrix = compute(columns, ("pickup_airport", "dropoff_airport", "trip_distance", "trip_type"))
    np.testing.assert_array_equal(matrix, [[1, 1, 1.5, -1], [1, -1, -1, -1], [0, 0, 0, -1]])


def test_pairs_of_zones_are_in_the_order_of_their_texts() -> None:
    """As DictVectorizer sorts them; a pair with a zone that is missing or none is missing."""
    first, second = np.meshgrid(np.arange(1, 266), np.arange(1, 266))
    columns = {"PULocationID": first.ravel(), "DOLocationID": second.ravel().astype(float)}
    numbers = compute(columns, ["zone_pair"])[:, 0]
    texts = [f"{pickup}_{dropoff:.0f}" for pickup, dropoff in zip(*columns.values(), strict=True)]
    assert numbers[np.argsort(texts)].tolist() == list(range(265 * 265))
    odd = {"PULocationID": np.array([np.nan, 1.0, 266.0]), "DOLocationID": np.array([1, 0, 3])}
    assert compute(odd, ["zone_pair"])[:, 0].tolist() == [-1, -1, -1]


def test_values_that_cannot_be() -> None:
    columns = {
        "pickup": times(
            "2008-12-31T23:59:59",
            "2009-01-01",
            "2049-12-31T23:59:59",
            "2050-01-01",
            "NaT",
            "2019-04-01",
        ),
        "PULocationID": np.array([0.0, 1.0, 265.0, 266.0, np.nan, 266.0]),
        "DOLocationID": np.ones(6, dtype=np.int64),
        "passenger_count": np.array([1.0, 0.0, 1e6, -np.inf, np.nan, 1e7]),
    }
    bad, counts = features.impossible(columns, [*columns, "trip_distance"])
    assert bad.tolist() == [True, False, False, True, False, True]
    assert counts == {"pickup_impossible": 2, "bad_zone": 1}, "each under its first reason"
    assert features.impossible(columns, ["passenger_count"])[1] == {"non_finite": 2}
    assert features.impossible(columns, ["DOLocationID"]) == (None, {})
