"""What `--help` says: of each job, option and key the comment beside it in conf/, else the one in
its schema.
"""

import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf

from tipcast import __version__
from tipcast.config import conf_files
from tipcast.config.arguments import FLAGS, OPTION
from tipcast.config.schema import JOBS, TESTS_ONLY

WIDTH = 79  # columns of the text
COLUMN = 36  # where what is said of a key begins
LONGEST = 40  # letters of a default value that are shown
FIELD = re.compile(r"^((?:    # .*\n)*)    (\w+):.*?(?:  # (.*))?$", re.MULTILINE)
"""A field of a schema's source, with the comments above and beside it."""
# in this order
GROUPS = ("data", "task", "model", "search", "backend", "cluster", "tracking", "experiment")
EXPANDED = ("params", "fit", "space")  # mappings of a library's own keys that are shown one by one


def usage() -> str:
    """Return the text of `tipcast --help`."""
    purposes = {
        job: _opening(conf_files.conf_dir() / f"{job}.yaml")[0].partition(": ")[2] for job in JOBS
    }
    jobs = [line for job, purpose in purposes.items() for line in _entry(job, purpose, 12)]
    flags = [line for flag, what in FLAGS.items() for line in _entry(flag, what, 27)]
    return "\n".join(
        [
            f"tipcast {__version__}: experiment tracking for tabular models\n",
            "usage: tipcast JOB [flag ...] [group=option ...] [key=value ...]\n",
            "jobs (tipcast JOB --help: its groups and keys)",
            *jobs,
            "",
            "flags",
            *flags,
        ]
    )


def text(
    job: str, config: DictConfig, choices: Mapping[str, str | None], overrides: Sequence[str]
) -> str:
    """Return the text of `tipcast JOB --help`: a page of what matters or, with overrides, all keys
    of their groups.

    ``config`` is composed, nothing in it need be given; ``choices`` has the option that was
    composed of each group.
    """
    order = sorted(
        choices, key=lambda group: GROUPS.index(group) if group in GROUPS else len(GROUPS)
    )
    options_of = conf_files.options if "task" in choices else conf_files.options_without_task
    files = {group: options for group in order if (options := options_of(group))}
    purpose, examples, first = _opening(conf_files.conf_dir() / f"{job}.yaml")
    comments = _comments(conf_files.conf_dir() / f"{job}.yaml", "")
    titles = {"": f"keys of {job}"}

    for group, options in files.items():
        option = options.get(choices[group] or "")
        comments |= _comments(option, group) if option else {}
        titles[group] = (
            f"{group}={choices[group] or 'null'}: {_opening(option)[0] if option else ''}"
        )

    entries = {key: (value, comments.get(key) or comment) for key, value, comment in keys(config)}
    lines = [purpose]
    if overrides:
        touched = {re.split(r"[.=@]", override.lstrip("+~"))[0] for override in overrides}
        for group in ["", *(group for group in files if group in touched)]:
            lines += ["", re.split(r"(?<=[.?])\s", titles[group])[0]]
            for key, (value, comment) in entries.items():
                start, _, name = key.partition(".")
                # which its option says
                if group == (start if start in files else "") and OPTION.get(start) != name:
                    lines += _entry(f"{key}={value}" if value else key, comment, COLUMN)
    else:
        lines += ["", "group=option, of these, [in brackets] the default"]
        for group, options in files.items():
            names = [f"[{name}]" if name == choices[group] else name for name in options]
            lines += _entry(group, ", ".join(names), 14)

        lines += ["", "key=value, of these first, with the default"]
        for key in first:
            value, comment = entries[key]
            short = textwrap.shorten(comment.partition(";")[0], WIDTH - COLUMN, placeholder=" ...")
            lines += _entry(f"{key}={value}", short, COLUMN)

        more = (
            "GROUP=OPTION --help (all keys of an option), --cfg job (all values); "
            "docs/command_line.md"
        )
        lines += [
            "",
            "examples",
            *examples,
            "",
            f"more: tipcast --help (flags); tipcast {job} {more}",
        ]

    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        for line in lines
    )


def keys(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield keys with their values and the comments of their schemas; of a mapping that a library
    reads its items.
    """
    comments: dict[str, str] = {}
    for schema in reversed((OmegaConf.get_type(config) or dict).__mro__):
        if dataclasses.is_dataclass(schema):
            for above, field, beside in FIELD.findall(inspect.getsource(schema)):
                comments[field] = beside or " ".join(re.findall("# (.*)", above))

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


def _comments(path: Path, group: str) -> dict[str, str]:
    """Return full keys of a YAML file, and of options that it builds on, and the comments behind,
    else above them.
    """
    text = path.read_text(encoding="utf-8")
    comments = dict[str, str]()
    above = list[str]()
    parents = list[tuple[int, str]]()
    for item in yaml.safe_load(text).get("defaults", []):
        if isinstance(item, str) and (base := conf_files.options(group).get(item)):
            comments |= _comments(base, group)

    prefix = [group] if group and conf_files.PACKAGE not in text else []
    for line in text.splitlines():
        key, _, beside = line.partition(" # ")
        if match := re.match(r"( *)(\w+):", key):
            parents = [parent for parent in parents if parent[0] < len(match[1])] + [
                (len(match[1]), match[2])
            ]
            if said := beside or " ".join(above):
                comments[".".join([*prefix, *(name for _, name in parents)])] = (
                    said.strip().removesuffix(".")
                )
        above = [*above, line.strip(" #")] if line.lstrip().startswith("#") else []

    return comments


def _opening(path: Path) -> tuple[str, list[str], list[str]]:
    """Return what a file's first comment says, but Hydra's, the commands indented in it, and the
    keys that it names.
    """
    lines = (
        line for line in path.read_text(encoding="utf-8").splitlines() if line != conf_files.PACKAGE
    )
    opening = [line[2:] for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    said, _, keys = " ".join(line for line in opening if not line.startswith("  ")).partition(
        " Keys: "
    )
    return said, [line for line in opening if line.startswith("  ")], keys.split()


def _shown(value: Any) -> str:
    """Return a value as one word of the command line."""
    if isinstance(value, Enum):
        return value.name
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    dumped = (
        yaml.safe_dump(plain, default_flow_style=True, width=10_000, sort_keys=False)
        .removesuffix("...\n")
        .strip()
    )
    text = plain if isinstance(plain, str) else dumped
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _entry(word: str, what: str, column: int) -> list[str]:
    """Return a word and what is said of it from a column on, below it where it is longer."""
    head, *more = textwrap.wrap(what, WIDTH - column) or [""]
    below = [" " * column + line for line in more]
    if len(word) > column - 4 and what:
        return [f"  {word}", " " * column + head, *below]
    return [f"  {word:<{column - 2}}{head}".rstrip(), *below]
