"""Tables of results in README, CONTRIBUTING and docs, between the markers `<!-- table: NAME -->`
and `<!-- end -->`.

    python benchmarks/table.py            # what the tables say
    python benchmarks/table.py --write    # writes them into the pages
    # results that are missing, or older than a change of what they measure
    python benchmarks/table.py --stale

A result that was measured in a changed tree, or does not name its commit, is refused.
"""

from __future__ import annotations

import ast
import csv
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from harness import RESULTS, ROOT, git

Result = dict[str, Any]
MISSING = "not measured"
MARKED = re.compile(r"<!-- table: (\w+) -->\n(?:(?!<!-- )[^\n]*\n)*<!-- end -->")
JOB = ("jobs", "compute", "datasets", "models", "evaluation", "tracking", "measure")
SEARCH = ("search", "compute", "datasets", "models", "jobs/sweep.py", "jobs/sweep_plan.py")
FIT = ("compute", "models")
XGBOOST = (
    "models/xgboost.py",
    "models/xgboost_fit.py",
    "models/xgboost_callbacks.py",
    "models/xgboost_workers.py",
)
HEALING = ("models/fit.py", "models/healing.py", "models/checkpoints.py", *XGBOOST, "compute")
RESUME = ("jobs/train_resume.py", "tracking/checkpoints.py")
SOURCES: dict[str, tuple[str, ...]] = {
    "binned_auc": ("evaluation",),
    "read_prepare": (
        "datasets",
        "compute/session.py",
        "compute/cluster.py",
        "compute/local_cluster.py",
    ),
    "xgboost_dask": ("models", "compute/forkserver.py"),
    "train_job": JOB,
    "tracked_job": (
        *JOB,
        "config",
        "cli.py",
        "../../benchmarks/by_hand.py",
        "../../benchmarks/by_mlflow.py",
    ),
    "growth_cpu": JOB,
    "growth_gpu_1": JOB,
    "growth_gpu_2": JOB,
    "growth_gpu_1_random_forest": JOB,
    "growth_gpu_2_random_forest": JOB,
    "nodes_2": JOB,
    "network_2": ("../../examples/network_ddp.py", "datasets"),
    "forest_shares": (),
    "scoring": (*JOB, "scoring"),
    "tracking": ("tracking/run.py", "tracking/store.py", "tracking/batches.py"),
    "sweep_tracking": ("tracking", "jobs/sweep_record.py", *SEARCH),
    "busy_cores": ("compute/forkserver.py",),
    "sweep": SEARCH,
    "folds": (*SEARCH, "jobs/cross_validation.py", "evaluation"),
    "halving": SEARCH,
    "real_trips": ("datasets", "models", "evaluation"),
    "sweep_real": ("datasets", "models", "evaluation", "search"),
    "card_trips": ("datasets", "models", "evaluation", "search", "tasks"),
    "outside": ("datasets", "models", "evaluation", "tasks"),
    "other_tables": (
        "datasets",
        "models",
        "evaluation",
        "tasks",
        "scoring",
        "tracking/model_code",
        "jobs/cross_validation.py",
        "jobs/out_of_fold.py",
        "../../benchmarks/by_sklearn.py",
        "../../benchmarks/other_folds.py",
        "../../benchmarks/package_tables.py",
        "../../benchmarks/score_ways.py",
    ),
    "gbm_perf_cpu": JOB,
    "gbm_perf_gpu": JOB,
    "multirun": (*JOB, "config", "api.py", "cli.py"),
    "serving": ("tracking/model_code", "datasets/taxi/features.py"),
    "carried": (*FIT, "tracking/model_code"),
    "gpu_train_1": JOB,
    "gpu_train_2": JOB,
    "gpu_fit_1": FIT,
    "gpu_fit_2": FIT,
    "gpu_sweep_1": SEARCH,
    "gpu_sweep_2": SEARCH,
    "gpu_scoring": (*JOB, "scoring"),
    "gpu_beyond": (*FIT, "jobs/placement.py", "datasets/prepare.py"),
    "forest_apart": ("models", "datasets/rows.py"),
    "nccl_2": FIT,
    "ladder_1": JOB,
    "ladder_2": JOB,
    "lost_worker_cpu": (),
    "lost_worker_gpu": (),
    "killed_worker_cpu": HEALING,
    "killed_worker_gpu": HEALING,
    "killed_driver_cpu": (*HEALING, *RESUME),
    "killed_driver_gpu": (*HEALING, *RESUME),
    "checkpoint_cost_cpu": ("models/checkpoints.py", "models/healing.py", *RESUME),
    "checkpoint_cost_gpu": ("models/checkpoints.py", "models/healing.py", *RESUME),
    "dead_tracker": ("tracking", "jobs/replay.py"),
    "gpu_tests_1": (*JOB, "scoring", "search", "tasks"),
    "gpu_tests_2": (*JOB, "scoring", "search", "tasks"),
    "suite": ("../../tests",),
    "earlier": (*JOB, "scoring", "search"),
}
"""Result -> what it speaks of, from src/tipcast."""
BESIDE = (
    "jobs/ladder.py",
    "jobs/ladder_plan.py",
    "jobs/ladder_record.py",
    "datasets/made.py",
    "evaluation/clustering.py",
    "evaluation/plots",
    "models/library.py",
    "models/library_class.py",
    "models/library_dask.py",
    "models/library_rows.py",
)
"""Modules of made rows, clusters and other libraries' estimators, which no benchmark of trips
runs.
"""
FILES = 8
"""Most files that are named as changed."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
OF_ALL = ("ladder_1", "ladder_2", "gpu_tests_1", "gpu_tests_2")
"""Results that speak of these too."""


class Refused(Exception):
    """A result that no page may quote."""


def read(name: str) -> Result:
    """Return a result.

    Raises
    ------
    LookupError
        Where there is none.
    Refused
        Where it, or what it was trained by, was not measured from a commit.

    """
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise LookupError(name)

    found: Result = json.loads(path.read_text(encoding="utf-8"))
    for place in (
        found["environment"],
        found["facts"].get("trained_on", {"commit": "same", "changed": False}),
    ):
        if not place["commit"] or place["changed"]:
            raise Refused(
                f"{path.name} was not measured from a commit without changes: measure it again"
            )

    return found


def gpu_names(*names: str) -> str:
    """Return the GPUs that results were measured on, as `1 H100, 2 H200`."""
    there = (
        read(name)["environment"].get("gpus")
        for name in names
        if (RESULTS / f"{name}.json").exists()
    )
    found = (
        f"{len(gpus)} {gpus[0].removeprefix('NVIDIA ').split()[0].rstrip(',')}"
        for gpus in there
        if gpus
    )
    return ", ".join(dict.fromkeys(found))


def rows(*names: str) -> list[Result]:
    """Return the rows of the results that there are."""
    return [
        row
        for name in names
        if (RESULTS / f"{name}.json").exists()
        for row in read(name)["results"]
    ]


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *body)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def held(value: float, goal: float, form: str, most: bool = True) -> str:
    """Return a goal, and whether it is met; `most`: at most it, else at least."""
    met = value <= goal if most else value >= goal
    return f"{'<=' if most else '>='} {form.format(goal)}, {'met' if met else '**missed**'}"


def million(number: int) -> str:
    """Return a number of rows."""
    return f"{number / 1e6:g}M"


@dataclass(frozen=True)
class Row:
    """A number of README's table."""

    what: str
    reference: str
    clock: str
    result: str
    value: Callable[[Result], float]
    goal: float | None = None
    form: str = "{:.2f} x"


