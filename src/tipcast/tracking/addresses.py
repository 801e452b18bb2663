"""Addresses of stores and artifacts: which are refused before anything is sent there."""

import ipaddress
import logging
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact_address

LOG = logging.getLogger("tipcast")
DATABRICKS = ("databricks", "databricks-uc")
"""Addresses that are a word."""
ARTIFACTS = "mlruns"
"""Folder for artifacts that MLflow makes beside a store that is a file."""


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
    except ValueError:  # its text may contain the password
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

    from mlflow.utils.credentials import get_default_host_creds  # the import takes seconds
    from requests.utils import get_netrc_auth

    sent = get_default_host_creds(uri)
    # requests reads .netrc by itself.
    if sent.token or sent.password or sent.auth or get_netrc_auth(uri):
        what = "a password or token would go to another machine without TLS"
        fix = "use an https:// address, or set tracking.insecure=true on a trusted network"
        raise TipcastError("C009", where, what, fix)


def check_artifacts(uri: str, store_uri: str, *, insecure: bool) -> None:
    """Refuse the same of a run's artifacts: MLflow sends the tracking server's credentials there
    too.
    """
    parts = urlsplit(uri)
    # MLflow reaches them by the store's scheme, and on the store's host where none is named.
    if parts.scheme == "mlflow-artifacts":
        parts = parts._replace(
            scheme=urlsplit(store_uri).scheme, netloc=parts.netloc or urlsplit(store_uri).netloc
        )
    check_address(urlunsplit(parts), "artifacts", insecure=insecure)


def check_not_moved(uri: str, store_uri: str, code: str = "T005") -> None:
    """Refuse artifacts that an sqlite file places in a folder that was moved, which would be made
    again; T005.

    MLflow keeps absolute paths. Where neither the artifacts' root nor the folder that had it is
    there, it has another name by now. A copy, whose artifacts lie beside it too, goes on where it
    was copied from: that is logged.
    """
    database = sqlite_file(store_uri)
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
    except ValueError:  # a host's name
        return False


def sqlite_file(uri: str) -> Path | None:
    """Return the absolute path of an sqlite store's file; None for other stores."""
    if not uri.startswith("sqlite:///"):
        return None
    name = unquote(uri.removeprefix("sqlite:///").partition("?")[0])  # `mlflow run` encodes blanks
    return Path(name).absolute() if name and name != ":memory:" else None
