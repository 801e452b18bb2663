"""What a worker of a sweep imports: every process of it pays for that in seconds and memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"matplotlib", "mlflow", "optuna", "pandas", "scipy", "sklearn"}


@pytest.mark.parametrize("module", ["tipcast.jobs.sweep_plan", "tipcast.search.task"])
def test_workers_start_light(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert module in said.split()
    assert not HEAVY & set(said.split())
