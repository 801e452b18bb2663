"""Opening stores: first opening by many, WAL, locks, and every failure told in one line."""

import http.server
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from unittest.mock import Mock

import boto3.exceptions
import botocore.exceptions
import filelock
import mlflow
import pytest
from tests import warm
from tests.conftest import python
from tests.waiting import WATCHDOG_S

from tipcast.config.disk import OURS
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import sqlite_lock, store
from tipcast.tracking.failures import store_errors
from tipcast.tracking.lifecycle import check_store, open_run
from tipcast.tracking.store import open_store
from tipcast.tracking.uri_checks import check_artifacts

GUARDED = """
import atexit, os, socket, sys

outside, here = [], {"127.0.0.1", "::1", "localhost", socket.gethostname(), None, ""}

# The first that is registered is the last that is called: MLflow has sent by then what it kept.
@atexit.register
def judge():
    print("outside", outside, file=sys.stderr, flush=True)
    os._exit(bool(outside))

def guard(event, arguments):
    # By other kinds of sockets Dask learns its own address.
    if event == "socket.connect" and arguments[0].type == socket.SOCK_STREAM:
        place = arguments[1]
    elif event == "socket.getaddrinfo":
        place = arguments[:1]
    else:
        return
    if isinstance(place, tuple) and place[0] not in here:
        outside.append(place)
        raise OSError(f"refused by the guard: {place}")

sys.addaudithook(guard)
from tipcast.cli import main
main(sys.argv[1:])
sys.stdout.flush()
"""


def test_mlflow_uses_the_store_that_was_opened(spec: TrackingSpec) -> None:
    open_store(spec)
    assert (mlflow.get_tracking_uri(), mlflow.get_registry_uri()) == (spec.uri, spec.uri)


@pytest.fixture
def other_store(spec: TrackingSpec, tmp_path: Path) -> TrackingSpec:
    """A second store of this process, with the registered model `tips`, which is open."""
    other = TrackingSpec(uri=f"sqlite:///{tmp_path}/other.db")
    shutil.copy(tmp_path / "mlflow.db", tmp_path / "other.db")
    open_store(spec)
    open_store(other).create_registered_model("tips")
    return other


def test_models_are_registered_in_the_store_that_was_opened_last(other_store: TrackingSpec) -> None:
    assert mlflow.get_registry_uri() == other_store.uri


def test_a_store_has_no_models_of_another_one(
    spec: TrackingSpec, other_store: TrackingSpec
) -> None:
    assert open_store(spec).search_registered_models() == []


