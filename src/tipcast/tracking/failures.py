"""Errors of a tracking store in one line: those of MLflow, its database, its server and its
artifacts.
"""

import contextlib
import errno
import re
import shutil
import sqlite3
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tipcast.config.disk import FULL, OURS, free, shortage
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact_address
from tipcast.tracking.patience import Outage
from tipcast.tracking.uri_checks import sqlite_file

FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of the system for a folder that may not be written."""
ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")
"""Error codes of stores for something that does not exist."""
FIXES = {
    401: "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    403: "ask its administrator for permission to do this, or use other credentials",
    429: "wait: it accepts no more requests for now",
    404: "correct tracking.uri: no MLflow server is at this address, or it is under a prefix",
    500: "see the log of the server, or of the proxy in front of it",
}
"""Status that a server answers with -> what to do."""
START = "start it, or set tracking.uri"
"""What to do about a server that does not answer."""
RIGHTS = "check permissions and free space of the artifact store"
"""What to do about artifacts that cannot be written."""


class Failure(NamedTuple):
    """The arguments of a TipcastError."""

    code: str
    where: object
    what: str
    fix: str


@contextlib.contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Turn errors of MLflow, its database or its network into a TipcastError; others pass."""
    try:
        yield
    except Exception as problem:
        failure = _failure_of(problem, redact_address(uri), uri)
        if failure is None:
            raise
        raise TipcastError(*failure) from problem


@contextlib.contextmanager
def absent(code: str, where: str, what: str, fix: str) -> Iterator[None]:
    """Turn the store's answer that something does not exist into a TipcastError; others pass."""
    import mlflow.exceptions

    try:
        yield
    except mlflow.exceptions.MlflowException as problem:
        if problem.error_code not in ABSENT:
            raise
        raise TipcastError(code, where, what, fix) from problem


def _failure_of(problem: Exception, where: str, uri: str) -> Failure | None:
    """Return the failure of a store that an error comes from; None for other errors."""
    import mlflow.exceptions
    import requests
    import sqlalchemy.exc

    if isinstance(problem, TipcastError):
        return None
    if isinstance(problem, Outage):
        return Failure("T001", where, f"the tracking store {problem}", START)

    answer = _answered(problem)
    if answer is not None:
        return Failure("T001", where, *answer)

    library = type(problem).__module__.partition(".")[0]
    if library in {"boto3", "botocore"}:
        return Failure("T005", "artifacts in S3", *_refused_by_s3(problem))
    if isinstance(problem, requests.RequestException):
        what = f"the tracking server does not answer: {first_line(problem)}"
        return Failure("T001", where, what, START)
    if isinstance(problem, mlflow.exceptions.MlflowException):
        return _refused_by_mlflow(problem, where, uri)
    if isinstance(problem, ModuleNotFoundError) and _is_from_mlflow(problem):
        what = f"the database's driver is missing: {problem.name}"
        return Failure("T002", where, what, f"pip install {problem.name}")
    if isinstance(problem, OSError):
        return _failed_to_write(problem, where, uri)
    # MLflow makes its tables with Alembic.
    if library == "alembic" or isinstance(problem, sqlalchemy.exc.SQLAlchemyError | sqlite3.Error):
        return _unusable_database(problem, where, uri)
    return None


def _is_from_mlflow(problem: Exception) -> bool:
    """Tell whether an error has come through MLflow's code."""
    return any(
        frame.f_globals.get("__name__", "").startswith("mlflow")
        for frame, _ in traceback.walk_tb(problem.__traceback__)
    )


def _refused_by_mlflow(problem: Exception, where: str, uri: str) -> Failure:
    """Return the failure of the server, the database or the disk behind an MlflowException."""
    text = first_line(problem)

    if "database is locked" in str(problem):
        what = "another process keeps the database locked"
        return Failure("T002", where, what, "wait for it to end, or raise tracking.wait_s")

    if "Max retries exceeded" in text or "API request" in text:
        return Failure("T001", where, "the tracking server does not answer", START)

    if any(f"[Errno {number}]" in str(problem) for number in FULL):
        path = where
        # MLflow quotes the file of a model.
        if quoted := re.search(r"\[Errno \d+\].*'([^']+)'", str(problem)):
            path = quoted[1]
        return _unwritten(path, text, RIGHTS)

    if "database schema" in text:
        what = "another version of MLflow made this database"
        fix = (
            f"back it up and run `mlflow db upgrade {where}`; if a newer MLflow made "
            "it, install that one"
        )
        return Failure("T002", where, what, fix)

    what = f"the tracking store rejects the request: {text}{shortage(uri, str(problem))}"
    return Failure("T002", where, what, "see tracking in the configuration")


