"""Tests of remote addresses on a real server on this machine."""

import functools
import gzip
import http.server
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets import delimited
from tipcast.datasets.listing import ScanRequest

MONTHS = ("a_2019-02.parquet", "b_2019-02.csv")


@pytest.fixture
def address(trip_files: Any, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address over http of a month in each format, in a bucket that anybody may read; no
    credentials are set.
    """
    for name in MONTHS:
        bucket.pipe_file(
            f"trips/month/{name}", trip_files.write(name).read_bytes(), ACL="public-read"
        )
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(trip_files.folder))
    return f"{os.environ['AWS_ENDPOINT_URL']}/trips/month"


def test_http(trip_files: Any, address: str, closed_port: int) -> None:
    listing = trip_files.listing(
        [f"{address}/{MONTHS[0]}?key=secret", f"{address}/{MONTHS[1]}"], block_bytes=20_000
    )
    assert [sums.rows for sums in trip_files.checked(listing).values()] == [1000, 1000]
    assert listing.uris == tuple(f"{address}/{name}" for name in MONTHS)
    error = trip_files.refused(f"{address}/none.parquet?key=secret", "D001", "none.parquet")
    assert "secret" not in str(error)
    error = trip_files.refused(
        f"http://me:pw@127.0.0.1:{closed_port}/{MONTHS[0]}", "D022", MONTHS[0]
    )
    assert "pw" not in str(error)
    for elsewhere, says in (("http", "https"), ("gs", "gs://")):
        with pytest.raises(TipcastError, match=f"D021.*{says}"):
            trip_files.listing(f"{elsewhere}://example.org/a.parquet")


def test_s3(trip_files: Any, address: str) -> None:
    anonymous = {"anon": True}
    for named in (
        "s3://trips/month",
        "s3://trips/month/*",
        [f"s3://trips/month/{name}" for name in MONTHS],
    ):
        listing = trip_files.listing(named, block_bytes=20_000, storage_options=anonymous)
        assert [sums.rows for sums in trip_files.checked(listing).values()] == [1000, 1000]
    for missing in ("trips/none.parquet", "trips/none*", "nobucket/a.parquet"):
        name = missing.rpartition("/")[2].rstrip("*")
        trip_files.refused(f"s3://{missing}", "D001", name, storage_options=anonymous)
    trip_files.refused("s3://trips/month", "D022", "month")


class Whole(http.server.SimpleHTTPRequestHandler):
    """Serves files from their beginning alone."""

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "none")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def whole_files(tmp_path: Path) -> Iterator[str]:
    """The address of a server of ``tmp_path`` that serves no ranges of bytes."""
    handler = functools.partial(Whole, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_without_ranges_of_bytes(tmp_path: Path, whole_files: str) -> None:
    rows = b"a,b\n" + b"".join(b"%d,%d\n" % (at, at * at) for at in range(5000))
    packed = gzip.compress(rows)
    (tmp_path / "t.csv").write_bytes(rows)
    (tmp_path / "whole.csv.gz").write_bytes(packed)
    (tmp_path / "cut.csv.gz").write_bytes(packed[:-100])
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("t.csv", rows)

    def scan(name: str) -> int:
        return len(
            delimited.scan_csv(f"{whole_files}/{name}", ScanRequest(()), None).parts({}, None)
        )

    assert scan("whole.csv.gz") == 1
    for name in ("t.csv", "t.csv.zip"):
        with pytest.raises(TipcastError, match="D022.*the server does not support byte ranges"):
            scan(name)
    with pytest.raises(TipcastError, match=r"D005.*cut.csv.gz: is a gzip file that is truncated"):
        scan("cut.csv.gz")
