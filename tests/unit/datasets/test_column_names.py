"""A user's own names of columns: mapped by configuration for every dataset of files, and kept by
the saved model.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.unit.datasets.conftest import open_table

from tipcast.compute.frames import CpuFrames
from tipcast.config.data_schema import FilesData
from tipcast.config.errors import TipcastError
from tipcast.datasets import registry
from tipcast.datasets.base import raw_columns
from tipcast.datasets.listing import Listing

OWN = {
    "pickup": "started_at",
    "fare_amount": "Fahr Preis",
    "PULocationID": "von",
    "DOLocationID": "nach",
}
USUAL = {
    "tpep_pickup_datetime": "started_at",
    **{name: own for name, own in OWN.items() if name != "pickup"},
}


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_trips_by_other_names_are_the_same_trips(trip_files: Any, ending: str) -> None:
    def renamed(trips: pd.DataFrame) -> pd.DataFrame:
        # what is mapped hides the column of that name
        return trips.rename(columns=USUAL).assign(PULocationID=7)

    usual = trip_files.write(f"usual_2019-02.{ending}")
    own = trip_files.write(f"own_2019-02.{ending}", renamed)
    found = trip_files.listing(own, columns=OWN, block_bytes=4096)
    assert found.notes == (), "who maps names needs no note of it"
    assert found.info.column_names == OWN
    assert found.parts[0].columns["pickup"] == "started_at"

    def read(listing: Listing) -> Any:
        parts = [pd.DataFrame(part.read(CpuFrames())) for part in listing.parts]
        return pd.concat(parts, ignore_index=True)

    pd.testing.assert_frame_equal(read(found), read(trip_files.listing(usual, block_bytes=4096)))
    with pytest.raises(
        TipcastError, match=r"D007.*'tpep_pickup_datetime'.*data.columns=\{tpep_pickup_datetime: "
    ):
        trip_files.listing(own)


def test_names_that_cannot_be(trip_files: Any) -> None:
    path = trip_files.write("own_2019-02.parquet", lambda frame: frame.rename(columns=USUAL))
    for columns, code, text in [
        (
            {"pickup": "startd_at"},
            "D007",
            "'startd_at', which data.columns maps to pickup (9 columns",
        ),
        (
            {"pickup": "started_at", "dropoff": "started_at"},
            "D006",
            "mapped to pickup and to dropoff",
        ),
    ]:
        assert text in str(trip_files.refused(path, code, path, columns=columns))
    with pytest.raises(TipcastError, match="C003.*unknown column of taxi 'picked_up'"):
        registry.open_dataset(
            FilesData("files", str(path), None, None, block_bytes=1, columns={"picked_up": "a"})
        )


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_table_and_two_columns_of_one_name(tmp_path: Path, ending: str) -> None:
    columns = ["Preis", "Wort", "am"]
    values = [
        np.arange(300.0),
        ["a", "b", "b"] * 100,
        pd.date_range("2020-01-01", periods=300, freq="h"),
    ]
    for names in (columns, ["Preis", "am", "am"]):
        table = pa.table(values, names=names)
        path = tmp_path / f"{names[1]}.{ending}"
        pq.write_table(table, path) if ending == "parquet" else pa.csv.write_csv(table, path)
    names = dict(zip(("price", "word", "time"), columns, strict=True))
    dataset = open_table(tmp_path / f"Wort.{ending}", time="time", columns=names)
    assert dataset.features == ("price", "word")
    listing = dataset.scan("train", ("price", "word", "time"))
    read = dataset.read(listing.parts[0], CpuFrames(), ("word", "price", "time"))
    rows = len(read["price"])
    assert np.array_equal(read["price"], values[0][:rows])
    assert np.array_equal(read["word"], np.resize([0, 1, 1], rows))
    assert [column.spellings[0] for column in raw_columns(dataset, ("word",), listing.info)] == [
        "Wort"
    ]
    with pytest.raises(TipcastError, match="D006.*'am' occurs twice"):
        open_table(path)
