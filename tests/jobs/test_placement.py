"""On how many GPUs a training's rows lie, and in whose memory; no GPU is needed to decide."""

import dataclasses
from typing import Any, cast

import pytest

from tipcast.compute.base import Session
from tipcast.compute.frames import GpuFrames
from tipcast.config.compose import compose, to_object
from tipcast.config.schema import LocalCudaCluster
from tipcast.jobs.placement import placed
from tipcast.jobs.train_plan import make_plan
from tipcast.models.build import build_for_task

BLOCKS = "data.block_rows=1000000"


def placement(words: str, gpus: int, gigabytes: float, **cluster: Any) -> Session:
    """Return the session of a training on so many GPUs of so much memory."""
    config = to_object(compose("train", [BLOCKS, *words.split()])[0].config)
    config = dataclasses.replace(config, cluster=LocalCudaCluster("local_cuda", **cluster))
    session = Session(
        client=cast("Any", None),
        device="cuda",
        frames=GpuFrames(),
        n_workers=gpus,
        n_threads=gpus,
        free_bytes=int(gigabytes * 1e9),
    )
    plan = make_plan(config)
    device = "cpu" if "kmeans" in words else "cuda"  # cuML's class is not installed here
    return placed(session, config, plan, build_for_task(config.model, device, plan.task))


@pytest.mark.parametrize(
    ("words", "homes"),
    [
        pytest.param("model.params.n_estimators=100 data.rows=100000000", 1, id="few rows"),
        pytest.param("model.params.n_estimators=100 data.rows=200000000", None, id="many rows"),
        pytest.param("model.params.n_estimators=300 data.rows=100000000", None, id="many trees"),
        pytest.param("data.rows=8000000 task.folds=4", None, id="folds"),
        pytest.param("model=random_forest data.rows=4000000", 1, id="a small forest"),
        pytest.param("model=random_forest data.rows=8000000", None, id="a large forest"),
        pytest.param(
            "model=random_forest data.rows=8000000 model.fit.together=true", 1, id="grown together"
        ),
        pytest.param("model=kmeans data.rows=80000000", 1, id="it never gains"),
        pytest.param("model=kmeans data.rows=800000000", None, id="one GPU has no room"),
    ],
)
def test_gpus_that_hold_rows(words: str, homes: int | None, logged: list[str]) -> None:
    session = placement(words, gpus=4, gigabytes=80)
    assert (session.homes, session.n_workers) == (homes, homes or 4)
    assert ("1 of 4: more would not fit" in " ".join(logged)) == (homes == 1)


@pytest.mark.parametrize("cluster", [{"n_workers": 4}, {"partition_per_worker": True}])
def test_the_configuration_says_how_many(cluster: dict[str, Any]) -> None:
    assert placement("data.rows=8000000", gpus=4, gigabytes=80, **cluster).homes is None


@pytest.mark.parametrize(
    ("words", "gpus", "on_host"),
    [
        pytest.param("data.rows=40000000", 1, True, id="more than half of the memory"),
        pytest.param("data.rows=30000000", 1, False, id="less than half"),
        pytest.param("data.rows=40000000 ", 2, False, id="two GPUs"),
        pytest.param("model=kmeans data.rows=40000000", 1, False, id="it needs all rows at once"),
    ],
)
def test_memory_that_holds_rows(words: str, gpus: int, on_host: bool, logged: list[str]) -> None:
    session = placement(words, gpus, gigabytes=3)
    assert session.frames.on_gpu
    assert session.frames.rows_on_host == on_host
    assert (
        "wait on the host: their features take 2 GB, 3 GB of the GPU are free" in " ".join(logged)
    ) == on_host


def test_processors_hold_their_rows(cpu_session: Session) -> None:
    config = to_object(compose("train", ["data.rows=20000"])[0].config)
    plan = make_plan(config)
    estimator = build_for_task(config.model, "cpu", plan.task)
    assert placed(cpu_session, config, plan, estimator) is cpu_session