def ratio(at: int = 0) -> Callable[[Result], float]:
    """Return how to find a comparison's ratio."""
    return lambda result: float(result["results"][at]["ratio"])


def against(name: str) -> Callable[[Result], float]:
    """Return how to find the ratio to a reference."""
    return lambda result: next(iter(_named(result, name)))["ratio"]


def _named(result: Result, name: str) -> Sequence[Result]:
    found = [row for row in result["results"] if row.get("names", ("", ""))[1] == name]
    if not found:
        raise LookupError(name)
    return found


SWEEP = "the same sweep"
PROCESS = "process, start to end"
RATIOS = (
    Row(
        "all metrics and curves of {rows} scores",
        "scikit-learn's `roc_auc_score` and `roc_curve`",
        "the calls",
        "binned_auc",
        ratio(),
        0.10,
    ),
    Row(
        "read and prepare {rows} rows",
        "`pandas.read_parquet`, six columns",
        "reading; workers up",
        "read_prepare",
        ratio(),
        0.45,
    ),
    Row(
        "the same",
        "pyarrow decoding the six columns",
        "reading; workers up",
        "read_prepare",
        ratio(1),
        1.5,
    ),
    Row(
        "memory that reading adds, all processes",
        "",
        "",
        "read_prepare",
        lambda result: result["facts"]["added_mb"],
        500,
        "{:.0f} MB",
    ),
    Row(
        "XGBoost through Dask, {rows} rows",
        "`xgboost.train`",
        "matrix and rounds; workers up",
        "xgboost_dask",
        ratio(),
        1.05,
    ),
    Row(
        "`tipcast train`, {rows} rows",
        "pandas, `xgboost.train` and scikit-learn",
        "job: read, fit, evaluate, log",
        "train_job",
        ratio(),
        1.15,
    ),
    Row("the same", "the same as a script", PROCESS, "train_job", ratio(1)),
    Row(
        "memory of that job, all processes",
        "",
        "",
        "train_job",
        lambda result: result["facts"]["peak_bytes"] / 1e9,
        None,
        "{:.1f} GB",
    ),
    Row(
        "`tipcast score`, {rows} rows, all columns kept",
        "pandas, `inplace_predict` and `to_parquet`",
        "job: read, score, write, log",
        "scoring",
        against("by hand, job"),
    ),
    Row("the same", "the same as a script", PROCESS, "scoring", against("by hand, process"), 1.0),
    Row(
        "eight configurations by `--multirun`, {rows} rows",
        "eight processes of `tipcast train`",
        "from the first process's start to the last one's end",
        "multirun",
        ratio(),
        0.5,
    ),
    Row(
        "scores of {rows} rows by a registered `xgboost`",
        "`inplace_predict`",
        "scoring, rows in memory",
        "scoring",
        against("bare library, xgboost"),
        1 / 0.9,
    ),
    Row(
        "a quarter of them by a registered `random_forest`",
        "`predict_proba`",
        "scoring, rows in memory",
        "scoring",
        against("bare library, random_forest"),
        1 / 0.9,
    ),
    Row(
        "a run in MLflow's sqlite store",
        "",
        "parameters, metrics and tags",
        "tracking",
        lambda result: result["facts"]["ms_per_trial"]["tracking.run.Run"],
        20,
        "{:.1f} ms",
    ),
    Row(
        "recording the 100 trials of a sweep there",
        "the sweep's time",
        "as they end",
        "sweep_tracking",
        lambda result: 100 * result["results"][0]["share"],
        3,
        "{:.1f} %",
    ),
    Row(
        "Fit on a busy machine with passive OpenMP waiting",
        "OpenMP's default waiting",
        "the rounds",
        "busy_cores",
        ratio(),
        0.5,
    ),
    Row(
        "Fit on an idle machine with passive OpenMP waiting",
        "OpenMP's default waiting",
        "the rounds",
        "busy_cores",
        ratio(1),
        1.05,
    ),
    Row(
        "a sweep of 16 trials, {rows} rows",
        "Optuna with `n_jobs` threads on one `QuantileDMatrix`",
        "reading, binning, trials; workers up",
        "sweep",
        against("Optuna, one matrix, n_jobs"),
        0.95,
    ),
    Row(
        SWEEP,
        "a loop that bins the rows for each trial",
        "the same; the loop's rows in memory",
        "sweep",
        against("own matrix"),
        0.8,
    ),
    Row(
        SWEEP,
        "one `xgboost.dask.train` a trial",
        "the same; its rows in memory",
        "sweep",
        against("xgboost.dask"),
        0.55,
    ),
    Row(
        SWEEP,
        "half the time of its trials one after another on one thread",
        "the same; their matrix in memory",
        "sweep",
        lambda result: against("one thread")(result) * result["facts"]["threads"],
        1.08,
    ),
    Row(
        "most memory of its worker with 1, 2 or 4 threads",
        "a process that reads, bins and fits once",
        "",
        "sweep",
        lambda result: max(
            each["ratio"] for name, each in result["facts"]["memory"].items() if "threads" in name
        ),
        1.2,
    ),
)
"""Ratios without another unit are of medians."""


