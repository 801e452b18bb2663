"""`tipcast doctor`: say in one table what a job with this configuration would meet, and end as it would."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import dask.utils
from distributed import Client
from distributed.system import MEMORY_LIMIT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tipcast import __version__
from tipcast.compute import cluster as clusters
from tipcast.compute import gpus, session
from tipcast.compute.base import count
from tipcast.compute.workers import known
from tipcast.config.conf_files import conf_dir
from tipcast.config.errors import Finding, State, TipcastError, failed_to
from tipcast.config.plain import redact
from tipcast.config.schema import BackendSpec, ClusterSpec, DoctorConfig, LocalCluster, Output, SchedulerCluster
from tipcast.datasets.registry import open_dataset
from tipcast.jobs import say
from tipcast.measure.origin import LIBRARIES

SIDES = ("train", "test", "months")
TOOLS = {"uv": "mlflow run --env-manager uv"}
"""Packages that no job imports -> the only command that needs them."""
CUDA_SUFFIX = re.compile(r"-cu\d+$")
LEAST_DRIVER = 580
"""Least driver for CUDA 13, which the gpu extra's RAPIDS packages are built for."""
GIB = 1 << 30
MUST_EQUAL = ("tipcast", "python", "dask", "distributed", "cloudpickle", "xgboost", "cudf", "cuml")
"""Packages whose versions must agree."""
SAME = "install the same requirements file on every machine of the cluster"


