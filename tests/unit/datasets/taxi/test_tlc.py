"""Tests of the TLC's months: downloaded once, checked by SHA-256, used without a network."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TlcData
from tipcast.datasets.base import Listing
from tipcast.datasets.taxi.dataset import Taxi

NEEDED = ("pickup", "fare_amount", "tip_amount", "passenger_count", "PULocationID", "DOLocationID")


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{{colour}}_tripdata_{{month}}.parquet", asked
        finally:
            server.shutdown()


def _list(url: str, cache: Path, months: Any = "2019-01..2019-02", colour: str = "yellow") -> Listing:
    spec = TlcData(source="tlc", train=months, test=None, months=None, colour=colour, url=url, cache=str(cache))
    return Taxi(spec).scan("train", NEEDED)


@pytest.fixture
def published(trip_files: Any, tmp_path: Path) -> Path:
    """Two months as the TLC would publish them."""
    (tmp_path / "site").mkdir()
    for month in ("2019-01", "2019-02"):
        trip_files.write(f"site/yellow_tripdata_{month}.parquet", month=month)
    return tmp_path / "site"


def test_months_are_downloaded_once_and_then_need_no_network(published: Path, tmp_path: Path, trip_files: Any) -> None:
    cache = tmp_path / "cache"
    with _served(published) as (url, asked):
        first = _list(url, cache)
        fetched = len(asked)
        assert _list(url, cache) == first
        assert len(asked) == fetched
    assert _list(url, cache) == first
    assert sum(sums.rows for sums in trip_files.checked(first).values()) == 2000
    assert sorted(file.name for file in cache.iterdir()) == [
        f"yellow_tripdata_2019-0{month}.parquet{ending}" for month in (1, 2) for ending in ("", ".sha256")
    ]
    file = cache / "yellow_tripdata_2019-01.parquet"
    assert file.read_bytes() == (published / file.name).read_bytes()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert (cache / f"{file.name}.sha256").read_text() == f"{digest}  {file.name}\n"


def test_a_damaged_month_is_downloaded_again(published: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with _served(published) as (url, _):
        _list(url, cache)
        file = cache / "yellow_tripdata_2019-01.parquet"
        file.write_bytes(file.read_bytes()[:500])
        _list(url, cache)
        assert file.read_bytes() == (published / file.name).read_bytes()


def test_a_month_put_there_by_hand_is_used(published: Path, tmp_path: Path) -> None:
    listing = _list("https://127.0.0.1:1/{colour}_{month}.parquet", _by_hand(published, tmp_path), "2019-02")
    assert len(listing.fragments) == 1


def _by_hand(published: Path, tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir()
    name = "yellow_tripdata_2019-02.parquet"
    (tmp_path / "cache" / name).write_bytes((published / name).read_bytes())
    return tmp_path / "cache"


def test_offline_is_told_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TipcastError) as caught:
        _list("https://127.0.0.1:1/{colour}_{month}.parquet?key=secret", tmp_path / "cache", "2019-01")
    error = caught.value
    assert error.code == "D022"
    assert "https://127.0.0.1:1/yellow_2019-01.parquet" in str(error)
    assert str(tmp_path / "cache" / "yellow_tripdata_2019-01.parquet") in error.fix
    assert "secret" not in str(error)
    assert not list((tmp_path / "cache").iterdir())


def test_a_month_that_is_not_published(published: Path, tmp_path: Path) -> None:
    with _served(published) as (url, _), pytest.raises(TipcastError, match="D001.*2019-03.*not published"):
        _list(url, tmp_path / "cache", ["2019-02", "2019-03"])
    assert not list((tmp_path / "cache").glob(".*"))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"colour": "blue"}, "data.colour"),
        ({"months": "January"}, "data.train"),
        ({"url": "https://127.0.0.1:1/all.parquet"}, "data.url"),
        ({"url": "https://127.0.0.1:1/{month}.zip"}, "data.url"),
    ],
)
def test_configuration_is_checked_first(settings: dict[str, str], key: str, tmp_path: Path) -> None:
    with pytest.raises(TipcastError, match=f"C003.*{key}"):
        _list(**({"url": "https://127.0.0.1:1/{month}.parquet", "cache": tmp_path} | settings))


def test_green_months_must_be_green(published: Path, tmp_path: Path) -> None:
    (published / "yellow_tripdata_2019-01.parquet").rename(published / "green_tripdata_2019-01.parquet")
    with _served(published) as (url, _), pytest.raises(TipcastError, match="D007.*green_tripdata_2019-01.*lpep_pickup"):
        _list(url, tmp_path / "cache", "2019-01", "green")
