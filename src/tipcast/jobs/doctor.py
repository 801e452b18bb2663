"""`tipcast doctor`: say in one table what a job with this configuration would meet, and end as it would."""

from __future__ import annotations

import platform
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tipcast.backends.findings import check_gpus, check_scheduler, check_workers, uses_cuda
from tipcast.config.errors import Finding, TipcastError, failed, ok, warning
from tipcast.config.plain import redact
from tipcast.config.schema import DataSpec, DoctorConfig, Output, SchedulerCluster
from tipcast.data.registry import open_dataset
from tipcast.jobs import closing
from tipcast.jobs.doctor_table import counted, plain, table
from tipcast.measure.environment import (
    check_folder,
    check_memory,
    check_python,
    check_rapids,
    check_versions,
    check_xgboost,
)
from tipcast.measure.origin import LIBRARIES
from tipcast.tracking.probe import check_store

PATIENCE_S = 60.0
"""How long a check may take, beside what the configuration grants its cluster and its store."""
SIDES = ("train", "test", "months")


def run(config: DoctorConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says.

    Raises
    ------
    TipcastError
        That of the first check that fails.

    """
    checks = chosen(config)
    limit_s = PATIENCE_S + max(config.cluster.wait_s + config.cluster.connect_timeout_s, config.tracking.wait_s)
    rows, text = table(checks), config.print is Output.text
    if text:
        print(rows.heading, flush=True)
    findings = {}
    for name, check in checks.items():
        findings[name] = examine(name, check, limit_s)
        if text:
            print(rows.row(name, findings[name]), flush=True)
    result = {"checks": plain(findings), "counted": counted(findings), "command": command}
    if text:
        print(counted(findings), flush=True)
    else:
        closing.say(result, config.print)
    for finding in findings.values():
        if finding.problem:
            raise finding.problem
    return result


def chosen(config: DoctorConfig) -> dict[str, Callable[[], Finding]]:
    """Return name -> check, the quick ones first."""
    backend, cluster = config.backend, config.cluster
    periods = [name for name in SIDES if getattr(config.data, name) is not None]
    if isinstance(cluster, SchedulerCluster):
        workers = partial(check_scheduler, backend, cluster, LIBRARIES)
    else:
        workers = partial(check_workers, backend, cluster)
    data = {f"data.{name}": partial(_check_data, config.data, name) for name in periods}
    return {
        "python": partial(check_python, backend.name, platform.python_version(), platform.platform()),
        "gpus": partial(check_gpus, backend, cluster),
        "packages": partial(check_versions, backend.name),
        "rapids": partial(check_rapids, uses_cuda(backend)),
        "xgboost": partial(check_xgboost, uses_cuda(backend)),
        "memory": check_memory,
        "working folder": partial(check_folder, Path.cwd()),
        "temp folder": partial(check_folder, Path(tempfile.gettempdir())),
        "workers": workers,
        "tracking": partial(check_store, config.tracking),
        **(data or {"data": _no_period}),
    }


def _check_data(data: DataSpec, which: str) -> Finding:
    """List one side of the data as a job does, but download nothing."""
    return ok(open_dataset(data).describe(which))


def _no_period() -> Finding:
    return warning("no period is named, so no rows were looked for", "add data.train=... and data.test=...")


def examine(name: str, check: Callable[[], Finding], limit_s: float) -> Finding:
    """Run a check; whatever it raises, and that it does not end in time, is a finding too."""
    ended: list[Finding] = []

    def work() -> None:
        try:
            ended.append(check())
        except TipcastError as problem:
            ended.append(failed(problem))
        except BaseException as problem:  # the table must be whole whatever a library does
            what = redact(f"{type(problem).__name__}: {problem}".splitlines()[0])
            unknown = TipcastError("C022", name, what, "repeat with debug=true to see where, and report it")
            unknown.__cause__ = problem
            ended.append(failed(unknown))

    thread = threading.Thread(target=work, daemon=True, name=f"doctor {name}")
    thread.start()
    thread.join(limit_s)
    if ended:
        return ended[0]
    what = f"has not ended after {limit_s:g} s"
    return failed(TipcastError("C022", name, what, "look at the disk, store, server or worker that it waits for"))
