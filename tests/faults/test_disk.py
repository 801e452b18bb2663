"""A disk that is full: exit code 5 with the place and the room that is left, and nothing registered or half written."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

WORDS = (
    "train", "data.rows=4000", "model.params.n_estimators=400", "model.params.max_depth=10", "cluster.processes=false",
    "model.fit.early_stopping_rounds=null", "tracking.register=tips", "tracking.system_metrics=false",
    "cluster.performance_report=false",
)  # fmt: skip
Start = Callable[..., Any]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a disk of so many bytes; a skip where this user may not."""
    mounted: list[Path] = []

    def make(size: int) -> Path:
        folder = tmp_path / "disk"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tipcast-test", str(folder)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _store(file: Path) -> Any:
    return mlflow.MlflowClient(f"sqlite:///{file}")


@pytest.mark.parametrize(("size", "what"), [pytest.param(36_000, "plots", marks=pytest.mark.long), (900_000, "model")])
def test_artifacts(tipcast: Start, tables: Path, disk: Any, tmp_path: Path, size: int, what: str) -> None:
    room = disk(size)
    store = tmp_path / "mlflow.db"
    shutil.copy(tables, store)
    client = _store(store)
    client.create_experiment("full", artifact_location=str(room / "artifacts"))
    job = tipcast(*WORDS, "tracking.experiment=full", f"tracking.uri=sqlite:///{store}")
    assert job.end() == 5, job.err
    last = job.err.splitlines()[-1]
    assert last.startswith("error[T005]")
    assert str(room) in last
    assert "No space left on device" in last
    assert " bytes free" in last
    (run,) = client.search_runs([client.get_experiment_by_name("full").experiment_id])
    assert run.info.status == "FAILED"
    assert run.data.tags["error.code"] == "T005"
    assert client.search_registered_models() == []
    kept = [path for path in room.rglob("*") if path.is_file()]
    assert kept, "the disk was full at once"
    pictures = [path for path in kept if path.suffix == ".png"]
    assert (len(pictures) > 6) == (what == "model"), pictures
    assert not [path for path in kept if "models" in path.relative_to(room).parts], "half a model"
    for path in pictures:
        assert path.read_bytes().endswith(b"IEND\xaeB`\x82"), path


def test_the_model_on_its_way(tipcast: Start, disk: Any, tmp_path: Path) -> None:
    room = disk(600_000)
    job = tipcast(*WORDS, TMPDIR=str(room))
    assert job.end() == 5, job.err
    last = job.err.splitlines()[-1]
    assert last.startswith("error[T005]")
    assert str(room) in last
    assert " bytes free" in last
    client = _store(job.folder / "mlflow.db")
    assert client.search_registered_models() == []
    assert job.statuses == ["FAILED"]


def test_the_database(tipcast: Start, tables: Path, disk: Any) -> None:
    room = disk(tables.stat().st_size + 150_000)
    shutil.copy(tables, room)
    job = tipcast(*WORDS, f"tracking.uri=sqlite:///{room / 'mlflow.db'}")
    assert job.end() == 5, job.err
    last = job.err.splitlines()[-1]
    assert last.startswith("error[T00")
    assert str(room / "mlflow.db") in last
    assert " bytes free" in last
    with contextlib.closing(sqlite3.connect(room / "mlflow.db")) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        assert database.execute("select count(*) from model_versions").fetchone() == (0,)
