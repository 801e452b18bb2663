"""The folders of options, conf/ and a user's own, and what is wrong with a YAML file in them."""

import os
from pathlib import Path

import yaml

from tipcast.config.errors import TipcastError, missing

OWN = "TIPCAST_CONFIG_DIR"  # tells child processes the folder of a user's own options
PACKAGE = "# @package _global_"
"""First line of a file whose keys are those of the job."""
TASK = "override /task@"
"""Words in the file of an option of ``data`` that brings its own task."""


def conf_dir() -> Path:
    """Return the absolute path of the folder of configuration groups.

    It is the checkout's conf/, or else that of the installed package.
    """
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent.parent / "conf"
    if (checkout / "train.yaml").is_file():
        return checkout
    return package / "conf"


def use(folder: str) -> None:
    """Take the user's own options from a folder, in this process and those that it starts."""
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
            "--config-dir", f"folder {folder}", "pass a folder that contains task/NAME.yaml", "C003"
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
    """Return the options of a group for a job without a task: data that bring one are left out."""
    return {
        name: path
        for name, path in options(group).items()
        if TASK not in path.read_text(encoding="utf-8")
    }


def search_path() -> list[str]:
    """Return the override that lets Hydra find a user's own options, after the shipped ones."""
    folder = own_dir()
    if folder is None:
        return []
    return [f"hydra.searchpath=['file://{folder}']"]


def fault() -> TipcastError | None:
    """Return the C012 error of the first YAML file that is wrong in a way Hydra does not explain.

    None if all files can be used.
    """
    folders = [folder for folder in (own_dir(), conf_dir()) if folder is not None]
    for folder in folders:
        for path in sorted(folder.rglob("*.yaml")):
            if what := _fault_of(path):
                fix = "see the files in conf/: quote strings, indent with spaces"
                return TipcastError("C012", _short(path), what, fix)

    return None


def _fault_of(path: Path) -> str:
    """Return what is wrong with a YAML file of options in words; empty if it can be used."""
    try:
        text = path.read_bytes().decode()
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as problem:
        return f"cannot be read as YAML in UTF-8: {problem}"

    if not isinstance(tree, dict) or not isinstance(tree.get("defaults", []), list):
        return "has no keys and values, or its defaults are not a list"
    if path.parent.name == "experiment" and PACKAGE not in text.splitlines():
        return f"its first line is not {PACKAGE!r}, so its keys are not the job's"
    return ""


def _short(path: Path) -> Path:
    """Return a file of the shipped options as ``conf/GROUP/NAME.yaml``, others as they are."""
    if path.is_relative_to(conf_dir()):
        return path.relative_to(conf_dir().parent)
    return path
