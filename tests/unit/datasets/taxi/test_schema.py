"""Tests of the columns' names."""

import pytest
from tests.unit.datasets.conftest import NEEDED

from tipcast.config.errors import TipcastError
from tipcast.datasets.taxi import schema

YELLOW = [
    "VendorID",
    "tpep_pickup_datetime",
    "tpep_dropoff_datetime",
    "passenger_count",
    "trip_distance",
    "RatecodeID",
    "store_and_fwd_flag",
    "PULocationID",
    "DOLocationID",
    "payment_type",
    "fare_amount",
    "extra",
    "tip_amount",
]


def test_the_tlcs_own_names_need_no_remark() -> None:
    for spelling in ("airport_fee", "Airport_fee"):
        mapping = schema.map_columns(
            [*YELLOW, spelling], "f", NEEDED, ("airport_fee", "cbd_congestion_fee")
        )
        assert tuple(mapping) == (*NEEDED, "airport_fee"), "optional columns where they are"
        assert (mapping["pickup"], mapping["airport_fee"]) == ("tpep_pickup_datetime", spelling)
        assert schema.remarks(mapping) == []


@pytest.mark.parametrize(
    ("own", "canonical"),
    [
        ("pickup_datetime", "pickup"),
        ("tpepPickupDateTime", "pickup"),
        ("pickup_location_id", "PULocationID"),
        ("pulocationid", "PULocationID"),
        ("doLocationId", "DOLocationID"),
        ("Fare_amount", "fare_amount"),
        ("Tip Amount", "tip_amount"),
        ("passengerCount", "passenger_count"),
    ],
)
def test_other_spellings_are_read_with_a_remark(own: str, canonical: str) -> None:
    usual = schema.tlc_name(canonical, "yellow")
    mapping = schema.map_columns([own if name == usual else name for name in YELLOW], "f", NEEDED)
    assert mapping[canonical] == own
    assert f"{own} as {canonical}" in schema.remarks(mapping)[0]


def test_all_missing_columns_are_named_at_once_as_the_tlc_names_them() -> None:
    with pytest.raises(TipcastError, match="D007.*'lpep_dropoff_datetime'.*2 columns found"):
        schema.map_columns(["lpep_pickup_datetime", "fare_amount"], "f", ["dropoff"])
    with pytest.raises(TipcastError) as caught:
        schema.map_columns(
            ["fare", *"abcdefghijklmnop"], "trips/yellow_tripdata_2018-01.parquet", NEEDED
        )
    line = str(caught.value)
    assert not [name for name in ("tpep_pickup_datetime", *NEEDED[1:]) if f"'{name}'" not in line]


def test_a_column_twice_is_refused_only_where_it_is_needed() -> None:
    for again in ("fare_amount", "Fare_Amount"):
        with pytest.raises(TipcastError, match=f"D006.*'fare_amount' and '{again}' are the same"):
            schema.map_columns([*YELLOW, again], "f", NEEDED)
    assert schema.map_columns([*YELLOW, "extra"], "f", NEEDED)


def test_eras_without_zone_ids_are_refused_where_zones_are_needed() -> None:
    names = ["pickup_datetime", "passenger_count", "pickup_longitude", "fare_amount", "tip_amount"]
    with pytest.raises(TipcastError, match="D017.*2016-07"):
        schema.map_columns(names, "f", NEEDED)
    assert len(schema.map_columns(names, "f", ["pickup", "fare_amount", "tip_amount"])) == 3
