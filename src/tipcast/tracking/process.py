"""Which process opened a run, as tags, and whether that process has certainly ended."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

HOST, PROCESS = "tipcast.host", "tipcast.process"
"""Tags of a run: the host name, and as JSON what else identifies the process that writes it."""
INITIAL = 0xEFFFFFFC
"""Linux' number of the PID namespace that is no container's (PROC_PID_INIT_INO)."""


def tags() -> dict[str, str]:
    """Return the tags that identify this process; without ``/proc`` an empty one, for a resumed run has old ones."""
    try:
        known = {"pid": os.getpid(), "start": _stat(os.getpid())[1], **_kernel()}
    except OSError:
        return {HOST: socket.gethostname(), PROCESS: ""}
    return {HOST: socket.gethostname(), PROCESS: json.dumps(known)}


def named(run_tags: Mapping[str, str]) -> str:
    """Return number and host of the process that a run's tags identify, in words."""
    known = json.loads(run_tags.get(PROCESS) or "{}")
    return f"process {known.get('pid', '?')} on {run_tags.get(HOST, '?')}"


def has_exited(run_tags: Mapping[str, str], *, one_machine: bool = False) -> bool:
    """Tell whether the process that wrote a run has certainly ended.

    Process numbers mean something only within one boot of one kernel and one PID namespace: of other machines and
    containers, even of the same host name, nothing is known. ``one_machine`` says that only this machine can have
    written the run, so that an earlier boot under this host name was its own.
    """
    try:
        known = json.loads(run_tags[PROCESS])
        pid, start, boot, namespace = int(known["pid"]), str(known["start"]), known["boot"], known["pid_namespace"]
        here = _kernel()
        if run_tags.get(HOST) != socket.gethostname() or namespace != here["pid_namespace"]:
            return False
        if boot != here["boot"]:
            return one_machine and namespace == INITIAL  # containers may have boot ids of their own
        return not _alive(pid, start)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):  # not our tags, or no /proc
        return False


def _alive(pid: int, start: str) -> bool:
    """Tell whether a process of this PID namespace lives; one that waits for its parent to reap it does not.

    ``start`` tells when it began, in clock ticks since the boot: its number may be another process's by now.
    """
    try:
        state, began = _stat(pid)
    except OSError:
        return _answers(pid)  # hidepid= hides other users' processes, or forbids to read of them
    return state not in {"Z", "X"} and start == began


def _stat(pid: int) -> tuple[str, str]:
    """Return a process's state and its start; unlike a time of day, clock ticks do not move when the clock is set."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return fields[0], fields[19]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _kernel() -> dict[str, object]:
    if str(Path("/proc/self").readlink()) != str(os.getpid()):
        raise OSError("/proc is of another PID namespace")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {"boot": boot, "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino}
