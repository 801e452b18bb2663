"""`tipcast doctor`: say in one table what a job with this configuration would meet, and end as it
would.
"""

import platform
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dask.utils import format_bytes
from distributed import Client
from distributed.system import MEMORY_LIMIT

from tipcast.compute import cluster as clusters
from tipcast.compute import gpus, session
from tipcast.compute.base import count
from tipcast.compute.cluster import worker_info
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact
from tipcast.config.schema import (
    BackendSpec,
    ClusterSpec,
    DataSpec,
    DoctorConfig,
    LocalCluster,
    MadeData,
    Output,
    SchedulerCluster,
)
from tipcast.config.streams import show
from tipcast.datasets.base import describe
from tipcast.datasets.registry import open_dataset
from tipcast.jobs import end_job
from tipcast.measure import origin
from tipcast.tasks.base import make_task

MUST_EQUAL = (
    "tipcast",
    "python",
    "dask",
    "distributed",
    "xgboost",
    "xgboost-cpu",
    "cudf-cu13",
    "cuml-cu13",
)
"""Packages whose versions must be the same on a scheduler's workers."""
XGBOOST_FOR_CUDA_13 = (3, 3)
"""Major and minor version of the first XGBoost with NCCL for CUDA 13, as RAPIDS has it; it needs
Python 3.12.
"""


@dataclass(frozen=True)
class Doubt:
    """What a check found that a job survives but should not rely on, and how to mend it."""

    found: str
    fix: str


def run(config: DoctorConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says, or raise the error of the first check that fails."""
    checks: dict[str, Callable[[], str | Doubt]] = {
        "gpus": show_gpus,
        "packages": lambda: check_packages(config.backend),
        "workers": lambda: check_workers(config.backend, config.cluster),
    }

    def check_tracking() -> str:
        # MLflow takes seconds to load, or may not load at all
        from tipcast.tracking.lifecycle import check_store

        return check_store(config.tracking)

    def check_data(side: str) -> str:  # lists the side as a job does, but downloads nothing
        return describe(open_dataset(config.data), side)

    checks |= {"tracking": check_tracking} | {
        f"data.{side}": partial(check_data, side) for side in named_sides(config.data)
    }
    if asks_for_target(config):
        checks["task"] = partial(check_task, config)
    problems: list[TipcastError] = []
    rows: list[dict[str, str]] = []
    for name, check in checks.items():
        try:
            row = {"check": name, **passed(check())}
        except Exception as error:  # the table must be whole whatever a library does
            problem = error
            if not isinstance(problem, TipcastError):
                what = redact(f"{type(error).__name__}: {error}".splitlines()[0])
                problem = TipcastError(
                    "C022", name, what, "repeat with debug=true to see where, and report it"
                )
                problem.__cause__ = error
            problems.append(problem)
            found = f"{problem.where}: {problem.what}"
            row = {
                "check": name,
                "state": "fail",
                "found": found,
                "fix": problem.fix,
                "code": problem.code,
            }
        rows.append(row)
        if config.print is Output.text:  # at once: some checks take long
            code = f" [{row['code']}]" if row["code"] else ""
            fix = f"\n{'':<18}fix: {row['fix']}" if row["fix"] else ""
            show(f"{name:<10}  {row['state']:<4}  {' '.join(row['found'].split())}{code}{fix}")
    form = Output.none if config.print is Output.text else config.print
    return end_job({"checks": rows, "command": command}, form, problem=next(iter(problems), None))


def passed(answer: str | Doubt) -> dict[str, str]:
    """Return the row of a check that raised nothing, without the check's name."""
    if isinstance(answer, Doubt):
        return {"state": "warn", "found": answer.found, "fix": answer.fix, "code": ""}
    return {"state": "ok", "found": answer, "fix": "", "code": ""}


def show_gpus() -> str:
    """Say which GPUs this process may use, and their driver."""
    visible = gpus.visible()
    kinds = Counter(f"{gpu.name} {format_bytes(gpu.memory_bytes)}" for gpu in visible)
    driver = f", driver {visible[0].driver} (CUDA 13 asks for 580 or later)" if visible else ""
    return (
        ", ".join(f"{number} x {kind}" for kind, number in kinds.items()) + driver
        or "no NVIDIA GPU is visible"
    )


def named_sides(data: DataSpec) -> list[str]:
    """Return the sides of the data to look at: those that are named, of made rows both."""
    if isinstance(data, MadeData):
        return ["train", "test"]
    return [side for side in ("train", "test", "months") if getattr(data, side) is not None]


def asks_for_target(config: DoctorConfig) -> bool:
    """Whether there is a task to look at: data=table brings one that waits for its column."""
    task = config.task
    is_chosen = task.name not in ("", "target") or isinstance(config.data, MadeData)
    is_given = is_chosen or task.target is not None or task.kind is not None
    return is_given and bool(named_sides(config.data))


def check_task(config: DoctorConfig) -> str:
    """Say what would be predicted, and from how many features; C- and D-errors as of a training."""
    task = make_task(config.task, open_dataset(config.data))
    classes = f" of {len(task.classes):,} classes" if task.classes else ""
    features = count(len(task.features), "feature")
    return f"{task.description}: {task.kind}{classes}, from {features}"


def check_packages(backend: BackendSpec) -> str | Doubt:
    """Say which versions are installed, with a doubt where no GPU result measures them together.

    An XGBoost that does not load raises an error of its own.
    """
    import xgboost

    shown = show_packages()
    major, minor = xgboost.__version__.split(".")[:2]
    if backend.name != "gpu" or (int(major), int(minor)) >= XGBOOST_FOR_CUDA_13:
        return shown
    python = platform.python_version()
    stack = (
        f"XGBoost {xgboost.__version__} on Python {python} has NCCL for CUDA 12, beside "
        "RAPIDS for CUDA 13"
    )
    fix = "use Python 3.12 or 3.13, for which pip installs XGBoost 3.4"
    return Doubt(f"{stack}; no GPU result measures this stack. {shown}", fix)


def show_packages() -> str:
    """Say which versions are installed."""
    import xgboost

    build = "CUDA" if xgboost.build_info().get("USE_CUDA") else "CPU"
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions().items())
    return f"{versions}; a {build} build of XGBoost on {platform.platform()}"


