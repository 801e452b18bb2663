"""Examples run as they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tipcast

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "quickstart.ipynb"


@pytest.mark.long
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """As a script, which needs no kernel: what a cell would show is evaluated all the same."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]], "no outputs are kept"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment["PYTHONPATH"] = str(Path(tipcast.__file__).resolve().parents[1])
    program = "\n".join("".join(cell["source"]) for cell in code) + "\nassert best.metrics['test/auc'] > 0.5\n"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
    assert {path.name for path in tmp_path.iterdir()} >= {"mlflow.db", "trips", "scored"}


def test_a_network_learns_alike_in_one_process_and_in_two(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")
    script = NOTEBOOK.with_name("network_ddp.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment["PYTHONPATH"] = (
        f"{Path(tipcast.__file__).resolve().parents[1]}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    )
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    found = {}
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        words = [str(processes), str(script), "data.rows=200000", "data.block_rows=50000"]
        ended = subprocess.run(
            [*run, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert ended.returncode == 0, ended.stderr
        said = re.fullmatch(r"(\d) x cpu: ([\d,]+) rows, fit [\d.]+ s, test/auc (0\.\d+)", ended.stdout.strip())
        assert said, ended.stdout
        assert int(said[1]) == processes
        found[said[2]] = found.get(said[2], []) + [float(said[3])]
    ((one, two),) = found.values()  # of as many rows
    assert min(one, two) > 0.53
    assert one == pytest.approx(two, abs=0.02)
