"""Files of scores, whole or absent; folders that may get them and those that must not, names, one job at a time."""

from __future__ import annotations

import gc
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.waiting import wait_until

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.base import RawColumn, ScanRequest
from tipcast.scoring import plan
from tipcast.scoring.plan import output_names
from tipcast.scoring.writing import (
    FOOTER,
    MANIFEST,
    UNFINISHED,
    Entry,
    Scores,
    alone,
    file_stamp,
    look,
    read_manifest,
    written,
)
from tipcast.tasks.base import Task

SCORED = Entry(rows=2, recipe="r", input_sha256="5" * 64, unscored={"bad": 1})
OURS = b'{"kind": "tipcast scores", "version": 1, "rows": 0, "recipe": "r", "files": {}}'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with trips, scores, and files of others."""
    files = {"trips/a.parquet": b"trips", "trips/2019/b.parquet": b"", "mine/letter.txt": b"dear", "file": b"x",
             f"scored/{MANIFEST}": OURS, f"other/{MANIFEST}": b'{"kind": "something else"}',
             "home/files/letter.txt": b"dear"}  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "trips")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def code(output: str) -> str:
    with pytest.raises(TipcastError) as caught:
        look(output, {})
    return caught.value.code


def scores(path: Path) -> None:
    """Write a whole file of scores that says of itself what a worker's does."""
    table = pa.table({"prediction": [1.0, 2.0]})
    pq.write_table(table.replace_schema_metadata({FOOTER: json.dumps(SCORED.footer)}), path)


def test_folders_that_must_not_get_scores(here: Path) -> None:
    before = everything(here)
    outputs = ["/", "~", ".", "..", "scored/../..", "file", "mine", "other", "~/files", "trips", "/proc"]
    outputs += ["s3://bucket", "s3://bucket/", "https://example.org/scored"]
    for output in outputs:
        with pytest.raises(TipcastError, match=rf"C011.*{output.rstrip('/')}") as caught:
            look(output, {})
        assert caught.value.exit_code == 2
    assert code(" ") == "C004"
    (here / "scored" / "deep").mkdir()
    (here / "scored" / "deep" / "mine.parquet").write_text("mine")
    with pytest.raises(TipcastError, match=r"C011.* holds deep/mine.parquet, which is none of tipcast's scores"):
        look("scored", {})
    assert {name: content for name, content in everything(here).items() if "deep" not in name} == before


def test_folders_that_may_get_scores(here: Path) -> None:
    before = everything(here)
    for output in ("scored", "empty", "new", "new/deep", "mine/empty"):
        for given in (output, f"{output}/", str(here / output), f"file://{here / output}"):
            present = look(given, {})
            assert (present.folder, present.files) == (str(here / output), {})
            assert (present.about != {}) is (output == "scored")
    assert everything(here) == before
    (here / "new").mkdir()
    (here / "new" / f"{UNFINISHED}x").touch()
    scores(here / "new" / "a.parquet")
    assert look("new", {}).files == {"a.parquet": SCORED}, "of a job that was killed"


def test_names_of_scores_are_those_of_their_trips(here: Path) -> None:
    for name in ("2019/c.csv", "2020/b.parquet", "2020/_x.parquet"):
        (here / "trips" / name).parent.mkdir(exist_ok=True)
        (here / "trips" / name).touch()
    wanted = ScanRequest(("pickup",))
    for given, names in (
        ("trips", ["2019/b.parquet", "2019/c.csv.parquet", "2020/b.parquet", "a.parquet"]),
        ("trips/20*/*.parquet", ["2019/b.parquet", "2020/_x.parquet", "2020/b.parquet"]),
        ("trips/**/b.parquet", ["2019/b.parquet", "2020/b.parquet"]),
        (["trips/2019", "trips/a.parquet"], ["a.parquet", "b.parquet", "c.csv.parquet"]),
    ):
        found = output_names(given, wanted, "input")
        assert list(found) == names
        assert all(uri.endswith((name, name.removesuffix(".parquet"))) for name, uri in found.items())
    with pytest.raises(TipcastError, match=r"C003.*would both be b\.parquet"):
        output_names(["trips/2019/b.parquet", "trips/2020/b.parquet"], wanted, "input")
    assert list(output_names("https://host/trips/a.parquet?signature=x/y", wanted, "input")) == ["a.parquet"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"kind": "tipcast scores", "version": 2, "files": {}}',
     b'{"kind": "tipcast scores", "version": 1, "files": {"a": {"b": 1}}}'],
)  # fmt: skip
def test_a_manifest_of_another_kind(content: bytes) -> None:
    assert read_manifest("there", content) == Scores("there")


def test_one_job_scores_into_a_folder_at_a_time(tmp_path: Path) -> None:
    output = tmp_path / "scored"
    for name in ("2019/a", f"2019/{UNFINISHED}killed"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).touch()
    with alone(str(output)):
        assert [*output.rglob(f"{UNFINISHED}*")] == [], "what a killed job left is gone"
        with pytest.raises(TipcastError, match="S011"), alone(str(output)):
            pass
    assert [path.name for path in output.rglob("*") if path.is_file()] == ["a"]
    (output / "2019" / "a").unlink()
    with pytest.raises(RuntimeError), alone(str(output)):
        raise RuntimeError
    assert not output.exists(), "it got no scores"