def check_workers(backend: BackendSpec, cluster: ClusterSpec) -> str:
    """Say how many workers there would be; start none, but wait for those of a scheduler that runs,
    as a job would.

    What ``session.check`` and, with a scheduler, ``session.session`` refuse, K005 other versions on
    its workers.
    """
    session.check(backend, cluster)
    if isinstance(cluster, SchedulerCluster):
        with session.session(backend, cluster) as opened:
            if apart := differences(opened.client):
                fix = "install the same requirements file on every machine of the cluster"
                raise TipcastError("K005", cluster.address, "; ".join(apart), fix)
            there = worker_info(opened.client).values()

        sizes = Counter(
            (count(one["nthreads"], "thread"), format_bytes(one["memory_limit"] or 0))
            for one in there
        )
        kinds = ", ".join(
            f"{number} of {threads} and {memory}" for (threads, memory), number in sizes.items()
        )
        wanted = f"wanted {cluster.n_workers}; same versions"
        return f"{cluster.address}: {count(len(there), 'worker')} ({kinds}), {wanted}"

    gpu_workers = getattr(cluster, "n_workers", None) or len(gpus.visible())
    number, threads = (
        clusters.shared_out(cluster) if isinstance(cluster, LocalCluster) else (gpu_workers, 1)
    )
    memory = getattr(cluster, "memory_limit", None) or format_bytes(MEMORY_LIMIT // number)
    here = f"this machine has {count(clusters.cores(), 'core')} and {format_bytes(MEMORY_LIMIT)}"

    return f"{count(number, 'worker')} of {count(threads, 'thread')} and {memory}; {here}"


def differences(client: Client) -> list[str]:
    """Return in words which versions on the workers are not ours, or why a worker does not tell
    them.
    """
    answers: dict[str, Any] = client.run(_versions, on_error="return")
    if silent := [str(answer) for answer in answers.values() if not isinstance(answer, Mapping)]:
        return [
            f"{len(silent)} of {len(answers)} workers lack tipcast, or have another "
            f"version: {silent[0]}"
        ]

    apart: list[str] = []
    for name, mine in _versions().items():
        # A missing package is not counted here: the job itself names it.
        others = Counter(answer.get(name, mine) for answer in answers.values())
        if unlike := [
            f"{version} on {number}" for version, number in others.items() if version != mine
        ]:
            apart.append(f"{name} {mine} here, {', '.join(unlike)} there")

    return apart


def _versions() -> dict[str, str]:
    versions = {**origin.versions(), "python": platform.python_version().rpartition(".")[0]}
    return {name: version for name, version in versions.items() if name in MUST_EQUAL}
