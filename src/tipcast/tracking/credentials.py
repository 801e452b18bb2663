"""Credentials in addresses of servers: kept out of logs, and not sent to another machine without TLS."""

from __future__ import annotations

import functools
import ipaddress
import logging
from urllib.parse import urlsplit, urlunsplit

from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact_address

LOG = logging.getLogger("tipcast")


def check_address(uri: str, name: str) -> None:
    """Refuse (C003) the address of a store that no URI is; ``name`` is of the key or variable that has it."""
    try:
        parts = urlsplit(uri)
        if parts.scheme.lower() in {"http", "https"}:  # elsewhere a password may have a ":" or "/"
            _ = parts.port
    except ValueError:  # whose text may have the password
        fix = "use http://HOST:PORT, or sqlite:///FILE"
        raise TipcastError("C003", name, f"{redact_address(uri)} is not a URI", fix) from None


def check_user_info(uri: str) -> None:
    """Refuse a server's address that has a user name or password in it, T003."""
    parts = urlsplit(uri)
    if parts.scheme.lower() in {"http", "https"} and (parts.username or parts.password):
        fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        raise TipcastError("T003", redact_address(uri), "credentials do not belong into an address", fix)


def check_credentials(uri: str, *, insecure: bool) -> None:
    """Refuse (C009) to send a password or token to another machine without TLS, or without a check of its certificate.

    With ``insecure`` that is only warned of.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() not in {"http", "https"} or is_loopback(parts.hostname):
        return
    from mlflow.utils.credentials import get_default_host_creds  # imports take seconds
    from requests.utils import get_netrc_auth

    known, shown = get_default_host_creds(uri), redact_address(uri)
    tls = parts.scheme.lower() == "https"
    if tls and not known.ignore_tls_verification:
        return
    if not (parts.username or parts.password or known.token or known.password or known.auth or get_netrc_auth(uri)):
        return
    if not insecure:
        what = f"a password or token would go to another machine without {'a checked certificate' if tls else 'TLS'}"
        fix = "unset MLFLOW_TRACKING_INSECURE_TLS" if tls else "use an https:// address"
        raise TipcastError("C009", shown, what, f"{fix}, or set tracking.insecure=true on a trusted network")
    _warn(shown)


@functools.cache
def _warn(server: str) -> None:
    """Warn once in a process: a job opens its store more than once."""
    LOG.warning("%s is reached without TLS (tracking.insecure): whoever is on the way can read the password", server)


def check_artifacts(uri: str, store: str, *, insecure: bool) -> None:
    """Refuse the same for a run's artifacts: MLflow sends the tracking server's credentials there too; C009."""
    parts = urlsplit(uri)
    if parts.scheme == "mlflow-artifacts":  # reached as the store is, and there where no host is named
        parts = parts._replace(scheme=urlsplit(store).scheme, netloc=parts.netloc or urlsplit(store).netloc)
    check_credentials(urlunsplit(parts), insecure=insecure)


def is_loopback(host: str | None) -> bool:
    """Tell whether an address is one of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:  # a name
        return False
