"""Folders that scores may replace and those that they must not: a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tipcast.config.errors import TipcastError
from tipcast.scoring.output_folder import (
    MANIFEST,
    Manifest,
    check_output_folder,
    file_sha256,
    file_stamp,
    manifest_bytes,
    read_manifest,
    unchanged_file,
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with trips, a folder of scores, and things that must stay."""
    work, home = tmp_path / "work", tmp_path / "home"
    for folder in (work / "trips", work / "mine", work / "scored", work / "empty", home / "files", tmp_path / "out"):
        folder.mkdir(parents=True)
    (work / "trips" / "a.parquet").write_text("trips")
    (work / "mine" / "letter.txt").write_text("dear")
    (home / "files" / "letter.txt").write_text("dear")
    (work / "scored" / MANIFEST).write_bytes(manifest_bytes(Manifest({}, {"recipe": "r"})))
    (work / "file").write_text("x")
    (work / "link").symlink_to(work / "scored")
    (work / "way").symlink_to(tmp_path / "out")
    foreign = work / "foreign"
    foreign.mkdir()
    (foreign / MANIFEST).write_text('{"kind": "something else"}')
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(home))
    return work


def everything(folder: Path) -> dict[str, bytes | None]:
    paths = folder.parent.rglob("*")
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize(
    "output",
    ["/", "~", "~/", ".", "..", "../out", "scored/../../out", "/tmp/../etc", "link", "way/scored", "file", "mine",
     "foreign", "~/files", "trips", "trips/scored", "/home", "/proc"],
)  # fmt: skip
def test_a_folder_that_must_not_be_replaced(here: Path, output: str) -> None:
    before = everything(here)
    with pytest.raises(TipcastError) as caught:
        check_output_folder(output, ["trips"], {})
    assert caught.value.code == "C011"
    assert caught.value.exit_code == 2
    assert output.rstrip("/") in str(caught.value) or output == "/"
    assert everything(here) == before


@pytest.mark.parametrize("name", ["note.txt", "_SUCCESS", "deep/er/mine.parquet"])
def test_what_is_no_score_is_not_replaced_with_them(here: Path, name: str) -> None:
    file = here / "scored" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with pytest.raises(TipcastError, match=f"C011.* holds {name}, which is none of its scores") as caught:
        check_output_folder("scored", ["trips"], {})
    assert "move it away" in str(caught.value)


@pytest.mark.parametrize(("output", "known"), [("scored", True), ("empty", False), ("new", False), ("new/deep", False)])
def test_a_folder_that_may_be_replaced(here: Path, output: str, known: bool) -> None:
    before = everything(here)
    for written in (output, str(here / output), f"file://{here / output}"):
        folder, manifest = check_output_folder(written, ["trips/*.parquet"], {})
        assert folder == str(here / output)
        assert (manifest is not None) is known
    assert everything(here) == before


@pytest.mark.parametrize(
    ("output", "trips", "apart"),
    [
        ("trips/scored", "trips/**/*.parquet", False),
        ("trips/scored", "trips/**", False),
        ("trips/scored", "trips/*/*.parquet", False),
        ("trips/scored", "t*/*/2019/a.parquet", False),
        ("trips/scored/deep", "trips/*/*/*.parquet", False),
        ("trips", "trips/a.parquet", False),
        ("out/scored", "way/*/a.parquet", False),
        ("trips/scored", "trips/*.parquet", True),
        ("trips/scored", "trips/2*/*.parquet", True),
        ("trips/scored", "trips/*/2019/*.parquet", False),
        ("trips/scored/deep", "trips/*/a.parquet", True),
        ("scored2", "scored/**/*.parquet", True),
    ],
)
def test_scores_among_their_trips(here: Path, output: str, trips: str, apart: bool) -> None:
    (here / "out").symlink_to(here.parent / "out")
    absolute = str(here / output)
    for given in (trips, str(here / trips), f"file://{here / trips}"):
        if apart:
            assert check_output_folder(absolute, ["https://host/other.parquet", given], {}) == (absolute, None)
        else:
            with pytest.raises(TipcastError) as caught:
                check_output_folder(absolute, ["https://host/other.parquet", given], {})
            assert caught.value.code == "C011"
            assert "one lies in the" in str(caught.value)


def test_an_absolute_way_through_a_link_is_the_users_own(here: Path) -> None:
    assert check_output_folder(str(here / "way" / "new"), ["trips"], {}) == (str(here / "way" / "new"), None)


def test_nothing_named(here: Path) -> None:
    with pytest.raises(TipcastError) as caught:
        check_output_folder(" ", ["trips"], {})
    assert caught.value.code == "C004"


@pytest.mark.parametrize("output", ["s3://bucket", "s3://bucket/", "https://example.org/scored", "s3://b/a/../b"])
def test_an_address_that_must_not_be_written_to(output: str) -> None:
    with pytest.raises(TipcastError) as caught:
        check_output_folder(output, ["trips"], {})
    assert caught.value.code == "C011"


@pytest.mark.parametrize(
    ("output", "trips"),
    [
        ("s3://b/trips/scored", "s3://b/trips/"),
        ("s3://b/trips/scored", "s3://b/trips"),
        ("s3://b/trips/scored", "s3://b/trips/**/*.parquet"),
        ("s3://b/trips/scored", "s3://b/*/*/a.parquet"),
        ("s3://b/trips", "s3://b/trips/a.parquet"),
        ("s3://b/trips", "s3://b/trips/"),
    ],
)
def test_scores_among_their_trips_in_a_store(output: str, trips: str) -> None:
    with pytest.raises(TipcastError) as caught:
        check_output_folder(output, [trips], {})
    assert caught.value.code == "C011"


def test_what_is_known_of_files(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    known, digest = file_stamp(str(file), {}, strict=True), file_sha256(str(file), {})
    assert known
    same: Callable[[], bool] = lambda: unchanged_file(str(file), {}, known, digest, strict=True)  # noqa: E731
    assert same()
    file.touch()
    assert file_stamp(str(file), {}, strict=True) != known
    assert same(), "it looks different, but has the same content"
    file.write_text("two")
    assert not same()
    file.unlink()
    assert file_stamp(str(file), {}, strict=True) is None
    assert not same()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"kind": "tipcast scores", "version": 2, "files": {}}',
        b'{"kind": "tipcast scores", "version": 1, "files": {"a": {"b": 1}}}',
    ],
)
def test_a_manifest_that_is_none(content: bytes) -> None:
    assert read_manifest(content) is None
