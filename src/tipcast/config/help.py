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
from tipcast.config.jobs import JOBS
from tipcast.config.schema import TESTS_ONLY

WIDTH = 79  # columns of the text
COLUMN = 36  # where what is said of a key begins
LONGEST = 40  # letters of a default value that are shown
FIELD = re.compile(r"^((?:    # .*\n)*)    (\w+):.*?(?:  # (.*))?$", re.MULTILINE)
"""A field of a schema's source, with the comments above and beside it."""
# The order in which groups are shown.
GROUPS = ("data", "task", "model", "search", "backend", "cluster", "tracking", "experiment")
EXPANDED = ("params", "fit", "space")  # mappings of a library's own keys that are shown one by one


def usage() -> str:
    """Return the text of `tipcast --help`."""
    jobs = [line for job in JOBS for line in _entry(job, purpose(job), 12)]
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


def purpose(job: str) -> str:
    """Return what a job does, as the first line of its file in conf/ says."""
    return _opening(conf_files.conf_dir() / f"{job}.yaml")[0].partition(": ")[2]


def text(
    job: str, config: DictConfig, choices: Mapping[str, str | None], overrides: Sequence[str]
) -> str:
    """Return the text of `tipcast JOB --help`.

    It is a page of what matters or, with overrides, all keys of their groups. ``config`` is
    composed and may lack values. ``choices`` is group -> option that was composed.
    """
    files = _option_files(choices)
    chosen = {group: options.get(choices[group] or "") for group, options in files.items()}
    comments = _all_comments(job, chosen)
    entries = {key: (value, comments.get(key) or comment) for key, value, comment in keys(config)}
    title, examples, first_keys = _opening(conf_files.conf_dir() / f"{job}.yaml")

    if overrides:
        lines = _keys_of_groups(_titles(job, chosen, choices), entries, overrides)
    else:
        more = (
            f"more: tipcast --help (flags); tipcast {job} GROUP=OPTION --help (all keys of an "
            "option), --cfg job (all values); docs/command_line.md"
        )
        lines = [
            *_options(files, choices),
            *_first_keys(first_keys, entries),
            *("", "examples", *examples),
            *("", more),
        ]

    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        for line in [title, *lines]
    )


def _option_files(choices: Mapping[str, str | None]) -> dict[str, dict[str, Path]]:
    """Return group -> option -> its file, of the groups that were composed, in the order shown."""
    places = {group: place for place, group in enumerate(GROUPS)}
    order = sorted(choices, key=lambda group: places.get(group, len(GROUPS)))
    options_of = conf_files.options if "task" in choices else conf_files.options_without_task
    return {group: options for group in order if (options := options_of(group))}


def _all_comments(job: str, chosen: Mapping[str, Path | None]) -> dict[str, str]:
    """Return full keys and their comments, of the job's file and of the option of each group."""
    comments = _comments(conf_files.conf_dir() / f"{job}.yaml", "")
    for group, option in chosen.items():
        comments |= _comments(option, group) if option else {}
    return comments


def _titles(
    job: str, chosen: Mapping[str, Path | None], choices: Mapping[str, str | None]
) -> dict[str, str]:
    """Return group -> what its option is for, with "" for the job's own keys."""
    titles = {"": f"keys of {job}"}
    for group, option in chosen.items():
        option_purpose = _opening(option)[0] if option else ""
        titles[group] = f"{group}={choices[group] or 'null'}: {option_purpose}"
    return titles


def _keys_of_groups(
    titles: Mapping[str, str], entries: Mapping[str, tuple[str, str]], overrides: Sequence[str]
) -> list[str]:
    """Return lines on the job's own keys and on all keys of the groups that overrides touch.

    ``titles`` is group -> title, with "" for the job's own keys. ``entries`` is key -> value and
    what is said of it.
    """
    lines: list[str] = []
    touched = {re.split(r"[.=@]", override.lstrip("+~"))[0] for override in overrides}

    for group in [group for group in titles if not group or group in touched]:
        lines += ["", re.split(r"(?<=[.?])\s", titles[group])[0]]
        for key, (value, comment) in entries.items():
            start, _, name = key.partition(".")
            # A group's own option is left out: the group's title says it.
            if group == (start if start in titles else "") and OPTION.get(start) != name:
                lines += _entry(f"{key}={value}" if value else key, comment, COLUMN)

    return lines


def _options(
    files: Mapping[str, Mapping[str, Path]], choices: Mapping[str, str | None]
) -> list[str]:
    """Return lines on the options of each group."""
    lines = ["", "group=option, of these, [in brackets] the default"]
    for group, options in files.items():
        names = [f"[{name}]" if name == choices[group] else name for name in options]
        lines += _entry(group, ", ".join(names), 14)
    return lines


def _first_keys(names: Sequence[str], entries: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return lines on the keys that matter most."""
    lines = ["", "key=value, of these first, with the default"]
    for name in names:
        value, comment = entries[name]
        short = textwrap.shorten(comment.partition(";")[0], WIDTH - COLUMN, placeholder=" ...")
        lines += _entry(f"{name}={value}", short, COLUMN)
    return lines


def keys(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield keys with their values and the comments of their schemas.

    Of a mapping that a library reads, its items are yielded.
    """
    comments: dict[str, str] = {}
    for schema in reversed((OmegaConf.get_type(config) or dict).__mro__):
        if dataclasses.is_dataclass(schema):
            for lines_above, field, end_of_line in FIELD.findall(inspect.getsource(schema)):
                comments[field] = end_of_line or " ".join(re.findall("# (.*)", lines_above))

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
    """Return full keys of a YAML file and the comments behind, else above them.

    Those of options that it builds on are among them.
    """
    text = path.read_text(encoding="utf-8")
    comments = dict[str, str]()
    for item in yaml.safe_load(text).get("defaults", []):
        if isinstance(item, str) and (base := conf_files.options(group).get(item)):
            comments |= _comments(base, group)

    prefix = f"{group}." if group and conf_files.PACKAGE not in text else ""
    for key, comment in _commented_keys(text):
        comments[f"{prefix}{key}"] = comment.strip().removesuffix(".")
    return comments


def _commented_keys(text: str) -> Iterator[tuple[str, str]]:
    """Yield full keys of a YAML file's text with the comment behind, else above each, if any."""
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

        above = [*above, line.strip(" #")] if line.lstrip().startswith("#") else []


def _opening(path: Path) -> tuple[str, list[str], list[str]]:
    """Return what a file's first comment says, the commands indented in it, and the keys it names.

    Hydra's own comment is left out.
    """
    lines = (
        line for line in path.read_text(encoding="utf-8").splitlines() if line != conf_files.PACKAGE
    )
    opening = [line[2:] for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    examples = [line for line in opening if line.startswith("  ")]
    sentences = " ".join(line for line in opening if not line.startswith("  "))
    title, _, keys = sentences.partition(" Keys: ")
    return title, examples, keys.split()


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
