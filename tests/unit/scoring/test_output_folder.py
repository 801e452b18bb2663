"""Files of scores, whole or absent; folders that may get them and those that must not, names, one job at a time."""

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
from tipcast.scoring.plan import ScorePlan, output_names, plan_files
from tipcast.scoring.writing import FOOTER, MANIFEST, UNFINISHED, Entry, Scores, alone, file_stamp, look, written
from tipcast.tasks.base import Task

SCORED = Entry(rows=2, recipe="r", input_sha256="5" * 64, unscored={"bad": 1})
OURS = b'{"kind": "tipcast scores", "version": 1, "rows": 0, "recipe": "r", "files": {}}'
ABOUT = {"kind": "tipcast scores", "version": 1, "rows": 0, "recipe": "r"}
OF_OTHERS = (b"", b"{", b"[]", OURS.replace(b"1", b"2"), OURS.replace(b"{}", b'{"a": {"b": 1}}'), b'{"kind": "other"}')
WANTED = ScanRequest(("pickup",))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with trips, scores, and files of others."""
    files = {"trips/a.parquet": b"trips", "trips/2019/b.parquet": b"", "mine/letter.txt": b"dear", "file": b"x",
             f"scored/{MANIFEST}": OURS, "home/files/letter.txt": b"dear"}  # fmt: skip
    files |= {f"other/{at}/{MANIFEST}": content for at, content in enumerate(OF_OTHERS)}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_folders_that_must_not_get_scores(here: Path) -> None:
    (here / "scored" / "deep").mkdir()
    (here / "scored" / "deep" / "mine.parquet").write_text("mine")
    before = everything(here)
    outputs = ["/", "~", ".", "..", "scored/../..", "scored", "file", "mine", "~/files", "trips", "/proc"]
    outputs += [f"other/{at}" for at in range(len(OF_OTHERS))]
    for output in [*outputs, "s3://bucket", "s3://bucket/", "https://example.org/scored"]:
        with pytest.raises(TipcastError, match=rf"C011.*{output.rstrip('/')}") as caught:
            look(output, {})
        assert caught.value.exit_code == 2
        assert output != "scored" or "holds deep/mine.parquet, which is none of tipcast's scores" in str(caught.value)
    with pytest.raises(TipcastError, match="C004"):
        look(" ", {})
    assert everything(here) == before


def test_folders_that_may_get_scores(here: Path) -> None:
    before = everything(here)
    for output in ("scored", "empty", "new", "new/deep"):
        for given in (output, f"{output}/", str(here / output), f"file://{here / output}"):
            about = ABOUT if output == "scored" else {}
            assert look(given, {}) == Scores(str(here / output), {}, about)
    assert everything(here) == before
    (here / "scored" / f"{UNFINISHED}x").touch()
    table = pa.table({"prediction": [1.0, 2.0]}).replace_schema_metadata({FOOTER: json.dumps(SCORED.footer)})
    pq.write_table(table, here / "scored" / "a.parquet")
    assert look("scored", {}) == Scores(str(here / "scored"), {"a.parquet": SCORED}), "of a job that was killed"


def test_names_of_scores_are_those_of_their_trips(here: Path) -> None:
    for name in ("2019/c.csv", "2020/b.parquet", "2020/_x.parquet"):
        (here / "trips" / name).parent.mkdir(exist_ok=True)
        (here / "trips" / name).touch()
    for given, names in (
        ("trips", ["2019/b.parquet", "2019/c.csv.parquet", "2020/b.parquet", "a.parquet"]),
        ("trips/20*/*.parquet", ["2019/b.parquet", "2020/_x.parquet", "2020/b.parquet"]),
        ("trips/**/b.parquet", ["2019/b.parquet", "2020/b.parquet"]),
        (["trips/2019", "trips/a.parquet"], ["a.parquet", "b.parquet", "c.csv.parquet"]),
        ("https://host/trips/a.parquet?signature=x/y", ["a.parquet"]),
    ):
        files = output_names(given, WANTED, str(here / "scored"))
        assert list(files) == names
        assert all(uri.partition("?")[0].endswith((name, name.removesuffix(".parquet"))) for name, uri in files.items())
    with pytest.raises(TipcastError, match=r"C003.*would both be b\.parquet"):
        output_names(["trips/2019/b.parquet", "trips/2020/b.parquet"], WANTED, str(here / "scored"))


def test_one_job_scores_into_a_folder_at_a_time(tmp_path: Path) -> None:
    output = tmp_path / "scored"
    for name in ("2019/a", f"2019/{UNFINISHED}killed"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).touch()
    with alone(str(output)), pytest.raises(TipcastError, match="S011"), alone(str(output)):
        pass
    assert [path.name for path in output.rglob("*") if path.is_file()] == ["a"], "what a killed job left is gone"
    (output / "2019" / "a").unlink()
    with pytest.raises(RuntimeError), alone(str(output)):
        raise RuntimeError
    assert not output.exists(), "it got no scores"


def test_a_file_is_synced_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    sync, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("sync"), sync(descriptor))[1])
    monkeypatch.setattr(Path, "replace", lambda path, to: (steps.append(to.name), rename(path, to))[1])
    with written(str(tmp_path / "a"), {}) as file:
        file.write(b"1")
        assert [path.name[0] for path in tmp_path.iterdir()] == ["_"], "readers of the folder do not see it"
    assert steps == ["sync", "a"]
    assert (file.size, file.digest.hexdigest()) == (1, hashlib.sha256(b"1").hexdigest())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TipcastError, match="T008.*bytes free"), written(str(tmp_path / "a"), {}) as file:
        file.write(b"half")
    with pytest.raises(BlockingIOError), written(str(tmp_path / "a"), {}) as file:
        raise BlockingIOError  # of something else
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"1")]


@pytest.mark.parametrize("size", [10, 12 << 20])
def test_an_object_whose_writing_fails_is_not_there(bucket: Any, size: int) -> None:
    """Nor is what was sent of it, where it is sent in pieces."""
    folder, beside = "s3://trips/a_tipcast-b/scored", "trips/a_tipcast-b/scored_other/letter"
    storage = address.storage(folder, {"default_block_size": 5 << 20})
    bucket.pipe_file(beside, b"")
    for problem in (TipcastError("D005", "trips", "damaged", "mend them"), MemoryError("of the GPU")):
        with pytest.raises(type(problem)), written(f"{folder}/a", storage) as file:
            file.write(bytes(size))
            raise problem
    gc.collect()  # a file that is closed as it goes would be written now
    bucket.invalidate_cache()
    assert bucket.find("trips") == [beside]
    assert bucket.list_multipart_uploads("trips") == []
    assert look(folder, {}) == Scores(folder)
    with written(f"{folder}/a", storage) as file:
        file.write(bytes(size))
    assert bucket.size(f"{folder}/a") == size
    with pytest.raises(TipcastError, match=r"C011.*holds a, which is none of tipcast's scores"):
        look(folder, {})


def test_files_that_are_passed_over_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"a": [1.0, 2.0], "region": ["n", "s"]})
    (tmp_path / "parts").mkdir()
    (tmp_path / "link").symlink_to("parts")
    frame.to_parquet("parts/a.parquet")
    frame[:0].to_parquet("parts/b.parquet")
    frame.to_parquet("hive", partition_cols=["region"])
    frame.to_parquet("mine.parquet")
    facts = Task("t", "regression", ("a",)).facts()
    manifest = {"dataset": "table", "table": [asdict(RawColumn("a", ("a",)))], "task": facts, "features": ["a"]}
    model: Any = SimpleNamespace(uri="u", manifest=manifest, manifest_sha256="m")

    def plan(given: object, output: str = "scored", keep: list[str] | None = None) -> ScorePlan:
        config: Any = SimpleNamespace(
            input=given, keep=keep, columns={}, facts={}, storage_options={}, block_bytes=1 << 20
        )
        return plan_files(config, Scores(str(tmp_path / output)), model)

    parts = plan("parts")
    assert ([item.name for item in parts.due], parts.refused) == (["a.parquet"], {})
    assert "1 file without rows passed over" in caplog.text
    assert [item.name for item in plan(["link", "mine.parquet"], "parts").due] == ["mine.parquet"], "no scores again"
    for given, output, keep, problem in (
        ("parts/b.parquet", "scored", None, "D009"),
        ("parts", "scored", ["a", "prediction"], "C003.*keep.*prediction is a column that scoring adds"),
        ("hive", "scored", None, "D025.*column region"),
        ("link", "parts", None, "C011.*holds all files of the input"),
    ):
        with pytest.raises(TipcastError, match=problem):
            plan(given, output, keep)


def test_the_stamp_of_a_link_is_that_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    stamp = file_stamp(str(tmp_path / "link"), {})
    assert stamp == file_stamp(str(tmp_path / "a"), {})
    assert stamp.startswith("1-")
    wait_until(lambda: (tmp_path / "a").write_bytes(b"2") and file_stamp(str(tmp_path / "link"), {}) != stamp)
    with pytest.raises(TipcastError, match="D001"):
        file_stamp(str(tmp_path / "none"), {})
