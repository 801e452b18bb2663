"""What `--help` says: of each job, option and key the comment beside it in conf/, else the one in its schema."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf

from tipcast import __version__
from tipcast.config import conf_files
from tipcast.config.arguments import OPTION
from tipcast.config.schema import JOBS

LEAST, MOST = 72, 120  # columns of the text: those of the terminal within these bounds
KEYS = 36  # columns before what is said of a key
LONGEST = 40  # letters of a default value that are shown
GROUPS = ("data", "task", "model", "search", "backend", "cluster", "tracking", "experiment")
"""In this order; others that a user has made come after them."""
EXPANDED = ("params", "fit", "space")  # mappings of a library's own keys that are shown one by one
FLAGS = {
    "-v, --verbose": "log in detail, also what the libraries tell (TIPCAST_LOG=debug)",
    "-q, --quiet": "log warnings and errors only (TIPCAST_LOG=warning)",
    "-m, --multirun": "run each combination of values: tipcast train -m model=xgboost,svc seed=1,2",
    "-cd, --config-dir DIR": "a folder with options of your own, as DIR/task/mine.yaml",
    "-c, --cfg job|hydra|all": "show the composed configuration, run nothing",
    "-p, --package KEY": "with --cfg: only what is below a key, as data",
    "--resolve": "with --cfg: with what ${...} stand for",
    "-i, --info [WHAT]": "show all, config, defaults, defaults-tree, plugins or searchpath",
    "--hydra-help": "Hydra's own help",
    "-sc, --shell-completion": "complete words: install=bash, zsh or fish prints a script, uninstall= likewise",
    "-V, --version": "the version",
}
"""Flags before or after the job; Hydra's are those of its documentation."""


def usage() -> str:
    """Return the text of `tipcast --help`."""
    jobs = [line for job in JOBS for line in _entry(job, _headline(job), 12)]
    return "\n".join([
        f"tipcast {__version__}: experiment tracking for tabular models\n",
        "usage: tipcast JOB [flag ...] [group=option ...] [key=value ...]\n",
        "jobs (tipcast JOB --help: its groups and keys)", *jobs, "", *_flags(),
    ])  # fmt: skip


def text(job: str, config: DictConfig, choices: Mapping[str, str | None]) -> str:
    """Return the text of `tipcast JOB --help`: groups with their options first, then every key of the chosen ones.

    ``config`` is composed, nothing in it need be given; ``choices`` has the option that was composed of each group.
    """
    order = sorted(choices, key=lambda group: GROUPS.index(group) if group in GROUPS else len(GROUPS))
    groups = {group: choices[group] for group in order if conf_files.options(group)}
    lines = [*textwrap.wrap(f"tipcast {job}: {_headline(job)}", _width()), ""]
    lines += [f"usage: tipcast {job} [flag ...] [group=option ...] [key=value ...]", ""]
    lines.append("groups and their options, [in brackets] the chosen one, whose keys are below")
    comments = _comments(conf_files.conf_dir() / f"{job}.yaml", "")
    sections: dict[str, list[str]] = {"": [f"keys of {job}"]}
    for group, option in groups.items():
        names = [f"[{name}]" if name == option else name for name in conf_files.options(group)]
        lines += _entry(group, ", ".join(names), 12)
        path = conf_files.options(group).get(option or "")
        first = re.split(r"(?<=[.?])\s", _first_comment(path))[0] if path else ""
        sections[group] = textwrap.wrap(f"{group}={option or 'null'}: {first}", _width())
        comments |= _comments(path, group) if path else {}
    titles = {section: len(title) for section, title in sections.items()}
    for key, value, comment in _keys(config, ""):
        group, _, name = key.partition(".")
        if OPTION.get(group) != name:  # which follows from the option that is chosen
            word = key if key.endswith(".*") else f"{key}={_shown(value)}"
            explained = _entry(word, comments.get(key.removesuffix(".*")) or comment, KEYS)
            sections[group if group in groups else ""] += explained
    for section, entries in sections.items():
        lines += ["", *entries] if len(entries) > titles[section] else []
    return "\n".join([*lines, "", *_flags()])


