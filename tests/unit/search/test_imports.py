"""What a worker of a sweep imports: every process of it pays for that in seconds and memory."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"matplotlib", "mlflow", "optuna", "pandas", "scipy", "sklearn"}


def test_workers_start_light() -> None:
    program = "import sys, tipcast.jobs.sweep_plan, tipcast.search.trial; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {"tipcast.jobs.sweep_plan", "tipcast.search.trial"} <= set(said)
    assert not HEAVY & set(said)
