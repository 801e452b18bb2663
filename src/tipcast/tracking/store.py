"""The tracking store: its address, how it is opened, by one process at a time, and made MLflow's
current store.
"""

import contextlib
import functools
import http.client
import logging
import os
import sqlite3
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import filelock

from tipcast.config.disk import is_writable
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.config.plain import redact_address
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.failures import FIXES, first_line, store_errors
from tipcast.tracking.patience import Patience
from tipcast.tracking.sqlite_lock import in_turn
from tipcast.tracking.uri_checks import ARTIFACTS, check_address, sqlite_file

if TYPE_CHECKING:
    from tipcast.tracking.mlflow_types import MlflowClient, MlflowRun

LOG = logging.getLogger("tipcast")
DEFAULT_URI = "sqlite:///mlflow.db"
"""Store if neither the configuration nor the environment names one."""
DATABASES = ("postgresql", "mysql")
"""Servers whose drivers take a ``connect_timeout``."""
PROBE_S = 8.0
"""Seconds that a tracking server or a database may take to answer at all."""
GATEWAY = (502, 503, 504)
"""Status of a proxy whose server is away."""
ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"
"""Variable by which MLflow's own server tells its jobs where artifacts of new experiments go."""
_busy_timeout: dict[str, int] = {}
"""``ms``: milliseconds that MLflow's sessions wait for a locked sqlite file."""


def resolve(spec: TrackingSpec) -> str:
    """Return the store's URI: of the configuration, of MLFLOW_TRACKING_URI, or the default."""
    return spec.uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


def open_store(spec: TrackingSpec) -> "MlflowClient":
    """Open the store, make it MLflow's current one, and return its ``mlflow.MlflowClient``.

    The client of a server waits while that does not answer, ``tracking.patience_s`` in all, see
    ``LastingClient``.

    Raises C003 if the URI is not an address, C009 if a password or token would go to another
    machine in the clear, T001 if the server is not reached, T002 if the database cannot be used,
    and T003 for credentials in the address.
    """
    uri = resolve(spec)
    registry = os.environ.get("MLFLOW_REGISTRY_URI")
    key = "MLFLOW_TRACKING_URI"
    if spec.uri:
        key = "tracking.uri"

    check_address(uri, key, insecure=spec.insecure)
    if registry:
        check_address(registry, "MLFLOW_REGISTRY_URI", insecure=spec.insecure)

    _set_up_mlflow(spec)
    _reach(uri)
    _make_current(uri, registry)
    gate("store")
    if _is_remote(uri):
        return _connect_lasting(uri, spec)
    return _connect(uri, spec.wait_s)


def _connect_lasting(uri: str, spec: TrackingSpec) -> "MlflowClient":
    """Return the client of a server or a database, which may go away; see ``LastingClient``."""
    from tipcast.tracking.lasting_client import LastingClient

    patience = Patience(functools.partial(_answers, uri), spec.patience_s)
    with store_errors(uri):  # one that answers with an error now is not waited for
        client = patience.call(functools.partial(_connect, uri, spec.wait_s), again=False)

    connect = functools.partial(_connect_offline, spec.wait_s)
    # It has the methods of MLflow's client.
    return cast("MlflowClient", LastingClient(client, patience, connect))


def _connect_offline(wait_s: float, file: Path) -> "MlflowClient":
    """Return MLflow's client of an sqlite file, which is made, as MLflow's current store."""
    from tipcast.tracking.offline import OfflineClient

    uri = f"sqlite:///{file}"
    _make_current(uri, None)
    _connect(uri, wait_s)  # makes the tables
    return OfflineClient(uri)


def _is_remote(uri: str) -> bool:
    """Tell whether a store is a server or a database on one, which may be away for a while."""
    scheme = urlsplit(uri).scheme
    return scheme in {"http", "https"} or scheme.partition("+")[0] in DATABASES


