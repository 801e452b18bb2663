"""The same files read on a GPU and on the CPU: features, labels and counts equal to the last row
and bit.
"""

import dataclasses
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from tests.conftest import high_tip_task, shipped_model
from tests.waiting import wait_until

from tipcast.compute.base import Session, to_host
from tipcast.compute.frames import GpuFramesOnHost
from tipcast.config.errors import TipcastError
from tipcast.datasets import rows
from tipcast.datasets.listing import Listing
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.features import BASE_FEATURES
from tipcast.models.build import build
from tipcast.models.fit import fit
from tipcast.tasks.base import from_manifest

pytestmark = pytest.mark.gpu
RECIPE = Recipe(Taxi(), high_tip_task((*BASE_FEATURES, "zone_pair")))
PICKUP = "tpep_pickup_datetime"


def loaded(
    session: Session, listing: Listing, recipe: Recipe
) -> tuple[list[Any], list[dict[str, np.ndarray]]]:
    """Return the counts of each split and file, and each split's rows on the host, in the files'
    order.
    """

    def home(futures: list[Any]) -> np.ndarray:
        parts = session.client.map(lambda part: np.asarray(to_host(part)), futures, pure=False)
        return np.concatenate(session.client.gather(parts)) if parts else np.empty(0)

    found, per_file = rows.collect(session, listing, recipe, rows.start(session, listing, recipe))
    counts = [*(split.counts for split in found), *(per_file[uri] for uri in sorted(per_file))]
    return counts, [{"x": home(split.x), "y": home(split.y)} for split in found]


def same_rows(cpu: Session, gpu: Session, listing: Listing, recipe: Recipe) -> int:
    """Assert that both devices make the same of a listing; return the rows."""
    (expected, on_cpu), (found, on_gpu) = (
        loaded(session, listing, recipe) for session in (cpu, gpu)
    )
    same = operator.attrgetter("rows", "classes", "rows_read", "dropped")
    assert [same(count) for count in expected] == [same(count) for count in found]
    for one, other in zip(on_cpu, on_gpu, strict=True):
        for name, values in one.items():
            assert values.dtype == other[name].dtype
            np.testing.assert_array_equal(values, other[name], err_msg=name)
    return sum(count.rows for count in expected[: len(on_cpu)])


def dirty(frame: pd.DataFrame) -> pd.DataFrame:
    """Spoil some rows in every way that a row can be dropped for, and leave some passengers out."""
    frame = frame.copy()
    frame.loc[:4, "fare_amount"] = [0.0, -3.5, np.nan, 2e6, 1e-9]
    frame.loc[5:7, "tip_amount"] = [np.nan, -2e6, 0.0]
    frame["passenger_count"] = frame["passenger_count"].where(frame.index % 7 != 0)
    frame.loc[8:9, "PULocationID"] = [0, 266]
    frame.loc[10, PICKUP] = pd.NaT
    frame.loc[11, PICKUP] = pd.Timestamp("2003-05-05 01:02:03")
    tie = frame.index % 10 == 3  # tips of exactly a fifth of the fare
    frame.loc[tie, "tip_amount"] = (frame.loc[tie, "fare_amount"] / 5).round(2)
    return frame


