"""Completion of words in a shell, by Hydra's own plugins: jobs, groups, options, keys and their values, flags."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.completion_plugin import CompletionPlugin
from omegaconf.errors import OmegaConfBaseException

from tipcast.config import conf_files, job_schemas
from tipcast.config.arguments import CONFIG_DIR, HYDRA_KEYS, INFO, MULTIRUN, SHOWN
from tipcast.config.errors import TipcastError
from tipcast.config.help import FLAGS
from tipcast.config.schema import Output

SHELLS = ("bash", "zsh", "fish")
WHAT = ("install", "uninstall", "query")
VALUES = {"--cfg": SHOWN, "-c": SHOWN, "--info": INFO, "-i": INFO}
"""Flag -> words that may follow it."""


def answer(words: Sequence[str]) -> str:
    """Return what `tipcast -sc install=bash` prints: a script, or (query) what the line of COMP_LINE may go on as.

    Raises
    ------
    TipcastError
        C005 for other words.

    """
    what, _, shell = (words[0] if len(words) == 1 else "").partition("=")
    if what not in WHAT or shell not in SHELLS:
        fix = "write -sc install=bash, zsh or fish, or uninstall= in its place"
        raise TipcastError("C005", "--shell-completion", "needs to know what to do and for which shell", fix)
    if what == "query":
        return "\n".join(candidates(os.environ.get("COMP_LINE", ""), shell))
    before, sys.argv = sys.argv, ["tipcast"]  # Hydra's script names the program that it completes
    try:
        return _ask(shell, what)
    finally:
        sys.argv = before


def candidates(line: str, shell: str = "bash") -> list[str]:
    """Return what the last word of a command line, which may be empty, can go on as."""
    words = line.split()
    word = words.pop() if words and not line[-1].isspace() else ""
    if not words:  # the program itself
        return []
    given = [each for each in words[1:] if each not in {"-v", "-q", "--verbose", "--quiet"}]
    if given and given[-1] in VALUES:
        return [value for value in VALUES[given[-1]] if value.startswith(word)]
    if word.startswith("-"):
        flags = (flag for names in FLAGS for flag in re.findall(r"(?<!\S)--?[\w-]+", names))
        return sorted(flag for flag in flags if flag.startswith(word))
    if not given:
        return [job for job in job_schemas.JOBS if job.startswith(word)]
    if given[0] not in job_schemas.JOBS:
        return []
    if word.startswith("print="):
        return [each for each in (f"print={form.value}" for form in Output) if each.startswith(word)]
    overrides = [each for each in given[1:] if "=" in each and not each.startswith("-") or each in MULTIRUN]
    for flag, folder in zip(given, given[1:], strict=False):
        if flag in CONFIG_DIR:
            os.environ[conf_files.OWN] = str(Path(folder).expanduser().absolute())
    try:
        overrides += conf_files.search_path()
        found = _ask(shell, "query", given[0], " ".join(["tipcast", *overrides, word]))
    except (HydraException, OmegaConfBaseException, TipcastError, SystemExit):  # of words before it
        return []
    return [each for each in found.split() if _offered(each)]


def _offered(word: str) -> bool:
    """Tell whether a word is of ours, not of Hydra's own configuration, of which few keys may be set."""
    key = word.lstrip("+~").partition("=")[0]
    return not key.startswith(("hydra", "schema")) or key in HYDRA_KEYS


def _ask(shell: str, what: str, job: str | None = None, line: str = "") -> str:
    """Return what Hydra's plugin for a shell prints."""
    job_schemas.register()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_files.conf_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        kinds: Any = Plugins.instance().discover(CompletionPlugin)
        plugin = next(kind(loader) for kind in kinds if kind.provides() == shell)
        said, before = io.StringIO(), os.environ.get("COMP_LINE", "")
        os.environ["COMP_LINE"] = line
        try:
            with contextlib.redirect_stdout(said):
                plugin.query(job) if what == "query" else getattr(plugin, what)()
        finally:
            os.environ["COMP_LINE"] = before
    return said.getvalue()
