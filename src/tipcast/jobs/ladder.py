"""`tipcast ladder`: train the same on one core, on all cores, on one GPU and on several; compare time and result."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special  # noqa: F401 - early, see train

from tipcast.compute import gpus
from tipcast.compute.cluster import CORES_PER_PROCESS, cores
from tipcast.compute.session import check as check_session
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import LadderConfig
from tipcast.config.plain import to_plain
from tipcast.config.schema import BackendSpec, ClusterSpec, LocalCluster, LocalCudaCluster, Output
from tipcast.datasets.rows import held_out_rows
from tipcast.evaluation import plots, report
from tipcast.evaluation.base import evaluator
from tipcast.evaluation.sums import Floats, Ints
from tipcast.jobs import closing
from tipcast.jobs.opening import opened
from tipcast.jobs.train import Plan, finish, make_plan, start
from tipcast.jobs.train_record import SECTIONS, Record, params
from tipcast.measure.clock import Clock
from tipcast.models import native
from tipcast.models.build import check as check_model
from tipcast.tracking import models
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")

TIMED = ("read", "fit", "evaluate")
"""Phases that a speed-up is of; a cluster's start and what is logged stand beside them."""
PICTURE, TABLE = "plots/ladder.png", "tables/ladder.json"
CENTROIDS = "plots/centroids.png"
SHOWN_ROWS = 5000
"""Test rows that the rungs' clusters are compared on."""


@dataclass(frozen=True)
class Rung:
    """Where one of the trainings runs."""

    device: str
    """``cpu`` or ``gpu``."""
    size: int
    """Cores or GPUs."""
    cluster: ClusterSpec
    lack: str = ""
    """Why it cannot run here; empty where it can."""

    @property
    def name(self) -> str:
        """As ``2 cores``; keys of metrics have an underscore for the space."""
        return f"{self.size} {'core' if self.device == 'cpu' else 'GPU'}{'s' * (self.size > 1)}"

    @property
    def key(self) -> str:
        """As ``cores_2``."""
        return f"{'cores' if self.device == 'cpu' else 'gpus'}_{self.size}"


@dataclass(frozen=True)
class Shown:
    """Test rows that clusters are compared on."""

    x: Floats
    """(rows, features)"""
    groups: Ints | None
    """(rows,) of the groups that rows were made of; None where nothing is known of such."""


@dataclass(frozen=True)
class Climbed:
    """A training that has run."""

    rung: Rung
    run_id: str
    seconds: Mapping[str, float]
    headline: float
    """Of the test rows."""
    labels: Ints | None = None
    """(rows,) clusters of ``Shown``."""
    adjusted_rand: float | None = None
    """Of these labels and the groups that the rows were made of."""

    @property
    def job_s(self) -> float:
        """Seconds of reading, fitting and evaluating."""
        return sum(self.seconds[name] for name in TIMED)


