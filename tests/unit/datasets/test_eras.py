"""Tests on the real files of every era: each is read right or refused by name, as docs/data.md
says.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tipcast.config.errors import TipcastError

HEADS = "no_repo_license/tlc_csv_heads_1KB"
WITHOUT_ZONES = [
    f"yellow_tripdata_{month}" for month in ("2009-01", "2010-01", "2014-01", "2015-02")
]
WITHOUT_ZONES += ["green_tripdata_2013-08", "green_tripdata_2015-01"]
READ = [
    # file, rows kept, label rate, colour, rows outside the period, rows whose fare is not positive
    (
        "drift/ge_planted/yellow_tripdata_sample_2019-02_passenger0.csv",
        9_981,
        0.559,
        "yellow",
        0,
        19,
    ),
    ("drift/ge_renamed_columns/yellow_tripdata_sample_2018-01.csv", 9_996, 0.505, "yellow", 0, 4),
    ("no_repo_license/green_tripdata_2020-10.csv.gz", 94_511, 0.218, "green", 9, 600),
    ("no_repo_license/green_tripdata_2023-12.parquet", 63_979, 0.448, "green", 4, 232),
    ("no_repo_license/green_months/green_tripdata_2021-01.parquet", 76_227, 0.212, "green", 3, 288),
    ("no_repo_license/green_months/green_tripdata_2021-02.parquet", 64_345, 0.214, "green", 2, 225),
    ("no_repo_license/green_months/green_tripdata_2022-01.parquet", 62_184, 0.416, "green", 4, 307),
    (
        "no_repo_license/green_months/green_tripdata_2022-02.parquet",
        69_036,
        0.434,
        "green",
        23,
        340,
    ),
    ("no_repo_license/green_months/green_tripdata_2023-01.parquet", 67_948, 0.428, "green", 4, 259),
    (
        "no_repo_license/green_months/green_tripdata_2023-02.parquet",
        64_507,
        0.432,
        "green",
        26,
        276,
    ),
    ("no_repo_license/yellow_2021-01_us_dates_10k.csv", 9_885, 0.492, "yellow", 16, 98),
    ("no_repo_license/yellow_tripdata_2024-01_first10k.csv", 9_852, 0.618, "yellow", 10, 138),
    ("yellow/yellow_tripdata_2018_120k.parquet", 119_895, 0.495, "yellow", 0, 105),
    ("yellow/yellow_tripdata_2019-02_10k.parquet", 9_982, 0.562, "yellow", 0, 18),
    ("yellow/yellow_tripdata_2020-04_10k.parquet", 9_934, 0.424, "yellow", 0, 66),
]
REFUSED = [
    ("drift/yellow_2009_trip_schema_small.csv", "D017", "no zone ids"),
    ("drift/camelcase_latlon/yellowTaxiData_2016-01.csv", "D017", "no zone ids"),
    (
        "drift/ge_misaligned/yellow_tripdata_sample_2016-06.csv",
        "D005",
        "line 2: column 'pickup_location_id': cannot read 'N'",
    ),
    (
        "drift/ge_misaligned/yellow_tripdata_sample_2016-08.csv",
        "D005",
        "line 2: column 'pickup_datetime': cannot read '4'",
    ),
    (
        "no_repo_license/yellow_tripdata_2021-01_head_truncated.csv",
        "D005",
        "line 22794 has 2 fields, not 18",
    ),
    *((f"{HEADS}/{name}.csv", "D017", "no zone ids") for name in WITHOUT_ZONES),
    (f"{HEADS}/green_tripdata_2016-07.csv", "D005", "line 11 has 2 fields, not 21"),
    (f"{HEADS}/green_tripdata_2019-01.csv", "D005", "line 10 has 2 fields, not 20"),
    (f"{HEADS}/yellow_tripdata_2016-07.csv", "D005", "line 11 has 2 fields, not 19"),
    (f"{HEADS}/yellow_tripdata_2018-06.csv", "D005", "line 11 has 13 fields, not 17"),
    (f"{HEADS}/yellow_tripdata_2019-03.csv", "D005", "line 10 has 5 fields, not 18"),
]


def test_every_file_is_spoken_of(taxi: Path) -> None:
    folders = taxi / "drift", taxi / "no_repo_license"
    here = {str(file.relative_to(taxi)) for folder in folders for file in folder.rglob("*.*")}
    assert here == {name for name, *_ in (*READ, *REFUSED) if not name.startswith("yellow/")}


@pytest.mark.parametrize(("name", "rows", "rate", "colour", "outside", "unpaid"), READ)
def test_read_right(
    taxi: Path,
    trip_files: Any,
    name: str,
    rows: int,
    rate: float,
    colour: str,
    outside: int,
    unpaid: int,
) -> None:
    listing = trip_files.listing(taxi / name)
    sums = trip_files.checked(listing)[str(taxi / name)]
    assert (sums.rows, listing.info.colour) == (rows, colour)
    assert Counter(sums.dropped) == Counter(outside_period=outside, fare_not_positive=unpaid)
    assert round(sums.classes[1] / sums.rows, 3) == rate


@pytest.mark.parametrize(("name", "code", "says"), REFUSED)
def test_refused_before_a_cluster_starts(
    taxi: Path, trip_files: Any, name: str, code: str, says: str
) -> None:
    with pytest.raises(
        TipcastError, match=f"{code}.*{re.escape(Path(name).name)}.*{re.escape(says)}"
    ):
        trip_files.listing(taxi / name)


def test_eras_with_zone_ids_are_read_once_whole(
    taxi: Path, trip_files: Any, tmp_path: Path
) -> None:
    green = ("green_tripdata_2016-07", "green_tripdata_2019-01")
    for name in (
        *green,
        "yellow_tripdata_2016-07",
        "yellow_tripdata_2018-06",
        "yellow_tripdata_2019-03",
    ):
        content = (taxi / HEADS / f"{name}.csv").read_bytes()
        (tmp_path / f"{name}.csv").write_bytes(content[: content.rindex(b"\n") + 1])
        listing = trip_files.listing(tmp_path / f"{name}.csv")
        assert listing.notes == ()
        (sums,) = trip_files.counts(listing).values()
        assert sums.rows_read == (9 if name == "yellow_tripdata_2016-07" else 8)
        assert set(sums.dropped) <= {"outside_period"}
