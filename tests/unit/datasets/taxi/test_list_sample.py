"""Tests of months and of the blocks of sample trips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SampleData
from tipcast.datasets.split import of_months
from tipcast.datasets.taxi import sample
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import parse_months


def _digests_of_another_version(spec: SampleData) -> set[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "VERSION", sample.VERSION + 1)
        spec.seed = 3
        return {fragment.digest for fragment in Taxi(spec).scan("train", ()).fragments}


def test_sample_blocks() -> None:
    spec = SampleData(
        source="sample", train="2019-01..2019-02", test=None, rows=1000, seed=3, colour="yellow", block_rows=300
    )
    listing = Taxi(spec).scan("train", ("fare_amount", "PULocationID"), optional=("trip_type",))
    assert [fragment.rows for fragment in listing.fragments] == [300, 225, 300, 175]
    assert [fragment.part for fragment in listing.fragments] == [(0, 3), (1, 3), (0, 3), (1, 3)]
    assert [fragment.period for fragment in listing.fragments[1:3]] == [of_months("2019-01"), of_months("2019-02")]
    assert listing.period == (of_months("2019-01")[0], of_months("2019-02")[1])
    assert list(listing.fragments[0].columns) == ["pickup", "fare_amount", "PULocationID"]
    spec.seed = 4
    assert Taxi(spec).scan("train", ()).digest != listing.digest
    assert {fragment.digest for fragment in listing.fragments}.isdisjoint(_digests_of_another_version(spec))
    spec.rows = 10**18
    with pytest.raises(TipcastError, match="C003.*data.rows.*block_rows"):
        Taxi(spec).scan("train", ())


def test_sample_blocks_are_read_like_files(frames: Any) -> None:
    spec = SampleData(source="sample", train="2019-01", test=None, rows=500, seed=0, colour="green", block_rows=300)
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
