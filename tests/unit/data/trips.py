"""Small trip files for the tests of this folder: good ones, and what each bad one changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.config.schema import FilesData
from tipcast.data.fragments import Listing
from tipcast.data.sources import list_fragments

NEEDED = ("pickup", "fare_amount", "tip_amount", "passenger_count", "PULocationID", "DOLocationID")


def trips(rows: int = 1000, month: str = "2019-02", seed: int = 0) -> pd.DataFrame:
    """Good yellow trips of a month."""
    draw = np.random.default_rng(seed)
    start = np.datetime64(f"{month}-01", "us")
    return pd.DataFrame(
        {
            "VendorID": draw.integers(1, 3, rows),
            "tpep_pickup_datetime": start + draw.integers(0, 27 * 86_400, rows).astype("timedelta64[s]"),
            "passenger_count": draw.integers(1, 6, rows).astype(float),
            "store_and_fwd_flag": "N",
            "PULocationID": draw.integers(1, 264, rows),
            "DOLocationID": draw.integers(1, 264, rows),
            "payment_type": draw.integers(1, 3, rows),
            "fare_amount": draw.integers(250, 5000, rows) / 100,
            "tip_amount": draw.integers(0, 1000, rows) / 100,
        }
    )


def write(path: Path, frame: pd.DataFrame, change: Callable[[pd.DataFrame], pd.DataFrame] | None = None) -> Path:
    """Write trips as Parquet or CSV, by the path's ending."""
    frame = change(frame) if change else frame
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)
    else:
        frame.to_csv(path, index=False, date_format="%Y-%m-%d %H:%M:%S")
    return path


def files(named: object, **settings: object) -> FilesData:
    """Return the configuration that reads these files."""
    named = str(named) if isinstance(named, Path) else [str(name) for name in named] if isinstance(named, list) else named
    spec = FilesData(source="files", train=named, test=None, months=None, block_bytes=32 << 20)
    for name, value in settings.items():
        setattr(spec, name, value)
    return spec


def listing(named: object, columns: tuple[str, ...] = NEEDED, **settings: object) -> Listing:
    """List the fragments of files."""
    return list_fragments(files(named, **settings), "train", columns)