def _failed_to_write(problem: OSError, where: str, uri: str) -> Failure | None:
    """Return the failure to write a file of MLflow, or any file on a full disk; None for other
    errors of the system.
    """
    # shutil.copytree raises a list of files.
    if isinstance(problem, shutil.Error) and problem.args and isinstance(problem.args[0], list):
        _, path, why = problem.args[0][0]
        return _unwritten(path, why, RIGHTS)

    full = problem.errno in FULL
    if not full and not _is_from_mlflow(problem):
        return None

    fix = RIGHTS
    if problem.errno in FORBIDDEN and sqlite_file(uri):
        fix = (
            "set tracking.experiment to a new name, whose artifacts are next to the database, "
            "or fix the permissions"
        )
    path = problem.filename2 or problem.filename or where
    return _unwritten(path, problem.strerror or str(problem), fix, full=full)


def _unusable_database(problem: Exception, where: str, uri: str) -> Failure:
    """Return the failure of a database, or of Alembic, which makes its tables."""
    text = first_line(problem)
    short = shortage(uri, str(problem))
    fix = "check that this version of MLflow made it, or set tracking.uri"
    if short or "disk is full" in text:
        fix = "free space, or set tracking.uri; delete a new database that is incomplete"
    return Failure("T002", where, f"the database cannot be used: {text}{short}", fix)


def _unwritten(path: str, why: str, fix: str, *, full: bool = False) -> Failure:
    """Return the failure to write a temporary file or an artifact."""
    what = f"cannot be written: {why}"
    if full or any(f"[Errno {number}]" in why for number in FULL):
        what = f"{what}, {free(path)}"
    if any(part.startswith(OURS) for part in Path(path).parts):
        fix = "free space for temporary files, or set TMPDIR to a folder on another disk"
    return Failure("T005", path, what, fix)


def _answered(problem: Exception) -> tuple[str, str] | None:
    """Return ``what`` and ``fix`` for the answer of a server that refuses, or is not MLflow's.

    None for other errors.
    """
    text = str(problem)
    response = getattr(problem, "response", None)
    status = _status(response, text)
    body = (getattr(response, "text", None) or text).lower()
    is_page = "<html" in body or "<!doctype" in body

    if not status and "not in a valid JSON format" in text:
        answer = "something other than JSON"
        if is_page:
            answer = "an HTML page"
        fix = "correct tracking.uri: a proxy, a login page or another service is there"
        return f"answers with {answer}, not as MLflow's server", fix

    if not isinstance(status, int) or status < 400:
        return None

    what = f"the server answers with status {status}"
    if is_page:
        what = f"{what}, an HTML page"
    if status == 403 and "host header" in body:
        fix = (
            "start it with `mlflow server --allowed-hosts NAME:PORT`, naming the address that "
            "jobs use"
        )
        return f"{what}, Invalid Host header", fix
    return what, _fix_of_status(status)


def _status(response: object, text: str) -> object:
    """Return the status of a response, or the one that MLflow names in a text; 0 without any.

    MLflow names the status of the last answer, or of those that it gave up on.
    """
    if status := getattr(response, "status_code", None):
        return status

    named = re.search(r"failed with error code (\d{3})|too many (\d{3}) error responses", text)
    if named is None:
        return 0
    return int(named[1] or named[2])


def _fix_of_status(status: int) -> str:
    """Return what to do about a status from 400 on."""
    if status in FIXES:
        return FIXES[status]
    if status >= 500:
        return FIXES[500]
    return FIXES[404]


def _refused_by_s3(problem: Exception) -> tuple[str, str]:
    """Return ``what`` and ``fix`` for an error of the client of S3."""
    text = first_line(problem)
    credentials = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if "Credentials" in type(problem).__name__:
        return "there are no credentials", credentials

    refusals = r"InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|Forbidden|403|ExpiredToken"
    if re.search(refusals, text):
        fix = f"correct them: {credentials}; or let them write there"
        return f"the credentials are refused: {text}", fix
    return f"cannot be written: {text}", "check the bucket, AWS_REGION and MLFLOW_S3_ENDPOINT_URL"


def first_line(problem: BaseException) -> str:
    """Return the first line of an error, or the name of its type if it has no text.

    Of an error of SQLAlchemy it is the line of the database.
    """
    cause: BaseException = getattr(problem, "orig", None) or problem
    text = str(cause).strip()
    if not text:
        return type(cause).__name__
    return text.splitlines()[0]


def clear_frames(problem: BaseException) -> None:
    """Free the variables of all calls that ended with an exception.

    A signal in mid-statement leaves SQLAlchemy's cursor to the traceback's frames, and SQLite keeps
    the transaction of a closed connection, and with it the database's lock, until its last cursor
    is gone.
    """
    cause: BaseException | None = problem
    while cause:
        traceback.clear_frames(cause.__traceback__)  # frames that still run are left alone
        cause = cause.__context__
