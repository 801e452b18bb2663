"""`tipcast doctor`: show in one table which problems a job with this configuration would run into,
and end as the job would.
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
from tipcast.config.data_schema import DataSpec, MadeData
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact
from tipcast.config.schema import (
    BackendSpec,
    ClusterSpec,
    DoctorConfig,
    LocalCluster,
    Output,
    SchedulerCluster,
    TrackingSpec,
)
from tipcast.config.streams import show
from tipcast.datasets.base import describe
from tipcast.datasets.registry import open_dataset
from tipcast.jobs import end_job
from tipcast.measure import origin
from tipcast.tasks.make import make_task

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
    """What a check found that a job survives but should not rely on, and how to fix it."""

    found: str
    fix: str


Check = Callable[[], str | Doubt]
"""Returns in words what it found, or raises the error that a job would end with."""


def run(config: DoctorConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says, or raise the error of the first check that fails."""
    rows: list[dict[str, str]] = []
    problems: list[TipcastError] = []

    for name, check in checks_of(config).items():
        row, problem = run_check(name, check)
        rows.append(row)
        if problem is not None:
            problems.append(problem)
        if config.print is Output.text:
            show_row(row)  # at once: some checks take long

    form = config.print
    if form is Output.text:  # the rows are shown already
        form = Output.none
    return end_job({"checks": rows, "command": command}, form, problem=next(iter(problems), None))


def checks_of(config: DoctorConfig) -> dict[str, Check]:
    """Return name -> check, in the order in which they run."""
    checks: dict[str, Check] = {
        "gpus": show_gpus,
        "packages": partial(check_packages, config.backend),
        "workers": partial(check_workers, config.backend, config.cluster),
        "tracking": partial(check_tracking, config.tracking),
    }
    for side in named_sides(config.data):
        checks[f"data.{side}"] = partial(check_data, config.data, side)
    if asks_for_target(config):
        checks["task"] = partial(check_task, config)
    return checks


def run_check(name: str, check: Check) -> tuple[dict[str, str], TipcastError | None]:
    """Run a check; return its row of the table, and its error if it fails."""
    try:
        return {"check": name, **passed(check())}, None
    except TipcastError as error:
        problem = error
    except Exception as error:  # the table must be whole whatever a library does
        what = redact(f"{type(error).__name__}: {error}".splitlines()[0])
        fix = "repeat with debug=true for a traceback, and report it"
        problem = TipcastError("C022", name, what, fix)
        problem.__cause__ = error

    row = {
        "check": name,
        "state": "fail",
        "found": f"{problem.where}: {problem.what}",
        "fix": problem.fix,
        "code": problem.code,
    }
    return row, problem


def passed(answer: str | Doubt) -> dict[str, str]:
    """Return the row of a check that raised nothing, without the check's name."""
    if isinstance(answer, Doubt):
        return {"state": "warn", "found": answer.found, "fix": answer.fix, "code": ""}
    return {"state": "ok", "found": answer, "fix": "", "code": ""}


def show_row(row: Mapping[str, str]) -> None:
    """Print a row of the table, its fix on a line below."""
    line = f"{row['check']:<10}  {row['state']:<4}  {' '.join(row['found'].split())}"
    if row["code"]:
        line += f" [{row['code']}]"
    if row["fix"]:
        line += f"\n{'':<18}fix: {row['fix']}"
    show(line)


def show_gpus() -> str:
    """Say which GPUs this process may use, and their driver."""
    visible = gpus.visible()
    if not visible:
        return "no NVIDIA GPU is visible"

    kinds = Counter(f"{gpu.name} {format_bytes(gpu.memory_bytes)}" for gpu in visible)
    counted = ", ".join(f"{number} x {kind}" for kind, number in kinds.items())
    return f"{counted}, driver {visible[0].driver} (CUDA 13 needs 580 or later)"


def check_tracking(spec: TrackingSpec) -> str:
    """Say which store is used, and write to it."""
    # MLflow takes seconds to load, or may not load at all.
    from tipcast.tracking.lifecycle import check_store

    return check_store(spec)


def check_data(data: DataSpec, side: str) -> str:
    """Say what a side of the data has. It is listed as a job does, but nothing is downloaded."""
    return describe(open_dataset(data), side)


