"""Tests of remote addresses on real servers on this machine."""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tipcast.config.errors import TipcastError


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves parts of files, as real stores do."""

    def log_message(self, *args: object) -> None:
        pass

    def send_head(self) -> Any:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return super().send_head()
        content = path.read_bytes()
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        self.send_response(206 if wanted else 200)
        if wanted:
            start, stop = int(wanted[1]), int(wanted[2] or len(content) - 1) + 1
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
            content = content[start:stop]
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return io.BytesIO(content)


@contextlib.contextmanager
def _served(folder: Path, handler: type = _Ranges) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_http(trip_files: Any, tmp_path: Path) -> None:
    parquet, csv = trip_files.write("a_2019-02.parquet"), trip_files.write("b_2019-02.csv")
    with _served(tmp_path) as address:
        listing = trip_files.listing(
            [f"{address}/{parquet.name}?key=secret", f"{address}/{csv.name}"], block_bytes=20_000
        )
        assert [sums.rows for sums in trip_files.checked(listing).values()] == [1000, 1000]
        assert listing.uris == (f"{address}/{parquet.name}", f"{address}/{csv.name}")
        error = trip_files.refused(f"{address}/none.parquet?key=secret", "D001", "none.parquet")
        assert "secret" not in str(error)
    error = trip_files.refused(f"{address.replace('//', '//me:pw@')}/{parquet.name}", "D022", parquet)
    assert "pw" not in str(error)
    with pytest.raises(TipcastError, match="D021.*https"):
        trip_files.listing("http://example.org/a.parquet")
    with pytest.raises(TipcastError, match="D021.*gs://"):
        trip_files.listing("gs://bucket/a.parquet")


def test_s3(trip_files: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "1000")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client(
            "s3", endpoint_url=endpoint, aws_access_key_id="k", aws_secret_access_key="s", region_name="us-east-1"
        )
        client.create_bucket(Bucket="trips", ACL="public-read")
        for path in (trip_files.write("a_2019-02.parquet"), trip_files.write("b_2019-02.csv")):
            client.put_object(Bucket="trips", Key=f"month/{path.name}", Body=path.read_bytes(), ACL="public-read")
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        for named in (
            "s3://trips/month",
            "s3://trips/month/*",
            ["s3://trips/month/a_2019-02.parquet", "s3://trips/month/b_2019-02.csv"],
        ):
            listing = trip_files.listing(named, block_bytes=20_000)
            assert [sums.rows for sums in trip_files.checked(listing).values()] == [1000, 1000]
        assert listing.fragments[0].options["storage"]["anon"] is True
        trip_files.refused("s3://trips/none.parquet", "D001", "none.parquet")
        trip_files.refused("s3://trips/none*", "D001", "none")
        trip_files.refused("s3://nobucket/a.parquet", "D001", "a.parquet")
    finally:
        server.stop()
