"""Where a result comes from: the user's project, tipcast's own code, their commits, and the
versions of libraries.
"""

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
    "mlflow",
    "dask",
    "distributed",
    "pandas",
    "numpy",
    "pyarrow",
    "scikit-learn",
    "treelite",
    "xgboost",
    "xgboost-cpu",
    "xgboost-cu13",
    "cudf-cu13",
    "cuml-cu13",
    "dask-cuda",
    "nvforest-cu13",
    "cupy-cuda13x",
)
ROOT = Path(__file__).resolve().parents[3]
"""Folder of the checkout that this code runs from, if it is one."""
MADE_BY = ("src/tipcast", "conf")
"""Folders of tipcast's checkout that a run's result may come from."""
TIMEOUT_S = 5.0
"""Seconds that git may take: no run waits for a slow disk to learn its commit."""


@dataclass(frozen=True)
class Source:
    """Code at a commit of its repository."""

    commit: str | None = None
    """Commit of the code; None if it is in no repository, or git does not answer."""
    dirty: bool = False
    """Whether the code had changes that are not committed."""


@dataclass(frozen=True)
class Origin:
    """The code that a run's result comes from."""

    project: Source = Source()
    """The user's code: the repository of the working folder."""
    code: Source = Source()
    """Tipcast's own checkout; without a commit if tipcast is an installed package."""

    @property
    def facts(self) -> dict[str, object]:
        """The origin as a saved model's manifest has it."""
        return {
            "git_commit": self.project.commit,
            "git_dirty": self.project.dirty,
            "tipcast_commit": self.code.commit,
            "tipcast_dirty": self.code.dirty,
        }

    @property
    def tags(self) -> dict[str, str]:
        """The origin as tags of a run: MLflow's own tags for the user's project."""
        tags = {"tipcast.version": __version__}
        if self.project.commit:
            tags["mlflow.source.git.commit"] = self.project.commit
            tags["mlflow.source.git.dirty"] = str(self.project.dirty).lower()
        if self.code.commit:
            tags["tipcast.commit"] = self.code.commit
            tags["tipcast.dirty"] = str(self.code.dirty).lower()
        return tags

    @property
    def remark(self) -> str:
        """Sentences for pages on uncommitted changes; empty if there are none."""
        sentences = []
        if self.project.dirty:
            sentences.append(
                f"The project had uncommitted changes on commit `{self.project.commit}`."
            )
        if self.code.dirty:
            sentences.append(
                f"The code of tipcast had uncommitted changes on commit `{self.code.commit}`."
            )
        return " ".join(sentences)


def origin() -> Origin:
    """Ask git where a result comes from, at this moment."""
    return Origin(project(Path.cwd()), source())


def project(folder: Path) -> Source:
    """Return the commit of a folder's repository, and whether its tracked files have changes.

    Untracked files do not count: an MLflow database and scores often lie beside the code.
    """
    return _status(folder, "--untracked-files=no")


@functools.cache  # the code that runs is that of the first call, whatever is committed meanwhile
def source(root: Path = ROOT) -> Source:
    """Return the commit of tipcast's checkout, and whether ``MADE_BY`` has changes or new files."""
    if not (root / ".git").exists():
        return Source()
    return _status(root, "--untracked-files=all", "--", *MADE_BY)


def _status(folder: Path, *words: str) -> Source:
    """Ask git for the commit of a folder's repository and for changes.

    If git fails, a run goes on without a commit.
    """
    git = shutil.which("git")
    if git is None:
        return Source()

    command = [
        git,
        "--no-optional-locks",
        "-C",
        str(folder),
        "status",
        "--porcelain=v2",
        "--branch",
        *words,
    ]
    # Inside a git hook variables of git name the hook's repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    lines: list[str] = []
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        status = subprocess.run(  # noqa: S603 - fixed words
            command, capture_output=True, env=variables, timeout=TIMEOUT_S, check=False
        )
        lines = status.stdout.decode(errors="replace").splitlines()

    commit = next(
        (line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)"
    )
    if commit == "(initial)":  # git's word for a repository without any commit
        return Source()
    return Source(commit, any(not line.startswith("#") for line in lines))


def versions() -> dict[str, str]:
    """Return the versions of tipcast, of Python and of the installed libraries."""
    installed = {"tipcast": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed
