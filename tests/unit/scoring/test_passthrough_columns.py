"""What is kept of trips: Parquet as it is, CSV by the TLC's types, and cells that cannot be read told by their line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Fragment, ScanRequest
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import scan_file
from tipcast.scoring.worker import read_passthrough

ADDED = ("probability", "prediction", "model_name", "model_version")
WANTED = ScanRequest(("pickup",), block_bytes=2000)
Found = Callable[[str], tuple[Fragment, ...]]


def trips(rows: int = 100) -> pd.DataFrame:
    times = pd.Timestamp("2019-02-01 10:00") + pd.to_timedelta(np.arange(rows) * 60, unit="s")
    return pd.DataFrame(
        {
            "VendorID": 1,
            "tpep_pickup_datetime": times,
            "note.of.mine": [None if at % 3 else f"at {at}" for at in range(rows)],
            "fare_amount": np.arange(rows) / 4,
            "PULocationID": np.arange(rows) % 260 + 1,
        }
    )


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """List a file of the test's folder."""
    return lambda name: scan_file(str(tmp_path / name), WANTED).fragments


def test_parquet_as_it_is(tmp_path: Path, found: Found) -> None:
    table = pa.Table.from_pandas(trips()).append_column("list", pa.array([[1, 2]] * 100))
    table = table.append_column("word", pa.array(["a", "b"] * 50).dictionary_encode())
    table = table.append_column("probability", pa.array([0.5] * 100))
    pq.write_table(table, tmp_path / "a_2019-02.parquet", row_group_size=30)
    (fragment,) = found("a_2019-02.parquet")
    kept = read_passthrough(fragment, Taxi(), None, ADDED)
    assert kept.equals(table.drop_columns(["probability"]).replace_schema_metadata(None))
    assert kept.schema.metadata is None
    assert read_passthrough(fragment, Taxi(), ["PULocationID", "pickup"], ADDED).column_names == [
        "tpep_pickup_datetime",
        "PULocationID",
    ]
    assert read_passthrough(fragment, Taxi(), [], ADDED).num_columns == 0


def test_a_csv_column_whose_name_another_has_is_text(tmp_path: Path) -> None:
    trips().assign(cost=2.5, fare_amount="none").to_csv(tmp_path / "a_2019-02.csv", index=False)
    wanted = ScanRequest(("pickup",), block_bytes=1 << 20, names={"fare_amount": "cost"})
    (fragment,) = scan_file(str(tmp_path / "a_2019-02.csv"), wanted).fragments
    kept = read_passthrough(fragment, Taxi(), None, ADDED)
    assert kept.schema.field("cost").type == pa.float64()
    assert kept["fare_amount"].to_pylist() == ["none"] * 100


def test_a_cell_that_is_kept_must_be_readable(tmp_path: Path, found: Found) -> None:
    lines = trips().to_csv(index=False).splitlines()
    lines[60] = lines[60].replace(f",{59 / 4},", ",much,")
    (tmp_path / "a_2019-02.csv").write_text("\n".join(lines))
    told = []
    for fragment in found("a_2019-02.csv"):
        try:
            read_passthrough(fragment, Taxi(), None, ADDED)
        except TipcastError as problem:
            told.append(problem)
        assert read_passthrough(fragment, Taxi(), ["VendorID"], ADDED).num_rows
    (problem,) = told
    assert problem.code == "D005"
    assert "line 61: column 'fare_amount': cannot read 'much'" in str(problem)


def test_a_column_that_is_not_there(tmp_path: Path, found: Found) -> None:
    trips().to_parquet(tmp_path / "a_2019-02.parquet")
    with pytest.raises(TipcastError) as caught:
        read_passthrough(found("a_2019-02.parquet")[0], Taxi(), ["dropoff", "nothing"], ADDED)
    assert caught.value.code == "D007"
    assert "columns 'dropoff', 'nothing'" in str(caught.value)
