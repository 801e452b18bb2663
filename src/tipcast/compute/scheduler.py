"""Connecting to a running Dask scheduler, with or without TLS."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distributed import Client
from distributed.comm.core import CommClosedError, connect
from distributed.security import Security
from distributed.utils import LoopRunner, wait_for

from tipcast.compute import workers
from tipcast.config import schema
from tipcast.config.errors import TipcastError

LOG = logging.getLogger("tipcast")
HANDSHAKE_S = 2.0
"""Seconds for a connection's handshake, on top of the connect timeout."""
TLS_FILES = {"tls_ca_file": "tls_ca_file", "tls_cert": "tls_client_cert", "tls_key": "tls_client_key"}
"""Key of the configuration -> what Dask's ``Security`` calls it."""
TLS_FIX = "set cluster.tls_ca_file, tls_cert and tls_key to PEM files (or Dask's distributed.comm.tls.*)"


def check(spec: schema.SchedulerCluster) -> None:
    """Refuse, without connecting, an address without TLS (C009), without certificates (C004) or with bad ones."""
    if _is_open(spec) and not spec.insecure:
        what = "a scheduler runs any client's code and this one is reached without TLS"
        fix = "use a tls:// address with cluster.tls_* or set cluster.insecure=true on a trusted network"
        raise TipcastError("C009", spec.address, what, fix)
    _connection(spec)


def _is_open(spec: schema.SchedulerCluster) -> bool:
    host = urlsplit(spec.address if "://" in spec.address else f"tcp://{spec.address}").hostname
    return not spec.address.startswith("tls://") and host not in {"127.0.0.1", "localhost", "::1"}


def _connection(spec: schema.SchedulerCluster) -> tuple[Security | None, dict[str, Any]]:
    """Return the certificates, where the address needs them, and Dask's arguments for connecting."""
    if not spec.address.startswith("tls://"):
        return None, {}
    given = {name: getattr(spec, key) for key, name in TLS_FILES.items() if getattr(spec, key) is not None}
    security = Security(require_encryption=True, **given)  # the rest comes from Dask's own configuration
    for key, name in TLS_FILES.items():
        file = getattr(security, name)
        if file is None and key != "tls_key":  # a key may be in the certificate's file
            raise TipcastError("C004", f"cluster.{key}", f"needs a value for {spec.address}", TLS_FIX)
        try:
            if file is not None and "\n" not in file:
                Path(file).open("rb").close()
        except OSError as problem:
            raise TipcastError("C003", f"cluster.{key}", f"{file}: {problem.strerror}", TLS_FIX) from problem
    try:
        return security, security.get_connection_args("client")
    except ssl.SSLError as problem:
        what = f"not a certificate, its key and the CA's certificate: {problem}"
        raise TipcastError("C003", "cluster.tls_*", what, TLS_FIX) from problem


@contextlib.contextmanager
def opened(spec: schema.SchedulerCluster) -> Iterator[Client]:
    """Connect and wait for the workers; K001 where no scheduler answers in time."""
    if _is_open(spec):
        LOG.warning("%s is reached without TLS (cluster.insecure): whoever reaches it can run code there", spec.address)
    security, arguments = _connection(spec)
    try:
        # Dask's connect() has a timeout for the connection but none for the handshake.
        LoopRunner().run_sync(wait_for, _answer(spec, arguments), spec.connect_timeout_s + HANDSHAKE_S)
        client = Client(spec.address, timeout=spec.connect_timeout_s, security=security)
    except (OSError, TimeoutError, ValueError) as problem:
        fix = "start one with `dask scheduler`, or set cluster.address"
        what = "no Dask scheduler answers here"
        if isinstance(problem, TimeoutError):
            what = f"it accepts connections but does not answer within {spec.connect_timeout_s:g} s"
            fix = "look whether it is a Dask scheduler and not stuck, or raise cluster.connect_timeout_s"
        elif isinstance(problem, CommClosedError):
            what = f"it closes the connection: {problem}"
        raise TipcastError("K001", spec.address, what, fix) from problem
    with client:
        fix = "start workers with `dask worker ADDRESS`, or lower cluster.n_workers"
        workers.wait(client, spec.n_workers, spec.wait_s, fix)
        yield client


async def _answer(spec: schema.SchedulerCluster, arguments: dict[str, Any]) -> None:
    (await connect(spec.address, timeout=spec.connect_timeout_s, **arguments)).abort()