def named_sides(data: DataSpec) -> list[str]:
    """Return the sides of the data to look at: those that are named; of made rows, both."""
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
    """Say what would be predicted, and from how many features; C- and D-errors as in training."""
    task = make_task(config.task, open_dataset(config.data))
    kind = str(task.kind)
    if task.classes:
        kind += f" of {len(task.classes):,} classes"
    return f"{task.description}: {kind}, from {count(len(task.features), 'feature')}"


def check_packages(backend: BackendSpec) -> str | Doubt:
    """Say which versions are installed, with a doubt if no GPU result measures them together.

    An XGBoost that does not load raises an error of its own.
    """
    import xgboost

    packages = show_packages()
    major, minor = xgboost.__version__.split(".")[:2]
    if backend.name != "gpu" or (int(major), int(minor)) >= XGBOOST_FOR_CUDA_13:
        return packages

    booster = f"XGBoost {xgboost.__version__} on Python {platform.python_version()}"
    stack = f"{booster} has NCCL for CUDA 12, next to RAPIDS for CUDA 13"
    fix = "use Python 3.12 or 3.13, for which pip installs XGBoost 3.4"
    return Doubt(f"{stack}; no GPU result measures this stack. {packages}", fix)


def show_packages() -> str:
    """Say which versions are installed."""
    import xgboost

    build = "CPU"
    if xgboost.build_info().get("USE_CUDA"):
        build = "CUDA"
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions().items())
    return f"{versions}; a {build} build of XGBoost on {platform.platform()}"


def check_workers(backend: BackendSpec, cluster: ClusterSpec) -> str:
    """Say how many workers there would be.

    No worker is started, but those of a running scheduler are waited for, as a job would. Raises
    what ``session.check`` and, with a scheduler, ``session.open_session`` raise, and K005 if its
    workers have other versions.
    """
    session.check(backend, cluster)
    if isinstance(cluster, SchedulerCluster):
        return check_scheduler_workers(backend, cluster)
    return show_local_workers(cluster)


def check_scheduler_workers(backend: BackendSpec, cluster: SchedulerCluster) -> str:
    """Say which workers a running scheduler has; K005 if they have other versions."""
    with session.open_session(backend, cluster) as opened:
        unlike = differences(opened.client)
        if unlike:
            fix = "install the same requirements file on every machine of the cluster"
            raise TipcastError("K005", cluster.address, "; ".join(unlike), fix)
        workers = worker_info(opened.client).values()

    sizes = Counter(
        (count(worker["nthreads"], "thread"), format_bytes(worker["memory_limit"] or 0))
        for worker in workers
    )
    kinds = ", ".join(
        f"{number} of {threads} and {memory}" for (threads, memory), number in sizes.items()
    )
    workers_in_words = f"{count(len(workers), 'worker')} ({kinds}), wanted {cluster.n_workers}"
    return f"{cluster.address}: {workers_in_words}; same versions"


def show_local_workers(cluster: ClusterSpec) -> str:
    """Say which workers this machine would start."""
    if isinstance(cluster, LocalCluster):
        number, threads = clusters.shared_out(cluster)
    else:  # one for each GPU
        number = getattr(cluster, "n_workers", None) or len(gpus.visible())
        threads = 1

    memory = getattr(cluster, "memory_limit", None) or format_bytes(MEMORY_LIMIT // number)
    here = f"this machine has {count(clusters.cores(), 'core')} and {format_bytes(MEMORY_LIMIT)}"
    return f"{count(number, 'worker')} of {count(threads, 'thread')} and {memory}; {here}"


def differences(client: Client) -> list[str]:
    """Return in words which versions on the workers are unlike those here, or why a worker does not
    report them.
    """
    answers: dict[str, Any] = client.run(_versions, on_error="return")
    failed = [str(answer) for answer in answers.values() if not isinstance(answer, Mapping)]
    if failed:
        workers = f"{len(failed)} of {len(answers)} workers"
        return [f"{workers} have no tipcast, or another version: {failed[0]}"]

    unlike: list[str] = []
    for name, local_version in _versions().items():
        # A missing package is not counted here: the job itself names it.
        numbers = Counter(answer.get(name, local_version) for answer in answers.values())
        del numbers[local_version]
        if numbers:
            counted = ", ".join(f"{version} on {number}" for version, number in numbers.items())
            unlike.append(f"{name} {local_version} here, {counted} there")

    return unlike


def _versions() -> dict[str, str]:
    versions = {**origin.versions(), "python": platform.python_version().rpartition(".")[0]}
    return {name: version for name, version in versions.items() if name in MUST_EQUAL}