def times() -> str:
    """Return the table of ratios and sizes."""
    body = []
    for row in RATIOS:
        count = "8M"
        said = MISSING
        goal = row.form.format(row.goal) if row.goal is not None else ""
        try:
            result = read(row.result)
            count = million(result["facts"].get("rows", 0))
            value = row.value(result)
            said = row.form.format(value)
            goal = held(value, row.goal, row.form) if row.goal is not None else ""
        except LookupError:
            goal = goal and f"<= {goal}"
        body.append((row.what.format(rows=count), row.reference, row.clock, said, goal))

    return table(
        ("time or memory, two CPU cores", "reference", "inside the clock", "measured", "goal"), body
    )


def auc(row: Result) -> str:
    """Return a test AUC and its interval."""
    return f"{row['test/auc']:.3f} ({row['test/auc_low']:.3f} to {row['test/auc_high']:.3f})"


def aucs() -> str:
    """Return the table of test AUCs on real trips, a row for each model."""
    found = rows("real_trips")
    head = (
        "test AUC (95 % interval: DeLong, asymptotic)",
        *dict.fromkeys(row["trips"] for row in found),
    )
    models = dict.fromkeys(row["model"] for row in found)
    return table(
        head,
        [(f"`{name}`", *(auc(row) for row in found if row["model"] == name)) for name in models],
    )