def test_a_store(bucket: Any) -> None:
    output = "s3://trips/a_tipcast-b/scored"
    bucket.pipe_file("trips/a_tipcast-b/scored_other/letter", b"")
    bucket.pipe_file(f"trips/a_tipcast-b/scored/{MANIFEST}", OURS)
    assert look(output, {}) == Scores(output, {}, {"recipe": "r", "rows": 0})
    bucket.pipe_file("trips/a_tipcast-b/2019/a.csv", b"pickup")
    for trips in ("s3://trips/a_tipcast-b/", "s3://trips/a_tipcast-b", "s3://trips/a_tipcast-b/20*/a.csv"):
        (name,) = output_names(trips, ScanRequest(("pickup",)), "input")
        assert name == "2019/a.csv.parquet"
    bucket.pipe_file("trips/a_tipcast-b/scored/letter", b"")
    assert code(output) == "C011"


def test_a_file_is_synced_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    sync, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("sync"), sync(descriptor))[1])
    monkeypatch.setattr(Path, "replace", lambda path, to: (steps.append(to.name), rename(path, to))[1])
    with written(str(tmp_path / "a"), {}) as file:
        file.write(b"1")
        assert [path.name[0] for path in tmp_path.iterdir()] == ["_"], "readers of the folder do not see it"
    assert steps == ["sync", "a"]
    assert (file.tell(), file.sha256()) == (1, hashlib.sha256(b"1").hexdigest())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TipcastError, match="T008"), written(str(tmp_path / "a"), {}) as file:
        file.write(b"half")
    with pytest.raises(BlockingIOError), written(str(tmp_path / "a"), {}) as file:
        raise BlockingIOError  # of something else
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"1")]


@pytest.mark.parametrize("size", [10, 12 << 20])
def test_an_object_whose_writing_fails_is_not_there(bucket: Any, size: int) -> None:
    """Nor is what was sent of it, where it is sent in pieces."""
    uri = "s3://trips/a"
    storage = address.storage(uri, {"default_block_size": 5 << 20})
    for problem in (TipcastError("D005", "trips", "damaged", "mend them"), MemoryError("of the GPU")):
        with pytest.raises(type(problem)), written(uri, storage) as file:
            file.write(bytes(size))
            raise problem
    gc.collect()  # a file that is closed as it goes would be written now
    bucket.invalidate_cache()
    assert bucket.find("trips") == []
    assert bucket.list_multipart_uploads("trips") == []
    with written(uri, storage) as file:
        file.write(bytes(size))
    assert bucket.size("trips/a") == size


def config(**more: Any) -> Any:
    tracking = SimpleNamespace(uri="sqlite:///mlflow.db")
    given = {"model_uri": "models:/a/1", "input": ["trips"], "storage_options": {}, "columns": {}, "facts": {}}
    return SimpleNamespace(**{**given, "keep": None, "tracking": tracking, **more})


def test_parts_without_rows_are_passed_over_and_partitions_refused(
    tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"a": [1.0, 2.0], "region": ["n", "s"]})
    (tmp_path / "parts").mkdir()
    for name, part in (("a", frame), ("b", frame[:0])):
        part.to_parquet(f"parts/{name}.parquet")
    frame.to_parquet("hive", partition_cols=["region"])
    task = Task("t", "regression", ("a",)).facts()
    manifest = {"dataset": "table", "table": [asdict(RawColumn("a", ("a",)))], "task": task, "features": ["a"]}
    model = SimpleNamespace(uri="u", manifest=manifest, manifest_sha256="m")
    present = Scores(str(tmp_path / "scored"))
    found = plan.plan_files(config(input="parts", block_bytes=1 << 20), present, model)  # type: ignore[arg-type]
    assert [item.name for item in found.due] == ["a.parquet"]
    assert not found.refused
    assert "1 file without rows passed over" in caplog.text
    with pytest.raises(TipcastError, match="D009"):
        plan.plan_files(config(input="parts/b.parquet", block_bytes=1 << 20), present, model)  # type: ignore[arg-type]
    with pytest.raises(TipcastError, match="C003.*keep.*prediction is a column that scoring adds"):
        plan.plan_files(config(keep=["a", "prediction"]), present, model)  # type: ignore[arg-type]
    with pytest.raises(TipcastError, match="D025.*column region"):
        plan.plan_files(config(input="hive", block_bytes=1 << 20), present, model)  # type: ignore[arg-type]
    frame.to_parquet("mine.parquet")
    (tmp_path / "link").symlink_to("parts")
    inside = Scores(str(tmp_path / "parts"))
    with pytest.raises(TipcastError, match="C011.*holds all files of the input"):
        plan.plan_files(config(input="link", block_bytes=1 << 20), inside, model)  # type: ignore[arg-type]
    again = plan.plan_files(config(input=["link", "mine.parquet"], block_bytes=1 << 20), inside, model)  # type: ignore[arg-type]
    assert [item.name for item in again.due] == ["mine.parquet"], "scores are not scored"


def test_the_stamp_of_a_link_is_that_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    stamp = file_stamp(str(tmp_path / "link"), {})
    assert stamp == file_stamp(str(tmp_path / "a"), {})
    assert stamp.startswith("1-")
    assert file_stamp(str(tmp_path / "none"), {}) == ""
    wait_until(lambda: (tmp_path / "a").write_bytes(b"2") and file_stamp(str(tmp_path / "link"), {}) != stamp)
