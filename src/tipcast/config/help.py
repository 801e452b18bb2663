"""Text of `--help`: each job, option and key with the comment beside it in conf/, or else the one
in its schema.
"""

import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf

from tipcast import __version__
from tipcast.config import conf_files
from tipcast.config.arguments import FLAGS, OPTION
from tipcast.config.jobs import JOBS
from tipcast.config.schema import TESTS_ONLY

WIDTH = 79  # columns of the text
COLUMN = 36  # where the comment on a key begins
LONGEST = 40  # letters of a default value that are shown
FIELD = re.compile(r"^((?:    # .*\n)*)    (\w+):.*?(?:  # (.*))?$", re.MULTILINE)
"""A field of a schema's source, with the comments above and beside it."""
GROUPS = ("data", "task", "model", "search", "backend", "cluster", "tracking", "experiment")
"""Groups in the order in which they are shown."""
EXPANDED = ("params", "fit", "space")
"""Mappings of a library's own keys, which are shown one by one."""


class Opening(NamedTuple):
    """The comment that a file of conf/ begins with."""

    title: str
    """What the job or option does."""
    examples: list[str]
    """The commands that are indented in the comment."""
    keys: list[str]
    """The keys that matter most, which the comment names."""


def usage() -> str:
    """Return the text of `tipcast --help`."""
    jobs = [line for job in JOBS for line in _entry(job, purpose(job), 12)]
    flags = [line for flag, what in FLAGS.items() for line in _entry(flag, what, 27)]
    return "\n".join(
        [
            f"tipcast {__version__}: experiment tracking for tabular models\n",
            "usage: tipcast JOB [flag ...] [group=option ...] [key=value ...]\n",
            "jobs (tipcast JOB --help shows its groups and keys)",
            *jobs,
            "",
            "flags",
            *flags,
        ]
    )


def purpose(job: str) -> str:
    """Return what a job does, as the first line of its file in conf/ says."""
    title = _opening(conf_files.conf_dir() / f"{job}.yaml").title
    return title.partition(": ")[2]


def text(
    job: str, config: DictConfig, choices: Mapping[str, str | None], overrides: Sequence[str]
) -> str:
    """Return the text of `tipcast JOB --help`.

    It shows what matters most or, with overrides, all keys of their groups. ``config`` is composed
    and may lack values. ``choices`` is group -> option that was composed.
    """
    files = _option_files(choices)
    chosen = {group: options.get(choices[group] or "") for group, options in files.items()}
    comments = _all_comments(job, chosen)
    entries = {key: (value, comments.get(key) or comment) for key, value, comment in keys(config)}
    opening = _opening(conf_files.conf_dir() / f"{job}.yaml")

    if overrides:
        lines = _keys_of_groups(_titles(job, chosen, choices), entries, overrides)
    else:
        further_help = (
            f"more: tipcast --help (flags); tipcast {job} GROUP=OPTION --help (all keys of an "
            "option), --cfg job (all values); docs/command_line.md"
        )
        lines = [
            *_options(files, choices),
            *_first_keys(opening.keys, entries),
            *("", "examples", *opening.examples),
            *("", further_help),
        ]

    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        for line in [opening.title, *lines]
    )


def _option_files(choices: Mapping[str, str | None]) -> dict[str, dict[str, Path]]:
    """Return group -> option -> its file, for the groups that were composed, in the order shown."""
    places = {group: place for place, group in enumerate(GROUPS)}
    order = sorted(choices, key=lambda group: places.get(group, len(GROUPS)))
    options_of = conf_files.options_without_task
    if "task" in choices:
        options_of = conf_files.options

    return {group: options for group in order if (options := options_of(group))}


def _all_comments(job: str, chosen: Mapping[str, Path | None]) -> dict[str, str]:
    """Return full keys and their comments, from the job's file and the option of each group."""
    comments = _comments(conf_files.conf_dir() / f"{job}.yaml", "")
    for group, option in chosen.items():
        if option:
            comments |= _comments(option, group)
    return comments


def _titles(
    job: str, chosen: Mapping[str, Path | None], choices: Mapping[str, str | None]
) -> dict[str, str]:
    """Return group -> the title of its option, with "" for the job's own keys."""
    titles = {"": f"keys of {job}"}
    for group, option in chosen.items():
        option_title = ""
        if option:
            option_title = _opening(option).title
        titles[group] = f"{group}={choices[group] or 'null'}: {option_title}"
    return titles


def _keys_of_groups(
    titles: Mapping[str, str], entries: Mapping[str, tuple[str, str]], overrides: Sequence[str]
) -> list[str]:
    """Return lines on the job's own keys and on all keys of the groups that overrides touch.

    ``titles`` is group -> title, with "" for the job's own keys. ``entries`` is key -> value and
    comment.
    """
    lines: list[str] = []
    touched = {re.split(r"[.=@]", override.lstrip("+~"))[0] for override in overrides}

    for group in [group for group in titles if not group or group in touched]:
        lines += ["", re.split(r"(?<=[.?])\s", titles[group])[0]]
        for key, (value, comment) in entries.items():
            if not _is_listed_in(group, key, titles):
                continue
            word = key
            if value:
                word = f"{key}={value}"
            lines += _entry(word, comment, COLUMN)

    return lines