def test_models_may_be_in_another_store_than_runs(
    spec: TrackingSpec, other_store: TrackingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", str(other_store.uri))
    assert [model.name for model in open_store(spec).search_registered_models()] == ["tips"]


def test_a_store_whose_lock_another_process_holds_says_so(
    spec: TrackingSpec, tmp_path: Path
) -> None:
    spec.wait_s = 0.5
    with (
        filelock.FileLock(tmp_path / "mlflow.db.lock"),
        pytest.raises(TipcastError, match="T002.*mlflow.db.*held its lock"),
    ):
        open_store(spec)


def test_what_the_store_refuses_is_an_error_of_the_store(spec: TrackingSpec) -> None:
    client = open_store(spec)
    with (
        pytest.raises(TipcastError, match="T002.*the tracking store rejects the request"),
        store_errors(str(spec.uri)),
    ):
        client.set_tag(client.create_run("0").info.run_id, "a" * 400, "x")


def test_a_file_that_a_job_misses_is_no_error_of_the_store(spec: TrackingSpec) -> None:
    with pytest.raises(FileNotFoundError), store_errors(str(spec.uri)):
        Path("nowhere/trips.parquet").read_bytes()


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n"])
def test_servers_that_are_not_there_say_nothing_or_no_http(
    monkeypatch: pytest.MonkeyPatch, closed_port: int, answer: bytes
) -> None:
    with pytest.raises(TipcastError, match="T001.*no tracking server answers"):
        open_store(TrackingSpec(uri=f"http://127.0.0.1:{closed_port}"))
    with pytest.raises(TipcastError, match="T002.*the database cannot be used"):
        open_store(TrackingSpec(uri=f"postgresql+psycopg://127.0.0.1:{closed_port}/mlflow"))
    assert store.PROBE_S < 10
    monkeypatch.setattr(store, "PROBE_S", WATCHDOG_S if answer else 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def greet() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(answer)

        greeted = pool.submit(greet) if answer else None
        with pytest.raises(TipcastError, match="T001.*no tracking server answers"):
            open_store(TrackingSpec(uri=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        assert greeted is None or greeted.result() is None


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, "who are you?", "status 401. Fix: set MLFLOW_TRACKING_USERNAME"),
        (403, "Invalid Host header", "status 403, Invalid Host header. Fix: .*--allowed-hosts"),
        (403, "not yours", "status 403. Fix: ask"),
        (404, "<html>nothing here</html>", "status 404, an HTML page. Fix: correct tracking.uri"),
        (500, "oops", "status 500. Fix: see the log"),
        (502, "<html>Bad gateway</html>", "status 502.* Fix: see the log"),
        (200, "<!doctype html><html>log in</html>", "answers with an HTML page"),
    ],
)
def test_a_server_that_answers_is_not_called_silent(status: int, body: str, says: str) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, *_: object) -> None:
            pass

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(server.serve_forever)
        try:
            with pytest.raises(TipcastError, match=f"T001.*{says}"):
                open_store(
                    TrackingSpec(uri=f"http://127.0.0.1:{server.server_port}", max_retries=0)
                )
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (
            botocore.exceptions.NoCredentialsError(),
            "there are no credentials. Fix: set AWS_ACCESS_KEY_ID",
        ),
        (
            boto3.exceptions.S3UploadFailedError(
                "Failed to upload a to b: An error occurred (InvalidAccessKeyId)"
            ),
            "the credentials are refused.* Fix: correct them",
        ),
    ],
)
def test_artifacts_in_s3_without_credentials(problem: Exception, says: str) -> None:
    with (
        pytest.raises(TipcastError, match=f"T005. artifacts in S3: {says}"),
        store_errors("sqlite:///mlflow.db"),
    ):
        raise problem


def test_a_folder_that_was_moved_is_not_made_again(spec: TrackingSpec, tmp_path: Path) -> None:
    """MLflow keeps absolute paths of artifacts."""
    old = tmp_path / "old"
    new = tmp_path / "new"
    old.mkdir()
    database = shutil.copy(tmp_path / "mlflow.db", old)
    moved = TrackingSpec(uri=f"sqlite:///{database}", system_metrics=False, experiment="moved")
    open_store(moved).create_experiment("moved", (old / "mlruns" / "7").as_uri())
    old.rename(new)
    moved.uri = f"sqlite:///{new}/mlflow.db"
    says = f"T005. mlflow.db: its folder was moved.* Fix: `ln -s {new} {old}`"
    with pytest.raises(TipcastError, match=says), open_run(moved, name="a", tags={}, params={}):
        pass
    with pytest.raises(TipcastError, match=says):
        check_store(moved)
    assert not old.exists()
    old.symlink_to(new)
    with open_run(moved, name="a", tags={}, params={}) as run:
        run.log_text("x", "a.txt")
    assert (new / "mlruns" / "7" / run.id / "artifacts" / "a.txt").read_text() == "x"


