"""Dask's own configuration, from its variables and files: what is wrong in it is reported before
Dask meets it in a process that it starts.
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
from typing import Any, NamedTuple

import yaml

from tipcast.config.errors import TipcastError, must_be

PREFIX = "DASK_"
INHERITED = "DASK_INTERNAL_INHERIT_CONFIG"
"""Variable by which Dask passes a configuration to the processes that it starts."""
FIX = "correct the value, or leave it out"
"""What a user can do about a wrong value."""
TIMES = {
    "distributed.scheduler.idle-timeout",
    "distributed.scheduler.no-workers-timeout",
    "distributed.worker.lifetime.duration",
}
"""Keys that take a duration and have none by default."""
SIZES = {"distributed.scheduler.bandwidth", "distributed.worker.memory.max-spill"}
"""Keys that take a size and have a number or nothing by default."""
EVENT_LOOP = "distributed.admin.event-loop"
"""Key whose values Dask's schema names only in a sentence."""
EVENT_LOOPS = ("asyncio", "tornado", "uvloop")
"""Values of that key."""
TEMPORARY = "temporary-directory"
"""Key of the folder that workers write to."""
LEVELS = "logging"
"""Key above the levels of loggers."""


class Rule(NamedTuple):
    """What the value of a key must be."""

    words: str
    """The rule as messages say it, such as ``a number``."""
    test: Callable[[Any], object]
    """Raises an error, or returns False, for a value that breaks the rule."""

    def passes(self, value: object) -> bool:
        """Tell whether a value keeps the rule."""
        try:
            return self.test(value) is not False
        except (ValueError, TypeError, LookupError, AttributeError, OSError):
            return False


def check() -> None:
    """Refuse variables and files of Dask's configuration that would end Dask; C003.

    A value must be of the same kind as the one that Dask ships: a duration, a size, a number, a
    list.
    """
    if not _configured():
        return

    _read_files()
    for where, key, value in _given():
        rule = _rules().get(key) or _rule_without_default(key)
        if rule and value is not None and not rule.passes(value):
            raise must_be(where, rule.words, repr(value), FIX)

    _import_distributed()


@functools.cache  # a command checks twice: before processes start, and as the job runs
def _rules() -> dict[str, Rule | None]:
    """Return the rules of Dask's keys, by their defaults and by Dask's schema."""
    rules = {
        key: _rule_of_default(key, value) for key, value in _leaves(_shipped("distributed.yaml"))
    }
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
    """Import Dask, which reads its files; C003 for a file that is not a mapping in YAML."""
    try:
        import dask.config  # noqa: F401
    except ValueError as problem:
        text = " ".join(str(problem).split())
        where = "Dask"
        if file := re.search(r"config file at '(.+?)'", text):
            where = file[1]

        reason = text.rpartition("malformed")[2].lstrip(" ,-")
        what = f"Dask cannot read its configuration: {reason}"
        fix = "correct the file, or move it away"
        raise TipcastError("C003", where, what, fix) from problem


def _import_distributed() -> None:
    """Import Dask's scheduler and workers, which apply the settings; C003 if they refuse one."""
    try:
        import distributed  # noqa: F401
    except (ValueError, TypeError, LookupError) as problem:
        what = f"rejects a value in its configuration: {type(problem).__name__}: {problem}"
        fix = "correct it in the DASK_... variables or in ~/.config/dask"
        raise TipcastError("C003", "Dask", what, fix) from problem


def _given() -> Iterator[tuple[str, str, Any]]:
    """Yield each key that a user has set: the file or variable, the key and its value."""
    from dask import config

    for path, tree in config.collect_yaml(config.paths, return_paths=True):
        for key, value in _leaves(tree):
            yield f"{path}, {key}", key, value

    for name, text in os.environ.items():
        if name.startswith(PREFIX) and name != INHERITED:
            for key, value in _leaves(config.collect_env({name: text})):
                yield name, key, value


def _shipped(name: str) -> dict[str, Any]:
    """Return a YAML file that ships with Dask's scheduler, without importing the scheduler."""
    package = importlib.util.find_spec("distributed")
    if package is None or package.origin is None:
        return {}
    text = Path(package.origin).with_name(name).read_text(encoding="utf-8")
    shipped: dict[str, Any] = yaml.safe_load(text)
    return shipped


def _choices(schema: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Rule]]:
    """Yield each key whose values Dask's schema lists, and its rule."""
    for name, node in schema.get("properties", {}).items():
        key = _key_below(above, name)
        if choices := node.get("enum"):
            yield key, _one_of(choices)
        yield from _choices(node, key)


def _one_of(choices: Collection[object]) -> Rule:
    """Return the rule of a key that takes some values only."""
    words = ["null" if choice is None else str(choice).lower() for choice in choices]
    return Rule(f"one of {', '.join(words)}", lambda value: value in choices)


def _leaves(tree: object, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of nested mappings, spelt with hyphens, and their values.

    The key of a mapping itself comes with the mapping.
    """
    if above:
        yield above, tree
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _leaves(value, _key_below(above, str(name).replace("_", "-")))


def _key_below(above: str, name: str) -> str:
    """Return the dotted key of a name in a mapping; ``above`` is "" for the outermost one."""
    if not above:
        return name
    return f"{above}.{name}"


def _rule_of_default(key: str, default: object) -> Rule | None:
    """Return the rule of a key by the value that Dask ships."""
    from dask.utils import parse_bytes, parse_timedelta

    duration = Rule("a duration such as 30s", parse_timedelta)
    size = Rule("a size such as 64MiB", parse_bytes)
    is_text = isinstance(default, str)

    if key == EVENT_LOOP:
        return _one_of(EVENT_LOOPS)
    if key in TIMES or (is_text and duration.passes(default)):
        return duration
    if key in SIZES or (is_text and size.passes(default)):
        return size
    if is_text:
        return Rule("a string", lambda value: isinstance(value, str | bool))
    if isinstance(default, bool):
        return None  # some settings take a word or a number too
    if isinstance(default, int | float):
        return Rule("a number", lambda value: isinstance(float(value), float))
    if isinstance(default, list):
        return Rule("a list", lambda value: isinstance(value, list | tuple | str))
    if isinstance(default, dict):
        return Rule("a mapping", lambda value: isinstance(value, Mapping))
    return None


def _rule_without_default(key: str) -> Rule | None:
    """Return the rule of a key that Dask ships no value for."""
    if key == TEMPORARY:
        return Rule("a writable folder", _can_be_written)
    if key.startswith(f"{LEVELS}.") and not key.startswith(f"{LEVELS}.version"):
        return Rule("a level such as info or warning", _is_level)
    return None


def _can_be_written(folder: str) -> bool:
    """Tell whether files can be made in a folder or, if it does not exist, in the one above it."""
    path = Path(folder).expanduser().absolute()
    while not path.exists():
        path = path.parent
    with tempfile.TemporaryFile(dir=path):
        return True


def _is_level(value: Any) -> bool:
    if isinstance(value, Mapping | list | int):
        return True
    return value.upper() in logging.getLevelNamesMapping()
