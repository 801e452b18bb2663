"""Clusters of GPUs: what is refused before anything is started."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import types
from typing import Any

import dask
import distributed
import pytest

from tipcast.compute import cluster, gpus
from tipcast.compute.session import check
from tipcast.config import schema
from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, LocalCluster, LocalCudaCluster

CUDA_SETTINGS = ("device_memory_limit", "enable_cudf_spill", "rmm_pool_size", "rmm_managed_memory")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs."""
    monkeypatch.setattr(gpus, "visible", lambda: [gpus.Gpu(at, "NVIDIA H200", 150 << 30, "600.1") for at in range(2)])


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, ""),
        ({"n_workers": 2, "rmm_pool_size": "8GiB", "device_memory_limit": None, "memory_limit": "64GiB"}, ""),
        ({"rmm_pool_size": 0.5}, ""),
        ({"rmm_pool_size": 1 << 30}, ""),
        ({"n_workers": 3}, "K006.*cluster.n_workers.*3 workers.*2 are visible"),
        ({"rmm_pool_size": 1.5}, "C003.*cluster.rmm_pool_size"),
        ({"rmm_pool_size": "lots"}, "C003.*cluster.rmm_pool_size"),
        ({"device_memory_limit": 0.0}, "C003.*cluster.device_memory_limit"),
        ({"memory_limit": "much"}, "C003.*cluster.memory_limit"),
    ],
)
def test_settings(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(TipcastError, match=told) if told else contextlib.nullcontext():
        cluster.check(LocalCudaCluster("local_cuda", **settings))


@pytest.mark.parametrize(("name", "kind"), schema.CLUSTERS.items())
def test_every_kind_is_known_and_its_settings_are_checked(
    name: str, kind: type[schema.ClusterSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "KINDS", dict.fromkeys(cluster.KINDS, (lambda _: None, None)))
    cluster.check(kind(name))
    with pytest.raises(TipcastError, match=rf"C003.*cluster\.kind.*must be {name}, got nope.*cluster={name}"):
        cluster.check(kind("nope"))


def test_a_backend_and_a_cluster_that_do_not_go_together() -> None:
    with pytest.raises(TipcastError, match="C003.*cluster=local_cuda.*use cluster=local"):
        check(BackendSpec("cpu"), LocalCudaCluster("local_cuda"))
    with pytest.raises(TipcastError, match="C003.*cluster=local.*use cluster=local_cuda"):
        check(BackendSpec("gpu"), LocalCluster("local"))


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["prepare", "backend=gpu", "out=months"], "local_cuda"),
        (["prepare", "backend=cpu", "out=months"], "local"),
        (["train", "backend=gpu", "cluster=scheduler"], "scheduler"),
        (["train", "backend=cpu"], "local"),
        (["train", "backend=gpu", "+cluster.environment.NCCL_DEBUG=INFO", "cluster.rmm_pool_size=8GiB"], "local_cuda"),
    ],
)
def test_a_backend_brings_its_cluster(words: list[str], kind: str) -> None:
    (composed,) = compose(words[0], words[1:])
    specification = to_object(composed.config)
    assert specification.cluster.kind == kind
    if len(words) == 4:
        assert specification.cluster.environment == {"NCCL_DEBUG": "INFO"}
        assert specification.cluster.rmm_pool_size == "8GiB"


def test_what_the_workers_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """No secret of the driver's; NCCL waits for its sums, unless somebody wants it otherwise."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    monkeypatch.delenv("NCCL_COMM_BLOCKING", raising=False)
    found = cluster.cuda_environment(LocalCudaCluster("local_cuda"))
    assert found["MLFLOW_TRACKING_TOKEN"] == ""
    assert found["NCCL_COMM_BLOCKING"] == "1"
    monkeypatch.setenv("NCCL_COMM_BLOCKING", "0")
    assert cluster.cuda_environment(LocalCudaCluster("local_cuda"))["NCCL_COMM_BLOCKING"] == "0"
    given = LocalCudaCluster("local_cuda", environment={"NCCL_COMM_BLOCKING": 2, "NCCL_DEBUG": "INFO"})
    assert cluster.cuda_environment(given).items() >= {"NCCL_COMM_BLOCKING": "2", "NCCL_DEBUG": "INFO"}.items()


@pytest.mark.usefixtures("two", "forked")
def test_dask_cuda_gets_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of the CPU in place of Dask-CUDA's, with its way to give each worker a device."""
    given: dict[str, Any] = {}

    class LocalCUDACluster(distributed.LocalCluster):
        def __init__(self, n_workers: int, **settings: Any) -> None:
            for name in CUDA_SETTINGS:
                given[name] = settings.pop(name)
            super().__init__(n_workers=0, **settings)
            self.scale(n_workers)

        def new_worker_spec(self) -> dict[Any, Any]:
            specs: dict[Any, Any] = copy.deepcopy(super().new_worker_spec())
            for name, each in specs.items():
                each["options"]["env"] = {"CUDA_VISIBLE_DEVICES": str(name)}
            return specs

    monkeypatch.setitem(sys.modules, "dask_cuda", types.SimpleNamespace(LocalCUDACluster=LocalCUDACluster))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    spec = LocalCudaCluster("local_cuda", rmm_pool_size=0.5, environment={"NCCL_DEBUG": "INFO"})
    with cluster.connect(spec, "pandas") as client:
        assert not dask.config.get("distributed.scheduler.work-stealing")
        seen = client.run(lambda: dict(os.environ)).values()
        assert list(client.nthreads().values()) == [1, 1]
    assert {each["CUDA_VISIBLE_DEVICES"] for each in seen} == {"0", "1"}
    assert {(each["MLFLOW_TRACKING_TOKEN"], each["NCCL_DEBUG"]) for each in seen} == {("", "INFO")}
    assert given == dict(zip(CUDA_SETTINGS, (spec.device_memory_limit, True, 0.5, False), strict=True))
