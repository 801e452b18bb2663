"""What `--help` says: of each job, option and key the comment beside it in conf/, else the docstring in its schema."""

from __future__ import annotations

import ast
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
from tipcast.config.job_schemas import JOBS

LEAST, MOST = 72, 120
"""Columns of the text: those of the terminal within these bounds."""
KEYS = 36
"""Columns before what is said of a key."""
LONGEST = 40
"""Letters of a default value that are shown."""
GROUPS = ("data", "task", "model", "search", "backend", "cluster", "tracking", "experiment")
"""In this order; others that a user has made come after them."""
EXPANDED = ("params", "fit", "space")
"""Mappings of a library's own keys that are shown one by one."""
NAMES = {"backend.name", "cluster.kind", "data.source", "task.name", "model.name", "search.name"}
"""Keys that follow from the option that is chosen."""
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
    width = _width()
    jobs = [line for job in JOBS for line in _entry(job, _headline(job), width, 12)]
    return "\n".join([
        f"tipcast {__version__}: experiment tracking for tabular models\n",
        "usage: tipcast JOB [flag ...] [group=option ...] [key=value ...]\n",
        "jobs (tipcast JOB --help: its groups and keys)", *jobs, "", *_flags(width),
    ])  # fmt: skip


def text(job: str, config: DictConfig, choices: Mapping[str, str | None]) -> str:
    """Return the text of `tipcast JOB --help`: groups with their options first, then every key of the chosen ones.

    Parameters
    ----------
    job
        Its name.
    config
        Composed; nothing need be resolved or given.
    choices
        Group -> the option of it that was composed.

    """
    width = _width()
    order = sorted(choices, key=lambda group: GROUPS.index(group) if group in GROUPS else len(GROUPS))
    groups = {group: choices[group] for group in order if conf_files.options(group)}
    lines = [*textwrap.wrap(f"tipcast {job}: {_headline(job)}", width), ""]
    lines += [f"usage: tipcast {job} [flag ...] [group=option ...] [key=value ...]", ""]
    lines.append("groups and their options, [in brackets] the chosen one, whose keys are below")
    for group, chosen in groups.items():
        names = [f"[{name}]" if name == chosen else name for name in conf_files.options(group)]
        lines += _entry(group, ", ".join(names), width, 12)
    told = dict(documented(job, config, groups))
    sections: dict[str, list[str]] = {section: [] for section in ("", *groups)}
    for key in told:
        section = key.partition(".")[0]
        sections.setdefault(section if section in groups else "", []).append(key)
    for section, keys in sections.items():
        lines += ["", *_title(section, groups.get(section), job, width)] if keys else []
        for key in keys:
            word = key if key.endswith(".*") else f"{key}={_shown(_at(config, key))}"
            lines += _entry(word, told[key], width, KEYS)
    return "\n".join([*lines, "", *_flags(width)])


