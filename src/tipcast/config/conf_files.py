"""The folder conf/: where it is, and what is wrong with a YAML file in it, told with line and column."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import yaml

from tipcast.config.errors import TipcastError

BOM = b"\xef\xbb\xbf"
OWN = "TIPCAST_CONFIG_DIR"
"""Environment variable of a folder with options of a user's own, which processes that are started inherit."""
PACKAGE = "# @package _global_"
_broken = functools.partial(TipcastError, "C012")


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


def own_dir() -> Path | None:
    """Return the folder of a user's own options, ``data/mine.yaml`` or ``task/mine.yaml``; None where none is named.

    C003 there is no such folder.
    """
    named = os.environ.get(OWN)
    if not named:
        return None
    folder = Path(named).expanduser().absolute()
    if not folder.is_dir():
        raise TipcastError("C003", "--config-dir", f"{named} is no folder", "name a folder that holds task/NAME.yaml")
    return folder


def options(group: str) -> dict[str, Path]:
    """Return name -> file of all options of a group; a user's own do not stand for those that are there."""
    folders = [folder / group for folder in (own_dir(), conf_dir()) if folder is not None]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml")) if path.is_file()}


def search_path() -> list[str]:
    """Return the override that lets Hydra find a user's own options, after the shipped ones."""
    folder = own_dir()
    return [] if folder is None else [f"hydra.searchpath=['file://{folder}']"]


def unreadable(problem: Exception) -> TipcastError:
    """Return what PyYAML, the system or Hydra says of a file: C012, or C021 for a folder that Hydra cannot write to."""
    if isinstance(problem, yaml.MarkedYAMLError) and (mark := problem.problem_mark or problem.context_mark):
        tab = "\\t" in str(problem.problem)
        fix = (
            "indent with blanks, not tabs" if tab else "mend that line; quote a text that has any of : # [ ] { } * & !"
        )
        place = f"{_shown(mark.name)}, line {mark.line + 1}, column {mark.column + 1}"
        return _broken(place, f"is no YAML: {problem.problem or problem.context}", fix)
    if isinstance(problem, OSError) and problem.filename is not None:
        if Path(problem.filename).is_relative_to(conf_dir()):
            return _broken(_shown(problem.filename), f"cannot be read: {problem.strerror}", "check its permissions")
        what = f"cannot be written: {problem.strerror}"
        return TipcastError("C021", problem.filename, what, "name another folder, or leave hydra.run.dir as it is")
    for path in sorted(conf_dir().rglob("*.yaml")):
        if broken := not_as_hydra_wants(f"conf/{path.relative_to(conf_dir())}"):
            return broken
    return _broken("conf", f"holds a file that cannot be read: {problem}", "look at the files there")


def not_as_hydra_wants(name: str) -> TipcastError | None:
    """Return what is wrong with a file ``conf/GROUP/NAME.yaml`` that Hydra would not say, or says without its name."""
    path = conf_dir().parent / name
    try:
        raw = path.read_bytes()
    except OSError as problem:
        return _broken(name, f"cannot be read: {problem.strerror}", "put a YAML file there")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff", BOM)):
        return _broken(f"{name}, line 1, column 1", "begins with a byte order mark", "save it as UTF-8 without one")
    try:
        text = raw.decode()
        tree = yaml.safe_load(text)
    except UnicodeDecodeError as problem:
        return _broken(_place(name, raw[: problem.start].decode()), "is not UTF-8", "save it as UTF-8")
    except yaml.reader.ReaderError as problem:
        what = f"holds the character {problem.character!r}"
        return _broken(_place(name, text[: problem.position]), what, "remove it")
    except yaml.YAMLError:
        return None
    if not isinstance(tree, dict):
        return _broken(f"{name}, line 1, column 1", "holds no keys and values", "write lines as 'key: value'")
    defaults = tree.get("defaults", [])
    if not isinstance(defaults, list) or not all(isinstance(item, str | dict) for item in defaults):
        return _broken(name, "its defaults are no list of group: option", "write lines as '- override /model: xgboost'")
    if name.startswith("conf/experiment/") and PACKAGE not in text:
        what = f"its first line is not {PACKAGE!r}"
        return _broken(f"{name}, line 1", what, "add it, so that keys are those of the job")
    return None


def _place(name: str, before: str) -> str:
    """Return a file and the line and column that follow a text, both from 1."""
    return f"{name}, line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def _shown(path: str) -> str:
    """Return a path from conf/ on."""
    folder = conf_dir().parent
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path
