"""The commit and the versions that a result comes from."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tipcast.measure import origin


def test_versions_are_those_installed() -> None:
    found = origin.versions()
    assert found["numpy"] == np.__version__
    assert {"python", "mlflow", "dask"} <= set(found)
    assert "cudf-cu13" not in found or found["cudf-cu13"]


def test_commit_of_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    if (Path(__file__).resolve().parents[3] / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{40}", origin.git_commit() or "")
    monkeypatch.setenv("PATH", "")
    assert origin.git_commit() is None, "without git there is no commit"