def _is_listed_in(group: str, key: str, groups: Collection[str]) -> bool:
    """Tell whether a key is listed in a group, which is "" for the job's own keys."""
    start, _, name = key.partition(".")
    if OPTION.get(start) == name:  # the name of the option, which the group's title has
        return False
    if start in groups:
        return group == start
    return not group


def _options(
    files: Mapping[str, Mapping[str, Path]], choices: Mapping[str, str | None]
) -> list[str]:
    """Return lines on the options of each group."""
    lines = ["", "group=option, with the default [in brackets]"]
    for group, options in files.items():
        in_brackets = {choices[group]: f"[{choices[group]}]"}
        names = [in_brackets.get(name, name) for name in options]
        lines += _entry(group, ", ".join(names), 14)
    return lines


def _first_keys(names: Sequence[str], entries: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return lines on the keys that matter most."""
    lines = ["", "key=value: the main keys, with their defaults"]
    for name in names:
        value, comment = entries[name]
        short = textwrap.shorten(comment.partition(";")[0], WIDTH - COLUMN, placeholder=" ...")
        lines += _entry(f"{name}={value}", short, COLUMN)
    return lines


def keys(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield keys with their values and the comments of their schemas.

    A mapping that a library reads comes as its items.
    """
    comments = _schema_comments(OmegaConf.get_type(config) or dict)
    for name in map(str, config):
        key = f"{prefix}{name}"
        if key in TESTS_ONLY:
            continue
        value = MISSING if OmegaConf.is_missing(config, name) else config[name]
        if isinstance(value, DictConfig) and dataclasses.is_dataclass(OmegaConf.get_type(value)):
            yield from keys(value, f"{key}.")
        elif name in EXPANDED and value and value != MISSING:
            yield f"{key}.*", "", comments.get(name, "")
            yield from ((f"{key}.{item}", _shown(value[item]), "") for item in value)
        else:
            yield key, _shown(value), comments.get(name, "")


def _schema_comments(kind: type) -> dict[str, str]:
    """Return field -> the comment beside it in the source of a schema and its bases, or above."""
    comments: dict[str, str] = {}
    for schema in reversed(kind.__mro__):
        if dataclasses.is_dataclass(schema):
            for lines_above, field, end_of_line in FIELD.findall(inspect.getsource(schema)):
                comments[field] = end_of_line or " ".join(re.findall("# (.*)", lines_above))
    return comments


def _comments(path: Path, group: str) -> dict[str, str]:
    """Return the full keys of a YAML file, and of options that it builds on, with their comments.

    A comment stands behind its key, or above it.
    """
    text = path.read_text(encoding="utf-8")
    comments = dict[str, str]()
    for item in yaml.safe_load(text).get("defaults", []):
        if isinstance(item, str) and (base := conf_files.options(group).get(item)):
            comments |= _comments(base, group)

    prefix = ""
    if group and conf_files.PACKAGE not in text:
        prefix = f"{group}."
    for key, comment in _commented_keys(text):
        comments[f"{prefix}{key}"] = comment.strip().removesuffix(".")
    return comments


def _commented_keys(text: str) -> Iterator[tuple[str, str]]:
    """Yield each full key of a YAML file's text that has a comment behind or above it, and that."""
    above = list[str]()
    parents = list[tuple[int, str]]()
    for line in text.splitlines():
        code, _, end_of_line = line.partition(" # ")
        if match := re.match(r"( *)(\w+):", code):
            indent = len(match[1])
            parents = [parent for parent in parents if parent[0] < indent]
            parents.append((indent, match[2]))
            if comment := end_of_line or " ".join(above):
                yield ".".join(name for _, name in parents), comment

        if line.lstrip().startswith("#"):
            above.append(line.strip(" #"))
        else:
            above.clear()


def _opening(path: Path) -> Opening:
    """Return the parts of a file's first comment, without the line that is for Hydra."""
    lines = (
        line for line in path.read_text(encoding="utf-8").splitlines() if line != conf_files.PACKAGE
    )
    opening = [line[2:] for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    examples = [line for line in opening if line.startswith("  ")]
    sentences = " ".join(line for line in opening if not line.startswith("  "))
    title, _, names = sentences.partition(" Keys: ")
    return Opening(title, examples, names.split())


def _shown(value: object) -> str:
    """Return a value as one word of the command line, shortened if it is long."""
    if isinstance(value, Enum):
        return value.name

    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, str):
        word = value
    else:
        dumped = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
        word = dumped.removesuffix("...\n").strip()

    if len(word) > LONGEST:
        return f"{word[: LONGEST - 1]}…"
    return word


def _entry(word: str, comment: str, column: int) -> list[str]:
    """Return lines with a word and, from a column on, its comment.

    The comment begins below the word if the word is too long.
    """
    head, *wrapped = textwrap.wrap(comment, WIDTH - column) or [""]
    below = [" " * column + line for line in wrapped]
    if len(word) > column - 4 and comment:
        return [f"  {word}", " " * column + head, *below]
    return [f"  {word:<{column - 2}}{head}".rstrip(), *below]
