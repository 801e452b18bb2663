"""Synthetic trips: the same for the same seed, and like real months in what the label depends
on.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from sklearn.metrics import roc_auc_score

from tipcast.config.data_schema import SampleData
from tipcast.config.errors import TipcastError
from tipcast.datasets.periods import of_months
from tipcast.datasets.taxi import sample_part
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.features import BASE_FEATURES, compute
from tipcast.datasets.taxi.files import parse_months
from tipcast.datasets.taxi.sample import column_names, sample_block
from tipcast.datasets.taxi.sample_tables import PATH

WEEKS = (1551657600000000, 1554076800000000)
"""Four whole weeks from Monday 2019-03-04."""
NEXT = (1554076800000000, 1556496000000000)
SHIPPED = json.loads(PATH.read_text(encoding="utf-8"))
Block = dict[str, Any]
WANTED = ("pickup", "fare_amount", "PULocationID")
KNOWN = {
    "tpep_pickup_datetime": [
        1553700725000000,
        1551724248000000,
        1553341029000000,
        1553186308000000,
    ],
    "PULocationID": [237, 246, 43, 68],
    "DOLocationID": [262, 161, 143, 246],
    "fare_amount": [8.0, 15.5, 6.5, 5.5],
    "tip_amount": [2.26, 0.0, 2.94, 1.96],
}
"""First trips of a block: they change only when what a seed means changes, which is worth a line in
the changelog.
"""


@pytest.fixture(scope="module")
def trips() -> Block:
    return sample_block(WEEKS, 0, 7, 300_000, "yellow")


def cents(values: np.ndarray) -> np.ndarray:
    return np.round(values * 100).astype(np.int64)


def variation(values: np.ndarray, expected: dict[int, float]) -> float:
    """Return the total variation distance of values from the shares that are expected."""
    differences = [abs(float((values == key).mean()) - share) for key, share in expected.items()]
    rest = abs(float((~np.isin(values, list(expected))).mean()) - (1 - sum(expected.values())))
    return (sum(differences) + rest) / 2


@pytest.mark.parametrize("colour", ["yellow", "green"])
def test_same_seed_same_trips_whichever_columns(colour: str) -> None:
    assert not any(map(len, sample_block(WEEKS, 3, 11, 0, colour).values()))
    every = sample_block(WEEKS, 3, 11, 70_001, colour)
    assert list(every) == list(column_names(colour))
    assert ("trip_type" in every, "airport_fee" in every) == (colour == "green", colour == "yellow")
    for again in (
        sample_block(WEEKS, 3, 11, 70_001, colour),
        *(sample_block(WEEKS, 3, 11, 70_001, colour, columns=[name]) for name in every),
    ):
        for name, values in again.items():
            np.testing.assert_array_equal(values, every[name])


def test_each_part_of_the_key_changes_the_trips() -> None:
    key: dict[str, Any] = {"period": WEEKS, "block": 0, "seed": 0, "colour": "yellow"}
    changes = [{}, {"period": NEXT}, {"period": (WEEKS[0], NEXT[0] + 3_600_000_000)}]
    changes += [{"block": 1}, {"seed": 1}, {"colour": "green"}]
    made = {sample_block(**key | change, rows=500)["fare_amount"].tobytes() for change in changes}
    assert len(made) == len(changes)


def test_a_known_block_stays_as_it_is() -> None:
    block = sample_block(WEEKS, 0, 0, 4, "yellow")
    assert {name: block[name].tolist() for name in KNOWN} == KNOWN


def test_types_and_exact_cents(trips: Block) -> None:
    for name in (
        "VendorID",
        "tpep_pickup_datetime",
        "tpep_dropoff_datetime",
        "PULocationID",
        "DOLocationID",
    ):
        assert trips[name].dtype == np.int64
    money = [name for name in trips if name.endswith(("amount", "extra", "tax", "surcharge"))]
    for name in money:
        np.testing.assert_array_equal(trips[name], np.round(trips[name] * 100) / 100, err_msg=name)
    total = sum(
        cents(trips[name]) for name in money if name not in ("total_amount", "congestion_surcharge")
    )
    congestion = np.where(
        trips["VendorID"] == 2, cents(np.nan_to_num(trips["congestion_surcharge"], nan=0)), 0
    )
    known = ~np.isnan(trips["congestion_surcharge"])
    assert np.array_equal((total + congestion)[known], cents(trips["total_amount"])[known])
    assert (trips["tpep_dropoff_datetime"] >= trips["tpep_pickup_datetime"]).all()
    assert (trips["PULocationID"].min(), trips["PULocationID"].max()) == (1, 265)


def test_the_dirt(trips: Block) -> None:
    pickup = trips["tpep_pickup_datetime"]
    assert 0 < ((pickup < WEEKS[0]) | (pickup >= WEEKS[1])).mean() < 2e-4
    fare = cents(trips["fare_amount"])
    tip = cents(trips["tip_amount"])
    payment = trips["payment_type"]
    assert not tip[payment > 1].any()
    assert 0.0015 < (fare < 0).mean() < 0.003
    assert np.isin(payment[fare < 0], [2, 3, 4]).all()
    assert np.isin(payment[fare < 0], [3, 4]).mean() > 0.75
    assert not tip[fare < 0].any()
    assert (trips["total_amount"][fare < 0] < 0).all()
    assert 0 < (fare == 0).mean() < 0.002


def test_margins_are_the_shipped_ones(trips: Block) -> None:
    made = SHIPPED["yellow"]
    week_hour = (trips["tpep_pickup_datetime"] // 3_600_000_000 + 72) % 168
    shares = np.array(made["hour_of_week"]) / sum(made["hour_of_week"])
    assert variation(week_hour, dict(enumerate(shares))) < 0.03
    for column, side in (("PULocationID", "pu"), ("DOLocationID", "do")):
        assert (
            variation(trips[column], {i + 1: share / 1e6 for i, share in enumerate(made[side])})
            < 0.03
        )
    assert variation(trips["passenger_count"], dict(enumerate(made["passengers"][:7]))) < 0.01
    assert abs((trips["PULocationID"] == trips["DOLocationID"]).mean() - made["same_zone"]) < 0.005
    green = sample_block(WEEKS, 0, 0, 50_000, "green")
    fare = cents(green["fare_amount"])
    tip = cents(green["tip_amount"])
    assert abs((tip * 5 > fare)[fare > 0].mean() - SHIPPED["green"]["label_rate"]) < 0.02


def test_a_model_learns_as_much_as_from_real_months() -> None:
    def rows(period: tuple[int, int]) -> xgb.DMatrix:
        block = sample_block(period, 0, 0, 100_000, "yellow")
        x = compute({"pickup": block["tpep_pickup_datetime"], **block}, BASE_FEATURES)
        fare = cents(block["fare_amount"])
        tip = cents(block["tip_amount"])
        return xgb.DMatrix(x[fare > 0], (tip * 5 > fare)[fare > 0], nthread=2)

    params = {"max_depth": 6, "objective": "binary:logistic", "tree_method": "hist", "nthread": 2}
    train = rows(WEEKS)
    test = rows(NEXT)
    auc = roc_auc_score(test.get_label(), xgb.train(params, train, 100).predict(test))
    assert 0.57 < auc < 0.62


def test_blocks_are_listed_and_read_like_files(
    frames: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SampleData(
        "sample", "2019-01..2019-02", test=None, rows=1000, seed=3, colour="yellow", block_rows=300
    )
    january = of_months("2019-01")
    february = of_months("2019-02")
    listing = Taxi(spec).scan("train", WANTED[1:], optional=("trip_type",))
    assert [part.rows for part in listing.parts] == [300, 225, 300, 175]
    assert [part.extent for part in listing.parts] == [(0, 3), (1, 3), (0, 3), (1, 3)]
    assert [part.period for part in listing.parts] == [
        january,
        january,
        february,
        february,
    ]
    assert listing.period == (january[0], february[1])
    read = Taxi().read(listing.parts[1], frames)
    assert [(name, len(values)) for name, values in read.items()] == [
        (name, 225) for name in WANTED
    ]
    assert Taxi(dataclasses.replace(spec, seed=4)).scan("train", ()).digest != listing.digest
    with pytest.raises(TipcastError, match="C003.*data.rows.*block_rows"):
        Taxi(dataclasses.replace(spec, rows=10**18)).scan("train", ())
    monkeypatch.setattr(sample_part, "VERSION", sample_part.VERSION + 1)
    assert Taxi(spec).scan("train", ()).digest != listing.digest


def test_months() -> None:
    assert parse_months("2018-12..2019-02", "k") == ["2018-12", "2019-01", "2019-02"]
    assert parse_months(["2019-03", "2019-01..2019-01", "2019-03"], "k") == ["2019-01", "2019-03"]
    for wrong in ("2019", "2019-13", "2019-02..2019-01", 2019, [], "2019-01..", "..2019-01"):
        with pytest.raises(TipcastError, match="C003.*k"):
            parse_months(wrong, "k")
