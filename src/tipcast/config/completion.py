"""Completion of words in a shell, by Hydra's own plugins: jobs, groups, options, keys and flags."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import hydra
from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.completion_plugin import CompletionPlugin
from omegaconf.errors import OmegaConfBaseException

from tipcast.config import conf_files, job_schemas
from tipcast.config.arguments import CONFIG_DIR, HYDRA_KEYS, MULTIRUN
from tipcast.config.errors import TipcastError
from tipcast.config.help import FLAGS

SHELLS = ("bash", "zsh", "fish")


def answer(words: Sequence[str]) -> None:
    """Print what `tipcast -sc install=bash` asks for: a script or, for query, how the line of COMP_LINE may go on.

    C005 other words.
    """
    what, _, shell = (words[0] if len(words) == 1 else "").partition("=")
    if what not in ("install", "uninstall", "query") or shell not in SHELLS:
        fix = "write -sc install=bash, zsh or fish, or uninstall= in its place"
        raise TipcastError("C005", "--shell-completion", "needs to know what to do and for which shell", fix)
    if what == "query":
        print("\n".join(candidates(os.environ.get("COMP_LINE", ""))))
        return
    before, sys.argv = sys.argv, ["tipcast"]  # Hydra's script names the program that it completes
    try:
        kinds: Any = Plugins.instance().discover(CompletionPlugin)
        getattr(next(kind(None) for kind in kinds if kind.provides() == shell), what)()
    finally:
        sys.argv = before


def candidates(line: str) -> list[str]:
    """Return what the last word of a command line, which may be empty, can go on as."""
    words = line.split()
    word = words.pop() if words and not line[-1].isspace() else ""
    if not words:  # the program itself
        return []
    job, *given = [item for item in words[1:] if item not in {"-v", "-q", "--verbose", "--quiet"}] or [""]
    if word.startswith("-"):
        flags = (flag for names in FLAGS for flag in re.findall(r"(?<!\S)--?[\w-]+", names))
        return sorted(flag for flag in flags if flag.startswith(word))
    if job not in job_schemas.JOBS:
        return [] if job else [name for name in job_schemas.JOBS if name.startswith(word)]
    for flag, folder in zip(given, given[1:], strict=False):
        if flag in CONFIG_DIR:
            conf_files.use(folder)
    overrides = [item for item in given if "=" in item and not item.startswith("-") or item in MULTIRUN]
    job_schemas.register()
    GlobalHydra.instance().clear()
    try:
        overrides += conf_files.search_path()
        with hydra.initialize_config_dir(str(conf_files.conf_dir()), version_base="1.3"):
            plugin = BashCompletion(GlobalHydra.instance().config_loader())
            offered = plugin._query(job, " ".join([*overrides, word]))
    except (HydraException, OmegaConfBaseException, TipcastError, SystemExit):  # of words before it
        return []
    keys = {item: item.lstrip("+~").partition("=")[0] for item in offered}
    return [item for item, key in keys.items() if not key.startswith(("hydra", "schema")) or key in HYDRA_KEYS]