def test_a_database_of_another_mlflow_names_the_command_that_upgrades_it(
    spec: TrackingSpec, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
        database.commit()
    with pytest.raises(TipcastError, match=f"T002.*another version.*mlflow db upgrade {spec.uri}`"):
        open_store(spec)


ADDRESS = "http://ada:s3cret@127.0.0.1:1/mlflow?token=s3cret"


@pytest.fixture(params=["tracking.uri", "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"])
def setting(request: pytest.FixtureRequest) -> str:
    """What an address may be given by."""
    setting: str = request.param
    return setting


@pytest.fixture
def refuse(
    spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch, setting: str
) -> Callable[[str], str]:
    """Return what is said of an address that is refused."""

    def message(uri: str) -> str:
        monkeypatch.setenv(setting, uri)
        spec.uri = {"tracking.uri": uri, "MLFLOW_TRACKING_URI": None}.get(setting, spec.uri)
        with pytest.raises(TipcastError) as caught:
            open_store(spec)
        return str(caught.value)

    return message


@pytest.mark.parametrize(
    "uri", ["http://[::1:5000", "http://127.0.0.1:50x0", "http://ada:s3cret/x@[::1:5000"]
)
def test_what_is_no_address_is_refused(
    refuse: Callable[[str], str], setting: str, uri: str
) -> None:
    assert re.search(f"C003. {setting}:.*is not a URI", refuse(uri))


def test_an_address_with_credentials_is_refused(refuse: Callable[[str], str]) -> None:
    assert re.search("T003.*MLFLOW_TRACKING_PASSWORD", refuse(ADDRESS))


@pytest.mark.parametrize("uri", ["http://ada:s3cret/x@[::1:5000", ADDRESS])
def test_credentials_of_a_refused_address_are_not_repeated(
    refuse: Callable[[str], str], uri: str
) -> None:
    message = refuse(uri)
    assert "s3cret" not in message
    assert "ada" not in message


def test_a_word_is_no_address(spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "hello")
    spec.uri = None
    with pytest.raises(
        TipcastError, match="C003. MLFLOW_TRACKING_URI: hello is not an address. Fix: use http"
    ):
        open_store(spec)


FOREIGN = (
    "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES "
    "('from_the_future')"
)


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        (None, ":memory:", "is lost when the process ends"),
        (None, "nowhere/mlflow.db", "its folder does not exist"),
        (b"SQLite format 3\0" + b"\xff" * 5000, "mlflow.db", "the database cannot be used"),
        (FOREIGN, "mlflow.db", "from_the_future"),
    ],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, content: bytes | str | None, name: str, says: str
) -> None:
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content:
        with closing(sqlite3.connect(tmp_path / name)) as database:
            database.executescript(content)
    with pytest.raises(TipcastError, match=rf"^error\[T002[^\n]*{says}[^\n]*$"):
        open_store(TrackingSpec(uri=f"sqlite:///{name if name[0] == ':' else tmp_path / name}"))


