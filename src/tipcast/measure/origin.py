"""Where a result comes from: the commit, whether it was changed since, and the versions that made it."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tipcast import __version__

LIBRARIES = (
    "mlflow", "dask", "distributed", "pandas", "numpy", "pyarrow", "scikit-learn", "treelite",
    "xgboost", "xgboost-cpu", "xgboost-cu13", "cudf-cu13", "cuml-cu13", "dask-cuda", "nvforest-cu13", "cupy-cuda13x",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[3]
"""Of the checkout that this code runs from, if it is one."""
MADE_BY = ("src/tipcast", "conf")
"""What a run's result may come from."""
TIMEOUT_S = 5.0
"""How long git may take: no run waits for a slow disk to tell its commit."""


@dataclass(frozen=True)
class Source:
    """The code that runs: a commit of the checkout, and whether all of it is committed."""

    commit: str | None = None
    """None where the code is in no checkout, or git does not tell."""
    dirty: bool = False

    @property
    def tags(self) -> dict[str, str]:
        """MLflow's own tags."""
        if self.commit is None:
            return {}
        return {"mlflow.source.git.commit": self.commit, "mlflow.source.git.dirty": str(self.dirty).lower()}

    @property
    def remark(self) -> str:
        """What pages say of the changes; nothing where there are none."""
        return f"The code had uncommitted changes on commit `{self.commit}`." if self.dirty else ""


@functools.cache  # the code that runs is that of the first call, whatever is committed meanwhile
def source(root: Path = ROOT) -> Source:
    """Ask git for the commit of a checkout, and whether ``MADE_BY`` has changes; whatever fails, a run goes on."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return Source()
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook's are of its tree
    words = ["status", "--porcelain=v2", "--branch", "--untracked-files=all", "--", *MADE_BY]
    command, lines = [git, "--no-optional-locks", "-C", str(root), *words], list[str]()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        status = subprocess.run(command, capture_output=True, env=own, timeout=TIMEOUT_S, check=False)  # noqa: S603 - fixed words
        lines = status.stdout.decode(errors="replace").splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    if commit == "(initial)":  # git's word for a checkout without any commit
        return Source()
    return Source(commit, any(not line.startswith("#") for line in lines))


def versions() -> dict[str, str]:
    """Return the versions of tipcast, of Python and of the installed libraries."""
    found = {"tipcast": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