def _answers(uri: str) -> bool:
    """Tell whether a server or a database answers within seconds."""
    try:
        _reach(uri)
    except TipcastError:
        return False
    return True


def _set_up_mlflow(spec: TrackingSpec) -> None:
    """Set variables of MLflow that the user has not set, and the levels of its loggers."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(spec.max_retries))
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # The job's own last lines name the run's address.
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

    level = logging.WARNING
    if LOG.isEnabledFor(logging.DEBUG):
        level = logging.INFO
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(level)
    # They log tracebacks of signals, and of errors that `store_errors` reports in one line.
    # The first one logs each of its retries.
    for name in ("urllib3.connectionpool", "mlflow.store.db.utils", "sqlalchemy.pool", "psycopg"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _reach(uri: str) -> None:
    """Refuse a server or database that does not answer within seconds; T001, T002."""
    scheme = urlsplit(uri).scheme
    if scheme in {"http", "https"}:
        _probe(uri)
    elif scheme.partition("+")[0] in DATABASES:
        _probe_database(uri)


def _probe(uri: str) -> None:
    """Refuse a server that does not answer; T001. MLflow would repeat its requests for minutes."""
    try:
        # The address is http or https here.
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=PROBE_S):  # noqa: S310
            return
    except urllib.error.HTTPError as answer:
        # Others answer; MLflow will say whether they let us in.
        if answer.code in GATEWAY:
            what = f"the server behind it does not answer: status {answer.code}"
            raise TipcastError("T001", redact_address(uri), what, FIXES[500]) from answer
    except (OSError, ValueError, http.client.HTTPException) as problem:
        what = f"no tracking server answers: {getattr(problem, 'reason', problem)}"
        fix = "start it with `mlflow server`, or set tracking.uri"
        raise TipcastError("T001", redact_address(uri), what, fix) from problem


def _probe_database(uri: str) -> None:
    """Connect once to a database server; T002 if that fails.

    MLflow would try ten times over a minute and a half.
    """
    import sqlalchemy

    # MLflow itself reports a missing driver.
    with contextlib.suppress(ModuleNotFoundError), store_errors(uri):
        address = sqlalchemy.make_url(uri)
        limit = {"connect_timeout": int(PROBE_S)}
        engine = sqlalchemy.create_engine(
            address, connect_args=limit, poolclass=sqlalchemy.NullPool
        )
        with engine.connect():
            pass


def _make_current(uri: str, registry: str | None) -> None:
    """Make a store the one that MLflow's functions use, with its registry or the one named."""
    import mlflow  # MLflow reads the variables above at import

    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(registry or uri)
    # MLflow has set it; the next run of this process would take it for the user's choice
    if not registry:
        os.environ.pop("MLFLOW_REGISTRY_URI", None)


def _connect(uri: str, wait_s: float) -> "MlflowClient":
    """Return MLflow's client of a store.

    It makes the tables of a database; one process at a time makes those of an sqlite file.
    """
    import mlflow

    lock: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if urlsplit(uri).scheme == "sqlite":
        _busy_timeout["ms"] = int(1000 * wait_s)
        _replace_busy_timeout()
        # The import takes a second; it comes before the lock so that no other job waits for it.
        import mlflow.store.tracking.sqlalchemy_store

        lock = _locked(uri, wait_s)

    with lock, _artifacts_placed(uri), store_errors(uri):
        gate("tables")
        store = mlflow.MlflowClient(uri)  # creates or migrates the tables of a database
        store.search_experiments(max_results=1)
        gate("opened")

    return store


@functools.cache  # SQLAlchemy keeps its listeners
def _replace_busy_timeout() -> None:
    """Let MLflow's sessions wait for a locked sqlite file as long as configured.

    MLflow sets 20 s in each session: the statement that does so is replaced.
    """
    import sqlalchemy

    def replaced(
        _connection: object, _cursor: object, statement: str, parameters: object, *_rest: object
    ) -> tuple[str, object]:
        if statement.startswith("PRAGMA busy_timeout"):
            statement = f"PRAGMA busy_timeout = {_busy_timeout['ms']};"
        return statement, parameters

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", replaced, retval=True)


