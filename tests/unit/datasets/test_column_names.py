"""A user's own names of columns: mapped by configuration for every dataset of files, and kept by the saved model."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.conftest import high_tip_task

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import FilesData, OwnData, TableData
from tipcast.datasets import delimited, parquet, registry, table_features
from tipcast.datasets.base import COLUMN_NAMES, Dataset, FileScan, Listing, ScanRequest, as_named, seen_names
from tipcast.datasets.listing import check_format, gather, read_fragment, request_of, scan_files
from tipcast.datasets.rows import Recipe, held_out_rows
from tipcast.datasets.taxi.dataset import Taxi

OWN = {"pickup": "started_at", "fare_amount": "Fahr Preis", "PULocationID": "von", "DOLocationID": "nach"}
USUAL = {"tpep_pickup_datetime": "started_at", **{name: own for name, own in OWN.items() if name != "pickup"}}
NEEDED = ("pickup", "fare_amount", "tip_amount", "passenger_count", "PULocationID", "DOLocationID")


def files(path: Path, **settings: Any) -> FilesData:
    return FilesData(
        source="files", train=str(path), test=str(path), months=None, block_bytes=4096, **{"columns": OWN, **settings}
    )


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_trips_by_other_names_are_the_same_trips(trip_files: Any, ending: str) -> None:
    usual = trip_files.write(f"usual_2019-02.{ending}")
    own = trip_files.write(f"own_2019-02.{ending}", lambda frame: frame.rename(columns=USUAL))
    found = Taxi(files(own)).scan("train", NEEDED)
    assert found.notes == (), "who maps names needs no note of it"
    assert found.facts[COLUMN_NAMES] == OWN
    assert found.fragments[0].columns["pickup"] == "started_at"
    expected = Taxi(files(usual, columns={})).scan("train", NEEDED)
    for one, other in zip(found.fragments, expected.fragments, strict=True):
        read, wanted = read_fragment(one, CpuFrames()), read_fragment(other, CpuFrames())
        assert list(read) == list(wanted)
        assert all(np.array_equal(read[name], wanted[name]) for name in wanted)
    with pytest.raises(TipcastError, match=r"D007.*'tpep_pickup_datetime'.*data.columns=\{tpep_pickup_datetime: "):
        Taxi(files(own, columns={})).scan("train", NEEDED)


@pytest.mark.parametrize(
    ("columns", "code", "text"),
    [
        ({"pickup": "startd_at"}, "D007", "'startd_at', which data.columns maps to pickup (9 columns"),
        ({"pickup": "started_at", "dropoff": "started_at"}, "D006", "mapped to pickup and to dropoff"),
        ({"picked_up": "started_at"}, "C003", "unknown column of taxi 'picked_up'"),
    ],
)  # fmt: skip
def test_names_that_cannot_be(trip_files: Any, columns: dict[str, str], code: str, text: str) -> None:
    path = trip_files.write("own_2019-02.parquet", lambda frame: frame.rename(columns=USUAL))
    with pytest.raises(TipcastError) as caught:
        registry.open_dataset(files(path, columns=columns)).scan("train", NEEDED)
    assert caught.value.code == code
    assert text in str(caught.value)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_two_columns_of_one_name(tmp_path: Path, ending: str) -> None:
    table, path = pa.table([[1.0] * 9] * 4, names=["a", "len", "len", "y"]), tmp_path / f"t.{ending}"
    pq.write_table(table, path) if ending == "parquet" else pa.csv.write_csv(table, path)
    with pytest.raises(TipcastError, match="D006.*'len' is there twice"):
        registry.open_dataset(TableData("table", str(path), test=None, test_share=0.2, block_bytes=4096))


def test_what_is_mapped_hides_the_column_of_that_name() -> None:
    request = ScanRequest((), names={"x": "newer"})
    assert seen_names(["x", "y", "newer"], request, "f") == [("y", "y"), ("x", "newer")]
    lenient = ScanRequest((), names={"x": "newer"}, strict=False)
    assert seen_names(["x", "y"], lenient, "f") == [("x", "x"), ("y", "y")]


def test_a_model_takes_rows_by_the_names_of_its_training(trip_files: Any) -> None:
    path = trip_files.write("own_2019-02.parquet", lambda frame: frame.rename(columns=USUAL))
    dataset = Taxi(files(path))
    task = high_tip_task(("pickup_hour", "passenger_count", "PULocationID"))
    listing = Recipe(dataset, task).scan("train")
    _, raw = held_out_rows(listing.fragments[0], Recipe(dataset, task), listing.facts, 10)
    assert {"started_at", "passenger_count", "von"} <= set(raw)
    columns = as_named(dataset.raw_columns(task.features, listing.facts), listing.facts)
    found = {column.name: column.spellings for column in columns}
    assert found["pickup"] == ("started_at", "tpep_pickup_datetime", "lpep_pickup_datetime")
    assert found["passenger_count"] == ("passenger_count",)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_table(tmp_path: Path, ending: str) -> None:
    hours = pd.date_range("2020-01-01", periods=300, freq="h")
    draw, path = np.random.default_rng(0), tmp_path / f"t.{ending}"
    frame = pd.DataFrame({"Preis": draw.normal(size=300), "Wort": draw.choice(["a", "b"], 300), "am": hours})
    frame.to_parquet(path, index=False) if ending == "parquet" else frame.to_csv(path, index=False)
    names = {"price": "Preis", "word": "Wort", "time": "am"}
    spec = TableData("table", str(path), test=None, test_share=0.2, block_bytes=4096, time="time", columns=names)
    dataset = registry.open_dataset(spec)
    assert dataset.features == ("price", "word")
    listing = dataset.scan("train", ("price", "word", "time"))
    read = dataset.read(listing.fragments[0], CpuFrames(), ("word", "price", "time"))
    rows = len(read["price"])
    assert np.array_equal(read["price"], frame["Preis"][:rows])
    assert np.array_equal(read["word"], (frame["Wort"][:rows] == "b").astype(float))
    assert [column.spellings[0] for column in as_named(dataset.raw_columns(("word",), {}), listing.facts)] == ["Wort"]


class Own(Dataset):
    """A dataset of somebody's own files, of a column x."""

    name, code, features = "own", table_features, ("x",)

    def __init__(self, spec: OwnData) -> None:
        self.spec = spec

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        scans, notes = scan_files(self.spec.train, request_of(self.spec, columns), f"data.{which}", self.look)
        return gather(scans, "rows", {}, notes)

    def look(self, uri: str, request: ScanRequest) -> FileScan:
        csv = check_format(uri) == "csv"
        look: Any = delimited.look(uri, request, None) if csv else parquet.read_footer(uri, request)
        return FileScan(uri, look.fragments(dict(look.names), None), None, look.digest)

    def read(self, fragment: Any, frames: Any, columns: Sequence[str] | None = None) -> dict[str, Any]:
        return read_fragment(fragment, frames, columns)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_dataset_of_one_s_own_has_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setattr(registry, "SOURCES", dict(registry.SOURCES))
    monkeypatch.setattr(registry, "NAMES", dict(registry.NAMES))
    registry.register("own", SimpleNamespace(open=Own))
    frame, path = pd.DataFrame({"theirs": np.arange(20.0), "y": 1}), tmp_path / f"t.{ending}"
    frame.to_parquet(path, index=False) if ending == "parquet" else frame.to_csv(path, index=False)
    dataset = registry.open_dataset(OwnData("own", str(path), test=None, months=None, columns={"x": "theirs"}))
    listing = dataset.scan("train", ("x",))
    assert listing.facts == {COLUMN_NAMES: {"x": "theirs"}}
    assert dataset.read(listing.fragments[0], CpuFrames(), ("x",))["x"].tolist() == list(range(20))
