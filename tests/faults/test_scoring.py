"""Scorings that are killed or find a full disk: the scores are the old ones or the new ones."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import warm

FILES = 3
TIME = "tpep_pickup_datetime"
Start = Callable[..., Any]


@pytest.fixture
def store(registered: Path, store: Any) -> Any:
    """A store with the registered model `tipcast`."""
    shutil.copy(registered, store.file)
    return store


@pytest.fixture
def trips(tmp_path: Path) -> Path:
    """Some months of trips."""
    words = ["prepare", "data.rows=2000", f"data.months=2019-01..2019-0{FILES}", "out=trips", "cluster.processes=false"]
    (tmp_path / "made").mkdir()
    assert warm.start(words, tmp_path / "made", warm.environment()).wait(300) == 0
    return tmp_path / "made" / "trips"


@pytest.fixture
def score(tipcast: Start, trips: Path, tmp_path: Path) -> Start:
    """Start a scoring of the trips into the folder `scored`."""
    words = ["score", "model_uri=models:/tipcast/1", f"input={trips}", f"output={tmp_path / 'scored'}"]
    return partial(tipcast, *words, "tracking.system_metrics=false", "cluster.processes=false")


def whole(out: Path, trips: Path) -> dict[str, Any]:
    """Check that a folder has the scores of all trips, row by row, and nothing else; return its manifest."""
    assert list(out.parent.glob(f".{out.name}*")) == [], "unfinished work"
    manifest = dict(json.loads((out / "_manifest.json").read_text()))
    assert set(manifest["files"]) == {path.name for path in trips.glob("*.parquet")}
    assert {path.name for path in out.iterdir()} == {*manifest["files"], "_manifest.json"}
    for name, entry in manifest["files"].items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == entry["sha256"], name
        assert pq.read_table(out / name, columns=[TIME]).equals(pq.read_table(trips / name, columns=[TIME])), name
    return manifest


def scored(job: Any) -> int:
    """Return how many files a job has scored."""
    return len([point for point, _ in job.events if point.startswith("scored-")])


def test_killed_and_repeated(score: Start, store: Any, trips: Path, tmp_path: Path) -> None:
    """F20, F21: killed between two files or before the manifest it leaves the old scores; nothing is scored twice."""
    out = tmp_path / "scored"
    first, new = f"keep=[{TIME}]", f"keep=[{TIME},PULocationID]"
    score(first, name="first").ends(0)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for point in ("scored-1", "manifest"):
        job = score(new, name=point, hold=point)
        job.reached(point)
        job.process.send_signal(signal.SIGKILL)
        job.ends(-signal.SIGKILL)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    job = score(new, name="repeated")
    job.ends(0)
    assert whole(out, trips)["configuration"]["keep"] == [TIME, "PULocationID"]
    assert [point for point, _ in job.events if point.startswith("scored-")] == [
        f"scored-{at + 1}" for at in range(FILES)
    ]
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    job = score(new, name="again")
    job.ends(0)
    assert scored(job) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == after


def test_a_full_disk(score: Start, store: Any, trips: Path, tmp_path: Path) -> None:
    """F19: no file may grow beyond a limit, as on a full disk: the old scores stay, and nothing else."""
    out = tmp_path / "scored"
    score(f"keep=[{TIME}]", name="first").ends(0)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    room = store.file.stat().st_size + 2_000_000  # the store goes on
    path = sorted(trips.glob("*.parquet"))[0]
    table = pq.read_table(path)
    more = pa.array([os.urandom(2 * room // len(table)) for _ in range(len(table))])
    pq.write_table(table.append_column("more", more), path)
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (room, room))
    job = score("compression=none", name="full", before=full)
    last = job.ends(5)
    assert re.match(r"error\[T008\] .*bytes are free.* Fix: ", last)
    assert str(out.parent) in last
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert list(out.parent.glob(f".{out.name}*")) == []
