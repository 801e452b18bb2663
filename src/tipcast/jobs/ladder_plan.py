"""The rungs of `tipcast ladder`: how much of this machine a training runs on, and the test rows
that clusterings are compared on.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tipcast.compute import gpus
from tipcast.compute.base import count
from tipcast.compute.cluster import CORES_PER_PROCESS, cores
from tipcast.compute.session import check as check_session
from tipcast.config.errors import TipcastError, must_be
from tipcast.config.schema import (
    BackendSpec,
    ClusterSpec,
    LadderConfig,
    LocalCluster,
    LocalCudaCluster,
)
from tipcast.datasets.base import Tabular
from tipcast.datasets.prepare import held_out_rows
from tipcast.evaluation.sums import Floats, Ints
from tipcast.jobs.train_plan import Plan, make_plan
from tipcast.models.build import build
from tipcast.tasks.kinds import Kind

SHARED_ROWS = 5000
"""Test rows that the rungs' clusters are compared on."""
UNITS = {"cpu": "cores", "gpu": "gpus"}
"""Device -> the option that has its sizes."""
NOT_HERE = {"C002", "C010", "K006", "K007"}
"""Errors of a rung that this machine or this model does not have; other mistakes are every
rung's.
"""


@dataclass(frozen=True)
class Rung:
    """Where one of the trainings runs."""

    device: str
    """``cpu`` or ``gpu``."""
    size: int
    """Cores or GPUs."""
    cluster: ClusterSpec

    @property
    def name(self) -> str:
        """The size in words, as ``2 cores``."""
        return count(self.size, "core" if self.device == "cpu" else "GPU")

    @property
    def key(self) -> str:
        """The size in names of metrics, as ``cores_2``."""
        return f"{UNITS[self.device]}_{self.size}"


@dataclass(frozen=True)
class SharedRows:
    """Test rows that were made of known groups, on which the rungs' clusters are compared."""

    features: Floats
    """(rows, features)."""
    groups: Ints
    """(rows,)."""


@dataclass(frozen=True)
class LadderPlan:
    """A training, and the rungs that it runs on."""

    config: LadderConfig
    command: str
    data: Plan
    rungs: Sequence[Rung]
    missing: Mapping[str, str]
    """Name of a rung -> why it cannot run."""
    shared: SharedRows | None
    """None: the rungs are compared by their headline alone."""


def plan_ladder(config: LadderConfig, command: str) -> LadderPlan:
    """List the files and choose the rungs; C003 where none can run."""
    data = make_plan(config)
    rungs, missing = choose_rungs(config, data.task.kind)
    shared = None if data.task.has_target else shared_rows(data)
    return LadderPlan(config, command, data, rungs, missing, shared)


def choose_rungs(config: LadderConfig, kind: Kind) -> tuple[list[Rung], dict[str, str]]:
    """Return the rungs to run, by default one and all of this machine's cores and GPUs, and why
    others cannot run.
    """
    if not isinstance(config.cluster, LocalCluster | LocalCudaCluster):
        what = f"a ladder runs on this machine, not on cluster={config.cluster.kind}"
        fix = "leave cluster out, or use train on that cluster"
        raise TipcastError("C003", "cluster.kind", what, fix)

    rungs: list[Rung] = []
    missing: dict[str, str] = {}
    for rung in wanted_rungs(config):
        reason = why_not_here(rung, config, kind)
        if reason is None:
            rungs.append(rung)
        else:
            missing[rung.name] = reason

    if not rungs:
        what = f"nothing to run: {next(iter(missing.values()), 'both are empty')}"
        fix = "name what this machine has, as cores=[1,2] or gpus=[1]"
        raise TipcastError("C003", "cores, gpus", what, fix)
    return rungs, missing


def wanted_rungs(config: LadderConfig) -> Iterator[Rung]:
    """Yield the rungs that are asked for, cores before GPUs, each from the smallest; C003 for a
    size below 1.
    """
    sizes = {"cpu": {1, cores()}, "gpu": {1, max(len(gpus.visible()), 2)}}
    if config.cores is not None:
        sizes["cpu"] = set(config.cores)
    if config.gpus is not None:
        sizes["gpu"] = set(config.gpus)

    for device, wanted in sizes.items():
        for size in sorted(wanted):
            if size < 1:
                raise must_be(UNITS[device], "at least 1", size)
            yield Rung(device, size, cluster_of(config.cluster, device, size))


def why_not_here(rung: Rung, config: LadderConfig, kind: Kind) -> str | None:
    """Return why this machine or this model does not have a rung; None where it can run."""
    most = cores() if rung.device == "cpu" else len(gpus.visible())
    if rung.size > most:
        return f"the machine has {most} {UNITS[rung.device]}"

    try:
        check_session(BackendSpec(rung.device), rung.cluster)
        build(config.model, rung.device, config.task.categorical, kind).check()
    except TipcastError as problem:
        if problem.code not in NOT_HERE:
            raise
        return problem.what
    return None


def cluster_of(given: ClusterSpec, device: str, size: int) -> ClusterSpec:
    """Return the cluster of some cores or GPUs: one process for a core, several that train together
    for more.
    """
    if device == "gpu":
        cuda = given if isinstance(given, LocalCudaCluster) else LocalCudaCluster("local_cuda")
        return dataclasses.replace(cuda, n_workers=size)

    local = given if isinstance(given, LocalCluster) else LocalCluster("local")
    even = (workers for workers in range(min(size, 2), size + 1) if size % workers == 0)
    n_workers = next(workers for workers in even if size // workers <= CORES_PER_PROCESS)
    return dataclasses.replace(
        local, n_workers=n_workers, threads_per_worker=size // n_workers, processes=True
    )


def shared_rows(data: Plan) -> SharedRows | None:
    """Read the first test rows, with the groups that they were made of; None where the dataset does
    not tell these.
    """
    if not isinstance(data.dataset, Tabular):
        return None
    try:
        group = data.dataset.target_column(None, None).name
    except TipcastError:  # a table does not tell the groups of its rows
        return None

    task = dataclasses.replace(data.task, columns=(group,))
    recipe = dataclasses.replace(data.test_recipe, task=task)
    columns, _ = held_out_rows(data.test.fragments[0], recipe, data.train.info, SHARED_ROWS)

    x = data.dataset.compute(columns, data.task.features, np)
    return SharedRows(np.asarray(x, dtype=np.float64), columns[group].astype(np.int64))