def cards() -> str:
    """Return the table of what is told of trips that are paid by card, a row for each way to train
    and months.
    """
    ways = {
        "high_tip": "`task=high_tip`: all trips",
        "high_tip_card": "`task=high_tip_card`",
        "recalibrated": "the same, calibrated by 2019-02",
        "swept": "a sweep of it, `search=tpe search.trials=64`",
    }
    body = []
    for row in rows("card_trips"):
        of_cards = row["way"] != "high_tip"
        found = f"{row['auc_card']:.3f}"
        found += " ({auc_low:.3f} to {auc_high:.3f})".format(**row) if of_cards else ""
        share = (
            "{mean_prediction:.3f}, {positive_rate:.3f}, {calibration_error:.3f}".format(**row)
            if of_cards
            else ""
        )
        body.append((row["trips"], ways[row["way"]], found, share))

    told = "mean prediction, rate of high tips, expected calibration error"
    return table(
        ("months", "trained by", "test AUC on trips paid by card (95 % interval)", told), body
    )


KEPT_GOAL = 1.05


def kept() -> str:
    """Return the table of the same commands by an earlier commit."""
    body = []
    for row in rows("earlier"):
        ours, theirs = row["medians_s"].values()
        goal = held(row["ratio"], KEPT_GOAL, "{:.2f} x") + ("" if row["enough"] else ", disturbed")
        times = (f"{theirs:.2f} s", f"{ours:.2f} s", f"{row['ratio']:.2f} x")
        body.append((f"`{row['command']}`", row["clock"], *times, goal))
    head = ("job, two cores", "clock", "before", "now", "ratio", "goal")
    return table(head, body or [(MISSING, *[""] * 5)])


