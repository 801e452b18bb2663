"""A data set of OpenML, out of the cache that scikit-learn's fetch_openml keeps: rows of ours below the true header."""

from __future__ import annotations

import gzip
import hashlib
import json
import resource
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tipcast
from tipcast.compute.cpu import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import OpenmlData
from tipcast.datasets.openml import OpenML

TAXI = 42729
ZONES = [str(zone) for zone in range(1, 266) if zone not in (2, 103, 104, 105, 199)]
COLUMNS: dict[str, list[str] | str] = {
    "VendorID": ["1", "2"],
    "store_and_fwd_flag": ["N", "Y"],
    "RatecodeID": ["1", "2", "3", "4", "5"],
    "PULocationID": ZONES,
    "DOLocationID": ZONES,
    "passenger_count": "REAL",
    "extra": ["0", "0.22", "0.5", "1", "4.5"],
    "mta_tax": ["-0.5", "0", "0.5"],
    "tip_amount": "REAL",
    "tolls_amount": "REAL",
    "improvement_surcharge": ["-0.3", "0", "0.3"],
    "total_amount": "REAL",
    "trip_type": ["1", "2"],
    **{f"lpep_{end}_datetime_{part}": "INTEGER" for end in ("pickup", "dropoff") for part in ("day", "hour", "minute")},
}
"""Of nyc-taxi-green-dec-2016: name -> the values of a category, or a number's type."""
Cache = Callable[..., Path]


def arff(rows: int) -> bytes:
    """Rows below the data set's own header."""
    draw = np.random.default_rng(0)
    types = {name: kind if isinstance(kind, str) else f"{{{', '.join(kind)}}}" for name, kind in COLUMNS.items()}
    head = ["@RELATION nyc-taxi-green-dec-2016", "", *(f"@ATTRIBUTE {name} {kind}" for name, kind in types.items())]
    cells = {
        name: draw.integers(0, 24, rows).astype(str) if isinstance(kind, str) else draw.choice(kind, rows)
        for name, kind in COLUMNS.items()
    }
    cells["tip_amount"] = (cells["lpep_pickup_datetime_hour"].astype(float) / 8).astype(str)
    lines = [",".join(row) for row in zip(*cells.values(), strict=True)]
    return "\n".join([*head, "", "@DATA", *lines, ""]).encode()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Put a data set where fetch_openml looks, and lead what it asks of the network to nowhere."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(urllib.request, "_opener", None)

    def put(rows: int = 300, target: str = "tip_amount") -> Path:
        content = arff(rows)
        features = [
            {
                "index": str(at),
                "name": name,
                "data_type": "numeric" if isinstance(kind, str) else "nominal",
                **({} if isinstance(kind, str) else {"nominal_value": kind}),
                "is_target": str(name == target).lower(),
                "is_ignore": str(name == "total_amount").lower(),
                "is_row_identifier": "false",
                "number_of_missing_values": "0",
            }
            for at, (name, kind) in enumerate(COLUMNS.items())
        ]
        description = {
            "id": str(TAXI), "name": "nyc-taxi-green-dec-2016", "version": "5", "format": "ARFF", "status": "active",
            "url": "https://api.openml.org/data/v1/download/22044763/nyc-taxi-green-dec-2016.arff",
            "file_id": "22044763", "default_target_attribute": target, "ignore_attribute": ["total_amount"],
            "md5_checksum": hashlib.md5(content, usedforsecurity=False).hexdigest(), "description": "trips",
        }  # fmt: skip
        api = "api/v1/json/data"
        files = {
            f"{api}/{TAXI}": {"data_set_description": description},
            f"{api}/features/{TAXI}": {"data_features": {"feature": features}},
            f"{api}/qualities/{TAXI}": {"data_qualities": {"quality": []}},
        }
        there = {name: json.dumps(found).encode() for name, found in files.items()}
        there["data/v1/download/22044763/nyc-taxi-green-dec-2016.arff"] = content
        for name, found in there.items():
            path = tmp_path / "openml" / "openml.org" / f"{name}.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(found))
        return tmp_path

    return put


