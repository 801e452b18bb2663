"""Where a result comes from: the commit, what is changed since, and the versions that made it."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tipcast import __version__
from tipcast.config.plain import redact

LIBRARIES = (
    "mlflow", "dask", "distributed", "pandas", "numpy", "pyarrow", "scikit-learn", "treelite",
    "xgboost", "xgboost-cpu", "xgboost-cu13", "cudf-cu13", "cuml-cu13", "dask-cuda", "nvforest-cu13", "cupy-cuda13x",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[3]
"""Of the checkout that this code runs from, if it is one."""
CODE, SETTINGS = "src/tipcast", "conf"
"""What a run's result may come from. Changed settings are named only: the run has its composed configuration."""
DIFF = "source.diff.txt"
"""Artifact of a run whose code had changes; MLflow's page shows text by its suffix."""
MAX_DIFF = 500_000
"""Characters of it."""
USER = re.compile(r"(?<=://)\S*@")
"""User information of an address, also one with a password that should have been quoted."""
TIMEOUT_S = 5.0
"""How long git may take: no run waits for a slow disk to tell its commit."""


@dataclass(frozen=True)
class Source:
    """The code that runs: a commit of the checkout, and what is not committed."""

    commit: str | None = None
    """None where the code is in no checkout, or git does not tell."""
    diff: str = ""
    """Names of files that git does not track, one a line, and the changes of those that it does."""

    @property
    def tags(self) -> dict[str, str]:
        """MLflow's own tags."""
        if self.commit is None:
            return {}
        return {"mlflow.source.git.commit": self.commit, "mlflow.source.git.dirty": str(bool(self.diff)).lower()}

    @property
    def remark(self) -> str:
        """What pages say of the changes; nothing where there are none."""
        return f"The code had uncommitted changes on commit `{self.commit}`: artifact `{DIFF}`." if self.diff else ""


@functools.cache
def source() -> Source:
    """Return the code that this process runs, as it was at the first call."""
    return read_source(ROOT)


def read_source(root: Path) -> Source:
    """Ask git for the commit of a checkout, and for the changes below ``CODE``; whatever fails, a run goes on."""
    if not (root / ".git").exists():
        return Source()
    status = _git(
        root, "status", "--porcelain=v2", "--branch", "--untracked-files=all", "--", CODE, SETTINGS
    ).splitlines()
    commit = next((line.split()[-1] for line in status if line.startswith("# branch.oid ")), "(initial)")
    if commit == "(initial)":  # git's word for a checkout without any commit
        return Source()
    changes = [line for line in status if not line.startswith("#")]
    if not changes:
        return Source(commit)
    untracked = "".join(f"# untracked: {line[2:]}\n" for line in changes if line.startswith("?"))
    named = _git(root, "diff", "--name-only", "HEAD", "--", SETTINGS).splitlines()
    settings = "".join(f"# changed: {name}, see config.yaml\n" for name in named)
    diff = _git(root, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD", "--", CODE)
    diff = redact(USER.sub("", f"{untracked}{settings}{diff}")) or "# the changes could not be read\n"
    cut = f"{diff[:MAX_DIFF]}\n# cut after {MAX_DIFF:,} characters\n"
    return Source(commit, diff if len(diff) <= MAX_DIFF else cut)


def _git(root: Path, *words: str) -> str:
    """Return what git prints; nothing where it fails, is not there or takes too long."""
    git = shutil.which("git")
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook's are of its tree
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if git is not None:
            command = [git, "--no-optional-locks", "-C", str(root), *words]
            found = subprocess.run(command, capture_output=True, env=own, timeout=TIMEOUT_S, check=False)  # noqa: S603 - fixed words
            return found.stdout.decode(errors="replace") if found.returncode == 0 else ""
    return ""


def versions() -> dict[str, str]:
    """Return the versions of tipcast, of Python and of the installed libraries."""
    found = {"tipcast": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