def test_nothing_outside_is_connected_to(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(tables, tmp_path)
    # by which MLflow would be silent anyway
    for name in ("CI", "PYTEST_CURRENT_TEST", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    words = (
        "data.rows=2000",
        "model=logistic",
        "tracking.register=tips",
        "print=json",
        "cluster.processes=false",
    )
    done = python(tmp_path, "-c", GUARDED, "train", *words, "cluster.n_workers=1")
    assert '"model_uri": "models:/tips/1"' in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr
    assert "outside []" in done.stderr


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without credentials; what would be sent to a server is an error."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setattr(store, "_probe", Mock(side_effect=ConnectionError))
    return tmp_path


SAFE = ("https://mlflow.example", "http://127.8.8.8", "http://localhost", "http://[::1]")


def test_credentials_are_not_sent_in_the_clear(
    home: Path, spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        with pytest.raises(TipcastError, match="C009.*without TLS.*tracking.insecure=true"):
            open_store(TrackingSpec(uri="http://mlflow.example:5000"))
        with monkeypatch.context() as patch:
            patch.setenv("MLFLOW_REGISTRY_URI", "http://mlflow.example")
            with pytest.raises(TipcastError, match="C009. http://mlflow.example:"):
                open_store(spec)

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    for name in ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "secret")
            refused()
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    with pytest.raises(ConnectionError):
        open_store(TrackingSpec(uri="http://trusted.example"))  # without any
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_TOKEN", "t")
        for uri in (*SAFE, "http://trusted.example:5000"):
            with pytest.raises(ConnectionError):
                open_store(TrackingSpec(uri=uri, insecure=":5000" in uri))
    for name, text in (
        (
            ".mlflow/credentials",
            "[mlflow]\nmlflow_tracking_username = ada\nmlflow_tracking_password = p\n",
        ),
        (".netrc", "machine mlflow.example login ada password p\n"),
    ):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
        (home / name).chmod(0o600)
        refused()
        (home / name).unlink()


def test_credentials_for_artifacts(
    home: Path, spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_store(spec)
    experiment = client.create_experiment(
        spec.experiment, artifact_location="http://files.example/a"
    )
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t")
    with (
        pytest.raises(TipcastError, match="C009. http://files.example"),
        open_run(spec, name="n", tags={}, params={}),
    ):
        raise AssertionError("not reached")
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FAILED"
    with pytest.raises(TipcastError, match="C009. http://files.example"):
        check_artifacts(
            "mlflow-artifacts://files.example:5000/1/a", "http://127.0.0.1:5000", insecure=False
        )
    for artifacts, store_uri in (
        ("mlflow-artifacts:/1/a", "http://127.0.0.1:5000"),
        ("https://files.example/a", "https://mlflow.example"),
        ("/mlruns/1/a", "sqlite:///mlflow.db"),
    ):
        check_artifacts(artifacts, store_uri, insecure=False)


def test_an_experiment_shows_nothing_of_a_probe_that_fails(
    spec: TrackingSpec, tmp_path: Path
) -> None:
    """Of one that goes well tests/jobs/test_doctor.py tells."""
    client = open_store(spec)
    (tmp_path / "file").touch()
    experiment_id = client.create_experiment(
        "taxi", artifact_location=str(tmp_path / "file" / "artifacts")
    )
    with pytest.raises(TipcastError, match="T005. .*file/artifacts"):
        check_store(spec)
    assert client.search_runs([experiment_id]) == []


LOGS = """
import os, sys
from pathlib import Path
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.lifecycle import open_run
spec = TrackingSpec(uri=f"sqlite:///{sys.argv[1]}/mlflow.db")
with open_run(spec, name="r", tags={}, params={}) as run:
    run.log_text("here", "note.txt")
assert "_MLFLOW_SERVER_ARTIFACT_ROOT" not in os.environ, "the process keeps a server's variable"
print([path.read_text() for path in Path(sys.argv[1], "mlruns").rglob("note.txt")])
"""


def test_artifacts_lie_beside_the_store_where_the_working_folder_is_read_only(
    tmp_path: Path,
) -> None:
    """As in a container whose working folder is part of its image."""
    folder = tmp_path / "image"
    elsewhere = tmp_path / "volume"
    folder.mkdir(mode=0o555)
    elsewhere.mkdir()
    nobody = (
        ["unshare", "-U", "--map-user=12345", "--map-group=12345", "--"] if os.getuid() == 0 else []
    )
    if nobody and subprocess.run([*nobody, "true"], check=False, capture_output=True).returncode:  # noqa: S603
        pytest.skip("root may write everywhere")
    words = [*nobody, sys.executable, "-c", LOGS, str(elsewhere)]
    ended = subprocess.run(  # noqa: S603 - fixed words
        words,
        cwd=folder,
        env=warm.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.stdout.strip().endswith("['here']"), ended.stderr
    assert not list(folder.iterdir())


@pytest.mark.parametrize("moves", [True, False])
def test_the_queue_for_a_new_store_waits_as_long_as_it_moves(
    moves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_lock, "LOOK_S", 0.01)
    file = tmp_path / "mlflow.db"
    steps = iter(range(10))
    held = filelock.FileLock(f"{file}.lock")
    held.acquire()

    def now() -> float:
        step = next(steps)
        if moves:
            file.write_text("." * step)  # as tables are made
        if step == 5:
            held.release()
        return 10.0 * step

    with (
        nullcontext() if moves else pytest.raises(filelock.Timeout),
        sqlite_lock.in_turn(file, 15.0, now),
    ):
        assert moves
    held.release()


ARTIFACT = "/artifacts/1/model/MLmodel"
OF_JOB = f"/tmp/{OURS}abc"  # noqa: S108 - nothing is written there
FULL = "[Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("problem", "path", "fix"),
    [
        (shutil.Error([("/elsewhere/MLmodel", ARTIFACT, FULL)]), ARTIFACT, "of the artifact store"),
        (OSError(28, "No space left on device", ARTIFACT), ARTIFACT, "of the artifact store"),
        (OSError(28, "No space left on device", OF_JOB), OF_JOB, "set TMPDIR"),
        (
            mlflow.MlflowException(f"{FULL}: '{OF_JOB}' -> '{ARTIFACT}'"),
            ARTIFACT,
            "of the artifact store",
        ),
    ],
)
def test_the_disk_that_is_full_is_named(
    problem: Exception, path: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the database, which has space."""
    with (
        pytest.raises(TipcastError, match=rf"^error\[T005\] {path}: cannot be written: .*{fix}"),
        store_errors("sqlite:///m.db"),
    ):
        raise problem
