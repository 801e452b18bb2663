"""Memory and room of the machine."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.finding import State
from tipcast.measure.machine import GIB, check_folder, check_memory, judged


def test_memory_is_that_of_the_machine() -> None:
    try:
        found = check_memory().found
    except TipcastError as problem:
        found = problem.what
    free = float(found.partition(" GiB free")[0].rpartition(" ")[2].replace(",", ""))
    assert 0 < free <= psutil.virtual_memory().total / GIB + 0.1


def test_a_folder_is_written_to_and_left_empty(tmp_path: Path) -> None:
    assert check_folder(tmp_path).found.startswith(f"{tmp_path}: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["file/below", "nowhere"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TipcastError, match=f"C021.*{name}.*no file can be written"):
        check_folder(tmp_path / name)


@pytest.mark.parametrize(("free", "state"), [(10, State.ok), (2, State.warning), (1, None)])
def test_judgement(free: int, state: State | None) -> None:
    if state is None:
        with pytest.raises(TipcastError) as caught:
            judged("/data", free * GIB, 100 * GIB, (2 * GIB, 3 * GIB), "free some room")
        assert caught.value.code == "C021"
        assert caught.value.fix == "free some room"
        return
    assert judged("/data", free * GIB, 100 * GIB, (GIB, 3 * GIB), "free some room").state is state
