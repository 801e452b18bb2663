"""Names of scored files: below their folder as the trips are below theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets.base import ScanRequest
from tipcast.scoring.output_folder import output_name, output_names, root

WANTED = ScanRequest(("pickup",))


@pytest.fixture
def trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.parquet", "2019/b.parquet", "2019/c.csv", "2019/d.csv.gz", "2020/b.parquet", "2020/_x.parquet"):
        path = tmp_path / "trips" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "trips"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("trips", ["2019/b.parquet", "2019/c.csv.parquet", "2019/d.csv.gz.parquet", "2020/b.parquet", "a.parquet"]),
        ("trips/20*/*.parquet", ["2019/b.parquet", "2020/_x.parquet", "2020/b.parquet"]),
        ("trips/**/b.parquet", ["2019/b.parquet", "2020/b.parquet"]),
        ("trips/2019/b.parquet", ["b.parquet"]),
        (["trips/2019", "trips/a.parquet"], ["a.parquet", "b.parquet", "c.csv.parquet", "d.csv.gz.parquet"]),
        (["trips/a.parquet", "trips/a.parquet"], ["a.parquet"]),
    ],
)
def test_names(trips: Path, given: str | list[str], names: list[str]) -> None:
    found = output_names(given, WANTED, "input")
    assert list(found) == names
    for name, uri in found.items():
        assert Path(uri).is_relative_to(trips)
        assert uri.endswith((name, name.removesuffix(".parquet")))
    absolute = [str(trips.parent / each) for each in ([given] if isinstance(given, str) else given)]
    assert output_names(absolute, WANTED, "input") == found


def test_two_files_of_one_name(trips: Path) -> None:
    with pytest.raises(TipcastError) as caught:
        output_names(["trips/2019/b.parquet", "trips/2020/b.parquet"], WANTED, "input")
    assert caught.value.code == "C003"
    assert "b.parquet" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "base"),
    [
        ("s3://bucket/trips/", "s3://bucket/trips"),
        ("s3://bucket/trips", "s3://bucket/trips"),
        ("s3://bucket/trips/2019-*/a.parquet", "s3://bucket/trips"),
        ("s3://bucket/trips/a.parquet", "s3://bucket/trips"),
        ("https://host/trips/a.parquet", "https://host/trips"),
    ],
)
def test_roots_of_addresses(pattern: str, base: str) -> None:
    assert root(pattern) == base


def test_a_query_is_no_part_of_a_name() -> None:
    assert output_name("https://host/trips/a.parquet?signature=x/y", "https://host/trips") == "a.parquet"