def run(config: DoctorConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says, or raise the error of the first check that fails."""
    checks, text = chosen(config), config.print is Output.text
    line, width = "{:<{width}}  {:<7}  {}", max(map(len, ("check", *checks)))
    if text:
        print(line.format("check", "state", "found", width=width), flush=True)
    problems: list[TipcastError] = []
    rows: list[dict[str, str]] = []
    for name, check in checks.items():
        finding = examine(name, check)
        state, code = finding.state.value, finding.problem.code if finding.problem else ""
        rows.append({"check": name, "state": state, "found": finding.found, "fix": finding.fix, "code": code})
        problems += [finding.problem] if finding.problem else []
        if text:  # as soon as it is known: some take long
            shown = " ".join([*finding.found.split(), *([f"[{code}]"] if code else [])])
            print(line.format(name, state, shown, width=width), flush=True)
            if finding.fix:
                print(line.format("", "", f"fix: {finding.fix}", width=width), flush=True)
    counted = ", ".join(f"{sum(row['state'] == each.value for row in rows)} {each.value}" for each in State)
    if text:
        print(counted, flush=True)
    result = {"checks": rows, "counted": counted, "command": command}
    return say(result, Output.none if text else config.print, problem=next(iter(problems), None))


def chosen(config: DoctorConfig) -> dict[str, Callable[[], Finding]]:
    """Return name -> check, the quick ones first."""
    backend, cluster = config.backend, config.cluster
    workers: Callable[[], Finding] = partial(check_workers, backend, cluster)
    if isinstance(cluster, SchedulerCluster):
        workers = partial(check_scheduler, backend, cluster)

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
    except Exception as error:  # noqa: BLE001 - the table must be whole whatever a library does
        what = redact(f"{type(error).__name__}: {error}".splitlines()[0])
        problem = TipcastError("C022", name, what, "repeat with debug=true to see where, and report it")
        problem.__cause__ = error
    return Finding(f"{problem.where}: {problem.what}", problem.fix, problem)


def check_gpus(backend: BackendSpec, cluster: ClusterSpec) -> Finding:
    """Find out which GPUs this machine has; C010 where the backend needs one here and there is none."""
    visible, needed = gpus.visible(), backend.name == "gpu"
    if not visible:
        if needed and cluster.kind.startswith("local"):
            fix = "run nvidia-smi and look at CUDA_VISIBLE_DEVICES, or use backend=cpu"
            raise TipcastError("C010", "backend=gpu", "no NVIDIA GPU is visible on this machine", fix)
        workers = f"none here; the workers of cluster={cluster.kind} need them"
        return Finding(workers if needed else "none; backend=cpu needs none")
    kinds, driver = Counter(f"{gpu.name} {gpu.memory_bytes / GIB:.0f} GiB" for gpu in visible), visible[0].driver
    shown = f"{', '.join(f'{number} x {kind}' for kind, number in kinds.items())}, driver {driver}"
    major = driver.partition(".")[0]
    if needed and major.isdigit() and int(major) < LEAST_DRIVER:
        fix = "update the driver, or install NVIDIA's cuda-compat package"
        return Finding(f"{shown}: CUDA 13 asks for driver {LEAST_DRIVER} or later", fix)
    return Finding(shown if needed else f"{shown}; backend={backend.name} uses none")


def check_versions(extra: str) -> Finding:
    """Compare what is installed with what tipcast asks for; C020 for what is missing or outside its range."""
    wrong, asked = misfits(requirements(extra), extra), f"tipcast[{extra}]"
    fix = f"pip install -r requirements/{extra}.txt, or install {asked} anew"
    if needed := [text for name, text in wrong.items() if name not in TOOLS]:
        raise TipcastError("C020", asked, "; ".join(needed), fix)
    if wrong:
        return Finding("; ".join(f"{text}: needed by {TOOLS[name]}" for name, text in wrong.items()), fix)
    return Finding(f"Python {platform.python_version()} and all that {asked} {__version__} asks for, in its ranges")


def requirements(extra: str) -> list[str]:
    """Return what the installed tipcast with an extra asks for, else the checkout's; C020 where neither is there."""
    try:
        return importlib.metadata.requires("tipcast") or []
    except importlib.metadata.PackageNotFoundError:
        file = conf_dir().parent / "pyproject.toml"
    if not file.is_file():
        raise TipcastError("C020", "tipcast", "is not installed, so nothing says what it needs", "pip install .")
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


def misfits(asked: Iterable[str], extra: str) -> dict[str, str]:
    """Return name -> in words what of an extra's requirements is missing or outside its range.

    They are as metadata has them: ``pandas<3.1,>=3.0``, ``uv>=0.7; extra == "cpu"``.
    """
    wrong: dict[str, str] = {}
    for requirement in map(Requirement, asked):
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        # Any build of XGBoost will do, and conda's packages do not name CUDA.
        builds = _builds_of_xgboost() if name.startswith("xgboost") else (name, CUDA_SUFFIX.sub("", name))
        version = next(filter(None, map(_version, builds)), None)
        if version is None:
            wrong[name] = f"{name} is missing"
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong[name] = f"{name} {version} is not {requirement.specifier}"
    return wrong


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _builds_of_xgboost() -> list[str]:
    """Return the distributions that bring the package ``xgboost``."""
    return sorted(set(importlib.metadata.packages_distributions().get("xgboost", ())))


def check_xgboost(cuda: bool) -> Finding:
    """Find out which XGBoost there is; C020 where it cannot train, or with ``cuda`` not on GPUs."""
    names, build = _builds_of_xgboost(), "xgboost" if cuda else "xgboost-cpu"
    versions = [f"{name} {_version(name)}" for name in names] or ["xgboost"]
    fix = f"pip uninstall {' '.join(names)}, then pip install {build}"
    if len(names) > 1:
        raise TipcastError("C020", "xgboost", f"{' and '.join(versions)} overwrite each other's files", fix)
    try:
        compiled = bool(importlib.import_module("xgboost").build_info().get("USE_CUDA"))
    except Exception as problem:  # its own error where its library does not load
        raise failed_to("loaded", "xgboost", problem, f"pip install --force-reinstall {build}", "C020") from problem
    shown = f"{versions[0]}, {'CUDA' if compiled else 'CPU'} build"
    if cuda and not compiled:
        raise TipcastError("C020", "xgboost", f"{shown}: it cannot train on a GPU", fix)
    return Finding(shown)


def check_workers(backend: BackendSpec, cluster: ClusterSpec) -> Finding:
    """Compare the workers of a cluster here with this machine, without starting any; see ``session.check``."""
    session.check(backend, cluster)
    if isinstance(cluster, LocalCluster):
        (workers, threads), place = clusters.shared_out(cluster), count(clusters.cores(), "core")
    else:
        there = len(gpus.visible())
        workers, threads, place = getattr(cluster, "n_workers", None) or there, 1, count(there, "GPU")
    limit = dask.utils.parse_bytes(getattr(cluster, "memory_limit", None) or MEMORY_LIMIT // workers)
    shown = f"{count(workers, 'worker')} of {count(threads, 'thread')} and {limit / GIB:.3g} GiB on {place}"
    if workers * limit > MEMORY_LIMIT:
        what = f"{workers} x {limit / GIB:.3g} GiB is more than the machine's {MEMORY_LIMIT / GIB:.3g} GiB"
        return Finding(f"{shown}; {what}", "lower cluster.memory_limit or cluster.n_workers")
    if workers * threads > clusters.cores():
        return Finding(f"{shown}: they wait for each other", "lower cluster.n_workers or cluster.threads_per_worker")
    return Finding(shown)


def check_scheduler(backend: BackendSpec, cluster: SchedulerCluster) -> Finding:
    """Connect to a scheduler, wait for its workers as a job would, and compare their versions with ours.

    C009 K001 K002 as a job meets them, K005 other versions there, K006 a worker without a GPU of its own.
    """
    session.check(backend, cluster)
    with clusters.connect(cluster, "pandas") as client:
        apart = differences(client, cluster.address)
        if backend.name == "gpu":
            session.own_gpus(client)
        workers = known(client).values()
    if apart:
        raise TipcastError("K005", cluster.address, "; ".join(apart), SAME)
    sizes = Counter((count(worker["nthreads"], "thread"), (worker["memory_limit"] or 0) / GIB) for worker in workers)
    kinds = ", ".join(f"{number} of {threads} and {memory:.3g} GiB" for (threads, memory), number in sizes.items())
    shown = f"{cluster.address}: {count(len(workers), 'worker')} ({kinds}), wanted {cluster.n_workers}"
    return Finding(f"{shown}; same versions")


def differences(client: Client, address: str) -> list[str]:
    """Return in words which versions on the scheduler and the workers are not ours; K005 a worker without tipcast."""
    own: dict[str, Any] = client.run(_tipcast, on_error="return")  # Dask asks metadata, which a checkout lacks
    if silent := [str(answer) for answer in own.values() if not isinstance(answer, str)]:
        what = f"{len(silent)} of {len(own)} workers lack tipcast, or have another version: {silent[0]}"
        raise TipcastError("K005", address, what, SAME)
    asked: Any = client.get_versions(packages=list(LIBRARIES))
    workers = [_plain(asked["workers"].get(worker, {})) | {"tipcast": own[worker]} for worker in own]
    apart: list[str] = []
    for name, mine in (_plain(asked["client"]) | {"tipcast": __version__}).items():
        others = Counter(versions.get(name, "none") for versions in workers)
        if name in {"python", "dask", "distributed"}:  # a scheduler needs no more
            others[_plain(asked["scheduler"]).get(name, "none")] += 1
        if unlike := [f"{version} on {number}" for version, number in others.items() if version != mine]:
            apart.append(f"{name} {mine} here, {', '.join(unlike)} there")
    return apart


def _tipcast() -> str:
    return __version__


def _plain(versions: Mapping[str, Any]) -> dict[str, str]:
    """Return package -> version, with one name for all builds of a library, and Python's minor version."""
    plain: dict[str, str] = {}
    for build, version in versions.get("packages", {}).items():
        name = "xgboost" if build.startswith("xgboost") else build.removesuffix("-cu13")
        if version is not None and name in MUST_EQUAL:
            plain[name] = ".".join(version.split(".")[:2]) if name == "python" else version
    return plain
