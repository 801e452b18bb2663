"""`tipcast score` into an object store that is busy, lets nobody in, or is not there."""

from __future__ import annotations

import http.server
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.jobs import score

SECRETS = {"AWS_ACCESS_KEY_ID": "canaryKEYx7Yq", "AWS_SECRET_ACCESS_KEY": "canarySECRETx7Yq"}


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers every request with the server's status."""

    def do_GET(self) -> None:
        status, asked = self.server.status, self.server.asked  # type: ignore[attr-defined]
        asked.append(f"{self.command} {self.path}")
        code = {503: "ServiceUnavailable", 403: "AccessDenied"}[status]
        content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture(params=[503, 403, None], ids=["busy", "closed", "absent"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What such a store was asked."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # it does not listen
        server.status, server.asked = request.param, []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = (closed.getsockname() if request.param is None else server.server_address)[1]
        for name, value in {**SECRETS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        s3fs.S3FileSystem.clear_instance_cache()
        yield server.asked  # type: ignore[attr-defined]
        s3fs.S3FileSystem.clear_instance_cache()
        server.shutdown()


def test_few_tries_and_one_line_without_the_keys(store: list[str], tmp_path: Path) -> None:
    (tmp_path / "trips.parquet").touch()
    words = ["model_uri=models:/tipcast/1", f"input={tmp_path / 'trips.parquet'}", "output=s3://mybucket/some/prefix/"]
    (composed,) = compose("score", words)
    with pytest.raises(TipcastError) as caught:
        score.run(to_object(composed.config), "tipcast score")
    line = str(caught.value)
    assert re.match(r"error\[T009\] .*mybucket.* Fix: ", line)
    assert not [secret for secret in SECRETS.values() if secret in line]
    assert all(store.count(request) <= 3 for request in store), store
