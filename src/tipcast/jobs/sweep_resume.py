"""Taking up a sweep that was stopped: what it was, what of it is done, and that nobody else works on it."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tipcast.config.errors import TipcastError
from tipcast.config.schema_sweep import SweepConfig
from tipcast.config.stored import restored
from tipcast.measure.origin import versions
from tipcast.search.proposals import Proposal
from tipcast.search.trial import SCORE, Trial
from tipcast.tracking.abandoned import RUNGS
from tipcast.tracking.children import KEY, Child, Children, sweep_run
from tipcast.tracking.facts import Facts, facts
from tipcast.tracking.lease import Lease, leased
from tipcast.tracking.run import Run
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")

ROUNDS, OVER, WORKER, STUDY = "trial.rounds", "trial.over", "trial.worker", "sweep.study"
"""Tags that a trial or its sweep is taken up by."""
TRACKING = "sweep/tracking_seconds"


@dataclass(frozen=True)
class Earlier:
    """A sweep's earlier run."""

    config: SweepConfig
    run_id: str
    study: str
    known: Mapping[int, Trial]
    """Trials that have ended well."""
    runs: Mapping[int, str]
    """Trial -> the child run that has its results."""
    attempts: Mapping[int, int]
    """Trial -> how often it was begun."""
    begun: list[Proposal]
    """Trials that were proposed, whatever came of them."""
    lease: Lease
    command: str
    """That the sweep was begun with: it repeats the whole of it."""
    tracking_s: float
    """Seconds that went into recording."""
    remarks: list[str]
    """What else was another when its trials were fitted."""

    def check(self, identity: str) -> None:
        """Refuse to mix trials of different studies."""
        if identity != self.study:
            raise TipcastError(
                "S003",
                self.run_id,
                "its data or its search are not what they were",
                "put the data back, or start a new sweep",
            )


@contextlib.contextmanager
def taken_up(config: SweepConfig) -> Iterator[Earlier]:
    """Hold a sweep's lease; close what its last process left open.

    Raises
    ------
    TipcastError
        C003 no run is named, S002 another process works on it, S003 no sweep or one that cannot be gone on
        with, T-errors of the store.

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
            children = Children(Run(run_id, run.info.experiment_id, store, client))
            found = children.found()
            _close_open(children, found)
            done = {child.number: child for child in found if child.status == "FINISHED" or _rests(child)}
            proposals = {child.number: Proposal(child.number, child.params) for child in found}
            yield Earlier(
                config=restored(text, config, f"run {run_id}"),
                run_id=run_id,
                study=run.data.tags.get(STUDY, ""),
                known={number: _trial(child) for number, child in done.items()},
                runs={number: child.run_id for number, child in done.items()},
                attempts={child.number: child.attempt for child in found},
                begun=[proposals[number] for number in sorted(proposals)],
                lease=lease,
                command=run.data.tags.get("command", ""),
                remarks=_remarks(run.data.tags.get("device", ""), config.backend.name, facts(client, run_id)),
                tracking_s=run.data.metrics.get(TRACKING, 0.0),
            )


def _close_open(children: Children, found: list[Child]) -> None:
    """Close what a process left open that was killed outright."""
    for child in found:
        if child.status == "RUNNING":
            children.open[child.number] = child.run_id
            if _rests(child):
                children.rest(child.number)
            else:
                children.kill(child.number, "the sweep's process was gone")
    left = sum(child.status == "RUNNING" and not _rests(child) for child in found)
    if left:
        LOG.info("%d trials were left open: closed as KILLED", left)


def _rests(child: Child) -> bool:
    """Tell whether a child was open for more trees alone: it has finished with those it had."""
    return child.status == "RUNNING" and RUNGS in child.tags


def _remarks(device: str, now: str, earlier: Facts) -> list[str]:
    """Say, also in the log, that trials are ranked together that other devices or libraries fitted."""
    had, has = earlier.sections["versions"], versions()
    moved = [f"{name} {had[name]}, now {has[name]}" for name in has if name in had and str(had[name]) != has[name]]
    moved += [f"backend {device}, now {now}"] if device and device != now else []
    if not moved:
        return []
    remark = f"Earlier trials were fitted with {'; '.join(moved)}: scores may differ a little for that reason alone."
    LOG.warning(remark)
    return [remark]


def _trial(child: Child) -> Trial:
    """Return a trial as its child run tells it."""
    metrics, tags = dict(child.metrics), child.tags
    rungs = [(int(trees), float(score)) for trees, score in json.loads(tags.get(RUNGS, "[]"))]
    if rungs:  # the process may have been killed after it had written the next score and before this tag
        metrics[f"validation/{SCORE}"] = rungs[-1][1]
    return Trial(
        key=tags[KEY],
        number=child.number,
        params=child.params,
        metrics={
            name.removeprefix("validation/"): value for name, value in metrics.items() if name.startswith("validation/")
        },
        phases={name.removeprefix("seconds/"): value for name, value in metrics.items() if name.startswith("seconds/")},
        worker=tags.get(WORKER, ""),
        attempt=child.attempt,
        rounds=rungs[-1][0] if rungs else None,
        rungs=rungs[:-1],
        over=tags.get(OVER) == "true",
    )
