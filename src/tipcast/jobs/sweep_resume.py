"""Resuming a sweep: what it was, what of it is done, what may change, and that nobody else works on it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import SweepConfig
from tipcast.config.plain import restored, to_plain
from tipcast.jobs.sweep_plan import FREE, GROWING, given_keys, identity
from tipcast.measure.origin import versions
from tipcast.tracking.abandoned import RUNGS
from tipcast.tracking.children import Child, Children, sweep_run
from tipcast.tracking.facts import facts
from tipcast.tracking.lease import Lease, leased
from tipcast.tracking.run import Run
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")

STUDY, DATA = "sweep.study", "sweep.data"
"""Tags that a sweep is resumed by."""
KEPT = ("data", "task", "model", "search", "seed")
"""Parts of the configuration that a sweep keeps from its first run."""


@dataclass(frozen=True)
class PreviousSweep:
    """What the earlier processes of a sweep left."""

    config: SweepConfig
    plain: Mapping[str, Any]
    """Its configuration as it was written."""
    run_id: str
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    children: list[Child]
    """By number and attempt."""
    lease: Lease
    remarks: list[str]
    """What else was another when its trials were fitted."""

    @property
    def study(self) -> str:
        """Digest that its trials are named by."""
        return self.tags.get(STUDY, "")

    def command(self, config: SweepConfig, command: str) -> str:
        """Return the command line that repeats the whole of the sweep, which may have more trials now."""
        words = shlex.split(self.tags.get("command") or command)
        if config.search.trials != self.config.search.trials:
            words = [word for word in words if word.lstrip("+").partition("=")[0] != "search.trials"]
            words.append(f"search.trials={config.search.trials}")
        return shlex.join(words)

    @property
    def done(self) -> dict[int, Child]:
        """Trials that have ended well."""
        return {child.number: child for child in self.children if child.status == "FINISHED" or _rests(child)}

    def check(self, data: str) -> None:
        """Refuse to mix trials on different data, or of a configuration that was changed."""
        if DATA not in self.tags:  # earlier releases made their digest of other facts
            LOG.warning(
                "run %s is of an earlier release: whether its data are what they were is not known", self.run_id
            )
        elif identity(self.plain, data) != self.study:
            what = "its data or its configuration are not what they were"
            raise TipcastError("S003", self.run_id, what, "put the data back, or start a new sweep")


@contextlib.contextmanager
def load_previous_sweep(config: SweepConfig) -> Iterator[PreviousSweep]:
    """Hold the lease of the sweep that the command line names, and close what its last process left open."""
    run_id = config.resume
    if not run_id:
        raise TipcastError("C003", "resume", "names no run", "write resume=RUN, or leave it out to begin a sweep")
    store = resolve(config.tracking)
    client = open_store(config.tracking)
    with failures(store):
        run = sweep_run(client, run_id)
        with leased(client, run_id) as lease:
            text = Path(client.download_artifacts(run_id, "config.yaml")).read_text(encoding="utf-8")
            own = restored(text, config, f"run {run_id}")
            children = Children(Run(run_id, run.info.experiment_id, store, client))
            found = children.found()
            _close_open(children, found)
            device, had = run.data.tags.get("device", ""), facts(client, run_id).sections["versions"]
            remarks = _remarks(device, config.backend.name, had)
            yield PreviousSweep(
                own, yaml.safe_load(text), run_id, run.data.tags, run.data.metrics, found, lease, remarks
            )


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


def _close_open(children: Children, found: list[Child]) -> None:
    """Close what a process left open that was killed outright."""
    left = [child for child in found if child.status == "RUNNING"]
    for child in left:
        children.open[child.number] = child.run_id
        if _rests(child):
            children.rest(child.number)
        else:
            children.kill(child.number, "the sweep's process was gone")
    if killed := sum(not _rests(child) for child in left):
        LOG.info("%d trials were left open: closed as KILLED", killed)


def _rests(child: Child) -> bool:
    """Tell whether a child was open for more trees alone: it has finished with those it had."""
    return child.status == "RUNNING" and RUNGS in child.tags


def _remarks(device: str, now: str, had: Mapping[str, Any]) -> list[str]:
    """Say, also in the log, that trials are ranked together that other devices or libraries fitted."""
    has = versions()
    moved = [f"{name} {had[name]}, now {has[name]}" for name in has if name in had and str(had[name]) != has[name]]
    moved += [f"backend {device}, now {now}"] if device and device != now else []
    if not moved:
        return []
    remark = f"Earlier trials were fitted with {'; '.join(moved)}: scores may differ a little for that reason alone."
    LOG.warning(remark)
    return [remark]
