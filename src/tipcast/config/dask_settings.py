"""Dask's own configuration, of its variables and files: what is wrong in it is told before Dask
meets it in a process that it starts.
"""

import functools
import importlib.util
import logging
import os
import re
import site
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tipcast.config.errors import TipcastError, must_be

PREFIX = "DASK_"
INHERITED = "DASK_INTERNAL_INHERIT_CONFIG"
"""Variable by which Dask passes a configuration to the processes that it starts."""
FIX = "correct the value, or leave it out"
TIMES = {
    "distributed.scheduler.idle-timeout",
    "distributed.scheduler.no-workers-timeout",
    "distributed.worker.lifetime.duration",
}
"""Keys of a duration that have none by default."""
SIZES = {"distributed.scheduler.bandwidth", "distributed.worker.memory.max-spill"}
"""Keys of a size whose default is a number or none."""
EVENT_LOOP = "distributed.admin.event-loop"
EVENT_LOOPS = ("asyncio", "tornado", "uvloop")
"""Key whose values Dask's schema names in words alone, and these."""
TEMPORARY = "temporary-directory"
LEVELS = "logging"


def check() -> None:
    """Refuse variables and files of Dask's configuration that Dask would end at; C003.

    A value must be what the one that Dask ships is: a duration, a size, a number, a list.
    """
    if not _configured():
        return

    _read_files()
    for where, key, value in _given():
        rule = _rules().get(key) or _of_key(key)
        if rule and value is not None and not _passes(rule[1], value):
            raise must_be(where, rule[0], repr(value), FIX)

    _import_distributed()


@functools.cache  # a command checks twice: before processes start, and as the job runs
def _rules() -> dict[str, "Rule | None"]:
    """Return the rules of Dask's keys, by what it ships and by its schema."""
    rules = {key: _kind(key, value) for key, value in _leaves(_shipped("distributed.yaml"))}
    return rules | dict(_choices(_shipped("distributed-schema.yaml")))


def _configured() -> bool:
    """Tell whether anything but Dask's defaults may apply, without importing Dask."""
    folders: list[str | Path] = [
        os.environ.get("DASK_ROOT_CONFIG", "/etc/dask"),
        *(f"{prefix}/etc/dask" for prefix in {sys.prefix, *site.PREFIXES}),
        Path("~/.config/dask").expanduser(),
    ]
    named = any(name.startswith(PREFIX) and name != INHERITED for name in os.environ)
    return named or any(Path(folder).exists() for folder in folders)


def _read_files() -> None:
    """Import what reads the files; C003 for one that is no mapping in YAML."""
    try:
        import dask.config  # noqa: F401
    except ValueError as problem:
        text = " ".join(str(problem).split())
        file = re.search(r"config file at '(.+?)'", text)
        reason = text.rpartition("malformed")[2].lstrip(" ,-")
        what = f"Dask cannot read its configuration: {reason}"
        fix = "correct the file, or move it away"
        raise TipcastError("C003", file[1] if file else "Dask", what, fix) from problem


def _import_distributed() -> None:
    """Import what applies the settings as it is imported; C003 where it refuses one."""
    try:
        import distributed  # noqa: F401
    except (ValueError, TypeError, LookupError) as problem:
        what = f"refuses a value of its configuration: {type(problem).__name__}: {problem}"
        fix = "correct it in the variables DASK_... or in ~/.config/dask"
        raise TipcastError("C003", "Dask", what, fix) from problem


def _given() -> Iterator[tuple[str, str, Any]]:
    """Yield where a user has set a key, the key, and its value."""
    from dask import config

    for path, tree in config.collect_yaml(config.paths, return_paths=True):
        for key, value in _leaves(tree):
            yield f"{path}, {key}", key, value

    for name, text in os.environ.items():
        if name.startswith(PREFIX) and name != INHERITED:
            for key, value in _leaves(config.collect_env({name: text})):
                yield name, key, value


def _shipped(name: str) -> dict[str, Any]:
    """Return a file of Dask's scheduler and workers, which are not imported for it."""
    package = importlib.util.find_spec("distributed")
    if package is None or package.origin is None:
        return {}
    text = Path(package.origin).with_name(name).read_text(encoding="utf-8")
    shipped: dict[str, Any] = yaml.safe_load(text)
    return shipped


def _choices(schema: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, "Rule"]]:
    """Yield the keys of which Dask's schema lists the values, and their rules."""
    for name, node in schema.get("properties", {}).items():
        key = f"{above}.{name}" if above else name
        if choices := node.get("enum"):
            yield key, _one_of(choices)
        yield from _choices(node, key)


def _one_of(choices: Collection[object]) -> "Rule":
    words = ", ".join("null" if choice is None else str(choice).lower() for choice in choices)
    return f"one of {words}", lambda value: value in choices


def _leaves(tree: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of nested mappings, spelt with hyphens, and their values.

    The key of a mapping itself comes with the mapping.
    """
    if above:
        yield above, tree
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            key = str(name).replace("_", "-")
            yield from _leaves(value, f"{above}.{key}" if above else key)


Rule = tuple[str, Callable[[Any], object]]
"""What a value must be, in words, and a function that raises an error, or returns False, where it
is not.
"""


def _kind(key: str, default: Any) -> Rule | None:
    """Return the rule of a key by the value that Dask ships."""
    from dask.utils import parse_bytes, parse_timedelta

    if key == EVENT_LOOP:
        return _one_of(EVENT_LOOPS)
    text = isinstance(default, str)
    if key in TIMES or (text and _passes(parse_timedelta, default)):
        return "a duration, as 30s", parse_timedelta
    if key in SIZES or (text and _passes(parse_bytes, default)):
        return "a size, as 64MiB", parse_bytes
    if text:
        return "a text", lambda value: isinstance(value, str | bool)
    if isinstance(default, bool):
        return None  # some settings take a word or a number too
    if isinstance(default, int | float):
        return "a number", lambda value: isinstance(float(value), float)
    if isinstance(default, list):
        return "a list", lambda value: isinstance(value, list | tuple | str)
    if isinstance(default, dict):
        return "keys with values", lambda value: isinstance(value, Mapping)
    return None


def _of_key(key: str) -> Rule | None:
    """Return the rule of a key without a default."""
    if key == TEMPORARY:
        return "a folder that can be written", _can_be_written
    if key.startswith(f"{LEVELS}.") and not key.startswith(f"{LEVELS}.version"):
        return "a level, as info or warning", _is_level
    return None


def _can_be_written(folder: str) -> bool:
    """Tell whether files can be made in a folder, or in the one that it would be made in."""
    path = Path(folder).expanduser().absolute()
    while not path.exists():
        path = path.parent
    with tempfile.TemporaryFile(dir=path):
        return True


def _is_level(value: Any) -> bool:
    return (
        isinstance(value, Mapping | list | int) or value.upper() in logging.getLevelNamesMapping()
    )


def _passes(rule: Callable[[Any], object], value: Any) -> bool:
    """Tell whether a value keeps a rule."""
    try:
        return rule(value) is not False
    except (ValueError, TypeError, LookupError, AttributeError, OSError):
        return False