def run(config: LadderConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says, or raise the first error of a rung after all have run."""
    plan = make_plan(config)
    steps = rungs(config, plan.task.kind)
    runnable = [step for step in steps if not step.lack]
    if not runnable:
        raise TipcastError("C003", "cores, gpus", f"nothing to run: {steps[0].lack}", "name what this machine has")
    known = params(config, [name for name in SECTIONS if name not in ("backend", "cluster")])
    shown = rows_shown(plan) if plan.task.kind == "clustering" else None
    climbed: list[Climbed] = []
    failed: dict[str, TipcastError] = {}
    with ExitStack() as stack:
        parent = stack.enter_context(
            opened(config, command, job="ladder", name=f"ladder of {config.model.name}", params=known)
        )
        parent.set_tags({"data.digest": plan.train.digest, "data.test_digest": plan.test.digest})
        for step in runnable:
            LOG.info("%-9s%s", "rung", step.name)
            with temporary_folder() as folder:
                try:
                    climbed.append(climb(step, config, plan, command, parent, folder, shown))
                except TipcastError as problem:
                    LOG.warning("%s: %s", step.name, problem)
                    failed[step.name] = problem
        if not climbed:
            raise next(iter(failed.values()))
        missing = {step.name: step.lack for step in steps if step.lack}
        missing |= {name: str(problem) for name, problem in failed.items()}
        found = record(parent, config, plan, climbed, missing, command)
        if shown is not None:
            subtitle = f"{config.model.name}, {len(shown.x):,} of the {plan.test.name} to test on"
            report.log_figure(parent.log_bytes, drawn(shown, climbed, subtitle), CENTROIDS)
    result = {
        "run_id": parent.id,
        "experiment_id": parent.experiment_id,
        "run": parent.link,
        "rungs": found,
        "not_run": missing,
        "metrics": {f"speedup/{each.rung.key}": row["speed_up"] for each, row in zip(climbed, found, strict=True)},
        "command": command,
    }
    words = {row["rung"]: f"{row['job_s']:.2f} s, {row['speed_up']:.2f} x, {row['verdict']}" for row in found}
    closing.say(result if config.print is Output.json else {**result, "rungs": words}, config.print)
    if failed:
        raise next(iter(failed.values()))
    return result


def rungs(config: LadderConfig, kind: str) -> list[Rung]:
    """Return what is asked for, by default one and all of this machine's cores and GPUs, with what it lacks."""
    there = len(gpus.visible())
    sizes = {
        "cpu": config.cores if config.cores is not None else sorted({1, cores()}),
        "gpu": config.gpus if config.gpus is not None else sorted({1, max(there, 2)}),
    }
    if not isinstance(config.cluster, LocalCluster | LocalCudaCluster):
        what = f"a ladder runs on this machine, not on cluster={config.cluster.kind}"
        raise TipcastError("C003", "cluster.kind", what, "leave cluster out, or use train on that cluster")
    steps: list[Rung] = []
    for device, name in (("cpu", "cores"), ("gpu", "gpus")):
        for size in sorted(set(sizes[device])):
            if size < 1:
                raise TipcastError("C003", name, f"must be at least 1, got {size}", "use 1 or more")
            cluster = _cluster(config.cluster, device, size)
            steps.append(Rung(device, size, cluster, _lack(config, kind, device, size, cluster, there)))
    if not steps:
        raise TipcastError("C003", "cores, gpus", "no rung is asked for", "use cores=[1,2] or gpus=[1]")
    return steps


def _cluster(given: ClusterSpec, device: str, size: int) -> ClusterSpec:
    """Return the cluster of some cores or GPUs: one process for a core, several that train together for more."""
    if device == "gpu":
        spec = given if isinstance(given, LocalCudaCluster) else LocalCudaCluster("local_cuda")
        return dataclasses.replace(spec, n_workers=size)
    local = given if isinstance(given, LocalCluster) else LocalCluster("local")
    even = (many for many in range(min(size, 2), size + 1) if size % many == 0)
    workers = next(many for many in even if size // many <= CORES_PER_PROCESS)
    return dataclasses.replace(local, n_workers=workers, threads_per_worker=size // workers, processes=True)


def _lack(config: LadderConfig, kind: str, device: str, size: int, cluster: ClusterSpec, there: int) -> str:
    """Return why a rung cannot run on this machine or with this model; empty where it can."""
    if device == "cpu" and size > cores():
        return f"the machine has {cores()} cores"
    if device == "gpu" and size > there:
        return f"the machine has {there or 'no'} GPU{'s' * (there > 1)}"
    try:
        check_session(BackendSpec(device), cluster)
        check_model(config.model, device, categorical=config.task.categorical, kind=kind)
    except TipcastError as problem:
        if problem.code in {"C002", "C010", "K006", "K007"}:  # there is none such; other mistakes are every rung's
            return problem.what
        raise
    return ""


def rows_shown(plan: Plan) -> Shown:
    """Read the first test rows, with the groups that they were made of where the dataset tells."""
    group = None
    with suppress(TipcastError):  # a table's or trips' columns are what they are
        group = plan.dataset.target_column(None, None).name
    task = plan.task if group is None else dataclasses.replace(plan.task, columns=(group,))
    recipe = dataclasses.replace(plan.test_recipe, task=task)
    columns, _ = held_out_rows(plan.test.fragments[0], recipe, plan.train.facts, SHOWN_ROWS)
    x = plan.dataset.compute(columns, plan.task.features, np)
    return Shown(np.asarray(x, dtype=np.float64), None if group is None else columns[group].astype(np.int64))


def climb(
    step: Rung, config: LadderConfig, plan: Plan, command: str, parent: Run, folder: Path, shown: Shown | None
) -> Climbed:
    """Train on a rung, as a child run of the parent."""
    tracking = dataclasses.replace(config.tracking, run_name=None, register=None)
    own = dataclasses.replace(config, backend=BackendSpec(step.device), cluster=step.cluster, tracking=tracking)
    clock = Clock()
    with ExitStack() as stack:
        repeat = _repeat(command, step)
        run = stack.enter_context(opened(own, repeat, job="train", name=step.name, params=params(own), parent=parent))
        record = Record(run, own, plan, repeat, folder)
        workers = start(stack, record, clock, always_warm=True)  # libraries load before the clock runs
        said = finish(workers, record, clock)
    found = Climbed(step, run.id, dict(clock.seconds), said["metrics"][f"test/{record.judge.headline.name}"])
    if shown is None:
        return found
    with temporary_folder() as place:
        fetched = models.fetch(run.client, said["model_uri"], place, parse=False)
        labels = native.load(fetched.path, fetched.format).score(shown.x.astype(np.float32))[:, 0].astype(np.int64)
    if shown.groups is None:
        return dataclasses.replace(found, labels=labels)
    from sklearn.metrics import adjusted_rand_score  # of clusterings only

    return dataclasses.replace(found, labels=labels, adjusted_rand=float(adjusted_rand_score(shown.groups, labels)))


def _repeat(command: str, step: Rung) -> str:
    """Return the command that trains on a rung alone."""
    words = [word for word in shlex.split(command)[2:] if word.partition("=")[0] not in {"cores", "gpus", "tolerance"}]
    cluster = to_plain(step.cluster)
    sizes = [f"cluster.{name}={cluster[name]}" for name in ("n_workers", "threads_per_worker") if name in cluster]
    return shlex.join(["tipcast", "train", *words, f"cluster={step.cluster.kind}", f"backend={step.device}", *sizes])


def compared(climbed: Sequence[Climbed], headline: str, tolerance: float) -> list[dict[str, Any]]:
    """Return a row of each rung: seconds, speed-up, efficiency, and whether it agrees with the first one.

    Two agree where their headlines do and, of clusters of rows made of known groups, their adjusted Rand indices.

    Speed-up is against the first rung that ran; efficiency is that against the first of the same device, by size.
    """
    first = climbed[0]
    rows: list[dict[str, Any]] = []
    for each in climbed:
        alike = next(other for other in climbed if other.rung.device == each.rung.device)
        difference = abs(each.headline - first.headline) / (abs(first.headline) or 1.0)
        rand = {} if each.adjusted_rand is None else {"adjusted_rand": each.adjusted_rand}
        apart = max(difference, abs((each.adjusted_rand or 0.0) - (first.adjusted_rand or 0.0)))
        rows.append(
            {
                "rung": each.rung.name,
                **{f"{name}_s": each.seconds[name] for name in ("cluster", *TIMED)},
                "job_s": each.job_s,
                "fit_speed_up": first.seconds["fit"] / (each.seconds["fit"] or 1e-9),
                "speed_up": first.job_s / each.job_s,
                "efficiency": alike.job_s * alike.rung.size / (each.job_s * each.rung.size),
                headline: each.headline,
                **rand,
                "difference": difference,
                "verdict": "equal" if apart <= tolerance else "NOT equal",
                "run": each.run_id,
            }
        )
    return rows


def record(
    parent: Run, config: LadderConfig, plan: Plan, climbed: Sequence[Climbed], missing: Mapping[str, str], command: str
) -> list[dict[str, Any]]:
    """Record what the rungs took and whether they agree; return a row of each."""
    headline = evaluator(plan.task.kind).headline
    rows = compared(climbed, headline.name, config.tolerance)
    metrics: dict[str, float] = {}
    for each, row in zip(climbed, rows, strict=True):
        metrics |= {f"seconds/{each.rung.key}_{name}": each.seconds[name] for name in TIMED}
        metrics[f"speedup/{each.rung.key}"] = row["speed_up"]
        metrics[f"efficiency/{each.rung.key}"] = row["efficiency"]
        metrics[f"difference/{each.rung.key}"] = row["difference"]
        if each.adjusted_rand is not None:
            metrics[f"adjusted_rand/{each.rung.key}"] = each.adjusted_rand
    parent.log_metrics(metrics)
    verdict = "equal" if all(row["verdict"] == "equal" for row in rows) else "NOT equal"
    parent.set_tags({"ladder.verdict": verdict, **{f"ladder.not_run.{name}": why for name, why in missing.items()}})
    parent.log_table({name: [row[name] for row in rows] for name in rows[0]}, TABLE)
    subtitle = f"{config.model.name}, {plan.train.name}, {plan.periods['train']}"
    seconds = {row["rung"]: {name: row[f"{name}_s"] for name in TIMED} for row in rows}
    report.log_figure(parent.log_bytes, plots.ladder(seconds, subtitle), PICTURE)
    rand = ["adjusted Rand"] if climbed[0].adjusted_rand is not None else []
    head = ["where", *(f"{name}, s" for name in TIMED), "speed-up", "efficiency", headline.title, *rand, "agreement"]
    lines = [
        [
            row["rung"],
            *(f"{row[f'{name}_s']:.2f}" for name in TIMED),
            f"{row['speed_up']:.2f} x",
            f"{row['efficiency']:.2f}",
            report.number(row[headline.name]),
            *(f"{row['adjusted_rand']:.4f}" for _ in rand),
            row["verdict"],
        ]
        for row in rows
    ]
    lines += [[name, *[""] * (len(head) - 2), f"not run: {why}"] for name, why in missing.items()]
    remark = (
        f"**{verdict}**: {headline.title} of the same test rows within {config.tolerance:g} of the first rung's, in "
        f"proportion. Speed-up: {', '.join(TIMED)} of the first rung by those of this one, without the cluster's start "
        "and what is logged. Efficiency: speed-up against the smallest rung of the same device, by cores or GPUs."
    )
    if rand:
        remark += " Adjusted Rand: of clusters and the groups that the rows were made of, within as much too."
    pictures = [
        report.plot(parent.id, name) for name in (PICTURE, *([CENTROIDS] if climbed[0].labels is not None else []))
    ]
    parent.note("\n\n".join([report.table(head, lines), remark, *pictures, report.repeat(command)]))
    return rows


def drawn(shown: Shown, climbed: Sequence[Climbed], subtitle: str) -> bytes:
    """Draw the rows that clusters are compared on and each rung's centroids, on two principal components."""
    from sklearn.decomposition import PCA

    deviations = shown.x.std(axis=0)
    z = (shown.x - shown.x.mean(axis=0)) / np.where(deviations > 0, deviations, 1.0)
    components = PCA(min(2, *z.shape), random_state=0).fit(z)
    shares = np.zeros(2)
    shares[: components.n_components_] = np.nan_to_num(components.explained_variance_ratio_)

    def placed(points: Floats) -> Floats:  # of one feature the second component is nothing
        found: Floats = np.zeros((len(points), 2))
        found[:, : components.n_components_] = components.transform(points)
        return found

    centres = {
        each.rung.name: placed(np.stack([z[each.labels == label].mean(axis=0) for label in np.unique(each.labels)]))
        for each in climbed
        if each.labels is not None
    }
    groups = None if shown.groups is None else shown.groups.tolist()
    return plots.centroids(placed(z), groups, centres, shares.tolist(), subtitle)
