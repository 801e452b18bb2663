"""One worker process for each GPU of this machine, by Dask-CUDA."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import dask
from distributed import Client

from tipcast.compute import gpus, workers
from tipcast.config import schema
from tipcast.config.errors import TipcastError, incompatible, must_be

TOGETHER = {"NCCL_COMM_BLOCKING": "1"}
"""Without it XGBoost polls NCCL every 5 ms, for each level of a tree. With it XGBoost cannot time out while NCCL
starts, which does no harm here: these workers are killed with the job."""


def check(spec: schema.LocalCudaCluster) -> None:
    """Refuse early what Dask-CUDA would: bad sizes, settings that exclude each other, more workers than GPUs."""
    for name in ("memory_limit", "device_memory_limit", "rmm_pool_size"):
        value = getattr(spec, name)
        try:
            good = value is None or (0 < value <= 1 if isinstance(value, float) else dask.utils.parse_bytes(value) > 0)
        except (ValueError, TypeError):
            good = False
        if not good:
            fix = "write a share as 0.5, bytes as 8GiB, none as null"
            raise must_be(f"cluster.{name}", "a share or a size", repr(value), fix)
    if spec.rmm_async and (spec.rmm_pool_size is not None or spec.rmm_managed):
        fix = "set cluster.rmm_pool_size=null and cluster.rmm_managed=false, or cluster.rmm_async=false"
        raise incompatible("cluster.rmm_async", "cluster.rmm_pool_size or cluster.rmm_managed", fix)
    there = len(gpus.visible())
    if spec.n_workers is not None and spec.n_workers > there:
        what = f"{spec.n_workers} workers need a GPU each, {there} are visible"
        fix = f"set it to {there} or null, or look at CUDA_VISIBLE_DEVICES"
        raise TipcastError("K006", "cluster.n_workers", what, fix)


def environment(spec: schema.LocalCudaCluster) -> dict[str, str]:
    """Return the workers' environment: the user's variables override tipcast's, the configuration's override both."""
    own = {name: os.environ.get(name, value) for name, value in TOGETHER.items()}
    return own | workers.environment() | {name: str(value) for name, value in spec.environment.items()}


@contextlib.contextmanager
def opened(spec: schema.LocalCudaCluster) -> Iterator[Client]:
    """Start a worker for each GPU and connect."""
    own = {
        "device_memory_limit": spec.device_memory_limit,
        "enable_cudf_spill": spec.spill,
        "rmm_pool_size": spec.rmm_pool_size,
        "rmm_async": spec.rmm_async,
        "rmm_managed_memory": spec.rmm_managed,
        "protocol": spec.protocol,
    }
    kind, n_workers = functools.partial(_cluster_class(), environment(spec)), spec.n_workers or len(gpus.visible())
    with (
        # A stolen task moves its rows from one GPU through the host's memory to another.
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        workers.local(kind, spec, n_workers, threads_per_worker=1, **own) as client,
    ):
        yield client


def _cluster_class() -> type:
    """Return Dask-CUDA's cluster class, extended to take an environment for its workers."""
    from dask_cuda import LocalCUDACluster

    class Cluster(LocalCUDACluster):
        def __init__(self, environment: Mapping[str, str], **settings: Any) -> None:
            self._environment = environment
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about CPU affinity, where the system does not tell it
                super().__init__(**settings)

        def new_worker_spec(self) -> dict[Any, Any]:
            specs: dict[Any, Any] = super().new_worker_spec()
            for spec in specs.values():
                spec["options"]["env"] = {**self._environment, **spec["options"]["env"]}
            return specs

    return Cluster
