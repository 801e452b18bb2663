"""The tracking store: which one, how credentials travel to it, opened by one at a time, its
failures in one line.
"""

import contextlib
import errno
import functools
import http.client
import ipaddress
import logging
import os
import re
import shutil
import sqlite3
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import filelock

from tipcast.config.disk import FULL, OURS, free, shortage
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.config.plain import redact_address
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.queue import in_turn

if TYPE_CHECKING:
    from tipcast.tracking.entities import MlflowClient, StoredRun

LOG = logging.getLogger("tipcast")

DEFAULT_URI = "sqlite:///mlflow.db"
DATABASES = ("postgresql", "mysql")
"""Servers whose drivers take a ``connect_timeout``."""
DATABRICKS = ("databricks", "databricks-uc")
"""Addresses that are a word."""
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
"""What the system says where a folder may not be written."""
PROBE_S = 8.0
"""How long tracking server or database may take to answer at all."""
ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")
"""What stores answer where something is not there."""
FIXES = {
    401: "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    403: "ask whoever runs it for the right to do this, or use other credentials",
    429: "wait: it takes no more requests for now",
    404: "correct tracking.uri: no MLflow server is at this address, or it is below a prefix",
    500: "look into the log of the server, or of the proxy before it",
}
"""Status that a server answers with -> what to do."""
ARTIFACTS = "mlruns"
"""Folder for artifacts that MLflow makes beside a store that is a file."""
ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"
"""Variable by which MLflow's own server tells the jobs below it where artifacts of new experiments
go.
"""
_patience: dict[str, int] = {}


def resolve(spec: TrackingSpec) -> str:
    """Return the store's URI: as configured, MLFLOW_TRACKING_URI, or a file in the working
    folder.
    """
    return spec.uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


