"""The folders of options, conf/ and a user's own, and what is wrong with a YAML file in them."""

import os
from pathlib import Path

import yaml

from tipcast.config.errors import TipcastError, missing

OWN = "TIPCAST_CONFIG_DIR"  # tells child processes the folder of a user's own options
PACKAGE = "# @package _global_"
TASK = "override /task@"
"""What the defaults of data that are for a task of their own have."""


def conf_dir() -> Path:
    """Return the absolute path of the folder of configuration groups.

    It is the checkout's conf/, or else that of the installed package.
    """
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent.parent / "conf"
    return checkout if (checkout / "train.yaml").is_file() else package / "conf"


def use(folder: str) -> None:
    """Make a folder that of the user's own options, for this process and those that it starts."""
    os.environ[OWN] = str(Path(folder).expanduser().absolute())


def own_dir() -> Path | None:
    """Return the folder of a user's own options, as ``task/mine.yaml``; None if none is named.

    Raises C003 if it does not exist.
    """
    named = os.environ.get(OWN)
    if not named:
        return None
    folder = Path(named).expanduser().absolute()
    if not folder.is_dir():
        raise missing(
            "--config-dir", f"folder {folder}", "name one that holds task/NAME.yaml", "C003"
        )
    return folder


def options(group: str) -> dict[str, Path]:
    """Return name -> file of all options of a group.

    A user's own option does not replace one that tipcast has.
    """
    folders = [folder / group for folder in (own_dir(), conf_dir()) if folder is not None]
    return {
        path.stem: path
        for folder in folders
        for path in sorted(folder.glob("*.yaml"))
        if path.is_file()
    }


def options_without_task(group: str) -> dict[str, Path]:
    """Return the options of a group for a job that has no task: not the data that bring one."""
    return {
        name: path
        for name, path in options(group).items()
        if TASK not in path.read_text(encoding="utf-8")
    }


def search_path() -> list[str]:
    """Return the override that lets Hydra find a user's own options, after the shipped ones."""
    folder = own_dir()
    return [] if folder is None else [f"hydra.searchpath=['file://{folder}']"]


def fault() -> TipcastError | None:
    """Return the C012 error of the first YAML file that Hydra would not explain, or not name."""
    for path in (
        path
        for folder in (own_dir(), conf_dir())
        if folder
        for path in sorted(folder.rglob("*.yaml"))
    ):
        try:
            text = path.read_bytes().decode()
            tree = yaml.safe_load(text)
        except (yaml.YAMLError, UnicodeDecodeError, OSError) as problem:
            what = f"cannot be read as YAML in UTF-8: {problem}"
        else:
            what = "holds no keys and values, or defaults that are no list"
            if isinstance(tree, dict) and isinstance(tree.get("defaults", []), list):
                if path.parent.name != "experiment" or PACKAGE in text.splitlines():
                    continue
                what = (
                    f"its first line is not {PACKAGE!r}, so that its keys are not those of the job"
                )

        shown = path.relative_to(conf_dir().parent) if path.is_relative_to(conf_dir()) else path
        return TipcastError(
            "C012", shown, what, "mend it, as conf/ has others: quote texts, indent with blanks"
        )

    return None
