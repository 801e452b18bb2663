"""Tests of the rules for rows."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.conftest import high_tip_task

from tipcast.config.data_schema import FilesData, Limits
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.taxi.dataset import Taxi

PERIOD = (1_000, 2_000)
GOOD = {
    "pickup": 1_500,
    "fare_amount": 10.0,
    "tip_amount": 2.0,
    "passenger_count": 1.0,
    "PULocationID": 265,
    "DOLocationID": 1,
}
CASES = [
    # in the order of the rules
    ("pickup", -(2**63), "pickup_missing"),
    ("pickup", 999, "outside_period"),
    ("pickup", 2_000, "outside_period"),
    ("fare_amount", np.nan, "fare_missing"),
    ("fare_amount", 0.0, "fare_not_positive"),
    ("fare_amount", -3.5, "fare_not_positive"),
    ("fare_amount", np.inf, "non_finite"),
    ("fare_amount", -np.inf, "non_finite"),
    ("fare_amount", 1e7, "non_finite"),
    ("tip_amount", np.nan, "tip_missing"),
    ("tip_amount", np.inf, "non_finite"),
    ("passenger_count", np.inf, "non_finite"),
    ("passenger_count", -np.inf, "non_finite"),
    ("PULocationID", 0, "bad_zone"),
    ("PULocationID", 2**40, "bad_zone"),
    ("DOLocationID", 266, "bad_zone"),
    ("DOLocationID", -73, "bad_zone"),
]
ZONES_AS_FLOATS = [
    ("PULocationID", np.nan, "zone_missing"),
    ("PULocationID", -73.98, "bad_zone"),
    ("PULocationID", 300.0, "bad_zone"),
]


def _columns(rows: int = 10) -> dict[str, Any]:
    return {name: np.full(rows, value) for name, value in GOOD.items()}


def test_good_rows_need_no_mask_and_missing_passengers_are_kept() -> None:
    passengers = np.where(np.arange(10) == 3, np.nan, 1.0)
    # those that are not read are not asked for
    some = {name: _columns()[name] for name in ("pickup", "fare_amount")}
    for columns in (_columns(), _columns(0), some, _columns() | {"passenger_count": passengers}):
        assert Taxi().clean(columns, PERIOD, np) == (None, {})


@pytest.mark.parametrize("cases", [CASES, ZONES_AS_FLOATS], ids=["all", "zones"])
def test_a_row_counts_under_its_first_reason(cases: list[tuple[str, float, str]]) -> None:
    columns = _columns(len(cases) + 1)
    reasons = [reason for *_, reason in cases]
    for row, (name, value, _) in enumerate(cases):
        columns[name] = columns[name].astype(np.result_type(columns[name], type(value)))
        columns[name][row] = value
    # a later reason for every bad row
    for others in ({}, {"DOLocationID": np.r_[np.zeros(len(cases), int), 1]}):
        keep, dropped = Taxi().clean(columns | others, PERIOD, np)
        assert np.flatnonzero(keep).tolist() == [len(cases)]
        assert dropped == Counter(reasons)


def test_rows_outside_the_period_are_kept_where_that_is_asked(trip_files: Any) -> None:
    # of February
    path = trip_files.write(
        "t_2019-03.parquet", lambda trips: trips.reindex([-1, *trips.index[1:]])
    )
    spec = FilesData("files", str(path), None, None, Limits(stray=None), block_bytes=1)
    recipe = Recipe(Taxi(spec), high_tip_task(("pickup_hour",)))
    (sums,) = trip_files.checked(
        recipe.dataset.scan("train", recipe.columns, recipe.optional), recipe, spec.limits
    ).values()
    assert (sums.rows, sums.dropped) == (999, {"pickup_missing": 1})