def open_store(spec: TrackingSpec) -> "MlflowClient":
    """Open the store, make it MLflow's current one, and return its ``mlflow.MlflowClient``.

    C003 no address, C009 a password or token that would go to another machine in the clear, T001
    server not reached, T002 database that cannot be used, T003 credentials in the address.
    """
    uri = resolve(spec)
    registry = os.environ.get("MLFLOW_REGISTRY_URI")
    check_address(
        uri, "tracking.uri" if spec.uri else "MLFLOW_TRACKING_URI", insecure=spec.insecure
    )
    if registry:
        check_address(registry, "MLFLOW_REGISTRY_URI", insecure=spec.insecure)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(spec.max_retries))
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # a job's own last lines have the address
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(
            logging.INFO if LOG.isEnabledFor(logging.DEBUG) else logging.WARNING
        )
    # tracebacks of what `failures` tells, and of signals
    for name in ("mlflow.store.db.utils", "sqlalchemy.pool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    scheme = urlsplit(uri).scheme
    if scheme in {"http", "https"}:
        _probe(uri)
    elif scheme.partition("+")[0] in DATABASES:
        _probe_database(uri)
    import mlflow  # after the variables that it reads at import

    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(registry or uri)
    # MLflow has set it; the next run of this process would take it for the user's choice
    if not registry:
        os.environ.pop("MLFLOW_REGISTRY_URI", None)
    if scheme == "sqlite":
        _patience["ms"] = int(1000 * spec.wait_s)
        _be_patient()
        # takes a second, for which nobody need wait
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
    gate("store")
    with (
        _locked(uri, spec.wait_s) if scheme == "sqlite" else contextlib.nullcontext(),
        _artifacts_placed(uri),
        failures(uri),
    ):
        gate("tables")
        client = mlflow.MlflowClient(uri)  # creates or migrates the tables of a database
        client.search_experiments(max_results=1)
        gate("opened")
    return client


@contextlib.contextmanager
def _artifacts_placed(uri: str) -> Iterator[None]:
    """Let artifacts of new experiments lie beside an sqlite file where the working folder cannot be
    written.

    MLflow would make their folder in the working folder, as in a container whose folder is part of
    its image. The client that is made in the block keeps it; the process does not.
    """
    database = sqlite_file(uri)
    here = Path(ARTIFACTS)
    right = os.W_OK | os.X_OK
    writable = os.access(here if here.is_dir() else Path(), right)
    if database is None or writable or ROOT in os.environ or not os.access(database.parent, right):
        yield
        return

    os.environ[ROOT] = str(database.parent / ARTIFACTS)
    try:
        yield
    finally:
        os.environ.pop(ROOT, None)


def all_runs(condition: str, experiment_id: str | None = None) -> "list[StoredRun]":
    """Return the active runs of the current store that meet a condition, by default of all
    experiments.
    """
    import mlflow

    one = [experiment_id] if experiment_id else None
    every = experiment_id is None
    return list(
        mlflow.search_runs(one, condition, search_all_experiments=every, output_format="list")
    )


@contextlib.contextmanager
def failures(uri: str) -> Iterator[None]:
    """Turn what MLflow, its database or its network raise into one line; other errors pass."""
    try:
        yield
    except Exception as problem:
        blamed = _blamed(problem, redact_address(uri), uri)
        if blamed is None:
            raise
        raise TipcastError(*blamed) from problem


@contextlib.contextmanager
def absent(code: str, where: str, what: str, fix: str) -> Iterator[None]:
    """Turn the store's answer that something is not there into one line; other errors pass."""
    import mlflow.exceptions

    try:
        yield
    except mlflow.exceptions.MlflowException as problem:
        if problem.error_code not in ABSENT:
            raise
        raise TipcastError(code, where, what, fix) from problem


def _blamed(problem: Exception, where: str, uri: str) -> tuple[str, object, str, str] | None:
    """Return code, place, fact and fix of what a store is to blame for; None for other errors."""
    import mlflow.exceptions
    import requests
    import sqlalchemy.exc

    text = first_line(problem)
    short = shortage(uri, str(problem))
    frames = [
        frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(problem.__traceback__)
    ]
    from_mlflow = any(module.startswith("mlflow") for module in frames)
    of_tables = type(problem).__module__.startswith("alembic")  # what MLflow makes its tables with
    rights = "check rights and free space of the artifact store"
    elsewhere = (
        "set tracking.experiment to a new name, whose artifacts lie beside the database, "
        "or mend the rights"
    )
    answered = _answered(problem)
    if answered is not None:
        return "T001", where, *answered
    if type(problem).__module__.partition(".")[0] in {"boto3", "botocore"}:
        return "T005", "artifacts in S3", *_refused_by_s3(problem)
    match problem:
        case requests.RequestException():
            what = f"the tracking server does not answer: {text}"
            return "T001", where, what, "start it, or set tracking.uri"
        case mlflow.exceptions.MlflowException() if "database is locked" in str(problem):
            what = "another process keeps the database locked"
            return "T002", where, what, "wait for it to end, or raise tracking.wait_s"
        case mlflow.exceptions.MlflowException() if (
            "Max retries exceeded" in text or "API request" in text
        ):
            return (
                "T001",
                where,
                "the tracking server does not answer",
                "start it, or set tracking.uri",
            )
        case mlflow.exceptions.MlflowException() if any(
            f"[Errno {number}]" in str(problem) for number in FULL
        ):
            # files of a model, in MLflow's words
            quoted = re.search(r"\[Errno \d+\].*'([^']+)'", str(problem))
            return _unwritten(quoted[1] if quoted else where, text, rights)
        case mlflow.exceptions.MlflowException() if "database schema" in text:
            what = "another version of MLflow made this database"
            fix = (
                f"back it up and run `mlflow db upgrade {where}`; where a newer MLflow made "
                "it, install that one"
            )
            return "T002", where, what, fix
        case mlflow.exceptions.MlflowException():
            return (
                "T002",
                where,
                f"the tracking store refuses: {text}{short}",
                "see tracking in the configuration",
            )
        case ModuleNotFoundError() if from_mlflow:
            return (
                "T002",
                where,
                f"the database's driver is missing: {problem.name}",
                f"pip install {problem.name}",
            )
        # of a folder that was copied
        case shutil.Error() if problem.args and isinstance(problem.args[0], list):
            _, place, why = problem.args[0][0]
            return _unwritten(place, why, rights)
        case OSError() if problem.errno in FULL or from_mlflow:  # of a full disk, whoever wrote
            path = problem.filename2 or problem.filename or where
            fix = elsewhere if problem.errno in FORBIDDEN and sqlite_file(uri) else rights
            return _unwritten(
                path, problem.strerror or str(problem), fix, full=problem.errno in FULL
            )
    if isinstance(problem, sqlalchemy.exc.SQLAlchemyError | sqlite3.Error) or of_tables:
        fix = "check that this MLflow made it, or set tracking.uri"
        if short or "disk is full" in text:
            fix = (
                "make space, or set tracking.uri; a new database that is not whole must be deleted"
            )
        return "T002", where, f"the database cannot be used: {text}{short}", fix
    return None


def _unwritten(
    path: str, why: str, fix: str, *, full: bool = False
) -> tuple[str, object, str, str]:
    """Return code, place, fact and fix of a file that cannot be written: of the temporary folder or
    of an artifact.
    """
    full = full or any(f"[Errno {number}]" in why for number in FULL)
    room = f", {free(path)}" if full else ""
    if any(part.startswith(OURS) for part in Path(path).parts):
        fix = "make space for temporary files, or set TMPDIR to a folder of another disk"
    return "T005", path, f"cannot be written: {why}{room}", fix


def _answered(problem: Exception) -> tuple[str, str] | None:
    """Return fact and fix of an answer of a server other than MLflow's; None for other errors.

    MLflow tells the status in words: of the last answer, or of those that it gave up on.
    """
    text = str(problem)
    response = getattr(problem, "response", None)
    stated = re.search(r"failed with error code (\d{3})|too many (\d{3}) error responses", text)
    status = getattr(response, "status_code", None) or (
        int(stated[1] or stated[2]) if stated else 0
    )
    body = getattr(response, "text", None) or text
    page = "<html" in body.lower() or "<!doctype" in body.lower()

    if not status and "not in a valid JSON format" in text:
        what = (
            f"answers with {'a page of HTML' if page else 'what is no JSON'}, not as MLflow's "
            "server"
        )
        return what, "correct tracking.uri: a proxy, a login page or another service is there"
    if not isinstance(status, int) or status < 400:
        return None

    what = f"the server answers with status {status}{', a page of HTML' if page else ''}"
    if status == 403 and "host header" in body.lower():
        fix = (
            "start it with `mlflow server --allowed-hosts NAME:PORT`, naming the address that "
            "jobs use"
        )
        return f"{what}, Invalid Host header", fix
    return what, FIXES.get(status, FIXES[500] if status >= 500 else FIXES[404])


def _refused_by_s3(problem: Exception) -> tuple[str, str]:
    """Return fact and fix of an error of the client of S3."""
    text = first_line(problem)
    credentials = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if "Credentials" in type(problem).__name__:
        return "there are no credentials", credentials
    if re.search(
        r"InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|Forbidden|403|ExpiredToken", text
    ):
        return (
            f"the credentials are refused: {text}",
            f"correct them: {credentials}; or let them write there",
        )
    return f"cannot be written: {text}", "check the bucket, AWS_REGION and MLFLOW_S3_ENDPOINT_URL"


@functools.cache  # SQLAlchemy keeps its listeners
def _be_patient() -> None:
    """Let MLflow's sessions wait for a locked sqlite file as long as configured: it sets 20 s for
    each session.
    """
    import sqlalchemy

    def patient(_: Any, __: Any, statement: str, parameters: Any, *rest: Any) -> tuple[str, Any]:
        waits = statement.startswith("PRAGMA busy_timeout")
        return f"PRAGMA busy_timeout = {_patience['ms']};" if waits else statement, parameters

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", patient, retval=True)


def _probe(uri: str) -> None:
    """Find out within seconds whether anything answers, before MLflow repeats its requests for
    minutes.
    """
    try:
        # http or https only
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=PROBE_S):  # noqa: S310
            return
    except urllib.error.HTTPError:
        return  # it answers; whether it lets us in, MLflow will say
    except (OSError, ValueError, http.client.HTTPException) as problem:
        what = f"no tracking server answers: {getattr(problem, 'reason', problem)}"
        fix = "start it with `mlflow server`, or set tracking.uri"
        raise TipcastError("T001", redact_address(uri), what, fix) from problem


