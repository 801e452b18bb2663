"""A Dask scheduler that runs already, here or on another machine: TLS, and whether it answers."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from distributed import Client
from distributed.comm.core import connect as connect_comm
from distributed.security import Security
from distributed.utils import LoopRunner, wait_for

from tipcast.config import schema
from tipcast.config.errors import TipcastError, failed_to, needs_value

LOG = logging.getLogger("tipcast")

HANDSHAKE_S = 2.0
"""Seconds for a connection's handshake, on top of the connect timeout."""
CLOSE_S = 10.0
"""Seconds that a client may take to close."""
TLS_FIX = (
    "set PEM files in Dask's configuration: ca-file, client.cert and client.key under "
    "distributed.comm.tls"
)


def check_scheduler(spec: schema.SchedulerCluster) -> None:
    """Refuse an address that must not be connected to, without connecting.

    Raises C009 for an address off this machine without TLS, unless ``spec.insecure`` allows it. For
    an address with TLS, raises C003 for bad certificates and C004 for missing ones.
    """
    if _is_open(spec) and not spec.insecure:
        what = "a scheduler runs any client's code, and connections to this one do not use TLS"
        fix = "use a tls:// address, or set cluster.insecure=true on a trusted network"
        raise TipcastError("C009", spec.address, what, fix)
    _certificates(spec)


@contextlib.contextmanager
def open_scheduler(spec: schema.SchedulerCluster) -> Iterator[Client]:
    """Connect to the scheduler for the block; K001 if none answers in time."""
    if _is_open(spec):
        LOG.warning(
            "%s is reached without TLS (cluster.insecure): anyone who can connect to it can run "
            "code there",
            spec.address,
        )

    with _connect(spec, _certificates(spec)) as client:
        try:
            yield client
        finally:
            _close(client)


def _close(client: Client) -> None:
    """Close a client, also if the scheduler does not take what is left to be sent."""
    try:
        client.close(timeout=CLOSE_S)
    except TimeoutError:
        abandon(client)


def _connect(spec: schema.SchedulerCluster, security: Security | None) -> Client:
    """Return a client of the scheduler; K001 if none answers in time."""

    async def answer() -> None:
        arguments: dict[str, Any] = {}
        if security:
            arguments = security.get_connection_args("client")
        comm = await connect_comm(spec.address, timeout=spec.connect_timeout_s, **arguments)
        comm.abort()

    try:
        # Dask's Client has a timeout for the connection but none for the handshake.
        LoopRunner().run_sync(wait_for, answer(), spec.connect_timeout_s + HANDSHAKE_S)
        return Client(spec.address, timeout=spec.connect_timeout_s, security=security)
    except (OSError, TimeoutError, ValueError) as problem:
        why = (
            str(problem).replace(f" to {spec.address}", "")
            or f"it accepts connections but does not answer within {spec.connect_timeout_s:g} s"
        )
        fix = (
            "start one with `dask scheduler`, set cluster.address, or raise "
            "cluster.connect_timeout_s"
        )
        raise TipcastError("K001", spec.address, f"no Dask scheduler here: {why}", fix) from problem


def abandon(client: Client) -> None:
    """Close a client without its scheduler: all that waits for it ends with an error.

    ``Client.close`` would first send what the scheduler does not take, and would stop the loop in
    which others still wait.
    """

    async def close() -> None:
        client.status = "closing"  # otherwise Dask would connect again
        # First of all, so that nothing waits for ever if closing fails or takes too long.
        for state in list(client.futures.values()):
            state.cancel()
        for comms in list(client.rpc.occupied.values()):
            for comm in list(comms):
                comm.abort()
        if client.scheduler_comm:
            client.scheduler_comm.abort()
        await client._close(fast=True)

    with contextlib.suppress(Exception):  # it is of no use any more
        client.sync(close, callback_timeout=CLOSE_S)


def _is_open(spec: schema.SchedulerCluster) -> bool:
    """Tell whether others could read or change what is sent to the scheduler."""
    if spec.address.startswith("tls://"):
        return False

    address = spec.address
    if "://" not in address:
        address = f"tcp://{address}"
    return urlsplit(address).hostname not in {"127.0.0.1", "localhost", "::1"}


def _certificates(spec: schema.SchedulerCluster) -> Security | None:
    """Return the certificates of Dask's configuration; None if the address needs none.

    Raises C003 for bad certificates, C004 for missing ones.
    """
    if not spec.address.startswith("tls://"):
        return None
    security = Security(require_encryption=True)
    try:
        context = security.get_connection_args("client")["ssl_context"]
    except OSError as problem:  # a certificate is missing or cannot be read
        raise failed_to("read", "distributed.comm.tls", problem, TLS_FIX, "C003") from problem
    if context is None:
        raise needs_value("distributed.comm.tls", TLS_FIX)
    return security
