"""`tipcast doctor`: say in one table what a job with this configuration would meet, and end as it would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tipcast.compute.findings import check_gpus, check_scheduler, check_workers
from tipcast.config.errors import Finding, State, TipcastError
from tipcast.config.plain import redact
from tipcast.config.schema import DoctorConfig, Output, SchedulerCluster
from tipcast.datasets.registry import open_dataset
from tipcast.jobs import say
from tipcast.measure.environment import check_rapids, check_versions, check_xgboost
from tipcast.measure.origin import LIBRARIES

SIDES = ("train", "test", "months")


def run(config: DoctorConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says, or raise the error of the first check that fails."""
    checks, text = chosen(config), config.print is Output.text
    line, width = "{:<{width}}  {:<7}  {}", max(map(len, ("check", *checks)))
    if text:
        print(line.format("check", "state", "found", width=width), flush=True)
    findings: list[Finding] = []
    listed: list[dict[str, str]] = []
    for name, check in checks.items():
        finding = examine(name, check)
        findings.append(finding)
        state, code = finding.state.value, finding.problem.code if finding.problem else ""
        listed.append({"check": name, "state": state, "found": finding.found, "fix": finding.fix, "code": code})
        if text:  # as soon as it is known: some take long
            shown = " ".join([*finding.found.split(), *([f"[{code}]"] if code else [])])
            print(line.format(name, state, shown, width=width), flush=True)
            if finding.fix:
                print(line.format("", "", f"fix: {finding.fix}", width=width), flush=True)
    counted = ", ".join(f"{sum(row['state'] == each.value for row in listed)} {each.value}" for each in State)
    if text:
        print(counted, flush=True)
    result = {"checks": listed, "counted": counted, "command": command}
    first = next((finding.problem for finding in findings if finding.problem), None)
    return say(result, Output.none if text else config.print, problem=first)


def chosen(config: DoctorConfig) -> dict[str, Callable[[], Finding]]:
    """Return name -> check, the quick ones first."""
    backend, cluster = config.backend, config.cluster
    if isinstance(cluster, SchedulerCluster):
        workers = partial(check_scheduler, backend, cluster, LIBRARIES)
    else:
        workers = partial(check_workers, backend, cluster)

    def check_data(side: str) -> Finding:  # lists it as a job does, but downloads nothing
        return Finding(open_dataset(config.data).describe(side))

    def check_store() -> Finding:
        from tipcast.tracking import run  # MLflow, while other checks go on

        return run.check_store(config.tracking)

    data = {f"data.{side}": partial(check_data, side) for side in SIDES if getattr(config.data, side) is not None}
    if not data:
        what, fix = "no period is named, so no rows were looked for", "add data.train=... and data.test=..."
        data = {"data": partial(Finding, what, fix)}
    return {
        "gpus": partial(check_gpus, backend, cluster),
        "packages": partial(check_versions, backend.name),
        "rapids": partial(check_rapids, backend.name == "gpu"),
        "xgboost": partial(check_xgboost, backend.name == "gpu"),
        "workers": workers,
        "tracking": check_store,
        **data,
    }


def examine(name: str, check: Callable[[], Finding]) -> Finding:
    """Run a check; whatever it raises becomes a finding."""
    try:
        return check()
    except TipcastError as error:
        problem = error
    except (Exception, SystemExit) as error:  # the table must be whole whatever a library does
        if isinstance(error, SystemExit) and type(error) is not SystemExit:  # a signal's
            raise
        what = redact(f"{type(error).__name__}: {error}".splitlines()[0])
        problem = TipcastError("C022", name, what, "repeat with debug=true to see where, and report it")
        problem.__cause__ = error
    return Finding(f"{problem.where}: {problem.what}", problem.fix, problem)
