"""`tipcast doctor`: say in one table what a job with this configuration would meet, and end as it would."""

from __future__ import annotations

import shutil
import textwrap
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tipcast.compute.findings import check_gpus, check_scheduler, check_workers
from tipcast.config.errors import Finding, State, TipcastError, failed, ok, warning
from tipcast.config.job_schemas import DoctorConfig
from tipcast.config.plain import redact
from tipcast.config.schema import DataSpec, Output, SchedulerCluster
from tipcast.datasets.registry import open_dataset
from tipcast.jobs import closing
from tipcast.measure.environment import check_rapids, check_versions, check_xgboost
from tipcast.measure.origin import LIBRARIES
from tipcast.tracking.store import check_store

PATIENCE_S = 60.0
"""How long a check may take, beside what the configuration grants its cluster and its store."""
SIDES = ("train", "test", "months")
NARROWEST, WIDEST, PIPED = 60, 120, 100
"""Columns of a table: the least, the most, and those where there is no terminal."""
STATE = max(len(state.value) for state in State)


def run(config: DoctorConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says, or raise the error of the first check that fails."""
    checks = chosen(config)
    limit_s = PATIENCE_S + max(config.cluster.wait_s + config.cluster.connect_timeout_s, config.tracking.wait_s)
    text, width = config.print is Output.text, max(map(len, ("check", *checks)))
    columns = min(max(shutil.get_terminal_size((PIPED, 24)).columns, NARROWEST), WIDEST)
    if text:
        print(f"{'check':<{width}}  {'state':<{STATE}}  found", flush=True)
    findings = {}
    for name, check in checks.items():
        findings[name] = examine(name, check, limit_s)
        if text:
            print(row(f"{name:<{width}}", findings[name], columns), flush=True)
    states = [finding.state for finding in findings.values()]
    counted = ", ".join(f"{states.count(state)} {state.value}" for state in State)
    listed = [
        {
            "check": name,
            "state": finding.state.value,
            "found": finding.found,
            "fix": finding.fix,
            "code": finding.problem.code if finding.problem else "",
        }
        for name, finding in findings.items()
    ]
    result = {"checks": listed, "counted": counted, "command": command}
    if text:
        print(counted, flush=True)
    first = next((finding.problem for finding in findings.values() if finding.problem), None)
    return closing.say(result, Output.none if text else config.print, problem=first)


def chosen(config: DoctorConfig) -> dict[str, Callable[[], Finding]]:
    """Return name -> check, the quick ones first."""
    backend, cluster = config.backend, config.cluster
    periods = [name for name in SIDES if getattr(config.data, name) is not None]
    if isinstance(cluster, SchedulerCluster):
        workers = partial(check_scheduler, backend, cluster, LIBRARIES)
    else:
        workers = partial(check_workers, backend, cluster)
    data = {f"data.{name}": partial(_check_data, config.data, name) for name in periods}
    if not data:
        what, fix = "no period is named, so no rows were looked for", "add data.train=... and data.test=..."
        data = {"data": partial(warning, what, fix)}
    return {
        "gpus": partial(check_gpus, backend, cluster),
        "packages": partial(check_versions, backend.name),
        "rapids": partial(check_rapids, backend.name == "gpu"),
        "xgboost": partial(check_xgboost, backend.name == "gpu"),
        "workers": workers,
        "tracking": partial(check_store, config.tracking),
        **data,
    }


def _check_data(data: DataSpec, which: str) -> Finding:
    """List one side of the data as a job does, but download nothing."""
    return ok(open_dataset(data).describe(which))


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


def row(name: str, finding: Finding, columns: int) -> str:
    """Return the lines of one check, whose name is as wide as the first column.

    They are broken between words only: an address stays in one piece to be copied.
    """
    state = f"{finding.state.value:<{STATE}}"
    before = len(name) + STATE + 4
    fold = partial(textwrap.wrap, width=columns - before, break_long_words=False, break_on_hyphens=False)
    first, *others = fold(finding.found + (f" [{finding.problem.code}]" if finding.problem else "")) or [""]
    if finding.fix:
        others += fold(f"fix: {finding.fix}", subsequent_indent="     ")
    return "\n".join([f"{name}  {state}  {first}", *(" " * before + line for line in others)])