def _probe_database(uri: str) -> None:
    """Connect once to a database server in a bounded time, before MLflow tries ten times over a
    minute and a half.
    """
    import sqlalchemy

    # of a driver that is missing MLflow tells
    with contextlib.suppress(ModuleNotFoundError), failures(uri):
        address = sqlalchemy.make_url(uri)
        limit = {"connect_timeout": int(PROBE_S)}
        engine = sqlalchemy.create_engine(
            address, connect_args=limit, poolclass=sqlalchemy.NullPool
        )
        with engine.connect():
            pass


def sqlite_file(uri: str) -> Path | None:
    """Return the absolute path of an sqlite store's file; None for other stores."""
    name = unquote(uri.removeprefix("sqlite:///").partition("?")[0])  # `mlflow run` encodes blanks
    return (
        Path(name).absolute()
        if uri.startswith("sqlite:///") and name and name != ":memory:"
        else None
    )


@contextlib.contextmanager
def _locked(uri: str, wait_s: float) -> Iterator[None]:
    """Hold a file lock beside an sqlite file, in WAL mode so that many processes can write."""
    path = sqlite_file(uri)
    if path is None:
        raise TipcastError(
            "T002", uri, "a store in memory is lost with the process", "use sqlite:///mlflow.db"
        )
    # the lock would make it, and a mistyped path a second, empty store
    if not path.parent.is_dir():
        raise TipcastError(
            "T002", path, "its folder does not exist", f"make {path.parent}, or set tracking.uri"
        )

    try:
        with in_turn(path, wait_s):
            with contextlib.closing(sqlite3.connect(path, timeout=wait_s)) as database:
                database.execute("PRAGMA journal_mode=WAL")
            with contextlib.suppress(OSError):  # of a file that others own
                # Those that wait see that it is the next one's turn. Path.touch would open the
                # file, and with its end drop this process's locks on it.
                os.utime(path)
            yield
    except filelock.Timeout as problem:
        what = f"another process has held its lock for {wait_s:g} s"
        raise TipcastError(
            "T002", path, what, "wait for it to end, or raise tracking.wait_s"
        ) from problem
    except (sqlite3.Error, OSError) as problem:
        what = f"the database cannot be used: {first_line(problem)}"
        fix = "check the file and its rights"
        raise TipcastError("T002", path, what, f"{fix}, or set tracking.uri") from problem


