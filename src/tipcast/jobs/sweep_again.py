"""What a command line may change of a sweep that it takes up: anything else is refused rather than left unread."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.config.plain import to_plain
from tipcast.config.schema_sweep import SweepConfig

ITS_OWN = ("data", "task", "model", "search", "seed")
"""Parts of the configuration that a sweep has from its first run."""
GROWING = ("random", "tpe")
"""Searches of which a longer one begins with the trials of a shorter."""
FREE = ("attempts", "trials_per_gpu", "trial_timeout_s")
"""Keys of a search that no trial's result depends on."""


def gone_on(given: SweepConfig, own: SweepConfig, command: str) -> SweepConfig:
    """Return a sweep's own configuration with what the command line may change of it.

    Parameters
    ----------
    given
        What the command line composes.
    own
        With the data, task, model, search and seed of the sweep's first run.
    command
        The command line.

    Raises
    ------
    TipcastError
        C003 for an override that would be of no effect.

    """
    changes: dict[str, Any] = {}
    for key in [word.lstrip("+~").partition("=")[0] for word in shlex.split(command)[2:]]:
        root, _, name = key.partition(".")
        if root not in ITS_OWN or key.startswith("data.storage_options"):
            continue
        if root == "search" and name in FREE:
            changes[name] = getattr(given.search, name)
        elif (said := _at(given, key)) != (was := _at(own, key)):
            if key != "search.trials" or own.search.name not in GROWING or not said or said < (was or 0):
                raise TipcastError("C003", key, f"the sweep has {was}, and a resumed one keeps it", _fix(own, key))
            changes[name] = said
    return dataclasses.replace(own, search=dataclasses.replace(own.search, **changes))


def grown(command: str, trials: int | None) -> str:
    """Return the command line of a sweep with another number of trials."""
    words = [word for word in shlex.split(command) if word.lstrip("+").partition("=")[0] != "search.trials"]
    return shlex.join([*words, f"search.trials={trials}"])


def _at(config: SweepConfig, key: str) -> Any:
    """Return what a configuration has at a key; of a whole group what it is called."""
    found: Any = to_plain(config)
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if "." not in key and isinstance(found, Mapping):
        return found.get("name") or found.get("source")
    return found


def _fix(own: SweepConfig, key: str) -> str:
    if key == "search.trials" and own.search.name in GROWING:
        return "set it to more, or leave it out"
    return "leave it out, or start a new sweep"
