"""Addresses of stores and artifacts, and those that are refused before anything is sent there."""

import ipaddress
import logging
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact_address

LOG = logging.getLogger("tipcast")
DATABRICKS = ("databricks", "databricks-uc")
"""Addresses that are a mere word."""
ARTIFACTS = "mlruns"
"""Folder for artifacts that MLflow makes beside a store that is a file."""


def check_address(uri: str, name: str, *, insecure: bool) -> None:
    """Refuse the address of a store, which the key or variable ``name`` has.

    Raises C003 for an address that is not a URI and T003 for credentials in it. Raises C009 if a
    password or token would go to another machine without TLS, unless ``insecure`` allows that.
    """
    where = redact_address(uri)
    parts = _parsed(uri, name)

    if not parts.scheme and "/" not in uri and uri not in DATABRICKS and not Path(uri).is_dir():
        raise TipcastError(
            "C003", name, f"{where} is not an address", "use http://HOST:PORT, or sqlite:///FILE"
        )

    is_served = parts.scheme.lower() in {"http", "https"}
    if is_served and (parts.username or parts.password):
        fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        raise TipcastError("T003", where, "do not put credentials in the URI", fix)

    in_clear = parts.scheme.lower() == "http" and not is_loopback(parts.hostname)
    if in_clear and not insecure and _has_credentials(uri):
        what = "a password or token would go to another machine without TLS"
        fix = "use an https:// address, or set tracking.insecure=true on a trusted network"
        raise TipcastError("C009", where, what, fix)


def _parsed(uri: str, name: str) -> SplitResult:
    """Return the parts of an address; C003 if it is not a URI."""
    try:
        parts = urlsplit(uri)
        # In other addresses a password may have a ":" or "/".
        if parts.scheme.lower() in {"http", "https"}:
            _ = parts.port
    except ValueError:  # its text may contain the password
        what = f"{redact_address(uri)} is not a URI"
        fix = "use http://HOST:PORT, or sqlite:///FILE"
        raise TipcastError("C003", name, what, fix) from None

    return parts


def _has_credentials(uri: str) -> bool:
    """Tell whether MLflow would send a password or token to a server."""
    from mlflow.utils.credentials import get_default_host_creds  # the import takes seconds
    from requests.utils import get_netrc_auth

    credentials = get_default_host_creds(uri)
    # requests reads .netrc by itself.
    return bool(
        credentials.token or credentials.password or credentials.auth or get_netrc_auth(uri)
    )


def check_artifacts(uri: str, store_uri: str, *, insecure: bool) -> None:
    """Refuse the address of a run's artifacts as ``check_address`` does.

    MLflow sends the credentials of the tracking server there too.
    """
    parts = urlsplit(uri)
    # MLflow reaches them by the store's scheme, and on the store's host if they name none.
    if parts.scheme == "mlflow-artifacts":
        store = urlsplit(store_uri)
        parts = parts._replace(scheme=store.scheme, netloc=parts.netloc or store.netloc)
    check_address(urlunsplit(parts), "artifacts", insecure=insecure)


def check_not_moved(uri: str, store_uri: str, code: str = "T005") -> None:
    """Refuse artifacts in a folder that was moved together with its sqlite file; T005, or ``code``.

    MLflow keeps absolute paths, and would make the folder again. If the root of the artifacts is
    gone, and the folder above it too, they were moved. A copied sqlite file, with artifacts beside
    it, goes on writing to those of the original: that is logged.
    """
    database = sqlite_file(store_uri)
    parts = urlsplit(uri)
    if database is None or parts.scheme not in {"", "file"}:
        return

    folder = Path(unquote(parts.path))
    root = next((above for above in folder.parents if above.name == ARTIFACTS), None)
    if root is None or root.parent.resolve() == database.parent.resolve():
        return

    if not root.parent.exists():
        what = "its folder was moved, and its artifacts still point to the old path"
        fix = f"`ln -s {database.parent} {root.parent}`, or move it back"
        raise TipcastError(code, database.name, what, fix)  # the line has room for two long paths

    copy = database.parent / ARTIFACTS
    if copy.is_dir() and copy.resolve() != root.resolve():
        LOG.warning("artifacts are in %s, where the store points, not in %s next to it", root, copy)


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
    if name in {"", ":memory:"}:
        return None
    return Path(name).absolute()