def first_line(problem: BaseException) -> str:
    """Return the first line of an error, of a database's own where there is one; its kind where it
    says nothing.
    """
    cause: BaseException = getattr(problem, "orig", None) or problem
    return str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__


def release(problem: BaseException) -> None:
    """Free what the calls that ended with an exception still hold.

    A signal in mid-statement leaves SQLAlchemy's cursor to the traceback's frames, and SQLite keeps
    the transaction of a closed connection, and with it the database's lock, until its last cursor
    is gone.
    """
    cause: BaseException | None = problem
    while cause:
        traceback.clear_frames(cause.__traceback__)  # leaves frames that still run
        cause = cause.__context__


def check_address(uri: str, name: str, *, insecure: bool) -> None:
    """Refuse an address of a key or variable that is no URI (C003) or has credentials (T003), and
    one in the clear.

    That is C009: a password or token would go to another machine without TLS, unless that is
    ``insecure``.
    """
    where = redact_address(uri)
    try:
        parts = urlsplit(uri)
        served = parts.scheme.lower() in {"http", "https"}
        _ = parts.port if served else None  # elsewhere a password may have a ":" or "/"
    except ValueError:  # whose text may have the password
        raise TipcastError(
            "C003", name, f"{where} is not a URI", "use http://HOST:PORT, or sqlite:///FILE"
        ) from None
    if not parts.scheme and "/" not in uri and uri not in DATABRICKS and not Path(uri).is_dir():
        raise TipcastError(
            "C003", name, f"{where} is not an address", "use http://HOST:PORT, or sqlite:///FILE"
        )
    if served and (parts.username or parts.password):
        fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        raise TipcastError("T003", where, "credentials do not belong into an address", fix)
    if insecure or parts.scheme.lower() != "http" or is_loopback(parts.hostname):
        return
    from mlflow.utils.credentials import get_default_host_creds  # imports take seconds
    from requests.utils import get_netrc_auth

    sent = get_default_host_creds(uri)
    # requests itself reads .netrc
    if sent.token or sent.password or sent.auth or get_netrc_auth(uri):
        what = "a password or token would go to another machine without TLS"
        fix = "use an https:// address, or set tracking.insecure=true on a trusted network"
        raise TipcastError("C009", where, what, fix)


