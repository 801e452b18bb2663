"""Where a result comes from: the commit and the versions that made it."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
from pathlib import Path

LIBRARIES = (
    "mlflow", "dask", "distributed", "pandas", "numpy", "pyarrow", "scikit-learn", "treelite",
    "xgboost", "xgboost-cpu", "xgboost-cu13", "cudf-cu13", "cuml-cu13", "dask-cuda", "nvforest-cu13", "cupy-cuda13x",
)  # fmt: skip


def git_commit() -> str | None:
    """Return the commit of the checkout that this code runs from; None where it is no checkout."""
    git = shutil.which("git")
    root = Path(__file__).resolve().parents[3]
    if git is None or not (root / ".git").exists():
        return None
    found = subprocess.run([git, "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    return found.stdout.strip() or None


def versions() -> dict[str, str]:
    """Return Python's and the installed libraries' versions."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
