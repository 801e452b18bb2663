"""The TLC's months: downloaded once, used without a network; what is said of data beforehand."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.datasets.conftest import NEEDED

from tipcast.config.data_schema import FilesData, TlcData
from tipcast.config.errors import TipcastError
from tipcast.datasets.taxi.dataset import Taxi

NOWHERE = "https://127.0.0.1:1/{colour}_{month}.parquet?key=secret"


def _tlc(url: str, cache: Path, months: Any = "2019-01..2019-02", colour: str = "yellow") -> Taxi:
    url = (
        url
        if "{" in url or url.endswith("parquet")
        else f"{url}/{{colour}}_tripdata_{{month}}.parquet"
    )
    return Taxi(
        TlcData(
            "tlc", train=months, test=None, months=None, colour=colour, url=url, cache=str(cache)
        )
    )


def _refused(says: str, *named: Any) -> TipcastError:
    with pytest.raises(TipcastError, match=says) as caught:
        _tlc(*named).scan("train", NEEDED)
    return caught.value


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def published(trip_files: Any, bucket: Any) -> str:
    """The address of two months as the TLC would publish them."""
    for month in ("2019-01", "2019-02"):
        path = trip_files.write(f"yellow_tripdata_{month}.parquet", month=month)
        bucket.put(str(path), f"trips/{path.name}", ACL="public-read")
    return f"{os.environ['AWS_ENDPOINT_URL']}/trips"


def test_months_are_downloaded_once_and_then_need_no_network(
    published: str, cache: Path, trip_files: Any
) -> None:
    first = _tlc(published, cache).scan("train", NEEDED)
    assert _tlc(NOWHERE, cache).scan("train", NEEDED) == first
    described = _tlc(NOWHERE, cache, "2019-01..2019-03").describe("train")
    assert described == f"2 of 3 months in {cache}; a job downloads the others"
    assert sum(sums.rows for sums in trip_files.checked(first).values()) == 2000
    there = {file.name: file.read_bytes() for file in trip_files.folder.glob("*.parquet")}
    assert {file.name: file.read_bytes() for file in cache.iterdir()} == there


def test_configuration_is_checked_before_anything_is_fetched(cache: Path) -> None:
    _refused("C003.*data.colour", NOWHERE, cache, "2019-01", "blue")
    with pytest.raises(TipcastError, match="C003.*colour: unknown colour 'red'. Fix: .*yellow"):
        Taxi().of_files({"colour": "red"})  # of files to be scored
    _refused("C003.*data.train", NOWHERE, cache, "January")
    for url in ("https://127.0.0.1:1/all.parquet", "https://127.0.0.1:1/{month}.zip"):
        _refused("C003.*data.url", url, cache)
    assert not cache.exists()


def test_what_a_server_or_the_cache_refuses(
    published: str, bucket: Any, cache: Path, trip_files: Any
) -> None:
    yellow = trip_files.folder / "yellow_tripdata_2019-01.parquet"
    bucket.put(str(yellow), "trips/green_tripdata_2019-01.parquet", ACL="public-read")
    bucket.put(str(yellow), "trips/yellow_tripdata_2019-04.parquet")  # which nobody else may read
    offline = _refused("D022.*https://127.0.0.1:1/yellow_2019-01.parquet", NOWHERE, cache)
    assert str(cache / yellow.name) in offline.fix
    assert "secret" not in str(offline)
    _refused("D022.*access is denied", published, cache, "2019-04")
    assert not list(cache.iterdir())
    # which is not published
    _refused("D001.*2019-03.*check.* the month", published, cache, ["2019-02", "2019-03"])
    _refused("D007.*green_tripdata_2019-01.*lpep_pickup", published, cache, "2019-01", "green")
    _refused("D001.*parquet/cache.*cannot be written", published, yellow / "cache")
    assert not list(cache.glob(".*"))


def test_what_is_said_of_files(trip_files: Any) -> None:
    for name, said in (
        (
            "yellow_tripdata_2019-02.parquet",
            "1 file, 1,000 rows, 1 part, yellow trips, 2019-02-01..2019-02-28",
        ),
        # which tells no rows
        ("yellow_tripdata_2019-02.csv", "1 file, 1 part, yellow trips, 2019-02-01..2019-02-28"),
    ):
        data = FilesData(
            "files", str(trip_files.write(name)), test=None, months=None, block_bytes=32 << 20
        )
        assert Taxi(data).describe("train") == said
