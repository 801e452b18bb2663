"""A job that is stopped while it registers a model: the version is there whole with a finished run, or not at all."""

from __future__ import annotations

import http.client
import http.server
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mlflow
import pytest

WORDS = (
    "train", "model=logistic", "data.rows=4000", "cluster.processes=false", "tracking.register=tips",
    "tracking.system_metrics=false", "cluster.performance_report=false",
)  # fmt: skip
NAMED, VERSION, LINKED = "registered-models/create", "model-versions/create", "logged-models/"
Start = Callable[..., Any]


class Proxy(http.server.ThreadingHTTPServer):
    """Passes requests on to a tracking server, and calls ``hit`` once around the first one of a path after another."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        parts = urlsplit(target)
        self.target = (parts.hostname, parts.port)
        self.path, self.answered, self.after = "", False, ""
        self.hit: Callable[[], None] = lambda: None
        self.done = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The job that was stopped has hung up."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy = self.server
        if proxy.after in self.path:
            proxy.after = ""
        meant = bool(proxy.path) and not proxy.after and proxy.path in self.path
        first = meant and not proxy.done.is_set()
        if first:
            proxy.done.set()
        if first and not proxy.answered:
            proxy.hit()
            self.close_connection = True
            return
        connection = http.client.HTTPConnection(*proxy.target, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if first:
            proxy.hit()
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"transfer-encoding", "content-length", "connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _pass  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server(serving: Any, free_port: Any, tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tracking server."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    shutil.copy(tables, folder)
    command = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", str(folder / "artifacts")]
    with serving(command, f"http://127.0.0.1:{port}", folder, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false") as url:
        yield url


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    """A proxy before the server."""
    made = Proxy(server)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize(
    ("path", "answered"),
    [
        (NAMED, True),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((LINKED, False), (VERSION, True), (VERSION, False))),
    ],
)
def test_stopped_while_registering(tipcast: Start, proxy: Proxy, server: str, path: str, answered: bool) -> None:
    """The request is on its way, or has been carried out, when the signal comes; the answer never does."""
    name = f"{path.strip('/').replace('/', '-')}-{answered}"
    job = tipcast(*WORDS, f"tracking.register={name}", f"tracking.experiment={name}", f"tracking.uri={proxy.url}")
    stop = threading.Event()

    def hit() -> None:
        job.process.send_signal(signal.SIGTERM)
        stop.wait(2)  # the job must not take a closed connection for the server's end

    client = mlflow.MlflowClient(server)
    proxy.hit, proxy.answered = hit, answered
    proxy.after = VERSION if path == LINKED else ""  # logging the model asks there too
    proxy.path = path
    assert job.end() == 143, job.err
    assert job.err.splitlines()[-1] == "terminated: a run that was open is closed as KILLED"
    (run,) = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    assert run.info.status == "KILLED"
    assert client.search_model_versions(f"name='{name}'") == []
    assert client.search_registered_models(f"name='{name}'") == []
