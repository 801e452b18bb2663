"""Where conf/ is: beside src in a checkout, inside the package in an installed wheel."""

from __future__ import annotations

from pathlib import Path


def conf_dir() -> Path:
    """Return the absolute path of the folder of configuration groups.

    Raises
    ------
    FileNotFoundError
        When neither a checkout's nor a wheel's folder is there (a broken installation).

    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent.parent / "conf", package / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    msg = f"conf/ is missing beside {package}: reinstall tipcast"
    raise FileNotFoundError(msg)
