"""Resuming a sweep: what it was, what of it is done, what may change, and that nobody else works on it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import SweepConfig
from tipcast.config.plain import to_plain
from tipcast.config.stored import restored
from tipcast.jobs.sweep_plan import FREE, GROWING, given_keys, identity
from tipcast.measure.origin import versions
from tipcast.search.trial import Trial
from tipcast.tracking.abandoned import RUNGS
from tipcast.tracking.children import KEY, Child, Children, sweep_run
from tipcast.tracking.facts import facts
from tipcast.tracking.lease import Lease, leased
from tipcast.tracking.run import Run
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")

ROUNDS, OVER, WORKER, STUDY, DATA = "trial.rounds", "trial.over", "trial.worker", "sweep.study", "sweep.data"
"""Tags that a trial or its sweep is resumed by."""
TRACKING = "sweep/tracking_seconds"
KEPT = ("data", "task", "model", "search", "seed")
"""Parts of the configuration that a sweep keeps from its first run."""


@dataclass(frozen=True)
class PreviousSweep:
    """What the earlier processes of a sweep left."""

    config: SweepConfig
    run_id: str
    study: str
    plain: Mapping[str, Any]
    """Its configuration as it was written."""
    checked: bool
    """Whether ``study`` can be compared: sweeps of earlier releases made theirs of other facts."""
    done: Mapping[int, Child]
    """Trials that have ended well."""
    attempts: Mapping[int, int]
    """Trial -> how often it was begun."""
    recorded: Mapping[int, Mapping[str, Any]]
    """Trial -> its parameters, of all that were proposed, whatever came of them."""
    lease: Lease
    command: str
    """That repeats the whole of the sweep."""
    tracking_s: float
    """Seconds that went into recording."""
    remarks: list[str]
    """What else was another when its trials were fitted."""

    def trials(self, metric: str) -> dict[int, Trial]:
        """Return the trials that have ended well, ranked by a metric."""
        return {number: _trial(child, metric) for number, child in self.done.items()}

    def check(self, data: str) -> None:
        """Refuse to mix trials on different data, or of a configuration that was changed."""
        if not self.checked:
            LOG.warning(
                "run %s is of an earlier release: whether its data are what they were is not known", self.run_id
            )
        elif identity(self.plain, data) != self.study:
            raise TipcastError(
                "S003",
                self.run_id,
                "its data or its configuration are not what they were",
                "put the data back, or start a new sweep",
            )


@contextlib.contextmanager
def load_previous_sweep(config: SweepConfig) -> Iterator[PreviousSweep]:
    """Hold a sweep's lease; close what its last process left open.

    Parameters
    ----------
    config
        What the command line composes, with ``resume``.

    Raises
    ------
    TipcastError
        C003 no run is named, S002 another process works on it, S003 no sweep or one that cannot be resumed, T-errors
        of the store.

    """
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
            done = {child.number: child for child in found if child.status == "FINISHED" or _rests(child)}
            tags = run.data.tags
            yield PreviousSweep(
                config=own,
                run_id=run_id,
                study=tags.get(STUDY, ""),
                plain=yaml.safe_load(text),
                checked=DATA in tags,
                done=done,
                attempts={child.number: child.attempt for child in found},
                recorded={child.number: child.params for child in found},
                lease=lease,
                command=tags.get("command", ""),
                remarks=_remarks(
                    tags.get("device", ""), config.backend.name, facts(client, run_id).sections["versions"]
                ),
                tracking_s=run.data.metrics.get(TRACKING, 0.0),
            )


def apply_overrides(given: SweepConfig, own: SweepConfig, command: str) -> SweepConfig:
    """Return a sweep's own configuration with what the command line may change of it; refuse the rest.

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


def with_trials(command: str, trials: int | None) -> str:
    """Return the command line of a sweep with another number of trials."""
    words = [word for word in shlex.split(command) if word.lstrip("+").partition("=")[0] != "search.trials"]
    return shlex.join([*words, f"search.trials={trials}"])


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


def _trial(child: Child, metric: str) -> Trial:
    """Return a trial as its child run tells it."""
    metrics, tags = child.metrics, child.tags
    rungs = [(int(trees), float(score)) for trees, score in json.loads(tags.get(RUNGS, "[]"))]
    measured = _below("validation/", metrics)
    if rungs:  # the process may have been killed after it had written the next score and before this tag
        measured[metric] = rungs[-1][1]
    return Trial(
        key=tags[KEY],
        number=child.number,
        params=child.params,
        score=measured[metric],
        metrics=measured,
        phases=_below("seconds/", metrics),
        worker=tags.get(WORKER, ""),
        attempt=child.attempt,
        rounds=rungs[-1][0] if rungs else None,
        rungs=rungs[:-1],
        over=tags.get(OVER) == "true",
    )


def _below(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
