"""Folders that may get scores and those that must not, what is read of them, and one job at a
time.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tipcast.config.errors import TipcastError
from tipcast.scoring.folder import (
    FOOTER,
    MANIFEST,
    ManifestEntry,
    ScoreFolder,
    locked_output,
    read_folder,
    write_manifest,
)
from tipcast.scoring.writing import UNFINISHED

SCORED = ManifestEntry(rows=2, recipe="r", input_sha256="5" * 64, unscored={"bad": 1})
OURS = b'{"kind": "tipcast scores", "version": 1, "rows": 0, "recipe": "r", "files": {}}'
ABOUT = {"kind": "tipcast scores", "version": 1, "rows": 0, "recipe": "r"}
OF_OTHERS = (
    b"",
    b"{",
    b"[]",
    OURS.replace(b"1", b"2"),
    OURS.replace(b"{}", b'{"a": {"b": 1}}'),
    b'{"kind": "other"}',
)
"""Contents of a manifest's name that no tipcast has written."""
FORMS = ("{}", "{}/", "{here}/{}", "file://{here}/{}")
"""How an output may be written."""
REFUSED = (
    *("/", "~", ".", "..", "/proc", "scored/../..", "file", "mine", "~/files", "trips"),
    *(f"other/{number}" for number in range(len(OF_OTHERS))),
    *("s3://bucket", "s3://bucket/", "https://example.org/scored"),
)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with trips, scores, and files of others."""
    files = {
        "trips/a.parquet": b"trips",
        "mine/letter.txt": b"dear",
        "file": b"x",
        f"scored/{MANIFEST}": OURS,
        "home/files/letter.txt": b"dear",
    }
    files |= {f"other/{number}/{MANIFEST}": content for number, content in enumerate(OF_OTHERS)}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("output", "about"), [("scored", ABOUT), ("empty", {}), ("new/deep", {})])
def test_folder_of_scores_is_read_in_every_form_of_its_address(
    workplace: Path, form: str, output: str, about: dict[str, Any]
) -> None:
    folder = read_folder(form.format(output, here=workplace), {})
    assert folder == ScoreFolder(str(workplace / output), {}, about)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("output", ["scored", "empty", "new/deep"])
def test_folder_of_scores_is_not_changed_when_it_is_read(
    workplace: Path, form: str, output: str
) -> None:
    before = contents(workplace)
    read_folder(form.format(output, here=workplace), {})
    assert contents(workplace) == before


@pytest.mark.parametrize("output", REFUSED)
def test_folder_of_others_is_refused(workplace: Path, output: str) -> None:
    with pytest.raises(TipcastError, match=rf"C011.*{output.rstrip('/')}") as caught:
        read_folder(output, {})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("output", REFUSED)
def test_folder_that_is_refused_is_not_changed(workplace: Path, output: str) -> None:
    before = contents(workplace)
    with pytest.raises(TipcastError):
        read_folder(output, {})
    assert contents(workplace) == before


def test_output_without_a_name_is_refused(workplace: Path) -> None:
    with pytest.raises(TipcastError, match="C004"):
        read_folder(" ", {})


def write_scores(path: Path) -> None:
    """Write a file as a worker does, with what it says of itself."""
    footer = {FOOTER: json.dumps(SCORED.footer)}
    pq.write_table(pa.table({"prediction": [1.0, 2.0]}).replace_schema_metadata(footer), path)


def test_scores_of_a_killed_job_are_read_from_their_footers(workplace: Path) -> None:
    (workplace / "scored" / f"{UNFINISHED}x").touch()
    write_scores(workplace / "scored" / "a.parquet")
    folder = read_folder("scored", {})
    assert folder == ScoreFolder(str(workplace / "scored"), {"a.parquet": SCORED})


def test_file_of_others_among_scores_is_named(workplace: Path) -> None:
    write_scores(workplace / "scored" / "a.parquet")
    (workplace / "scored" / "deep").mkdir()
    (workplace / "scored" / "deep" / "mine.parquet").write_text("mine")
    says = "C011.*holds deep/mine.parquet, which tipcast did not write"
    with pytest.raises(TipcastError, match=says):
        read_folder("scored", {})


@pytest.mark.parametrize("link", ["a.parquet", "_manifest.json", "2019"])
def test_scores_are_not_written_through_a_link(tmp_path: Path, link: str) -> None:
    output = tmp_path / "scored"
    foreign = tmp_path / "foreign"
    output.mkdir()
    foreign.mkdir()
    (output / link).symlink_to(foreign)
    with pytest.raises(TipcastError, match=f"C011.*{link}, a link"):
        read_folder(str(output), {})


def test_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_scores(tmp_path / "a.parquet")
    entry = ManifestEntry(input="in/a.parquet", recipe="r", rows=2, unscored={"bad": 1})
    write_manifest(ScoreFolder(str(tmp_path), {"a.parquet": entry}, {"run_id": "x"}), (), {})

    folder = read_folder(str(tmp_path), {})
    assert folder.files == {"a.parquet": entry}
    assert (folder.about["run_id"], folder.about["rows"]) == ("x", 2)


def test_obsolete_scores_go_after_the_manifest_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_scores(tmp_path / "old.parquet")
    write_manifest(ScoreFolder(str(tmp_path)), ["old.parquet"], {})
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]
    assert "removed 1 files of scores" in caplog.text


# One job at a time


def test_second_job_in_a_folder_is_refused(tmp_path: Path) -> None:
    output = str(tmp_path / "scored")
    with (
        locked_output(output),
        pytest.raises(TipcastError, match="S011.*another job is scoring to it"),
        locked_output(output),
    ):
        pass


def test_what_a_killed_job_left_unfinished_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "2019"
    folder.mkdir()
    (folder / "a").touch()
    (folder / f"{UNFINISHED}killed").touch()
    with locked_output(str(tmp_path)):
        assert [path.name for path in folder.iterdir()] == ["a"]


def test_folder_that_only_a_killed_job_needed_is_removed(tmp_path: Path) -> None:
    (tmp_path / "2020").mkdir()
    (tmp_path / "2020" / f"{UNFINISHED}killed").touch()
    with locked_output(str(tmp_path)):
        assert not (tmp_path / "2020").exists()


def test_empty_folder_that_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "2019").mkdir()
    with locked_output(str(tmp_path)):
        pass
    assert (tmp_path / "2019").is_dir()


def test_output_that_got_no_scores_is_removed(tmp_path: Path) -> None:
    output = tmp_path / "new"
    with pytest.raises(RuntimeError), locked_output(str(output)):
        raise RuntimeError
    assert not output.exists()