COURSE_GOAL = 1e-6
"""Most that an RMSE may differ from that of the course's own lines."""


def outside() -> str:
    """Return the table of what others have published, and of the same and of our own models by
    their rules.
    """
    found: dict[str, list[Result]] = {}
    for row in rows("outside"):
        found.setdefault(row["what"], []).append(row)

    body = []
    for what, own in found.items():
        cells = {}
        course = own[0]["course"]
        for row in own:
            if row["model"] == "published":
                apart = abs(row["rmse"] - course)
                cells["published"] = (
                    f"{row['rmse']:.9f}; apart {apart:.0e} ({held(apart, COURSE_GOAL, '{:.0e}')})"
                )
            else:
                goal = "met" if row["rmse"] <= course else "**missed**"
                cells[row["model"]] = (
                    "{rmse:.3f} ({rmse_low:.3f} to {rmse_high:.3f})".format(**row) + f", {goal}"
                )

        told = (cells.get(name, "") for name in ("published", "xgboost", "random_forest"))
        body.append((what, own[0]["months"], own[0]["published"], f"{course:.9f}", *told))

    ours = (
        "`tipcast train`, the same model",
        "`xgboost` (95 % interval), goal: at most it",
        "`random_forest`, the same",
    )
    body = body or [(MISSING, *[""] * 6)]
    return table(("test RMSE", "trips", "published", "its own lines here", *ours), body)


METRIC_GOAL = 1e-9
WAYS_GOAL = 1e-6
"""Most that a metric may differ from scikit-learn's and a row's scores from each other, by the
largest value.
"""


def other_tables() -> str:
    """Return the table of packages' tables: metrics beside scikit-learn's, of the test rows and of
    folds, and ways of scoring beside each other.
    """
    packages = read("other_tables")["facts"]["packages"] if rows("other_tables") else {}
    body = []
    for row in rows("other_tables"):
        whence = f"{row['table']}, {row['package']} {packages[row['package']]}"
        size = f"{row['rows']:,} x {row['columns']}"
        form = "CSV" if row["trained_on"] == "csv" else "Parquet"
        keys = "".join(f", `{key}`" for key in row.get("keys", ()))
        asked = f"`{row['target']}`, `{row['model']}` on {form}{keys}"
        values = (f"{row['metric']} {row['run']:.9g}", f"{row['scikit_learn']:.9g}")
        apart = (
            _apart(row["metrics_apart"], METRIC_GOAL),
            *_of_folds(row),
            _apart(row["ways_apart"], WAYS_GOAL),
        )
        body.append((whence, size, asked, *values, *apart))

    head = (
        "table",
        "rows x columns",
        "target, model",
        "test metric",
        "scikit-learn's",
        "apart",
        "metrics of folds apart",
        "rows and groups on a wrong side",
        "ways of scoring apart",
    )
    return table(head, body or [(MISSING, *[""] * 8)])


def _apart(value: float, goal: float) -> str:
    return f"{value:.0e} ({held(value, goal, '{:.0e}')})"


def _of_folds(row: Result) -> tuple[str, str]:
    """Return what a table's row says of its folds; a result of before them has to be measured
    again.
    """
    folds = row.get("folds")
    if folds is None:
        return MISSING, MISSING

    wrong = sum(folds["broken"].values()) + row["rows_apart"]
    return _apart(folds["metrics_apart"], METRIC_GOAL), f"{wrong:g} ({held(wrong, 0, '{:g}')})"