def _keys(config: DictConfig, prefix: str) -> Iterator[tuple[str, Any, str]]:
    """Yield keys with their values and the comments of their schemas; of a mapping that a library reads its items."""
    comments: dict[str, str] = {}
    for schema in reversed((OmegaConf.get_type(config) or dict).__mro__):
        if dataclasses.is_dataclass(schema):
            parts = [line.partition("  # ") for line in inspect.getsource(schema).splitlines()]
            comments |= {code.strip().partition(":")[0]: comment for code, _, comment in parts if comment}
    for name in map(str, config):
        key = f"{prefix}{name}"
        value = MISSING if OmegaConf.is_missing(config, name) else config[name]
        if isinstance(value, DictConfig) and dataclasses.is_dataclass(OmegaConf.get_type(value)):
            yield from _keys(value, f"{key}.")
        elif name in EXPANDED and value and value != MISSING:
            yield f"{key}.*", None, comments.get(name, "")
            yield from ((f"{key}.{item}", value[item], "") for item in value)
        else:
            yield key, value, comments.get(name, "")


def _comments(path: Path, group: str) -> dict[str, str]:
    """Return full keys of a YAML file, and of options that it builds on, and the comments behind, else above them."""
    text = path.read_text(encoding="utf-8")
    lines, found = text.splitlines(), dict[str, str]()
    for item in yaml.safe_load(text).get("defaults", []):
        if isinstance(item, str) and (base := conf_files.options(group).get(item)):
            found |= _comments(base, group)

    def below(node: Any, prefix: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            block = isinstance(value, yaml.CollectionNode) and not value.flow_style
            end = (key if block else value).end_mark
            beside = re.search(r"\s# *(.*)", lines[end.line][end.column :] if end.line < len(lines) else "")
            above = itertools.takewhile(lambda line: line.lstrip().startswith("#"), lines[: key.start_mark.line][::-1])
            if said := beside[1] if beside else " ".join(line.strip(" #") for line in [*above][::-1]):
                found[f"{prefix}{key.value}"] = said.strip().removesuffix(".")
            below(value, f"{prefix}{key.value}.")

    below(yaml.compose(text), f"{group}." if group and conf_files.PACKAGE not in text else "")
    return found


def _headline(job: str) -> str:
    """Return what conf/JOB.yaml says in its first line."""
    return _first_comment(conf_files.conf_dir() / f"{job}.yaml").partition(": ")[2]


def _first_comment(path: Path) -> str:
    """Return the comment that a file begins with, but Hydra's."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if line != conf_files.PACKAGE)
    return " ".join(line.lstrip("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), lines))


def _shown(value: Any) -> str:
    """Return a value as one word of the command line."""
    if isinstance(value, Enum):
        return value.name
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    if isinstance(plain, str):
        return plain
    found = yaml.safe_dump(plain, default_flow_style=True, width=10_000, sort_keys=False).removesuffix("...\n").strip()
    return found if len(found) <= LONGEST else f"{found[: LONGEST - 1]}…"


def _flags() -> list[str]:
    return ["flags", *(line for flag, what in FLAGS.items() for line in _entry(flag, what, 27))]


def _entry(word: str, what: str, column: int) -> list[str]:
    """Return a word and what is said of it from a column on, below it where it is longer."""
    head, *more = textwrap.wrap(what, _width() - column) or [""]
    below = [" " * column + line for line in more]
    if len(word) > column - 4 and what:
        return [f"  {word}", " " * column + head, *below]
    return [f"  {word:<{column - 2}}{head}".rstrip(), *below]


def _width() -> int:
    return min(max(shutil.get_terminal_size().columns - 1, LEAST), MOST)
