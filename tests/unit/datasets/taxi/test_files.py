"""Tests of files as a source: what is found, under which names, of which period."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.unit.datasets.conftest import PICKUP

from tipcast.config.errors import TipcastError
from tipcast.datasets.find_files import expand
from tipcast.datasets.listing import ScanRequest
from tipcast.datasets.periods import of_months


def test_missing_files_and_folders(trip_files: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_hidden.csv").write_text("a")
    for name, code, said in (
        ("none.parquet", "D001", "none.parquet"),
        ("none*.parquet", "D001", "none*.parquet"),
        ("pipe.parquet", "D001", "pipe.parquet: is not a regular file"),
        ("empty", "D002", "empty"),
    ):
        trip_files.refused(tmp_path / name, code, said)
    for path in ("x" * 300 + ".csv", "~nobody-of-this-name/x.csv", "a\0b.csv"):
        with pytest.raises(TipcastError, match="D001.*no such file"):
            trip_files.listing(path)
    for host in ("https://[u:hunter2@x/a.csv", "s3://[x/a.csv"):
        with pytest.raises(TipcastError, match=r"D021.*://\.\.\.: is not an address"):
            trip_files.listing(host)
    with pytest.raises(TipcastError, match="C004.*data.train"):
        trip_files.listing([])


def test_colours(trip_files: Any) -> None:
    yellow = trip_files.write("a_2019-02.parquet")
    green = trip_files.write(
        "b_2019-02.parquet", lambda f: f.rename(columns={PICKUP: "lpep_pickup_datetime"})
    )
    assert (
        "set the colour to green"
        in trip_files.refused(green, "D007", green, PICKUP, colour="yellow").fix
    )
    trip_files.refused([yellow, green], "D007", green)


def test_good_files_need_no_note_and_other_names_one(trip_files: Any) -> None:
    plain = trip_files.write("a_2019-01.parquet", month="2019-01")
    integers = trip_files.write(
        "b_2019-02.parquet", lambda f: f.astype({"passenger_count": "int64"})
    )
    marked = trip_files.write("c_2019-03.csv", month="2019-03", encoding="utf-8-sig")
    listing = trip_files.listing([marked, integers, plain])
    assert listing.notes == ()
    assert [Path(uri).name for uri in listing.uris] == [
        "a_2019-01.parquet",
        "b_2019-02.parquet",
        "c_2019-03.csv",
    ]
    assert listing.period == of_months("2019-01", "2019-03")
    lower = trip_files.write("d_2019-02.parquet", lambda f: f.rename(columns=str.lower))
    listing = trip_files.listing([marked, integers, plain, lower])
    names = "pulocationid as PULocationID, dolocationid as DOLocationID"
    assert listing.notes == (f"columns read under other names: {names}",)
    assert sum(sums.rows for sums in trip_files.checked(listing).values()) == 4000


def test_folders_globs_and_lists(
    trip_files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "year").mkdir()
    first = trip_files.write("year/a_2019-01.csv", month="2019-01")
    second = trip_files.write("b_2019-02.parquet")
    (tmp_path / ".c_2019-02.parquet").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no data")
    for named in (tmp_path, tmp_path / "**" / "*_2019*", [first, second]):
        assert len(trip_files.listing(named).parts) == 2
    monkeypatch.chdir(tmp_path)
    assert trip_files.listing("b_2019-02.parquet").uris == ("b_2019-02.parquet",)
    assert len(trip_files.listing([second, tmp_path / "b_*.parquet"]).parts) == 1, (
        "named twice, read once"
    )


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz"])
def test_the_period_is_inferred_from_months_with_a_hundredth_of_the_rows(
    trip_files: Any, ending: str
) -> None:
    def stray(frame: pd.DataFrame) -> pd.DataFrame:
        times = frame[PICKUP].to_numpy().copy()
        times[:4] = np.array(["2009-01-01", "2001-01-01", "2098-01-01", "2019-06-06"], "M8[us]")
        times[4:300] = np.datetime64("2019-01-31T23:59:59", "us")
        return frame.assign(**{PICKUP: times})

    path = trip_files.write(f"trips.{ending}", stray)
    listing = trip_files.listing(path, block_bytes=5_000)
    assert listing.period == of_months("2019-01", "2019-02")
    assert trip_files.checked(listing)[str(path)].dropped == {"outside_period": 4}


def test_dates_with_slashes(trip_files: Any) -> None:
    for name, form, said in (
        ("a_2019-02.csv", "%m/%d/%Y %H:%M", "month/day"),
        ("b_2019-02.csv", "%d/%m/%Y %H:%M:%S", "day/month"),
        ("c.csv", "%m/%d/%Y %I:%M:%S %p", "month/day"),
        ("a_2019-02.csv", "03/02/2019 0:30", "day/month"),  # where both fit, by the name
        ("a_2019-03.csv", "03/02/2019 0:30", "month/day"),
    ):
        path = trip_files.write(
            name, lambda f, form=form: f.assign(**{PICKUP: f[PICKUP].dt.strftime(form)})
        )
        listing = trip_files.listing(path)
        assert said in listing.notes[0]
        assert "%" not in form or trip_files.checked(listing)[str(path)].rows == 1000


def test_a_folder_that_may_not_be_looked_into_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any) -> Any:  # as for any user but root, whom no rights keep out
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(TipcastError, match=f"D001.*{tmp_path}: is not readable by this user"):
        expand(str(tmp_path), ScanRequest((), (), None))


def test_digests_follow_the_content(trip_files: Any) -> None:
    for name in ("a_2019-02.parquet", "a_2019-02.csv"):
        before, again, other = (
            trip_files.listing(trip_files.write(name, change)).digest
            for change in (None, None, lambda frame: frame.assign(fare_amount=3.0))
        )
        assert before == again != other
