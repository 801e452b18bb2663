"""`tipcast score` into an object store that lets nobody in, or does not answer."""

import http.server
import threading
from pathlib import Path

import pytest
import s3fs

from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.jobs import score

SECRETS = {"AWS_ACCESS_KEY_ID": "canaryKEYx7Yq", "AWS_SECRET_ACCESS_KEY": "canarySECRETx7Yq"}
ASKED: list[str] = []


class Refusing(http.server.BaseHTTPRequestHandler):
    """Refuses every request."""

    def do_GET(self) -> None:
        ASKED.append(f"{self.command} {self.path}")
        self.send_error(403)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET
    log_message = print  # which pytest captures


def test_few_tries_and_one_line_without_the_keys(
    closed_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trips.parquet").touch()
    for name, value in {**SECRETS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    words = ["model_uri=models:/tipcast/1", f"input={tmp_path / 'trips.parquet'}", "output=s3://mybucket/some/prefix/"]
    (composed,) = compose("score", words)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for port in (server.server_address[1], closed_port):
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            s3fs.S3FileSystem.clear_instance_cache()
            with pytest.raises(TipcastError, match=r"error\[T009\] .*mybucket.* Fix: ") as caught:
                score.run(to_object(composed.config), "tipcast score")
            assert not [secret for secret in SECRETS.values() if secret in str(caught.value)]
        server.shutdown()
    s3fs.S3FileSystem.clear_instance_cache()
    assert ASKED
    assert all(ASKED.count(request) <= 3 for request in ASKED), ASKED
