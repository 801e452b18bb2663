"""Synthetic trips: the same for the same seed, and like real months in what the label depends on."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from sklearn.metrics import roc_auc_score

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SampleData
from tipcast.datasets.split import of_months
from tipcast.datasets.taxi import sample
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import parse_months
from tipcast.datasets.taxi.sample import PATH, Alias, column_names, sample_block

WEEKS = (1551657600000000, 1554076800000000)
"""Four whole weeks from Monday 2019-03-04."""
NEXT = (1554076800000000, 1556496000000000)
ROWS = 300_000
SHIPPED = json.loads(PATH.read_text(encoding="utf-8"))
Block = dict[str, Any]
KNOWN = [
    [1553700725000000, 1551724248000000, 1553341029000000, 1553186308000000],
    [237, 246, 43, 68],
    [262, 161, 143, 246],
    [8.0, 15.5, 6.5, 5.5],
    [2.26, 0.0, 2.94, 1.96],
]
"""First trips of a block: they change only when what a seed means changes, which is worth a line in the changelog."""


@pytest.fixture(scope="module")
def trips() -> Block:
    return sample_block(WEEKS, 0, 7, ROWS, "yellow")


def cents(values: np.ndarray) -> np.ndarray:
    return np.round(values * 100).astype(np.int64)


def high(block: Block) -> np.ndarray:
    return cents(block["tip_amount"]) * 5 > cents(block["fare_amount"])


def same(a: Block, b: Block) -> bool:
    return list(a) == list(b) and all(
        np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f") for name in a
    )


def variation(values: np.ndarray, expected: dict[int, float]) -> float:
    found = [abs(float((values == key).mean()) - share) for key, share in expected.items()]
    rest = abs(float((~np.isin(values, list(expected))).mean()) - (1 - sum(expected.values())))
    return (sum(found) + rest) / 2


@pytest.mark.parametrize("colour", ["yellow", "green"])
def test_same_seed_same_trips_whichever_columns(colour: str) -> None:
    assert not any(map(len, sample_block(WEEKS, 3, 11, 0, colour).values()))
    every = sample_block(WEEKS, 3, 11, 70_001, colour)
    assert list(every) == list(column_names(colour))
    assert same(every, sample_block(WEEKS, 3, 11, 70_001, colour))
    for name in every:
        assert same({name: every[name]}, sample_block(WEEKS, 3, 11, 70_001, colour, columns=[name]))


def test_each_part_of_the_key_changes_the_trips() -> None:
    def fares(period: tuple[int, int] = WEEKS, block: int = 0, seed: int = 0, colour: str = "yellow") -> bytes:
        return bytes(sample_block(period, block, seed, 500, colour, columns=["fare_amount"])["fare_amount"].tobytes())

    made = {
        fares(),
        fares(NEXT),
        fares(block=1),
        fares(seed=1),
        fares(colour="green"),
        fares((WEEKS[0], NEXT[0] + 3_600_000_000)),
    }
    assert len(made) == 6


def test_a_known_block_stays_as_it_is() -> None:
    block = sample_block(WEEKS, 0, 0, 4, "yellow")
    shown = [
        block[name].tolist()
        for name in ("tpep_pickup_datetime", "PULocationID", "DOLocationID", "fare_amount", "tip_amount")
    ]
    assert shown == KNOWN


def test_types_and_exact_cents(trips: Block) -> None:
    for name in ("VendorID", "tpep_pickup_datetime", "tpep_dropoff_datetime", "PULocationID", "DOLocationID"):
        assert trips[name].dtype == np.int64
    for name, values in trips.items():
        if name.endswith(("amount", "extra", "tax", "surcharge")):
            assert np.array_equal(values, np.round(values * 100) / 100, equal_nan=True), name
    parts = ("fare_amount", "extra", "mta_tax", "tip_amount", "tolls_amount", "improvement_surcharge")
    total = sum(cents(trips[name]) for name in parts)
    congestion = np.where(trips["VendorID"] == 2, cents(np.nan_to_num(trips["congestion_surcharge"], nan=0)), 0)
    known = ~np.isnan(trips["congestion_surcharge"])
    assert np.array_equal((total + congestion)[known], cents(trips["total_amount"])[known])
    assert (trips["tpep_dropoff_datetime"] >= trips["tpep_pickup_datetime"]).all()
    assert trips["PULocationID"].min() >= 1
    assert trips["PULocationID"].max() == 265


def test_pickups_lie_in_the_period_but_for_a_few(trips: Block) -> None:
    pickup = trips["tpep_pickup_datetime"]
    inside = (pickup >= WEEKS[0]) & (pickup < WEEKS[1])
    assert 0 < (~inside).mean() < 2e-4
    odd = (WEEKS[0] + 5_400_000_000, WEEKS[0] + 9_000_000_000)  # half past one to half past two
    pickup = sample_block(odd, 0, 0, 5_000, "yellow", columns=["tpep_pickup_datetime"])["tpep_pickup_datetime"]
    assert ((pickup >= odd[0]) & (pickup < odd[1])).mean() > 0.999
    assert np.ptp(pickup[(pickup >= odd[0]) & (pickup < odd[1])]) > 3_500_000_000


def test_cash_shows_no_tip_and_refunds_are_negative(trips: Block) -> None:
    fare, tip, payment = cents(trips["fare_amount"]), cents(trips["tip_amount"]), trips["payment_type"]
    assert not tip[payment != 1][~np.isnan(payment[payment != 1])].any()
    assert 0.0015 < (fare < 0).mean() < 0.003
    assert np.isin(payment[fare < 0], [2, 3, 4]).all()
    assert np.isin(payment[fare < 0], [3, 4]).mean() > 0.75
    assert not tip[fare < 0].any()
    assert (trips["total_amount"][fare < 0] < 0).all()
    assert 0 < (fare == 0).mean() < 0.002


def test_margins_are_the_shipped_ones(trips: Block) -> None:
    made = SHIPPED["yellow"]
    week_hour = (trips["tpep_pickup_datetime"] // 3_600_000_000 + 72) % 168
    assert (
        variation(week_hour, {i: share / sum(made["hour_of_week"]) for i, share in enumerate(made["hour_of_week"])})
        < 0.03
    )
    for column, side in (("PULocationID", "pu"), ("DOLocationID", "do")):
        assert variation(trips[column], {i + 1: share / 1e6 for i, share in enumerate(made[side])}) < 0.03
    assert variation(trips["passenger_count"], dict(enumerate(made["passengers"][:7]))) < 0.01
    assert abs((trips["PULocationID"] == trips["DOLocationID"]).mean() - made["same_zone"]) < 0.005


def test_a_model_learns_as_much_as_from_real_months() -> None:
    def rows(period: tuple[int, int]) -> xgb.DMatrix:
        block = sample_block(period, 0, 0, 100_000, "yellow")
        kept, pickup = block["fare_amount"] > 0, block["tpep_pickup_datetime"]
        week_hour = (pickup // 3_600_000_000 + 72) % 168
        columns = [week_hour // 24, week_hour % 24, week_hour, pickup // 60_000_000 % 60]
        columns += [np.nan_to_num(block["passenger_count"], nan=-1), block["PULocationID"], block["DOLocationID"]]
        return xgb.DMatrix(np.stack(columns, 1).astype(np.float32)[kept], high(block)[kept], nthread=2)

    params = {"max_depth": 6, "objective": "binary:logistic", "tree_method": "hist", "nthread": 2}
    train, test = rows(WEEKS), rows(NEXT)
    auc = roc_auc_score(test.get_label(), xgb.train(params, train, 100).predict(test))
    assert 0.57 < auc < 0.62


def test_green_trips_have_their_own_columns() -> None:
    block = sample_block(WEEKS, 0, 0, 50_000, "green")
    assert "lpep_pickup_datetime" in block
    assert "trip_type" in block
    assert "airport_fee" not in block
    paid = block["fare_amount"] > 0
    assert abs(high(block)[paid].mean() - SHIPPED["green"]["label_rate"]) < 0.02


def test_alias_tables_keep_the_shares() -> None:
    shares = np.array([0.0, 5.0, 1.0, 0.25, 3.0, 0.75, 0.0])
    made = Alias(shares, np.uint16)
    drawn = np.bincount(made.draw(np.arange(65536, dtype=np.uint16)), minlength=8) / 65536
    assert np.abs(drawn[:7] - shares / shares.sum()).max() < 2e-4
    assert drawn[7] == 0


def test_blocks_are_listed() -> None:
    spec = SampleData("sample", "2019-01..2019-02", test=None, rows=1000, seed=3, colour="yellow", block_rows=300)
    listing = Taxi(spec).scan("train", ("fare_amount", "PULocationID"), optional=("trip_type",))
    assert [fragment.rows for fragment in listing.fragments] == [300, 225, 300, 175]
    assert [fragment.part for fragment in listing.fragments] == [(0, 3), (1, 3), (0, 3), (1, 3)]
    assert [fragment.period for fragment in listing.fragments[1:3]] == [of_months("2019-01"), of_months("2019-02")]
    assert listing.period == (of_months("2019-01")[0], of_months("2019-02")[1])
    assert list(listing.fragments[0].columns) == ["pickup", "fare_amount", "PULocationID"]
    assert Taxi(dataclasses.replace(spec, seed=4)).scan("train", ()).digest != listing.digest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "VERSION", sample.VERSION + 1)
        assert Taxi(spec).scan("train", ("fare_amount", "PULocationID"), ("trip_type",)).digest != listing.digest
    with pytest.raises(TipcastError, match="C003.*data.rows.*block_rows"):
        Taxi(dataclasses.replace(spec, rows=10**18)).scan("train", ())


def test_blocks_are_read_like_files(frames: Any) -> None:
    spec = SampleData("sample", "2019-01", test=None, rows=500, seed=0, colour="green", block_rows=300)
    listing = Taxi(spec).scan("train", ("fare_amount", "PULocationID"))
    read = [Taxi().read(fragment, frames) for fragment in listing.fragments]
    assert [len(columns["pickup"]) for columns in read] == [300, 200]
    assert set(read[0]) == {"pickup", "fare_amount", "PULocationID"}
    assert read[0]["pickup"].dtype == np.int64


def test_months() -> None:
    assert parse_months("2018-12..2019-02", "k") == ["2018-12", "2019-01", "2019-02"]
    assert parse_months(["2019-03", "2019-01..2019-01", "2019-03"], "k") == ["2019-01", "2019-03"]
    for wrong in ("2019", "2019-13", "2019-02..2019-01", 2019, [], "2019-01..", "..2019-01"):
        with pytest.raises(TipcastError, match="C003.*k"):
            parse_months(wrong, "k")
