"""The TLC's months: downloaded once, used without a network; what is said of data beforehand."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import FilesData, SampleData, TlcData
from tipcast.datasets.base import Listing
from tipcast.datasets.taxi.dataset import Taxi

NEEDED = ("pickup", "fare_amount", "tip_amount", "passenger_count", "PULocationID", "DOLocationID")
MONTHS = "/{colour}_tripdata_{month}.parquet"
NOWHERE = "https://127.0.0.1:1/{colour}_{month}.parquet?key=secret"


def _tlc(url: str, cache: Path, months: Any = "2019-01..2019-02", colour: str = "yellow") -> Taxi:
    return Taxi(TlcData("tlc", train=months, test=None, months=None, colour=colour, url=url, cache=str(cache)))


def _list(*named: Any, **more: Any) -> Listing:
    return _tlc(*named, **more).scan("train", NEEDED)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def published(trip_files: Any, tmp_path: Path) -> Path:
    """Two months as the TLC would publish them."""
    (tmp_path / "site").mkdir()
    for month in ("2019-01", "2019-02"):
        trip_files.write(f"site/yellow_tripdata_{month}.parquet", month=month)
    return tmp_path / "site"


def test_months_are_downloaded_once_and_then_need_no_network(
    published: Path, cache: Path, trip_files: Any, served: Any
) -> None:
    with served(published) as (url, asked):
        first = _list(url + MONTHS, cache)
        fetched = len(asked)
        assert _list(url + MONTHS, cache) == first
        assert len(asked) == fetched
    assert _list(url + MONTHS, cache) == first
    assert sum(sums.rows for sums in trip_files.checked(first).values()) == 2000
    kept, there = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in (cache, published))
    assert kept == there


def test_months_put_there_by_hand_need_no_server(published: Path) -> None:
    assert _tlc(NOWHERE, published, "2019-01..2019-03").describe("train") == f"2 of 3 months in {published}"
    assert len(_list(NOWHERE, published).fragments) == 2


def test_offline_is_told_in_one_line_and_leaves_nothing(cache: Path) -> None:
    with pytest.raises(TipcastError, match="D022.*https://127.0.0.1:1/yellow_2019-01.parquet") as caught:
        _list(NOWHERE, cache, "2019-01")
    assert str(cache / "yellow_tripdata_2019-01.parquet") in caught.value.fix
    assert "secret" not in str(caught.value)
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"colour": "blue"}, "data.colour"),
        ({"months": "January"}, "data.train"),
        ({"url": "https://127.0.0.1:1/all.parquet"}, "data.url"),
        ({"url": "https://127.0.0.1:1/{month}.zip"}, "data.url"),
    ],
)
def test_configuration_is_checked_first(settings: dict[str, str], key: str, cache: Path) -> None:
    with pytest.raises(TipcastError, match=f"C003.*{key}"):
        _list(**({"url": "https://127.0.0.1:1/{month}.parquet", "cache": cache} | settings))


def test_what_a_server_or_the_cache_refuses(published: Path, cache: Path, served: Any) -> None:
    yellow = published / "yellow_tripdata_2019-01.parquet"
    shutil.copy(yellow, published / "green_tripdata_2019-01.parquet")
    with served(published) as (url, _):
        with pytest.raises(TipcastError, match="D001.*2019-03.*check.* the month"):  # which is not published
            _list(url + MONTHS, cache, ["2019-02", "2019-03"])
        with pytest.raises(TipcastError, match="D007.*green_tripdata_2019-01.*lpep_pickup"):
            _list(url + MONTHS, cache, "2019-01", "green")
        with pytest.raises(TipcastError, match="D001.*parquet/cache.*cannot be written"):
            _list(url + MONTHS, yellow / "cache")
    with served(published, status=403) as (url, _), pytest.raises(TipcastError, match="D022.*refused"):
        _list(url + MONTHS, cache, "2019-01")
    assert not list(cache.glob(".*"))


def test_what_is_said_of_files_and_samples(trip_files: Any, tmp_path: Path) -> None:
    sample = SampleData("sample", None, "2019-03", None, rows=50, seed=0, colour="yellow", block_rows=20)
    assert Taxi(sample).describe("test") == "1 file, 50 rows, 3 parts, yellow trips, 2019-03-01..2019-03-31"
    trip_files.write("yellow_tripdata_2019-01.parquet", month="2019-01")
    csv = trip_files.write("yellow_tripdata_2019-02.csv")
    for named, said in (
        (tmp_path / "*.parquet", "1 file, 1,000 rows, 1 part, yellow trips, 2019-01-01..2019-01-31"),
        (csv, "1 file, 1 part, yellow trips, 2019-02-01..2019-02-28"),  # that does not tell its rows
    ):
        data = FilesData("files", str(named), test=None, months=None, block_bytes=32 << 20)
        assert Taxi(data).describe("train") == said
