"""Small trip files made in a temporary folder, and the way from their names to counted rows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import high_tip_task

from tipcast.compute.frames import CpuFrames
from tipcast.config.data_schema import FilesData, Limits, TableData
from tipcast.config.errors import TipcastError
from tipcast.datasets.counts import Counts, per_file
from tipcast.datasets.limits import check_counts
from tipcast.datasets.listing import Listing
from tipcast.datasets.prepare import Recipe, counted, prepare_part
from tipcast.datasets.table.dataset import Table
from tipcast.datasets.taxi.dataset import Taxi

PICKUP = "tpep_pickup_datetime"
NEEDED = ("pickup", "fare_amount", "tip_amount", "passenger_count", "PULocationID", "DOLocationID")
RECIPE = Recipe(
    Taxi(), high_tip_task(("pickup_hour", "passenger_count", "PULocationID", "DOLocationID"))
)
CLOCK = "%Y-%m-%d %H:%M:%S"
FORM = re.compile(r"^error\[[CDKTMS]\d{3}\] \S.* Fix: .+")


def open_table(train: Any, **settings: Any) -> Table:
    """Open files as a table of which a fifth of the rows is to test on, in small parts where they
    are CSV.
    """
    named = [*map(str, train)] if isinstance(train, list) else str(train)
    return Table.open(
        TableData(
            "table", named, **{"test": None, "test_share": 0.2, "block_bytes": 1024} | settings
        )
    )


@dataclass
class TripFiles:
    """Writes trip files into a folder and reads them as a job does."""

    folder: Path

    def trips(self, rows: int = 1000, month: str = "2019-02", seed: int = 0) -> pd.DataFrame:
        """Good yellow trips of a month."""
        draw = np.random.default_rng(seed)
        start = np.datetime64(f"{month}-01", "us")
        return pd.DataFrame(
            {
                "VendorID": draw.integers(1, 3, rows),
                PICKUP: start + draw.integers(0, 27 * 86_400, rows).astype("timedelta64[s]"),
                "passenger_count": draw.integers(1, 6, rows).astype(float),
                "store_and_fwd_flag": "N",
                "PULocationID": draw.integers(1, 264, rows),
                "DOLocationID": draw.integers(1, 264, rows),
                "payment_type": draw.integers(1, 3, rows),
                "fare_amount": draw.integers(250, 5000, rows) / 100,
                "tip_amount": draw.integers(0, 1000, rows) / 100,
            }
        )

    def write(
        self,
        name: str,
        change: Any = None,
        rows: int = 1000,
        month: str = "2019-02",
        **options: Any,
    ) -> Path:
        """Write good trips, changed, as Parquet or CSV by the name's ending."""
        frame = self.trips(rows, month)
        frame = change(frame) if change else frame
        path = self.folder / name
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, **options)
        else:
            frame.to_csv(path, index=False, date_format=CLOCK, **options)
        return path

    def text(self, name: str, change: Callable[[bytes], bytes]) -> Path:
        """Write good trips, as CSV but where the name says Parquet, and change the bytes."""
        written = self.write("whole.parquet" if name.endswith(".parquet") else "whole.csv")
        path = self.folder / name
        path.write_bytes(change(written.read_bytes()))
        written.unlink()
        return path

    def listing(
        self, named: Path | str | Sequence[Any], needed: Sequence[str] = NEEDED, **settings: Any
    ) -> Listing:
        """List the parts of files."""
        plain = str(named) if isinstance(named, Path | str) else [str(name) for name in named]
        spec = {
            "source": "files",
            "train": plain,
            "test": None,
            "months": None,
            "block_bytes": 32 << 20,
        }
        return Taxi(FilesData(**spec | settings)).scan("train", needed)

    def checked(
        self, listing: Listing, recipe: Recipe = RECIPE, limits: Limits | None = None
    ) -> dict[str, Counts]:
        """Read all parts, count their rows and check the counts, as a job does."""
        per_file = self.counts(listing, recipe)
        check_counts(listing, per_file, recipe, limits or Limits())
        return per_file

    def counts(self, listing: Listing, recipe: Recipe = RECIPE) -> dict[str, Counts]:
        """Read all parts and count their rows."""
        counts = [counted(prepare_part(part, CpuFrames(), recipe)) for part in listing.parts]
        return per_file(listing.parts, counts)

    def refused(
        self, named: Any, code: str, file: Path | str, column: str = "", **settings: Any
    ) -> TipcastError:
        """Assert that files are refused, in the right form."""
        with pytest.raises(TipcastError) as caught:
            self.checked(self.listing(named, **settings))
        error = caught.value
        assert error.code == code, str(error)
        assert FORM.match(str(error)), str(error)
        assert Path(file).name in str(error)
        assert not column or f"'{column}'" in str(error)
        return error


@pytest.fixture
def trip_files(tmp_path: Path) -> TripFiles:
    """Make trip files in a temporary folder."""
    return TripFiles(tmp_path)