@contextlib.contextmanager
def _locked(uri: str, wait_s: float) -> Iterator[None]:
    """Hold a file lock beside an sqlite file, in WAL mode so that many processes can write."""
    path = sqlite_file(uri)
    if path is None:
        raise TipcastError(
            "T002",
            uri,
            "an in-memory store is lost when the process ends",
            "use sqlite:///mlflow.db",
        )
    # The lock would create the folder, and a mistyped path would become a second, empty store.
    if not path.parent.is_dir():
        raise TipcastError(
            "T002", path, "its folder does not exist", f"create {path.parent}, or set tracking.uri"
        )

    try:
        with in_turn(path, wait_s):
            with contextlib.closing(sqlite3.connect(path, timeout=wait_s)) as database:
                database.execute("PRAGMA journal_mode=WAL")
            with contextlib.suppress(OSError):  # another user may own the file
                # Jobs that wait see that the queue moves. Path.touch would open the file, and drop
                # this process's locks on it as it closes it.
                os.utime(path)
            yield
    except filelock.Timeout as problem:
        what = f"another process has held its lock for {wait_s:g} s"
        raise TipcastError(
            "T002", path, what, "wait for it to end, or raise tracking.wait_s"
        ) from problem
    except (sqlite3.Error, OSError) as problem:
        what = f"the database cannot be used: {first_line(problem)}"
        fix = "check the file and its permissions"
        raise TipcastError("T002", path, what, f"{fix}, or set tracking.uri") from problem


@contextlib.contextmanager
def _artifacts_placed(uri: str) -> Iterator[None]:
    """Let artifacts of new experiments lie beside an sqlite file if the working folder cannot be
    written.

    MLflow would make their folder in the working folder, which in a container may be part of the
    image. A client that is made in the block remembers the place.
    """
    database = sqlite_file(uri)
    if database is None or ROOT in os.environ:
        yield
        return

    folder = Path(ARTIFACTS)
    if not folder.is_dir():
        folder = Path()
    if is_writable(folder) or not is_writable(database.parent):
        yield
        return

    os.environ[ROOT] = str(database.parent / ARTIFACTS)
    try:
        yield
    finally:
        os.environ.pop(ROOT, None)


def all_runs(
    store: "MlflowClient", condition: str, experiment_id: str | None = None
) -> "list[MlflowRun]":
    """Return the active runs of a store, MLflow's current one, that meet a condition.

    They are those of all experiments, or of one.
    """
    import mlflow

    from tipcast.tracking.lasting_client import calling

    experiment_ids = None
    if experiment_id:
        experiment_ids = [experiment_id]
    search = functools.partial(
        mlflow.search_runs,
        experiment_ids,
        condition,
        search_all_experiments=experiment_id is None,
        output_format="list",
    )
    return list(calling(store, search))


@contextlib.contextmanager
def without_autologging() -> Iterator[None]:
    """Keep MLflow's autologging, which the calling program may use, from logging a job's fits."""
    utils = sys.modules.get("mlflow.utils.autologging_utils")
    if utils is None:  # not loaded: no autologging is on
        yield
        return
    with utils.disable_autologging():
        yield


def load_model(model_uri: str, store_uri: str | None) -> Any:
    """Load a model's pyfunc from a store, which becomes MLflow's current one."""
    import mlflow

    uri = store_uri or DEFAULT_URI
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(os.environ.get("MLFLOW_REGISTRY_URI") or uri)
    with store_errors(uri):
        return mlflow.pyfunc.load_model(model_uri)


def forget_store() -> None:
    """Let MLflow forget its current store: that of the environment is the current one then."""
    import mlflow

    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)