def gbm_perf() -> str:
    """Return the table of the airline shape, against bare XGBoost."""
    body = []
    for device, where in (("cpu", "two cores"), ("gpu", "one GPU")):
        for row in rows(f"gbm_perf_{device}"):
            ours, bare = row["medians_s"].values()
            auc = "{test/auc:.4f} ({test/auc_low:.4f} to {test/auc_high:.4f})".format(**row)
            times = (
                f"{ours:.2f} s",
                f"{bare:.2f} s",
                f"{row['ratio']:.2f} x" + ("" if row["enough"] else ", disturbed"),
            )
            body.append(
                (where, million(row["rows"]), row["clock"], *times, auc, f"{row['bare_auc']:.4f}")
            )

    aucs = ("test AUC (95 % interval)", "of bare XGBoost")
    head = (
        "100 trees of depth 10",
        "rows",
        "clock",
        "`tipcast train`",
        "bare `xgboost.train`",
        "ratio",
        *aucs,
    )
    return table(head, body or [(MISSING, *[""] * 7)])


def swept() -> str:
    """Return the table of what a sweep gains on real trips."""
    body = [("default parameters", "", auc(rows("real_trips")[0]))]
    for row in rows("sweep_real"):
        what = f"{row['trials']} trials by `search={row['search']}`, {row['zones']}"
        body.append((what, f"{row['best']['validation/auc']:.3f}", auc(row)))
    what = "`xgboost`, yellow 2018 -> 2019-03, chosen on validation trips"
    return table((what, "validation AUC", "test AUC (95 % interval: DeLong, asymptotic)"), body)


def served() -> str:
    """Return the table of what a served model answers."""
    head = (
        "model behind `mlflow models serve`",
        "sent",
        "trips a request",
        "clients",
        "requests a second",
        "p50",
        "p99",
    )
    body = []
    for row in rows("serving"):
        cells = (f"`{row['model']}`", row["form"], f"{row['rows']:,}", str(row["clients"]))
        body.append(
            (
                *cells,
                f"{row['requests_per_s']:.0f}",
                f"{row['p50_ms']:.1f} ms",
                f"{row['p99_ms']:.1f} ms",
            )
        )

    return table(head, body)


GROWTH_GOAL = 1.05


def growth() -> str:
    """Return the table of a training's time and memory by its rows."""
    try:
        result = read("growth_cpu")
    except LookupError:
        return MISSING

    body = []
    for row in result["results"]:
        phases = (f"{row['phases_s'][name]:.2f}" for name in ("read", "fit", "evaluate"))
        peak = f"{row['memory']['worker_peak_bytes'] / 1e6:.0f} MB"
        body.append(
            (million(row["rows"]), *phases, f"{row['job_s']:.1f}", f"{row['process_s']:.1f}", peak)
        )

    slopes = result["facts"]["exponents"]
    goals = (f"{value:.2f} ({held(value, GROWTH_GOAL, '{:.2f}')})" for value in slopes.values())
    body.append(("exponent", *goals, "", "", "", ""))
    head = (
        "training rows",
        "read, s",
        "fit, s",
        "evaluate, s",
        "job, s",
        "process, s",
        "peak of a worker",
    )

    return table(head, body)


def fidelity() -> str:
    """Return the table of how close synthetic trips come to real ones."""
    with (RESULTS / "sample_fidelity.csv").open(encoding="utf-8", newline="") as file:
        head, *body = csv.reader(file)
    return table(
        head, [(what, *(f"{float(value):.4g}" for value in values)) for what, *values in body]
    )