def opened(folder: Path, number: int = TAXI) -> OpenML:
    """Open a data set as a configuration does."""
    given: dict[str, Any] = {"test_share": 0.2, "block_bytes": 4096, "cache": str(folder), "id": number}
    return OpenML.open(OpenmlData("openml", None, None, None, **given))


def test_columns_target_and_rows(cache: Cache) -> None:
    folder = cache()
    found = opened(folder)
    expected = [name for name in COLUMNS if name != "total_amount"]
    assert list(found.features) == expected, "without the column that OpenML says to leave out"
    target = found.target_column(None, None)
    assert (target.name, target.kind) == ("tip_amount", "regression")
    assert found.target_column("trip_type", None).kind == "classification", "another than OpenML's own"
    (fragment,) = found.scan("train", ("lpep_pickup_datetime_hour", "PULocationID", "tip_amount")).fragments
    read = found.read(fragment, CpuFrames(), ("lpep_pickup_datetime_hour", "PULocationID", "tip_amount"))
    np.testing.assert_allclose(read["tip_amount"], read["lpep_pickup_datetime_hour"] / 8)
    assert read["PULocationID"].max() < len(ZONES)


def test_what_was_fetched_once_is_read_without_scikit_learn(cache: Cache) -> None:
    folder = cache()
    first = opened(folder)
    (folder / "openml" / "openml.org").rename(folder / "gone")
    again = opened(folder)
    assert (again.target, again.features) == (first.target, first.features)
    assert again.facts() == first.facts()


def test_a_data_set_without_a_target(cache: Cache) -> None:
    with pytest.raises(TipcastError, match=r"C004.*task.target"):
        opened(cache(target="none")).target_column(None, None)


def test_what_cannot_be_fetched(cache: Cache) -> None:
    with pytest.raises(TipcastError, match=r"D022.*https://www.openml.org.*data.cache"):
        opened(cache(), 61)


@pytest.mark.parametrize("index", [None, False], ids=["no metadata", "of pandas"])
def test_a_file_that_was_put_into_the_cache(tmp_path: Path, index: bool | None) -> None:
    rows = pa.table({"x": range(400), "y": [at % 2 for at in range(400)]})
    if index is not None:
        rows = pa.Table.from_pandas(rows.to_pandas(), preserve_index=index)
    (tmp_path / "openml").mkdir()
    pq.write_table(rows, tmp_path / "openml" / "61.parquet")
    found = opened(tmp_path, 61)
    assert found.features == ("x", "y")
    assert found.target_column("y", None).kind == "classification"
    with pytest.raises(TipcastError, match=r"C004.*task.target"):
        found.target_column(None, None)


def test_a_full_disk_leaves_no_file(cache: Cache) -> None:
    folder = cache()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(TipcastError, match=r"D001.*data.cache"):
            opened(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in (folder / "openml").iterdir()] == ["openml.org"]


def test_it_is_trained_on_as_a_table_is(cache: Cache, tables: Path, tmp_path: Path) -> None:
    store = shutil.copy(tables, tmp_path / "mlflow.db")
    done = tipcast.train(
        data={"source": "openml", "id": TAXI, "cache": str(cache())},
        model={"name": "xgboost", "params": {"n_estimators": 20}},
        tracking={"uri": f"sqlite:///{store}", "system_metrics": False},
        cluster={"processes": False, "n_workers": 1, "performance_report": False},
    )
    assert done.metrics["test/rmse"] < 0.3
    trips = pd.read_parquet(tmp_path / "openml" / f"{TAXI}.parquet").drop(columns="tip_amount")
    found = done.load().predict(trips.astype({name: str for name in trips.select_dtypes("category")}))
    assert np.corrcoef(found, trips["lpep_pickup_datetime_hour"])[0, 1] > 0.95
