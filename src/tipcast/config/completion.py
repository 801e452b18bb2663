"""Complete the words of a command line in a shell, with what Hydra and conf/ offer."""

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from tipcast.config import conf_files, schema
from tipcast.config.arguments import FLAGS, MULTIRUN
from tipcast.config.compose import hydra_of_conf, register_schemas
from tipcast.config.errors import TipcastError, must_be
from tipcast.config.jobs import JOBS
from tipcast.config.streams import show


def complete(words: Sequence[str]) -> None:
    """Print the script for completion, or the completions of the line in COMP_LINE.

    ``words`` are ``install=bash`` or ``query=bash``. Raises C005 for others.
    """
    if words == ["query=bash"]:
        show("\n".join(candidates(os.environ.get("COMP_LINE", ""))))
    elif words == ["install=bash"]:
        kind: Any = BashCompletion
        plugin = kind(None)
        plugin._get_exec = lambda: "tipcast"  # Hydra's script names the program that it completes
        plugin.install()
    else:
        got = " ".join(words) or "nothing"
        fix = "zsh takes the same script, after bashcompinit"
        raise must_be("--shell-completion", "install=bash", got, fix, "C005")


def candidates(line: str) -> list[str]:
    """Return the completions of a command line's last word, which may be empty."""
    words = line.split()
    word = ""
    if words and not line[-1].isspace():
        word = words.pop()
    if not words:  # the program itself
        return []

    job, *arguments = [
        item for item in words[1:] if item not in {"-v", "-q", "--verbose", "--quiet"}
    ] or [""]
    if word.startswith("-"):
        return _flags(word)
    if not job:
        return [name for name in JOBS if name.startswith(word)]
    if job not in JOBS:
        return []

    offered = _hydra_candidates(job, arguments, word)
    if not offered:
        return []

    hidden = _hidden_beginnings(job)
    return [item for item in offered if not item.lstrip("+~").startswith(hidden)]


def _flags(beginning: str) -> list[str]:
    """Return the flags that begin so, in order."""
    flags = (flag for names in FLAGS for flag in re.findall(r"(?<!\S)--?[\w-]+", names))
    return sorted(flag for flag in flags if flag.startswith(beginning))


def _hydra_candidates(job: str, arguments: Sequence[str], word: str) -> list[str]:
    """Return Hydra's completions of a word after a job's arguments; none if these are wrong."""
    overrides = [
        item for item in arguments if "=" in item and not item.startswith("-") or item in MULTIRUN
    ]
    register_schemas()
    try:
        with hydra_of_conf():
            plugin = BashCompletion(GlobalHydra.instance().config_loader())
            return plugin._query(job, " ".join([*overrides, *conf_files.search_path(), word]))
    except (HydraException, OmegaConfBaseException, TipcastError, SystemExit):
        return []


def _hidden_beginnings(job: str) -> tuple[str, ...]:
    """Return the beginnings of words that Hydra offers but the job does not take."""
    hidden = ["hydra", "schema", *schema.TESTS_ONLY]
    has_task = any(field.name == "task" for field in dataclasses.fields(JOBS[job].config))
    if not has_task:
        for_a_task = conf_files.options("data").keys() - conf_files.options_without_task("data")
        hidden += [f"data={name}" for name in for_a_task]

    return tuple(hidden)