def environments() -> str:
    """Return which versions the results of GPUs ran with, against those of requirements/gpu.txt."""
    lines = (ROOT / "requirements" / "gpu.txt").read_text(encoding="utf-8").splitlines()
    found = [read(path.stem)["environment"] for path in sorted(RESULTS.glob("gpu_*.json"))]
    locked: dict[str, str] = {}
    ran: dict[str, set[str]] = {}

    for each in found:
        for line in lines:
            if re.match(r"[a-z0-9-]+==", line):
                wanted = Requirement(line.rstrip(" \\"))
                if wanted.marker is None or wanted.marker.evaluate(
                    {"python_full_version": each["python"]}
                ):
                    locked[wanted.name.removesuffix("-cu13")] = str(wanted.specifier).removeprefix(
                        "=="
                    )
        for name, version in each["versions"].items():
            ran.setdefault(name.removesuffix("-cu13"), set()).add(version)

    names = ("cudf", "cuml", "dask-cuda", "xgboost", "treelite", "dask", "distributed", "mlflow")
    body = []
    for name in names if found else ():
        own = ran.get(name, {"?"})
        body.append(
            (
                f"`{name}`",
                locked[name],
                ", ".join(sorted(own)),
                "yes" if own == {locked[name]} else "**no**",
            )
        )

    text = table(("package", "in requirements/gpu.txt", "ran on GPUs", "the same"), body)
    for tests in (read(path.stem) for path in sorted(RESULTS.glob("gpu_tests_*.json"))):
        facts = tests["facts"]
        skipped = sum(row["outcome"] == "skipped" for row in tests["results"])
        machine = gpu_names(tests["benchmark"])
        passed = f"{facts['passed']} of {len(tests['results'])} passed"
        text += (
            f"\n\nGPU tests that see {facts['gpus']} GPU{'s' * (facts['gpus'] > 1)} of a "
            f"machine of {machine}: {passed}"
        )
        text += (
            f", {skipped} skipped (what they need, as a second GPU, was missing)" if skipped else ""
        )
        bad = [
            row["test"].rpartition("::")[2]
            for row in tests["results"]
            if row["outcome"] in ("failure", "error")
        ]
        text += f", failed: {', '.join(f'`{name}`' for name in bad)}" if bad else ""
        ended = (
            f"; ended after {facts['seconds']:.0f} s, when not all had begun: these are not "
            "counted."
        )
        text += ended if facts["cut_off"] else "."

    return text


WAITED_S = 10.0
"""Most seconds beside its patience that a job may take longer when its store is away."""


def dead_stores() -> str:
    """Return the table of what becomes of jobs whose tracking store goes away."""
    body = []
    for row in rows("dead_tracker"):
        limit_s = read("dead_tracker")["facts"]["patience_s"] + WAITED_S
        above = "hangs"
        if "above_s" in row:
            above = f"{row['above_s']:.0f} s ({held(row['above_s'], limit_s, '{:.0f} s')})"
        replayed = f"{row['replay_s']:.1f} s" if "replay_s" in row else ""
        lost = f"**{len(row['lost'])}**" if row["lost"] else "nothing"
        what = (f"`{row['job']}`, at `{row['point']}`", row["store"], row["way"])
        body.append((*what, str(row.get("exit_code")), above, replayed, lost))

    head = ("job", "store", "away", "exit code", "longer", "`tipcast replay`", "lost")
    return table(head, body or [(MISSING, *[""] * 6)])


WAYS = {
    "idle": "on an idle machine",
    "busy": "beside four busy processes",
    "nohup": "below `nohup` in a script, interrupts ignored",
    "elsewhere": "with HOME and TMPDIR elsewhere",
}
SUITE_GOAL = 6.0
SUITE_CPU_GOAL = 8.0
"""Minutes of `make test`, and of all its processes."""


def suite() -> str:
    """Return the table of whether `make test` is green, in random orders, and how long it takes."""
    body = []
    for way, what in WAYS.items():
        runs = [row for row in rows("suite") if row["way"] == way]
        goal = f"<= {SUITE_GOAL:.0f}; CPU <= {SUITE_CPU_GOAL:.0f}" if way == "idle" else ""
        if not runs:
            body.append((what, MISSING, "", "", goal))
            continue
        wall, used = (max(row[name] for row in runs) / 60 for name in ("wall_s", "cpu_s"))
        if way == "idle":
            goal = f"{held(wall, SUITE_GOAL, '{:.0f}')}; CPU {held(used, SUITE_CPU_GOAL, '{:.0f}')}"
        green = f"{sum(not row['exit_code'] for row in runs)} of {len(runs)}"
        body.append((what, green, f"{wall:.1f}", f"{used:.1f}", goal))

    return table(
        ("`make test`, two cores", "green runs", "minutes, most", "CPU minutes, most", "goal"), body
    )


