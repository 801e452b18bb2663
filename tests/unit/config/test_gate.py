"""The gate: what it notes, whom it holds, and that without its variable it does nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tipcast.config.gate import VARIABLE, gate


def test_points_are_noted_and_an_open_gate_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gate.go").touch()
    monkeypatch.setenv(VARIABLE, f"held:{tmp_path / 'gate'}")
    for point in ("before", "held"):
        gate(point)
    assert (tmp_path / "gate").read_text() == f"before {os.getpid()}\nheld {os.getpid()}\n"


def test_nothing_is_noted_without_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    gate("fit")
    assert list(tmp_path.iterdir()) == []
