"""Folders and globs as others write them: parts without rows, partitions, tables that a log
describes, an index.
"""

import gzip
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.unit.datasets.conftest import open_table

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets.find_files import expand, identical
from tipcast.datasets.listing import ScanRequest

FRAME = pd.DataFrame(
    {"a": np.arange(60.0), "region": ["north", "south"] * 30, "y": np.arange(60) % 3}
)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_parts_without_rows_are_passed_over(tmp_path: Path, ending: str) -> None:
    for name, part in (("a", FRAME[:0]), ("b", FRAME[:40]), ("c", FRAME[40:]), ("d", FRAME[:0])):
        path = tmp_path / f"part-{name}.{ending}"
        part.to_parquet(path, index=False) if ending == "parquet" else part.to_csv(
            path, index=False
        )
    for name in ("_SUCCESS", ".part-a.crc"):
        (tmp_path / name).touch()
    parts = [f"{tmp_path}/part-{name}.{ending}" for name in "ab"]
    for named in (str(tmp_path), f"{tmp_path}/*.{ending}"):
        listing = open_table(named).scan("train", ("a", "y"))
        assert len(listing.uris) == 2
        assert f"2 files without rows skipped, such as {parts[0]}" in listing.notes
    for named in (parts[0], f"{tmp_path}/part-[ad]*", parts):
        with pytest.raises(TipcastError, match="D009"):
            open_table(named)


def test_a_partitioned_folder_is_refused_by_its_column(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "sales", partition_cols=["region"], index=False)
    sales, north, south = (
        str(tmp_path / path) for path in ("sales", "sales/region=north", "sales/region=south")
    )
    for named in (sales, f"{sales}/*/*.parquet", [north, south]):
        with pytest.raises(TipcastError, match="D025.*column region.*pandas.read_parquet"):
            open_table(named)
    assert len(open_table(north).scan("train", ("a",)).uris) == 1, (
        "a value that all rows share decides nothing"
    )
    assert len(expand(sales, ScanRequest(()))) == 2, "trips have columns of their own"


@pytest.mark.parametrize(
    ("kind", "log"),
    [
        ("Delta", "_delta_log/0.json"),
        ("Hudi", ".hoodie/x"),
        ("Iceberg", "metadata/00001-a.metadata.json"),
    ],
)
def test_a_table_of_another_format_is_refused_by_name(tmp_path: Path, kind: str, log: str) -> None:
    for path in (tmp_path / "t" / log, tmp_path / "t" / "data" / "a.parquet"):
        path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "t" / log).touch()
    FRAME.to_parquet(tmp_path / "t" / "data" / "a.parquet")
    for named in ("", "t", "t/data", "t/data/*.parquet", "t/**/*.parquet"):
        for look in (open_table, lambda path: expand(str(path), ScanRequest(()))):
            with pytest.raises(TipcastError, match=f"D025. {tmp_path}/t: is a table of {kind}"):
                look(tmp_path / named)


def test_a_glob_into_a_table_of_a_bucket_is_refused(bucket: Any) -> None:
    for file in ("t/_delta_log/0.json", "t/x=1/a.parquet", "u/a.parquet"):
        bucket.pipe_file(f"trips/{file}", b"x")
    with pytest.raises(TipcastError, match="D025.*s3://trips/t: is a table of Delta"):
        expand("s3://trips/t/*/*.parquet", ScanRequest(()))
    assert expand("s3://trips/u/*.parquet", ScanRequest(())) == {
        "a.parquet": "s3://trips/u/a.parquet"
    }


def test_an_index_is_no_feature_unless_it_is_mapped(tmp_path: Path) -> None:
    frames = {
        "shuffled": FRAME.sample(frac=1),
        "named": FRAME.set_index(["y", "region"]),
        "plain": FRAME,
    }
    for name, features in (
        ("shuffled", {"a", "r", "y"}),
        ("named", {"a", "r"}),
        ("plain", {"a", "r", "y"}),
    ):
        frames[name].to_parquet(tmp_path / f"{name}.parquet")
        assert (
            set(open_table(tmp_path / f"{name}.parquet", columns={"r": "region"}).features)
            == features
        )


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_copy_is_named_with_its_original(trip_files: Any, tmp_path: Path, ending: str) -> None:
    first = trip_files.write(f"a_2019-02.{ending}")
    copy = tmp_path / f"b_2019-02.{ending}"
    copy.write_bytes(first.read_bytes())
    other = trip_files.write(f"c_2019-02.{ending}", lambda frame: frame.iloc[::-1])
    (line,) = identical(trip_files.listing([first, copy, other]).parts)
    assert f"{first} and {copy} have the same content" in line
    assert not identical(trip_files.listing([first, other]).parts)