def suite_folders() -> str:
    """Return the table of where the tests' time goes, as typed on an idle machine."""
    seconds = next((row["by_folder_s"] for row in rows("suite") if row["way"] == "idle"), {})
    body = [
        (f"`{name}`" if (ROOT / name).exists() else name, f"{each:.0f}")
        for name, each in seconds.items()
    ]
    body = body or [(MISSING, "")]
    return table(("folder", "seconds of its tests, fixtures included"), body)


def pages() -> list[Path]:
    """Return the pages that may hold tables."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def tables() -> dict[str, Callable[[], str]]:
    """Return the tables by the names of their markers."""
    import table_faults
    import table_folds
    import table_gpu
    import table_jobs

    own = (
        times,
        kept,
        aucs,
        cards,
        outside,
        other_tables,
        gbm_perf,
        swept,
        served,
        growth,
        fidelity,
        environments,
        dead_stores,
        suite,
        suite_folders,
    )
    of_others = table_gpu.TABLES | table_faults.TABLES | table_folds.TABLES | table_jobs.TABLES
    return {each.__name__: each for each in own} | of_others


def filled(text: str) -> str:
    """Return a page with its tables as the results are."""
    known = tables()
    return MARKED.sub(
        lambda found: f"<!-- table: {found[1]} -->\n\n{known[found[1]]()}\n\n<!-- end -->", text
    )


def script(name: str) -> str:
    """Return the script that writes a result: growth of growth_gpu_2."""
    scripts = [
        path.stem for path in Path(__file__).parent.glob("*.py") if name.startswith(path.stem)
    ]
    return "scoring" if name == "gpu_scoring" else max(scripts, key=len)


def stale(name: str) -> str:
    """Return why a result should be measured again; an empty text where it need not."""
    try:
        commit = read(name)["environment"]["commit"]
    except (LookupError, Refused) as problem:
        return f"refused: {problem}" if isinstance(problem, Refused) else "missing"

    paths = [*(f"src/tipcast/{path}" for path in SOURCES[name]), f"benchmarks/{script(name)}.py"]
    if name not in OF_ALL:
        paths += [f":(exclude)src/tipcast/{path}" for path in BESIDE]

    paths_changed = git("diff", "--name-only", commit, "HEAD", "--", *paths)
    if paths_changed is None:
        return f"measured at {commit[:7]}, which this history does not have"

    head = str(git("rev-parse", "HEAD"))
    changed = [
        path for path in paths_changed.splitlines() if _code(commit, path) != _code(head, path)
    ]
    if not changed:
        return ""

    files = [path.removeprefix("src/tipcast/") for path in changed]
    listed = ", ".join(files[:FILES])
    if more := files[FILES:]:
        listed += f" and {len(more)} more"
    return f"changed since {commit[:7]}: {listed}"


@functools.cache
def _code(commit: str, path: str) -> str | None:
    """Return a file's content at a commit, a module's without comments and docstrings; None if it
    is not there.
    """
    text = git("show", f"{commit}:{path}")
    if text is None or not path.endswith(".py"):
        return text

    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, DOCUMENTED):
            node.body = [each for each in node.body if not _is_text(each)]
    return ast.dump(module)


def _is_text(statement: ast.stmt) -> bool:
    """Tell whether a statement is a docstring, of an attribute too."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return False
    return isinstance(statement.value.value, str)


def main() -> None:
    """Print, write, or say what is old."""
    if sys.argv[1:] == ["--stale"]:
        for name in SOURCES:
            if reason := stale(name):
                print(f"{name}: {reason}")
    elif sys.argv[1:] == ["--write"]:
        for page in pages():
            text = page.read_text(encoding="utf-8")
            if (new := filled(text)) != text:
                page.write_text(new, encoding="utf-8")
                print(page.relative_to(ROOT))
    else:
        for name, each in tables().items():
            print(f"{name}\n\n{each()}\n")


if __name__ == "__main__":
    main()
