"""Examples run as they are."""

from __future__ import annotations

import json
import os
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
