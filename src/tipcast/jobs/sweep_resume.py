"""Resuming a sweep: what it was, what of it is done, what may change, and that nobody else works on it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import SweepConfig
from tipcast.config.plain import restored, to_plain
from tipcast.jobs.run_context import PreviousRun, previous_run, without_keys
from tipcast.jobs.sweep_plan import FREE, GROWING, given_keys, identity
from tipcast.jobs.train_plan import Plan
from tipcast.tracking.children import Child, Children
from tipcast.tracking.facts import CONFIG

LOG = logging.getLogger("tipcast")

STUDY = "sweep.study"
"""Tag that a sweep is resumed by."""
KEPT = ("data", "task", "model", "search", "seed")
"""Parts of the configuration that a sweep keeps from its first run."""


@dataclass(frozen=True)
class PreviousSweep:
    """What the earlier processes of a sweep left."""

    previous: PreviousRun
    config: SweepConfig
    plain: Mapping[str, Any]
    """Its configuration as it was written."""
    children: list[Child]
    """By number and attempt."""

    def command(self, config: SweepConfig, command: str) -> str:
        """Return the command line that repeats the whole of the sweep, which may have more trials now."""
        first = self.previous.tags.get("command") or command
        if config.search.trials == self.config.search.trials:
            return first
        return f"{without_keys(first, 'search.trials')} search.trials={config.search.trials}"

    def study(self, plan: Plan) -> str:
        """Return the digest that its trials are named by; S003 where data or configuration are others now."""
        study = str(self.previous.tags.get(STUDY, ""))
        if identity(self.plain, plan) != study:
            what = "its data or its configuration are not what they were"
            raise TipcastError("S003", self.previous.run.id, what, "put the data back, or start a new sweep")
        return study


@contextlib.contextmanager
def load_previous_sweep(config: SweepConfig) -> Iterator[PreviousSweep]:
    """Hold the lease of the sweep that the command line names, and close what its last process left open."""
    if not config.resume:
        raise TipcastError("C003", "resume", "names no run", "write resume=RUN, or leave it out to begin a sweep")
    with previous_run(config.tracking, config.resume, "sweep") as previous:
        run = previous.run
        text = Path(run.client.download_artifacts(run.id, CONFIG)).read_text(encoding="utf-8")
        own = restored(text, config, f"run {run.id}")
        children = Children(run)
        if killed := children.close_open("the sweep's process was gone"):
            LOG.info("%d trials were left open: closed as KILLED", killed)
        yield PreviousSweep(previous, own, yaml.safe_load(text), children.found())


def apply_overrides(given: SweepConfig, own: SweepConfig, command: str) -> SweepConfig:
    """Return a sweep's own configuration with what the command line, which composes ``given``, may change of it."""
    changes: dict[str, Any] = {}
    for key in given_keys(command):
        root, _, name = key.partition(".")
        if root not in KEPT or key.startswith("data.storage_options"):
            continue
        value, was = _at(given, key), _at(own, key)
        if (root == "search" and name in FREE) or (_grows(own, key) and value and value >= (was or 0)):
            changes[name] = value
        elif value != was:
            fix = "set it to more, or leave it out" if _grows(own, key) else "leave it out, or start a new sweep"
            raise TipcastError("C003", key, f"the sweep has {was}, and a resumed one keeps it", fix)
    return dataclasses.replace(own, search=dataclasses.replace(own.search, **changes))


def _grows(own: SweepConfig, key: str) -> bool:
    return key == "search.trials" and own.search.name in GROWING


def _at(config: SweepConfig, key: str) -> Any:
    """Return what a configuration has at a key; of a whole group what it is called."""
    found: Any = to_plain(config)
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if "." not in key and isinstance(found, Mapping):
        return found.get("name") or found.get("source")
    return found
