"""The plan of `tipcast ladder`: its rungs, each a share of this machine, and the test rows on which
clusterings are compared.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tipcast.compute import gpus
from tipcast.compute.base import count
from tipcast.compute.cluster import cores
from tipcast.compute.forkserver import CORES_PER_PROCESS
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
from tipcast.jobs.train_plan import Plan, check_row_weights, make_plan
from tipcast.models.build import build
from tipcast.tasks.kinds import Kind

SHARED_ROWS = 5000
"""Test rows on which the clusters of the rungs are compared."""
UNITS = {"cpu": "cores", "gpu": "gpus"}
"""Device -> option with its sizes."""
NOT_HERE = {"C002", "C010", "K006", "K007", "K008"}
"""Codes of errors that concern one rung: this machine or this model lacks it."""


@dataclass(frozen=True)
class Rung:
    """Cores or GPUs on which one of the trainings runs."""

    device: str
    """``cpu`` or ``gpu``."""
    size: int
    """Cores or GPUs."""
    cluster: ClusterSpec

    @property
    def name(self) -> str:
        """The size in words, such as ``2 cores``."""
        thing = "GPU"
        if self.device == "cpu":
            thing = "core"
        return count(self.size, thing)

    @property
    def key(self) -> str:
        """The size in names of metrics, such as ``cores_2``."""
        return f"{UNITS[self.device]}_{self.size}"


@dataclass(frozen=True)
class SharedRows:
    """Test rows from known groups, on which the clusters of the rungs are compared."""

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
    """List the files and choose the rungs; C003 if none can run."""
    data = make_plan(config)
    rungs, missing = choose_rungs(config, data.task.kind)
    shared = None
    if not data.task.has_target:
        shared = shared_rows(data)
    return LadderPlan(config, command, data, rungs, missing, shared)


def choose_rungs(config: LadderConfig, kind: Kind) -> tuple[list[Rung], dict[str, str]]:
    """Return the rungs to run, and why other rungs cannot run.

    By default there are rungs for one core, all cores, one GPU and all GPUs of this machine.
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
        fix = "set what this machine has, such as cores=[1,2] or gpus=[1]"
        raise TipcastError("C003", "cores, gpus", what, fix)
    return rungs, missing


def wanted_rungs(config: LadderConfig) -> Iterator[Rung]:
    """Yield the configured rungs, cores before GPUs, both from the smallest; C003 for a size below
    1.
    """
    sizes = {"cpu": {1, cores()}, "gpu": {1, max(len(gpus.visible()), 2)}}
    if config.cores is not None:
        sizes["cpu"] = set(config.cores)
    if config.gpus is not None:
        sizes["gpu"] = set(config.gpus)

    for device, device_sizes in sizes.items():
        for size in sorted(device_sizes):
            if size < 1:
                raise must_be(UNITS[device], "at least 1", size)
            yield Rung(device, size, cluster_of(config.cluster, device, size))


def why_not_here(rung: Rung, config: LadderConfig, kind: Kind) -> str | None:
    """Return why this machine or this model does not have a rung; None if it can run."""
    available = cores() if rung.device == "cpu" else len(gpus.visible())
    if rung.size > available:
        return f"the machine has {available} {UNITS[rung.device]}"

    try:
        check_session(BackendSpec(rung.device), rung.cluster)
        check_row_weights(config, rung.device, kind)
        build(config.model, rung.device, config.task.categorical, kind).check()
    except TipcastError as problem:
        if problem.code not in NOT_HERE:
            raise
        return problem.what
    return None


def cluster_of(configured: ClusterSpec, device: str, size: int) -> ClusterSpec:
    """Return the cluster for some cores or GPUs, with other settings of the configured one.

    One core is one process; more cores are several processes that train together.
    """
    if device == "gpu":
        cuda = LocalCudaCluster("local_cuda")
        if isinstance(configured, LocalCudaCluster):
            cuda = configured
        return dataclasses.replace(cuda, n_workers=size)

    local = LocalCluster("local")
    if isinstance(configured, LocalCluster):
        local = configured
    even = (workers for workers in range(min(size, 2), size + 1) if size % workers == 0)
    n_workers = next(workers for workers in even if size // workers <= CORES_PER_PROCESS)
    return dataclasses.replace(
        local, n_workers=n_workers, threads_per_worker=size // n_workers, processes=True
    )


def shared_rows(data: Plan) -> SharedRows | None:
    """Read the first test rows, with the groups that they come from; None if the dataset does not
    know the groups.
    """
    if not isinstance(data.dataset, Tabular):
        return None
    try:
        group = data.dataset.target_column(None, None).name
    except TipcastError:  # a table does not know the groups of its rows
        return None

    task = dataclasses.replace(data.task, columns=(group,))
    recipe = dataclasses.replace(data.test_recipe, task=task)
    columns, _ = held_out_rows(data.test.parts[0], recipe, data.train.info, SHARED_ROWS)

    x = data.dataset.compute(columns, data.task.features, np)
    return SharedRows(np.asarray(x, dtype=np.float64), columns[group].astype(np.int64))