def check_artifacts(uri: str, store: str, *, insecure: bool) -> None:
    """Refuse the same of a run's artifacts: MLflow sends the tracking server's credentials there
    too.
    """
    parts = urlsplit(uri)
    # reached as the store is, and there where no host is named
    if parts.scheme == "mlflow-artifacts":
        parts = parts._replace(
            scheme=urlsplit(store).scheme, netloc=parts.netloc or urlsplit(store).netloc
        )
    check_address(urlunsplit(parts), "artifacts", insecure=insecure)


def check_not_moved(uri: str, store: str, code: str = "T005") -> None:
    """Refuse artifacts that an sqlite file places in a folder that was moved, which would be made
    again; T005.

    MLflow keeps absolute paths. Where neither the artifacts' root nor the folder that had it is
    there, it has another name by now. A copy, whose artifacts lie beside it too, goes on where it
    was copied from: that is logged.
    """
    database = sqlite_file(store)
    parts = urlsplit(uri)
    if database is None or parts.scheme not in {"", "file"}:
        return

    folder = Path(unquote(parts.path))
    at = next((at for at in folder.parents if at.name == ARTIFACTS), None)
    if at is None or at.parent.resolve() == database.parent.resolve():
        return

    here = database.parent / ARTIFACTS
    if not at.parent.exists():
        what = "its folder was moved, and it names artifacts where that was"
        fix = f"`ln -s {database.parent} {at.parent}`, or move it back"
        raise TipcastError(code, database.name, what, fix)  # the line has room for two long paths

    if here.is_dir() and here.resolve() != at.resolve():
        LOG.warning("artifacts are in %s, which the store names, not in %s beside it", at, here)


def is_loopback(host: str | None) -> bool:
    """Tell whether an address is one of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:  # a name
        return False


@contextlib.contextmanager
def without_autologging() -> Iterator[None]:
    """Keep MLflow's autologging, where the calling program has it on, from logging a job's fits a
    second time.
    """
    its = sys.modules.get("mlflow.utils.autologging_utils")  # where it is not loaded, nothing is on
    with its.disable_autologging() if its else contextlib.nullcontext():
        yield


def load_model(model_uri: str, store: str | None) -> Any:
    """Load a model's pyfunc from a store, which becomes MLflow's current one."""
    import mlflow

    uri = store or DEFAULT_URI
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(os.environ.get("MLFLOW_REGISTRY_URI") or uri)
    with failures(uri):
        return mlflow.pyfunc.load_model(model_uri)


def forget_store() -> None:
    """Leave MLflow without a current store but that of the environment."""
    import mlflow

    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)
