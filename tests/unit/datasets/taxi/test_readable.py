"""Whether data can be read: what a listing shows, and what a server of months answers."""

from __future__ import annotations

import contextlib
import functools
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import DataSpec, FilesData, SampleData, TlcData
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import answer


@contextlib.contextmanager
def _served(folder: Path, status: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder, or one answer to everything."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            asked.append(f"HEAD {self.path}")
            if status:
                self.send_error(status)
            else:
                super().do_HEAD()

        def do_GET(self) -> None:
            asked.append(f"GET {self.path}")
            super().do_GET()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{{colour}}_tripdata_{{month}}.parquet", asked
        finally:
            server.shutdown()


def _check(data: DataSpec, which: str = "train") -> str:
    return Taxi(data).describe(which)


def _files(named: Any) -> FilesData:
    return FilesData(source="files", train=named, test=None, months=None, block_bytes=32 << 20)


def _tlc(url: str, cache: Path, months: str = "2019-01..2019-02") -> TlcData:
    return TlcData(source="tlc", train=months, test=None, months=None, colour="yellow", url=url, cache=str(cache))


def test_a_sample_says_what_it_makes() -> None:
    data = SampleData("sample", "2019-01..2019-02", "2019-03", None, rows=5000, seed=0, colour="yellow", block_rows=100)
    assert _check(data) == "makes 5,000 yellow trips of 2019-01-01..2019-02-28"
    assert _check(data, "test") == "makes 5,000 yellow trips of 2019-03-01..2019-03-31"


def test_parquet_files(trip_files: Any, tmp_path: Path) -> None:
    for month in ("2019-01", "2019-02"):
        trip_files.write(f"yellow_tripdata_{month}.parquet", month=month)
    found = _check(_files(str(tmp_path / "yellow_tripdata_2019-*.parquet")))
    assert found == "2 files, 2,000 rows, 2 parts, yellow, 2019-01-01..2019-02-28"


def test_a_csv_file_does_not_tell_its_rows(trip_files: Any) -> None:
    path = trip_files.write("yellow_tripdata_2019-02.csv")
    assert _check(_files(str(path))) == "1 file, 1 part, yellow, 2019-02-01..2019-02-28"


def test_files_that_cannot_be_read(trip_files: Any, tmp_path: Path) -> None:
    with pytest.raises(TipcastError, match="D001.*nothing.parquet"):
        _check(_files(str(tmp_path / "nothing.parquet")))
    path = trip_files.write("yellow_tripdata_2019-02.parquet", lambda frame: frame.drop(columns="tip_amount"))
    with pytest.raises(TipcastError, match="D007.*tip_amount"):
        _check(_files(str(path)))


@pytest.fixture
def published(trip_files: Any, tmp_path: Path) -> Path:
    """Two months as the TLC would publish them."""
    (tmp_path / "site").mkdir()
    for month in ("2019-01", "2019-02"):
        trip_files.write(f"site/yellow_tripdata_{month}.parquet", month=month)
    return tmp_path / "site"


def test_cached_months_need_no_server(published: Path) -> None:
    found = _check(_tlc("https://127.0.0.1:1/{colour}_tripdata_{month}.parquet", published))
    assert found == f"2 of 2 months in {published} (2 files, 2,000 rows, 2 parts, yellow, 2019-01-01..2019-02-28)"


def test_months_to_download_are_asked_for_and_not_fetched(published: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with _served(published) as (url, asked):
        found = _check(_tlc(url, cache))
        assert asked == ["HEAD /yellow_tripdata_2019-01.parquet"]
    assert found.startswith(f"0 of 2 months in {cache}; http://127.0.0.1:")
    assert found.endswith("answers: 2 to download")
    assert not cache.exists()


def test_a_month_that_is_not_published(published: Path) -> None:
    with _served(published) as (url, _), pytest.raises(TipcastError, match="D001.*2019-03.*not published"):
        _check(_tlc(url, published, "2019-02..2019-03"))


def test_a_server_that_refuses(published: Path, tmp_path: Path) -> None:
    with _served(published, status=403) as (url, _), pytest.raises(TipcastError, match="D022.*answers 403"):
        _check(_tlc(f"{url.replace('{month}', '{month}.parquet?token=hunter2&x=')}", tmp_path / "cache"))


def test_no_server_of_months(tmp_path: Path) -> None:
    with pytest.raises(TipcastError) as caught:
        _check(_tlc("https://127.0.0.1:1/{colour}_{month}.parquet?key=hunter2", tmp_path))
    assert caught.value.code == "D022"
    assert "data.cache" in caught.value.fix
    assert "hunter2" not in str(caught.value)


def test_a_server_that_is_silent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(TipcastError, match="D022"):
        answer(f"http://127.0.0.1:{deaf.getsockname()[1]}/yellow.parquet", limit_s=0.5)


def test_a_cache_that_cannot_be_made(published: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with _served(published) as (url, _), pytest.raises(TipcastError, match="D001.*file/cache.*cannot be written"):
        _check(_tlc(url, tmp_path / "file" / "cache"))


def test_months_of_a_local_address(published: Path, tmp_path: Path) -> None:
    found = _check(_tlc(f"{published}/{{colour}}_tripdata_{{month}}.parquet", tmp_path / "cache"))
    assert found.endswith("answers: 2 to download")
