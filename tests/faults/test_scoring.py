"""Scorings that are killed or find a full disk: every file is whole, and the manifest tells of all
or is away.
"""

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
    words = [
        "prepare",
        "data.rows=2000",
        f"data.months=2019-01..2019-0{FILES}",
        "out=trips",
        "cluster.processes=false",
    ]
    (tmp_path / "made").mkdir()
    assert warm.start(words, tmp_path / "made", warm.environment()).wait(300) == 0
    return tmp_path / "made" / "trips"


@pytest.fixture
def score(tipcast: Start, store: Any, trips: Path, tmp_path: Path) -> Start:
    """Start a scoring of the trips into the folder `scored`."""
    words = [
        "score",
        "model_uri=models:/tipcast/1",
        f"input={trips}",
        f"output={tmp_path / 'scored'}",
    ]
    return partial(tipcast, *words, "tracking.system_metrics=false", "cluster.processes=false")


def whole(out: Path, trips: Path) -> dict[str, int]:
    """Check that all scores in a folder are of whole files of trips; return name -> time of its
    writing.
    """
    for path in out.glob("*.parquet"):
        assert pq.read_table(path, columns=[TIME]).equals(
            pq.read_table(trips / path.name, columns=[TIME])
        ), path
    return {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}


def finished(out: Path, trips: Path) -> dict[str, int]:
    """Check that a folder has the scores of all trips and nothing else."""
    files = json.loads((out / "_manifest.json").read_text())["files"]
    assert {path.name for path in out.iterdir()} == {"_manifest.json", *files}
    assert set(files) == {path.name for path in trips.glob("*.parquet")}
    for name, entry in files.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == entry["sha256"], name
    return whole(out, trips)


def killed(job: Any, point: str) -> None:
    """Kill a job that is held at a point."""
    job.reached(point)
    job.process.send_signal(signal.SIGKILL)
    job.ends(-signal.SIGKILL)


def test_what_a_killed_preparation_left_is_gone_after_the_next(
    tipcast: Start, tmp_path: Path
) -> None:
    """F35."""
    out = tmp_path / "prepared"
    prepare = ["prepare", "data.rows=2000", "data.months=2019-01..2019-02", f"out={out}"]
    killed(tipcast(*prepare, name="first", hold="month"), "month")
    assert {path.suffix for path in out.iterdir()} <= {".tmp"}

    job = tipcast(*prepare, name="second")
    job.ends(0)
    months = {f"yellow_tripdata_2019-0{month}.parquet" for month in (1, 2)}
    assert {path.name for path in out.iterdir()} == months
    assert {path.name for path in job.folder.iterdir()} == {"gate", "stdout", "stderr"}


def test_a_scoring_that_was_killed_goes_on_where_it_was(
    score: Start, trips: Path, tmp_path: Path
) -> None:
    """F20, F21: killed between two files, or before the manifest: the same command scores what is
    not there yet.
    """
    out = tmp_path / "scored"
    # new scores, and others in their place
    for keep in (f"keep=[{TIME}]", f"keep=[{TIME},PULocationID]"):
        columns = keep.count(",") + 1
        before: dict[str, int] = {}
        for point in ("scored-1", "manifest"):
            job = score(keep, name=f"{point}-{columns}", hold=point)
            killed(job, point)
            assert not (out / "_manifest.json").exists()

            written = {
                name: at
                for name, at in whole(out, trips).items()
                if pq.read_schema(out / name).names[columns] == "probability"
            }
            assert written.items() >= before.items(), "scored twice"
            scored = sum(point.startswith("scored-") for point, _ in job.events)
            assert scored <= FILES - len(before)
            before = written
        assert len(before) == FILES

        job = score(keep, name=f"repeated-{columns}")
        job.ends(0)
        assert not [point for point, _ in job.events if point.startswith("scored-")]
        assert finished(out, trips) == before


def test_a_full_disk(score: Start, store: Any, trips: Path, tmp_path: Path) -> None:
    """F19: no file may grow beyond a limit, as on a full disk: what is there is whole, and the
    command goes on.
    """
    out = tmp_path / "scored"
    score(name="first").ends(0)
    room = store.file.stat().st_size + 2_000_000  # the store goes on
    path = sorted(trips.glob("*.parquet"))[0]
    table = pq.read_table(path)
    more = pa.array([os.urandom(2 * room // len(table)) for _ in range(len(table))])
    pq.write_table(table.append_column("more", more), path)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (room, room))
    job = score(name="full", before=full)
    assert re.match(rf"error\[T008\] .*{out}.*bytes free.* Fix: ", job.ends(5))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    score(name="later").ends(0)
    finished(out, trips)
