"""On how many GPUs a training's rows lie, and in whose memory; no GPU is needed to decide."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
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
    config = to_object(compose("train", words.split())[0].config)
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
    session = placement(f"{BLOCKS} {words}", gpus=4, gigabytes=80)
    assert (session.homes, session.n_workers) == (homes, homes or 4)
    assert ("1 of 4: more would not make the fit" in " ".join(logged)) == (homes == 1)


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
    session = placement(f"{BLOCKS} {words}", gpus, gigabytes=3)
    assert session.frames.on_gpu
    assert session.frames.rows_on_host == on_host
    assert (
        "wait on the host: their features take 2 GB, and the GPU has 3 GB free" in " ".join(logged)
    ) == on_host


@pytest.mark.parametrize(("free_bytes", "on_host"), [(8000, False), (6000, True)])
def test_drawn_test_rows_count_once(tmp_path: Path, free_bytes: int, on_host: bool) -> None:
    """A feature of 1000 rows takes 4000 bytes, and all are read once."""
    table = tmp_path / "t.parquet"
    pd.DataFrame({"x": np.arange(1000) / 7, "y": np.arange(1000) % 2}).to_parquet(table)
    words = f"data=table data.train={table} task.target=y"
    session = placement(words, gpus=1, gigabytes=free_bytes / 1e9)
    assert session.frames.rows_on_host == on_host


def test_rows_of_an_unknown_number_take_all_gpus(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("x,y\n" + "1.5,0\n2.5,1\n" * 50, encoding="utf-8")
    session = placement(f"data=table data.train={table} task.target=y", gpus=4, gigabytes=1e-6)
    assert session.homes is None
    assert not session.frames.rows_on_host


def test_processors_hold_their_rows(cpu_session: Session) -> None:
    config = to_object(compose("train", ["data.rows=20000"])[0].config)
    plan = make_plan(config)
    estimator = build_for_task(config.model, "cpu", plan.task)
    assert placed(cpu_session, config, plan, estimator) is cpu_session