def test_a_file_beside_itself_compressed_is_named(trip_files: Any) -> None:
    plain = trip_files.write("a_2019-02.csv")
    packed = plain.with_name("a_2019-02.csv.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    other = trip_files.write("b_2019-02.csv", lambda frame: frame.iloc[::-1])
    (line,) = identical(trip_files.listing([plain, packed, other]).parts)
    assert f"{plain} and {packed} are both read: name one of them" in line
    assert not identical(trip_files.listing([packed, other]).parts)


def test_folders_that_are_links_are_read_once_and_never_for_ever(tmp_path: Path) -> None:
    for name, part in (("data/2023", FRAME[:30]), ("disk/2024", FRAME[30:])):
        (tmp_path / name).mkdir(parents=True)
        part.to_csv(tmp_path / name / "part.csv", index=False)
    (tmp_path / "data" / "2024").symlink_to(tmp_path / "disk" / "2024")
    (tmp_path / "disk" / "2024" / "back").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "up").symlink_to(tmp_path)
    found = expand(str(tmp_path / "data"), ScanRequest(()))
    assert list(found) == ["2023/part.csv", "2024/part.csv"]


def test_a_link_to_data_that_is_not_here_is_named(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "b.csv").symlink_to(".git/annex/objects/x/b.csv")
    for named in (tmp_path, tmp_path / "*.csv", tmp_path / "b.csv"):
        with pytest.raises(
            TipcastError, match=r"D001.*b\.csv: is a git-annex link.*git annex get b\.csv"
        ):
            expand(str(named), ScanRequest(()))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
@pytest.mark.parametrize(
    ("content", "fix"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        ("/annex/objects/SHA256E-s9--0\n", "git annex get"),
    ],
)
def test_a_pointer_is_no_damaged_file(tmp_path: Path, name: str, content: str, fix: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TipcastError, match=rf"D005.*is a [Gg]it.* pointer.*{fix}"):
        open_table(tmp_path / name)


@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_letter_of_either_unicode_form_is_one_name(
    tmp_path: Path, form: Any, other: Any, ending: str
) -> None:
    for name, written in (("train", form), ("new", other)):
        frame = FRAME.rename(columns={"a": unicodedata.normalize(written, "größe")})
        path = tmp_path / f"{name}.{ending}"
        frame.to_parquet(path, index=False) if ending == "parquet" else frame.to_csv(
            path, index=False
        )
    table = open_table(tmp_path / f"train.{ending}")
    assert table.features[0] == "größe"
    (part,) = table.scan_file(str(tmp_path / f"new.{ending}"), ScanRequest(("größe",))).parts[:1]
    assert table.read(part, CpuFrames(), ("größe",))["größe"][1] == 1


def test_two_stars_before_an_ending_mean_any_depth(tmp_path: Path) -> None:
    for name in ("in/a.parquet", "in/b/c.parquet", "in/b/d/e.parquet", "in/f.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = expand(f"{tmp_path}/in/**.parquet", ScanRequest(()))
    assert list(found) == ["a.parquet", "b/c.parquet", "b/d/e.parquet"]


def test_two_stars_before_an_ending_mean_any_depth_of_a_bucket(bucket: Any) -> None:
    for file in ("in/a.parquet", "in/b/c.parquet", "in/d.csv"):
        bucket.pipe_file(f"trips/{file}", b"x")
    assert expand("s3://trips/in/**.parquet", ScanRequest(())) == {
        "a.parquet": "s3://trips/in/a.parquet",
        "b/c.parquet": "s3://trips/in/b/c.parquet",
    }


def test_two_stars_amid_a_name_are_refused_with_the_right_pattern(tmp_path: Path) -> None:
    with pytest.raises(TipcastError, match=r"D001.*x\*\*y.csv: is not a pattern.*folder/\*\*/\*"):
        expand(f"{tmp_path}/x**y.csv", ScanRequest(()))
