"""Tests of remote addresses on real servers on this machine."""

from pathlib import Path
from typing import Any

import pytest

from tipcast.config.errors import TipcastError


def test_http(trip_files: Any, tmp_path: Path, served: Any) -> None:
    parquet, csv = trip_files.write("a_2019-02.parquet"), trip_files.write("b_2019-02.csv")
    with served(tmp_path) as (address, _):
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
        anonymous = {"anon": True}
        for named in (
            "s3://trips/month",
            "s3://trips/month/*",
            ["s3://trips/month/a_2019-02.parquet", "s3://trips/month/b_2019-02.csv"],
        ):
            listing = trip_files.listing(named, block_bytes=20_000, storage_options=anonymous)
            assert [sums.rows for sums in trip_files.checked(listing).values()] == [1000, 1000]
        trip_files.refused("s3://trips/none.parquet", "D001", "none.parquet", storage_options=anonymous)
        trip_files.refused("s3://trips/none*", "D001", "none", storage_options=anonymous)
        trip_files.refused("s3://nobucket/a.parquet", "D001", "a.parquet", storage_options=anonymous)
        trip_files.refused("s3://trips/month", "D022", "month")
    finally:
        server.stop()
