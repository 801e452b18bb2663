"""What a training keeps of Dask where it is asked: the graph of tasks, where rows lie, and files sent to workers."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.jobs.conftest import QUICK_TRAIN

from tipcast.compute import diagnostics
from tipcast.compute.diagnostics import Task

TRAIN = ("train", "model=logistic", "data.rows=20000", "cluster.n_workers=2", "cluster.processes=true", *QUICK_TRAIN)


def tipcast(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder of its own, in a process that has loaded its libraries."""
    code = warm.start([*words, "print=json"], folder, warm.environment()).wait(120)
    return subprocess.CompletedProcess(words, code, *((folder / name).read_text() for name in ("stdout", "stderr")))


def artifact(folder: Path, name: str) -> str:
    """Return the one artifact of a name."""
    (path,) = (folder / "mlruns").rglob(name)
    return path.read_text()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Train on two workers, with all that is kept; return the folder, what the job said and what it logged."""
    folder = tmp_path_factory.mktemp("diagnostics")
    (folder / "own_code.py").write_text("ANSWER = 42\n")
    ended = tipcast(
        folder, *TRAIN, "cluster.task_graph=true", "cluster.partition_per_worker=true", "cluster.upload=[own_code.py]"
    )
    assert ended.returncode == 0, ended.stderr
    return folder, json.loads(ended.stdout), ended.stderr


def test_each_worker_holds_one_partition_of_each_split(trained: tuple[Path, dict[str, Any], str]) -> None:
    table = json.loads(artifact(trained[0], "placement.json"))
    assert table["columns"] == ["worker", "split", "partitions", "rows", "bytes"]
    assert {row[2] for row in table["data"]} == {1}
    assert len({row[0] for row in table["data"]}) == 2
    held = sum(row[3] for row in table["data"] if row[1] != "test")
    assert 0.9 * 20_000 < held <= 20_000
    assert all(row[4] >= 4 * row[3] for row in table["data"])


def test_partitions_per_worker_change_no_rows(trained: tuple[Path, dict[str, Any], str], job: Any) -> None:
    other = job(*TRAIN, "cluster.processes=false")
    assert trained[1]["metrics"]["test/auc"] == pytest.approx(other.auc, abs=1e-4)


def test_the_graph_says_what_each_task_takes_and_where_its_result_is(
    trained: tuple[Path, dict[str, Any], str],
) -> None:
    text = artifact(trained[0], "tasks.txt")
    needs = dict(line.partition(":")[0].split(" <- ") for line in text.splitlines() if " <- " in line)
    joined = [line for line in text.splitlines() if line.startswith("join-x-")]
    parts = [part for key in needs if key.startswith("join-x-") for part in needs[key].split(", ")]
    assert parts
    assert all(needs[part].startswith("prepare-") for part in parts)
    assert all("bytes on tcp://127.0.0.1:" in line for line in joined)


def test_each_worker_says_that_it_has_a_file(trained: tuple[Path, dict[str, Any], str]) -> None:
    lines = [line for line in trained[2].splitlines() if line.startswith("upload of own_code.py to tcp://")]
    assert len(lines) == 2
    assert all(line.endswith(": OK") for line in lines)


@pytest.mark.parametrize(
    ("name", "text", "code", "told"),
    [
        ("broken.py", "import nothing_such", 4, "error[K009] broken.py"),
        ("absent.txt", "", 2, "error[C004] cluster.upload"),
    ],
)
def test_a_file_that_workers_cannot_import(tmp_path: Path, name: str, text: str, code: int, told: str) -> None:
    (tmp_path / name).write_text(text)
    ended = tipcast(tmp_path, *TRAIN, f"cluster.upload=[{name}]")
    assert ended.returncode == code
    assert ended.stderr.splitlines()[-1].startswith(told)
    assert "Traceback" not in ended.stderr


CHAIN = [Task(f"x-{at}", "x", "memory", (f"x-{at - 1}",) if at else (), (), 0) for at in range(4)]


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz (dot) is not installed")
def test_the_picture_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    each = diagnostics.graph_picture(CHAIN)
    assert each is not None
    assert each.count(b'class="node"') == 4
    monkeypatch.setattr(diagnostics, "DRAWN", 3)
    grouped = diagnostics.graph_picture(CHAIN)
    assert grouped is not None
    assert grouped.count(b'class="node"') == 1
    assert b"x (4)" in grouped


def test_without_graphviz_there_is_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert diagnostics.graph_picture(CHAIN) is None
    assert diagnostics.graph_text(CHAIN).splitlines()[:2] == ["4 tasks", "      4 x (memory)"]