def documented(job: str, config: DictConfig, choices: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Yield each key of a configuration, and what is said of it (empty: nothing)."""
    comments = _comments(conf_files.conf_dir() / f"{job}.yaml", "")
    for group, option in choices.items():
        if option is not None:
            comments |= _of_option(group, option)
    for key, docstring in _keys(config, ""):
        if key not in NAMES:
            yield key, comments.get(key.removesuffix(".*")) or docstring


def _keys(config: DictConfig, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield keys and their docstrings; of a mapping that a library reads its items too."""
    told = _docstrings(OmegaConf.get_type(config) or dict)
    for name in map(str, config):
        key = f"{prefix}{name}"
        value = None if OmegaConf.is_missing(config, name) else config._get_node(name)
        if isinstance(value, DictConfig) and dataclasses.is_dataclass(OmegaConf.get_type(value)):
            yield from _keys(value, f"{key}.")
        elif name in EXPANDED and value:
            yield f"{key}.*", told.get(name, "")
            yield from ((f"{key}.{item}", "") for item in config[name])
        else:
            yield key, told.get(name, "")


def _docstrings(kind: type) -> dict[str, str]:
    """Return the fields of a schema and the first lines of the docstrings that follow them."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(each):
            continue
        for node in ast.parse(inspect.getsource(each)).body:
            for pair in itertools.pairwise(node.body if isinstance(node, ast.ClassDef) else ()):
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                        first = said.strip().partition("\n")[0].replace("``", "").removesuffix(".")
                        found[name] = first if first[1:2].isupper() else first[:1].lower() + first[1:]
    return found


def _of_option(group: str, option: str) -> dict[str, str]:
    """Return the comments of an option, and of those of its group that it builds on."""
    path = conf_files.options(group).get(option)
    if path is None:
        return {}
    text = path.read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for item in yaml.safe_load(text).get("defaults", []):
        if isinstance(item, str) and item in conf_files.options(group):
            found |= _of_option(group, item)
    return found | _comments(path, "" if conf_files.PACKAGE in text else f"{group}.")


def _comments(path: Path, prefix: str) -> dict[str, str]:
    """Return the full keys of a YAML file and the comments behind them, or above those that have none behind."""
    text = path.read_text(encoding="utf-8")
    lines, found = text.splitlines(), dict[str, str]()

    def below(node: Any, prefix: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            block = isinstance(value, yaml.CollectionNode) and not value.flow_style
            end = (key if block else value).end_mark
            beside = re.search(r"\s# *(.*)", lines[end.line][end.column :] if end.line < len(lines) else "")
            above = itertools.takewhile(lambda line: line.lstrip().startswith("#"), lines[: key.start_mark.line][::-1])
            if said := beside[1] if beside else " ".join(line.strip(" #") for line in [*above][::-1]):
                found[f"{prefix}{key.value}"] = said.strip().removesuffix(".")
            below(value, f"{prefix}{key.value}.")

    below(yaml.compose(text), prefix)
    return found


def _headline(job: str) -> str:
    """Return what conf/JOB.yaml says in its first line."""
    return _first_line(conf_files.conf_dir() / f"{job}.yaml").partition(": ")[2]


def _first_line(path: Path) -> str:
    """Return the first comment of a file that is not Hydra's, up to its end of the sentence or the line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = itertools.takewhile(
        lambda line: line.startswith("#"), (line for line in lines if line != conf_files.PACKAGE)
    )
    return " ".join(line.lstrip("# ") for line in comment)


def _title(section: str, option: str | None, job: str, width: int) -> list[str]:
    if not section:
        return [f"keys of {job}"]
    path = conf_files.options(section).get(option or "")
    said = re.split(r"(?<=[.?])\s", _first_line(path))[0] if path else ""
    return textwrap.wrap(f"{section}={option or 'null'}: {said}", width)


def _at(config: DictConfig, key: str) -> Any:
    """Return a value with what it refers to, None and ``???`` as they are."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    return MISSING if OmegaConf.is_missing(node, name) else node[name]


def _shown(value: Any) -> str:
    """Return a value as one word of the command line."""
    if isinstance(value, Enum):
        return value.name
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    if isinstance(plain, str):
        return plain
    found = yaml.safe_dump(plain, default_flow_style=True, width=10_000, sort_keys=False).removesuffix("...\n").strip()
    return found if len(found) <= LONGEST else f"{found[: LONGEST - 1]}…"


def _flags(width: int) -> list[str]:
    return ["flags", *(line for flag, what in FLAGS.items() for line in _entry(flag, what, width, 27))]


def _entry(word: str, what: str, width: int, column: int) -> list[str]:
    """Return a word and what is said of it from a column on, below it where it is longer."""
    said = textwrap.wrap(what, width - column) or [""]
    head = f"  {word}"
    if len(head) > column - 2 and what:
        return [head, *(" " * column + line for line in said)]
    return [f"{head:<{column}}{said[0]}".rstrip(), *(" " * column + line for line in said[1:])]


def _width() -> int:
    return min(max(shutil.get_terminal_size().columns - 1, LEAST), MOST)
