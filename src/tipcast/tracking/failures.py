"""What a tracking store raises, as errors of one line: MLflow's, its database's, a server's, and
those of artifacts.
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
from tipcast.tracking.addresses import sqlite_file

FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
"""What the system says where a folder may not be written."""
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
START = "start it, or set tracking.uri"
RIGHTS = "check rights and free space of the artifact store"


class Failure(NamedTuple):
    """Code, place, fact and fix of an error of one line."""

    code: str
    where: object
    what: str
    fix: str


@contextlib.contextmanager
def failures(uri: str) -> Iterator[None]:
    """Turn what MLflow, its database or its network raise into one line; other errors pass."""
    try:
        yield
    except Exception as problem:
        failure = _failure_of(problem, redact_address(uri), uri)
        if failure is None:
            raise
        raise TipcastError(*failure) from problem


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


def _failure_of(problem: Exception, where: str, uri: str) -> Failure | None:
    """Return what a store is to blame for; None for other errors."""
    import mlflow.exceptions
    import requests
    import sqlalchemy.exc

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
    # Alembic is what MLflow makes its tables with
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
    """Return what an MlflowException says of the server, the database or the disk."""
    text = first_line(problem)

    if "database is locked" in str(problem):
        what = "another process keeps the database locked"
        return Failure("T002", where, what, "wait for it to end, or raise tracking.wait_s")

    if "Max retries exceeded" in text or "API request" in text:
        return Failure("T001", where, "the tracking server does not answer", START)

    if any(f"[Errno {number}]" in str(problem) for number in FULL):
        # The file of a model, as MLflow quotes it.
        quoted = re.search(r"\[Errno \d+\].*'([^']+)'", str(problem))
        return _unwritten(quoted[1] if quoted else where, text, RIGHTS)

    if "database schema" in text:
        what = "another version of MLflow made this database"
        fix = (
            f"back it up and run `mlflow db upgrade {where}`; where a newer MLflow made "
            "it, install that one"
        )
        return Failure("T002", where, what, fix)

    what = f"the tracking store refuses: {text}{shortage(uri, str(problem))}"
    return Failure("T002", where, what, "see tracking in the configuration")


def _failed_to_write(problem: OSError, where: str, uri: str) -> Failure | None:
    """Return what the system says of a file that MLflow writes, or of a full disk, whoever writes;
    None for other errors.
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
            "set tracking.experiment to a new name, whose artifacts lie beside the database, "
            "or mend the rights"
        )
    path = problem.filename2 or problem.filename or where
    return _unwritten(path, problem.strerror or str(problem), fix, full=full)


def _unusable_database(problem: Exception, where: str, uri: str) -> Failure:
    """Return what a database, or what makes its tables, says."""
    text = first_line(problem)
    short = shortage(uri, str(problem))
    fix = "check that this MLflow made it, or set tracking.uri"
    if short or "disk is full" in text:
        fix = "make space, or set tracking.uri; a new database that is not whole must be deleted"
    return Failure("T002", where, f"the database cannot be used: {text}{short}", fix)


def _unwritten(path: str, why: str, fix: str, *, full: bool = False) -> Failure:
    """Return what is said of a file that cannot be written: of the temporary folder or of an
    artifact.
    """
    full = full or any(f"[Errno {number}]" in why for number in FULL)
    space = f", {free(path)}" if full else ""
    if any(part.startswith(OURS) for part in Path(path).parts):
        fix = "make space for temporary files, or set TMPDIR to a folder of another disk"
    return Failure("T005", path, f"cannot be written: {why}{space}", fix)


def _answered(problem: Exception) -> tuple[str, str] | None:
    """Return fact and fix of an answer of a server other than MLflow's; None for other errors.

    MLflow tells the status in words: of the last answer, or of those that it gave up on.
    """
    text = str(problem)
    response = getattr(problem, "response", None)
    status = _status(response, text)
    body = getattr(response, "text", None) or text
    page = "<html" in body.lower() or "<!doctype" in body.lower()

    if not status and "not in a valid JSON format" in text:
        answer = "a page of HTML" if page else "what is no JSON"
        fix = "correct tracking.uri: a proxy, a login page or another service is there"
        return f"answers with {answer}, not as MLflow's server", fix

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


def _status(response: object, text: str) -> object:
    """Return the status of a response, or the one that a text of MLflow's states; 0 where there is
    none.
    """
    if status := getattr(response, "status_code", None):
        return status
    stated = re.search(r"failed with error code (\d{3})|too many (\d{3}) error responses", text)
    return int(stated[1] or stated[2]) if stated else 0


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
        traceback.clear_frames(cause.__traceback__)  # frames that still run are left alone
        cause = cause.__context__