@pytest.mark.parametrize("name", ["yellow_tripdata_2019-02.parquet", "yellow_tripdata_2019-02.csv"])
def test_dirt_is_dropped_alike(cpu_session, gpu_session, trip_files: Any, name: str) -> None:
    path = trip_files.write(
        name, dirty, rows=6000, **({"row_group_size": 1000} if name.endswith("parquet") else {})
    )
    recipe = dataclasses.replace(RECIPE, cutoff=int(pd.Timestamp("2019-02-15").value // 1000))
    listing = trip_files.listing(path, (*recipe.columns, *recipe.optional), block_bytes=50_000)
    assert same_rows(cpu_session, gpu_session, listing, recipe) > 5900


def test_values_are_of_the_precision_of_the_device(
    cpu_session, gpu_session, trip_files: Any
) -> None:
    facts = {
        "name": "tip_amount",
        "kind": "regression",
        "classes": [],
        "function": "tip_amount",
        "params": {},
    }
    task = from_manifest({**facts, "columns": ["tip_amount", "payment_type"]}, BASE_FEATURES)
    recipe = dataclasses.replace(RECIPE, task=task)
    path = trip_files.write("yellow_tripdata_2019-02.parquet", dirty)
    listing = trip_files.listing(path, (*recipe.columns, *recipe.optional))
    cpu, gpu = (
        loaded(session, listing, recipe)[1][0]["y"] for session in (cpu_session, gpu_session)
    )
    assert (cpu.dtype, gpu.dtype) == (cpu_session.frames.real, gpu_session.frames.real)
    np.testing.assert_array_equal(cpu.astype(np.float32), gpu.astype(np.float32))
    assert 300 < len(cpu) < 700  # those paid by card


def test_types_of_parquet_are_read_alike(cpu_session, gpu_session, trip_files: Any) -> None:
    frame = trip_files.trips(3000)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    zones = pa.array(
        frame["PULocationID"].where(frame.index % 50 != 0), pa.float64(), from_pandas=True
    ).cast(pa.int32())
    kinds = {
        PICKUP: table.column(PICKUP).cast(pa.timestamp("ns")),
        "fare_amount": table.column("fare_amount").cast(pa.decimal128(9, 2)),
        "tip_amount": table.column("tip_amount").cast(pa.float32()),
        "passenger_count": table.column("passenger_count").cast(pa.int8()),
        "PULocationID": zones,
    }
    for name, column in kinds.items():
        table = table.set_column(table.column_names.index(name), name, column)
    path = trip_files.folder / "yellow_tripdata_2019-02.parquet"
    pq.write_table(table, path, row_group_size=500, use_dictionary=["PULocationID"])
    listing = trip_files.listing(path, (*RECIPE.columns, *RECIPE.optional))
    assert same_rows(cpu_session, gpu_session, listing, RECIPE) == 3000 - 60


def test_real_files_are_read_alike(cpu_session, gpu_session, taxi: Path, trip_files: Any) -> None:
    read = 0
    for path in sorted([*taxi.rglob("*.parquet"), *taxi.rglob("*.csv"), *taxi.rglob("*.csv.gz")]):
        try:
            listing = trip_files.listing(path, RECIPE.columns, block_bytes=300_000)
            loaded(cpu_session, listing, RECIPE)
        except TipcastError:  # eras and vendors that no device reads, see test_eras
            continue
        same_rows(cpu_session, gpu_session, listing, RECIPE)
        read += 1
    assert read >= 6


def test_rows_on_the_host_are_those_of_the_gpu(cpu_session, gpu_session, trip_files: Any) -> None:
    path = trip_files.write("yellow_tripdata_2019-02.parquet", dirty, rows=6000)
    recipe = dataclasses.replace(RECIPE, cutoff=int(pd.Timestamp("2019-02-15").value // 1000))
    listing = trip_files.listing(path, (*recipe.columns, *recipe.optional))
    on_host = dataclasses.replace(gpu_session, frames=GpuFramesOnHost())
    assert same_rows(cpu_session, on_host, listing, recipe) > 5900

    (train, _), _ = rows.collect(on_host, listing, recipe, rows.start(on_host, listing, recipe))
    kinds = gpu_session.client.map(lambda part: type(part).__module__, train.x + train.y)
    assert {kind.partition(".")[0] for kind in gpu_session.client.gather(kinds)} == {"pandas"}


def held_bytes(client: Client) -> int:
    """Return the bytes that RMM has given out on all GPUs."""
    return sum(client.run(_bytes_given_out).values())


def _bytes_given_out() -> int:
    import gc

    import rmm.statistics

    gc.collect()
    return int(rmm.statistics.get_statistics().current_bytes)


def _count_bytes() -> None:
    import rmm.statistics

    rmm.statistics.enable_statistics()


def test_a_gpu_holds_the_rows_and_no_more(gpu_session: Session, trip_files: Any) -> None:
    """After reading, and after a fit on a sample of them."""
    client = gpu_session.client
    client.run(_count_bytes)
    path = trip_files.write("yellow_tripdata_2019-02.parquet", rows=200_000)
    recipe = Recipe(Taxi(), high_tip_task(BASE_FEATURES))
    listing = trip_files.listing(path, recipe.columns)

    before = held_bytes(client)
    (read,), _ = rows.collect(
        gpu_session, listing, recipe, rows.start(gpu_session, listing, recipe)
    )
    most = before + 1.02 * read.counts.bytes
    wait_until(lambda: held_bytes(client) <= most, what=lambda: held_bytes(client) - before)

    estimator = build(shipped_model("knn", fit={"rows": 20_000}), "gpu")
    fitted = fit(client, estimator, read, None, seed=5)
    assert fitted.info["rows"] == 20_000
    del fitted
    wait_until(lambda: held_bytes(client) <= most, what=lambda: held_bytes(client) - before)
